"""The steps of the set-up. bootstrap.sh calls this with a suitable Python; only the standard library is used.

Each step knows cheaply whether it is done, so that a second run only looks. Steps that do not need each other run
beside each other. What they print goes to build/log; the terminal gets a line when a step begins, ends or takes long.
"""

import argparse
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "src")]

from setup.packages import MachinePackages, NginxPackage, WrkPackage  # noqa: E402
from setup.programs import BaseImage, GoToolchain, Programs, StockRunsc  # noqa: E402
from setup.python import JavaScriptPackages, PythonPackages, Uv  # noqa: E402
from setup.steps import Step, StepError, run_steps  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/bootstrap.sh")
    parser.add_argument("--dev", action="store_true", help="what the tests need as well")
    parser.add_argument("--bench", action="store_true", help="what the benchmarks compare with as well")
    options = parser.parse_args()

    packages = MachinePackages(with_tests=options.dev)
    uv = Uv(after=[packages])
    python = PythonPackages(uv, with_tests=options.dev)
    go = GoToolchain(uv)
    programs = Programs(go)
    steps: list[Step] = [packages, uv, python, go, programs, BaseImage(after=[packages])]
    if options.dev:
        steps.append(JavaScriptPackages(python))
    if options.bench:
        nginx = NginxPackage(after=[packages])
        steps += [nginx, WrkPackage(after=[nginx]), StockRunsc(go, after=[programs])]
    os.umask(0o022)
    try:
        run_steps(steps, ROOT / "build" / "log")
    except StepError as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
