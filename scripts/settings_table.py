#!/usr/bin/env python3
"""Writes the table of settings in `docs/guide/settings.md` from their declarations; with `--check` only compares."""

from __future__ import annotations

import argparse
import sys
from ipaddress import IPv4Network
from pathlib import Path

from forkyard.node.settings import Settings

FILE = Path(__file__).parent.parent / "docs" / "guide" / "settings.md"
HEAD = "| variable | default | what it is |\n|---|---|---|\n"


def table() -> str:
    """A row for each setting, in the order of their declarations."""
    rows = [
        f"| `FORKYARD_{name.upper()}` | {_default(field.default)} | {' '.join((field.description or '').split())} |"
        for name, field in Settings.model_fields.items()
    ]
    return HEAD + "\n".join(rows) + "\n"


def render(document: str) -> str:
    """The document with the table as it should be."""
    before, _, rest = document.partition(HEAD)
    _rows, _, after = rest.partition("\n\n")
    return f"{before}{table()}\n{after}"


def _default(value: object) -> str:
    if isinstance(value, bool):
        return "`true`" if value else "`false`"
    return (
        "" if value is None or not isinstance(value, str | int | float | Path | IPv4Network) else f"`{value}`"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if it is out of date")
    text = FILE.read_text()
    if parser.parse_args().check:
        return 0 if text == render(text) else 1
    FILE.write_text(render(text))
    return 0


if __name__ == "__main__":
    sys.exit(main())
