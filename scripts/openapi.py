#!/usr/bin/env python3
"""Writes `specs/openapi.json`, what `/openapi.json` serves; with `--check` only tells whether it is up to date."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from forkyard.e2b.app import create_app

FILE = Path(__file__).parent.parent / "specs" / "openapi.json"


def render() -> str:
    """The document as it stands in the file."""
    return json.dumps(create_app().openapi(), indent=2, ensure_ascii=False) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="change nothing; exit 1 if the file is out of date"
    )
    if parser.parse_args().check:
        if FILE.exists() and FILE.read_text(encoding="utf-8") == render():
            return 0
        print(f"{FILE.name} is out of date: run scripts/openapi.py", file=sys.stderr)
        return 1
    FILE.write_text(render(), encoding="utf-8")
    print(f"wrote {FILE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
