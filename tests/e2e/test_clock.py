"""The clock is right in the first command after a resume, a fork and a start from a snapshot, however long it slept."""

import time
from collections.abc import Callable

from e2b import Sandbox

from tests.e2e.inside import output
from tests.e2e.waiting import until

SLEPT_S = 2.5
"""More than what the daemon lets pass."""


def check_clock(sandbox: Sandbox) -> None:
    """To be the first command: `date` says a time between now and now."""
    before = time.time()
    said = float(output(sandbox, "date +%s.%N"))
    assert before - 1.0 <= said <= time.time() + 1.0, f"the clock is off by {said - before:.1f} s"


def sleep_until(moment: float) -> None:
    """The time itself is what is tested here."""
    until(lambda: time.time() >= moment or None, "time passes")


def test_after_a_resume_and_from_an_old_snapshot(
    sandbox: Sandbox, make_sandbox: Callable[..., Sandbox]
) -> None:
    snapshot = sandbox.create_snapshot()
    check_clock(sandbox)
    sandbox.pause()
    sleep_until(time.time() + SLEPT_S)
    sandbox.connect(timeout=300)
    check_clock(sandbox)
    check_clock(make_sandbox(snapshot.snapshot_id, timeout=300))
    sandbox.pause(keep_memory=False)
    sandbox.connect(timeout=300)
    check_clock(sandbox)
    assert Sandbox.delete_snapshot(snapshot.snapshot_id)


def test_in_a_fork_and_its_source(sandbox: Sandbox) -> None:
    for child in sandbox.fork(count=2):
        assert isinstance(child, Sandbox), child
        check_clock(child)
        child.kill()
    check_clock(sandbox)


def test_what_waits_inside_does_not_count_the_pause(sandbox: Sandbox) -> None:
    """A sleep that began before a pause ends after it, and neither at once nor never."""
    sleeper = sandbox.commands.run("sleep 2; date +%s.%N > woke", background=True, timeout=0)
    paused = time.time()
    sandbox.pause()
    sleep_until(paused + SLEPT_S)
    sandbox.connect(timeout=300)
    resumed = time.time()
    woke = until(
        lambda: output(sandbox, "cat woke 2>/dev/null || true") or None, "the sleep ends", timeout_s=10
    )
    assert float(woke) > paused + SLEPT_S, (woke, paused, resumed)
    assert sleeper.pid not in {process.pid for process in sandbox.commands.list()}
