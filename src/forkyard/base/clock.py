"""Time as a dependency, so that tests move it by hand. Wall-clock times are always aware and in UTC."""

import asyncio
import time
from datetime import UTC, datetime
from typing import Protocol

# A wait for a wall-clock time looks at the wall clock at least this often (seconds), so that a step of the
# host's clock delays or hastens an expiry by no more than this.
_LOOK_AGAIN = 5.0


class Clock(Protocol):
    """What code that depends on time takes as an argument."""

    def now(self) -> datetime:
        """The wall-clock time: aware, in UTC, microseconds."""
        ...

    def monotonic(self) -> float:
        """Seconds that only go forward; the zero point means nothing. For durations and timeouts."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait `seconds` of monotonic time; zero or less only yields to the event loop."""
        ...

    async def wait_until(self, when: datetime) -> None:
        """Wait until `now() >= when` (`when` is aware), also if the wall clock is stepped meanwhile."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds))

    async def wait_until(self, when: datetime) -> None:
        while (left := (when - self.now()).total_seconds()) > 0:
            await asyncio.sleep(min(left, _LOOK_AGAIN))
