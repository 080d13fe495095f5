"""`python -m benchmarks [--only ROW ...] [--runs N]`: measure, print the table, write `results/latest.json`."""

from __future__ import annotations

import argparse
import signal
import sys
import time

from benchmarks.context import Context, say
from benchmarks.measuring import Row
from benchmarks.report import load_average, print_table, save
from benchmarks.rows import ROWS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", action="append", metavar="ROW", choices=sorted(ROWS), help="only this one")
    parser.add_argument("--runs", type=int, default=10, help="times that a row is measured (default 10)")
    parser.add_argument("--no-save", action="store_true", help="print only")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that everything started is ended
    wanted = options.only or list(ROWS)
    rows: list[Row] = []
    failed: dict[str, str] = {}
    load = [load_average()]
    try:
        with Context(options.runs) as context:
            for name in [name for name in ROWS if name in wanted]:
                say(f"-- {name}")
                started = time.monotonic()
                try:
                    rows += ROWS[name](context)
                except Exception as error:  # the other rows still tell something
                    failed[name] = f"{type(error).__name__}: {error}"
                    say(f"{name} failed: {failed[name]}")
                    context.close_server()
                say(f"   {time.monotonic() - started:.0f} s")
    except (KeyboardInterrupt, SystemExit, Exception) as error:  # what was measured is told all the same
        failed["run"] = f"{type(error).__name__}: {error}"
    load.append(load_average())
    print_table(rows, failed, load)
    if not options.no_save:
        save(rows, failed, load, partial=options.only is not None)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
