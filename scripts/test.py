"""`make test`: every suite, one after the other, all of them whatever fails, and a table at the end.

`test.py SUITE...` runs only the named ones. Exit code 0 when all passed.
"""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from leftovers import Leftovers, look

ROOT = Path(__file__).resolve().parent.parent
PYTEST = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider")


@dataclass(frozen=True)
class Suite:
    """One line of the table."""

    name: str
    command: tuple[str, ...]
    timeout: int
    """Seconds, several times what it takes on two cores."""
    cwd: Path = ROOT


@dataclass
class Outcome:
    """How a suite ended."""

    suite: Suite
    ok: bool
    seconds: float
    summary: str = ""
    counts: dict[str, int] = field(default_factory=dict[str, int])


SUITES = (
    Suite("lint", ("bash", "scripts/lint.sh"), 900),
    Suite("go", ("go", "test", "./..."), 1800, ROOT / "go"),
    Suite("unit", (*PYTEST, "tests/unit"), 900),
    Suite("contract", (*PYTEST, "tests/contract"), 900),
    Suite("integration", (*PYTEST, "tests/integration", "-m", "not slow"), 1500),
    Suite("sdk", (*PYTEST, "tests/e2e/test_python_sdk.py", "tests/e2e/test_js_sdk.py"), 900),
    Suite("e2e", (*PYTEST, "tests/e2e", "-m", "not slow"), 1500),
    Suite("faults", (*PYTEST, "tests/faults", "-m", "quick"), 1500),
)

_CLOSING = re.compile(r"^=+ .*\d+ \w+.* in [\d.]+s.* =+$")
_COUNT = re.compile(r"(\d+) ([a-z]+)")


def main(names: list[str]) -> int:
    known = {suite.name: suite for suite in SUITES}
    if unknown := set(names) - known.keys():
        print(f"no such suite: {', '.join(sorted(unknown))} (there are: {', '.join(known)})", file=sys.stderr)
        return 2
    before = look()
    # `sdk` is the short part of `e2e`: what a change must not break, in two minutes.
    outcomes = [run(suite) for suite in SUITES if suite.name in (names or known.keys() - {"sdk"})]
    outcomes.append(check_leftovers(before))
    print_table(outcomes)
    return 0 if all(outcome.ok for outcome in outcomes) else 1


def run(suite: Suite) -> Outcome:
    """Run one suite with its output on the terminal, and read the runner's last line from it."""
    print(f"\n=== {suite.name}", flush=True)
    start = time.monotonic()
    process = subprocess.Popen(
        suite.command,
        cwd=suite.cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    # One that hangs is first told so like by Ctrl-C, for it to clean up.
    watches = [
        threading.Timer(suite.timeout, end_session, (process, signal.SIGINT)),
        threading.Timer(suite.timeout + 60, end_session, (process, signal.SIGKILL)),
    ]
    for watch in watches:
        watch.daemon = True
        watch.start()
    last = ""
    try:
        assert process.stdout is not None
        for line in process.stdout:
            sys.stdout.write(line)
            sys.stdout.flush()
            if _CLOSING.search(line):
                last = line.strip().strip("= ")
        code = process.wait()
    finally:
        for watch in watches:
            watch.cancel()
        end_session(process, signal.SIGKILL)
    counts: dict[str, int] = {}
    for number, what in _COUNT.findall(last):
        counts[what.removesuffix("s")] = int(number)
    seconds = time.monotonic() - start
    if seconds > suite.timeout:
        last = f"took longer than {suite.timeout} s; {last}"
    return Outcome(suite, code == 0, seconds, last or (f"exit code {code}" if code else ""), counts)


def end_session(process: subprocess.Popen[str], signal_number: int) -> None:
    """Signal a session that was started here, if it still runs."""
    if process.poll() is None:
        os.killpg(process.pid, signal_number)


def check_leftovers(before: Leftovers) -> Outcome:
    """Nothing may stay. Elsewhere than in CI others may be at work on the machine, so there it is only said."""
    start = time.monotonic()
    # The last processes may still be on their way out.
    while (left := look().since(before)).lines() and time.monotonic() - start < 10:
        time.sleep(0.2)
    lines = left.lines()
    strict = bool(os.environ.get("CI"))
    for line in lines:
        print(f"left behind: {line}")
    if strict:
        for pid, _, _ in left.processes:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    summary = f"{len(lines)} left behind" if lines else "nothing left behind"
    return Outcome(Suite("leftovers", (), 0), not (lines and strict), time.monotonic() - start, summary)


def print_table(outcomes: list[Outcome]) -> None:
    """The result of each suite, and one line over all in the end."""
    print("\n=== summary")
    for outcome in outcomes:
        verdict = "ok" if outcome.ok else "FAILED"
        print(f"{outcome.suite.name:12} {verdict:7} {outcome.seconds:6.1f} s   {outcome.summary}")
    passed = sum(outcome.counts.get("passed", 0) if outcome.counts else outcome.ok for outcome in outcomes)
    failed = sum(outcome.counts.get("failed", 0) + outcome.counts.get("error", 0) for outcome in outcomes)
    # Counts of its own or not: a suite that failed is at least one failure.
    failed += sum(not outcome.ok and not {"failed", "error"} & outcome.counts.keys() for outcome in outcomes)
    skipped = sum(outcome.counts.get("skipped", 0) for outcome in outcomes)
    print(f"{passed} passed, {failed} failed, {skipped} skipped")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
