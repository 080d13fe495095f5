"""`python -m forkyard.templates.base_image --out FOLDER`: build the base image unless it is there."""

import argparse
import json
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from types import FrameType

from forkyard.templates.base_image.build import BuildError, build, find
from forkyard.templates.base_image.recipe import detect_suite, recipe_hash


def _terminated(signal_number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + signal_number)


def main() -> int:
    """Exit code 0 when the image is there, 1 when it is not."""
    parser = argparse.ArgumentParser(prog="python -m forkyard.templates.base_image", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of the image and base.json")
    parser.add_argument("--force", action="store_true", help="build even if it is there")
    parser.add_argument("--check", action="store_true", help="build nothing, only say whether it is there")
    arguments = parser.parse_args()
    # Ended like by an exception, so that the scratch folder is removed.
    signal.signal(signal.SIGTERM, _terminated)
    try:
        if arguments.check:
            found = find(arguments.out, recipe_hash(detect_suite()))
        else:
            found = build(
                arguments.out, lambda line: print(line, file=sys.stderr, flush=True), force=arguments.force
            )
    except (BuildError, ValueError) as error:
        print(f"base image: {error}", file=sys.stderr)
        return 1
    if found is None:
        return 1
    print(json.dumps(asdict(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
