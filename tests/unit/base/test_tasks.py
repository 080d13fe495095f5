"""Loops that are kept alive, operations that are not cut off, trying again."""

import asyncio
import itertools

import pytest
from structlog.testing import capture_logs

from forkyard.base.backoff import Backoff
from forkyard.base.logging import current_log_context, log_context
from forkyard.base.retry import retry
from forkyard.base.tasks import Operations, Supervisor
from forkyard.testing.clock import ManualClock


async def test_a_failed_loop_is_logged_and_started_again_later_and_later() -> None:
    clock = ManualClock()
    starts: list[float] = []

    async def loop() -> None:
        starts.append(clock.monotonic())
        raise LookupError("broken")

    with capture_logs() as logs:
        async with Supervisor(clock, first_delay=1, most_delay=8) as supervisor:
            supervisor.start("expiry", loop)
            await clock.advance(100)
            assert supervisor.failures("expiry") == len(starts)
    gaps = [later - earlier for earlier, later in itertools.pairwise(starts)]
    assert 0.5 <= gaps[0] <= 1
    assert 1 <= gaps[1] <= 2
    assert all(4 <= gap <= 8 for gap in gaps[3:])
    assert logs[0]["loop"] == "expiry"
    assert logs[0]["log_level"] == "error"
    assert logs[0]["exc_info"]


async def test_a_loop_that_ran_for_long_starts_again_soon() -> None:
    clock = ManualClock()
    starts: list[float] = []

    async def loop() -> None:
        starts.append(clock.monotonic())
        await clock.sleep(100 if len(starts) > 5 else 0)
        raise LookupError

    with capture_logs():
        async with Supervisor(clock, first_delay=1, most_delay=64) as supervisor:
            supervisor.start("expiry", loop)
            await clock.advance(400)
    assert starts[-1] - starts[-2] <= 101


async def test_a_loop_that_returns_is_done_and_stop_cancels_the_rest() -> None:
    supervisor = Supervisor()
    stopped = asyncio.Event()

    async def short() -> None:
        return

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    supervisor.start("short", short)
    supervisor.start("endless", endless)
    with pytest.raises(RuntimeError, match="endless"):
        supervisor.start("endless", endless)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert supervisor.running == ["endless"]
    await supervisor.stop()
    await supervisor.stop()
    assert stopped.is_set()
    assert supervisor.running == []


async def test_a_detached_operation_goes_on_when_its_caller_is_cut_off() -> None:
    operations = Operations()
    release, done = asyncio.Event(), asyncio.Event()
    seen: dict[str, object] = {}

    async def work() -> str:
        await release.wait()
        seen.update(current_log_context())
        done.set()
        return "made"

    with log_context(request_id="r1"):
        cut_off = asyncio.create_task(operations.run_detached(work()))
    await asyncio.sleep(0)
    cut_off.cancel()
    await asyncio.wait([cut_off])
    assert cut_off.cancelled()
    assert len(operations) == 1
    assert not await operations.drain(0.01)
    release.set()
    assert await operations.drain(5)
    assert done.is_set()
    assert seen == {"request_id": "r1"}


async def test_a_detached_operation_gives_its_result_or_error_to_who_waits() -> None:
    operations = Operations()

    async def answer() -> int:
        return 42

    async def fail() -> None:
        raise LookupError("here")

    with capture_logs() as logs:
        assert await operations.run_detached(answer()) == 42
        with pytest.raises(LookupError, match="here"):
            await operations.run_detached(fail())
    assert logs == []


async def test_an_error_that_nobody_waits_for_is_logged() -> None:
    operations = Operations()
    release = asyncio.Event()

    async def fail() -> None:
        await release.wait()
        raise LookupError("unheard")

    with capture_logs() as logs:
        cut_off = asyncio.create_task(operations.run_detached(fail(), "create"))
        await asyncio.sleep(0)
        cut_off.cancel()
        await asyncio.wait([cut_off])
        operations.start_logged(fail(), "purge")
        release.set()
        await operations.drain(5)
        await asyncio.sleep(0)
    assert sorted(line["operation"] for line in logs) == ["create", "purge"]


async def test_what_is_still_running_at_the_end_can_be_cancelled() -> None:
    operations = Operations()
    task = operations.start(asyncio.Event().wait())
    await operations.cancel()
    assert task.cancelled()
    assert len(operations) == 0


async def test_retry_gives_up_after_its_time_with_the_last_error() -> None:
    clock = ManualClock()
    tries: list[float] = []

    async def work() -> str:
        tries.append(clock.monotonic())
        if len(tries) < fails + 1:
            raise LookupError(len(tries))
        return "worked"

    fails = 3
    task = asyncio.create_task(retry(work, on=LookupError, within=10, backoff=Backoff(1, 4), clock=clock))
    await clock.advance(20)
    assert await task == "worked"
    fails = 1000
    tries.clear()
    started = clock.monotonic()
    task = asyncio.create_task(retry(work, on=LookupError, within=10, backoff=Backoff(1, 4), clock=clock))
    await clock.advance(100)
    with pytest.raises(LookupError, match=str(len(tries))):
        await task
    assert 4 <= len(tries) <= 8
    assert tries[-1] - started <= 10


async def test_retry_does_not_catch_other_errors() -> None:
    async def work() -> None:
        raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011
        await retry(work, on=LookupError, within=10)


def test_backoff_doubles_up_to_its_most_and_starts_again() -> None:
    backoff = Backoff(first=1, most=10)
    delays = [backoff.next_delay() for _ in range(6)]
    for delay, most in zip(delays, [1, 2, 4, 8, 10, 10], strict=True):
        assert most / 2 <= delay <= most
    backoff.reset()
    assert backoff.next_delay() <= 1
