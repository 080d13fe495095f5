"""A clock that stands still until a test moves it."""

import asyncio
import heapq
import itertools
from datetime import UTC, datetime, timedelta

START = datetime(2026, 1, 1, tzinfo=UTC)

# Passes of the event loop given to woken tasks: enough for a chain of awaits that needs nothing from outside.
_PASSES = 20


class ManualClock:
    """A `Clock` for tests of what waits.

    >>> clock = ManualClock()
    >>> task = asyncio.create_task(expire_after(clock, 30))
    >>> await clock.wait_for_sleepers(1)
    >>> await clock.advance(30)
    """

    def __init__(self, start: datetime = START) -> None:
        self._start = start
        self._elapsed = 0.0
        self._step = timedelta()
        self._numbers = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._changed = asyncio.Event()

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self._elapsed) + self._step

    def monotonic(self) -> float:
        return self._elapsed

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        sleeper = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._elapsed + seconds, next(self._numbers), sleeper))
        self._changed.set()
        await sleeper

    async def wait_until(self, when: datetime) -> None:
        while (left := (when - self.now()).total_seconds()) > 0:
            await self.sleep(left)

    @property
    def sleepers(self) -> int:
        """How many tasks wait on this clock."""
        return sum(not sleeper.done() for _, _, sleeper in self._sleepers)

    async def wait_for_sleepers(self, count: int) -> None:
        """Wait until at least `count` tasks wait on this clock. Put it under a timeout."""
        while self.sleepers < count:
            self._changed.clear()
            await self._changed.wait()

    async def advance(self, seconds: float) -> None:
        """Let `seconds` pass, stopping at each moment someone waits for, and let those woken run.

        Afterwards the woken tasks have run as far as they can without the outside (files, sockets, threads).
        """
        target = self._elapsed + seconds
        await _let_run()
        while self._sleepers and self._sleepers[0][0] <= target:
            when, _, sleeper = heapq.heappop(self._sleepers)
            self._elapsed = max(self._elapsed, when)
            if not sleeper.done():
                sleeper.set_result(None)
                await _let_run()
        self._elapsed = target
        await _let_run()

    def step_wall_clock(self, seconds: float) -> None:
        """Set the wall clock forward or back, as an administrator would; durations do not notice."""
        self._step += timedelta(seconds=seconds)


async def _let_run() -> None:
    for _ in range(_PASSES):
        await asyncio.sleep(0)
