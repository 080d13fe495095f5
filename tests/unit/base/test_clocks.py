"""The machine's clock, and the one that tests move."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from forkyard.base import clock as clocks
from forkyard.base.clock import Clock, SystemClock
from forkyard.testing.clock import START, ManualClock


@pytest.mark.parametrize("clock", [SystemClock(), ManualClock()])
def test_now_is_aware_and_in_utc(clock: Clock) -> None:
    assert clock.now().tzinfo is UTC
    assert clock.monotonic() <= clock.monotonic()


async def test_the_system_clock_sleeps_until_then() -> None:
    clock = SystemClock()
    when = clock.now() + timedelta(milliseconds=20)
    await clock.wait_until(when)
    assert clock.now() >= when
    await clock.wait_until(when)
    await clock.sleep(-1)


async def test_a_step_of_the_wall_clock_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour is left; then the wall clock is set forward by two."""
    monkeypatch.setattr(clocks, "_LOOK_AGAIN", 0.01)
    offset = timedelta()

    class Stepped(SystemClock):
        def now(self) -> datetime:
            return super().now() + offset

    clock = Stepped()
    task = asyncio.create_task(clock.wait_until(clock.now() + timedelta(hours=1)))
    await asyncio.sleep(0.03)
    assert not task.done()
    offset = timedelta(hours=2)
    async with asyncio.timeout(5):
        await task


async def test_the_manual_clock_wakes_sleepers_in_order_at_their_time() -> None:
    clock = ManualClock()
    woken: list[tuple[str, float]] = []

    async def sleeper(name: str, *naps: float) -> None:
        for nap in naps:
            await clock.sleep(nap)
            woken.append((name, clock.monotonic()))

    tasks = [asyncio.create_task(sleeper("a", 3, 3)), asyncio.create_task(sleeper("b", 1, 1, 1))]
    await clock.wait_for_sleepers(2)
    await clock.advance(0.9)
    assert woken == []
    await clock.advance(5.1)
    assert woken == [("b", 1), ("b", 2), ("a", 3), ("b", 3), ("a", 6)]
    assert all(task.done() for task in tasks)
    assert clock.now() == START + timedelta(seconds=6)


async def test_cancelled_sleepers_are_forgotten() -> None:
    clock = ManualClock()
    task = asyncio.create_task(clock.sleep(5))
    await clock.wait_for_sleepers(1)
    task.cancel()
    await asyncio.wait([task])
    assert clock.sleepers == 0
    await clock.advance(10)


async def test_the_manual_wall_clock_can_be_stepped() -> None:
    clock = ManualClock()
    task = asyncio.create_task(clock.wait_until(START + timedelta(seconds=10)))
    await clock.wait_for_sleepers(1)
    clock.step_wall_clock(-5)
    await clock.advance(10)
    assert not task.done()
    await clock.advance(5)
    assert task.done()
