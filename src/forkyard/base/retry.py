"""Trying again what may work the next time."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from forkyard.base.backoff import Backoff
from forkyard.base.clock import Clock, SystemClock

T = TypeVar("T")


async def retry(
    work: Callable[[], Awaitable[T]],
    *,
    on: type[Exception] | tuple[type[Exception], ...],
    within: float,
    backoff: Backoff | None = None,
    clock: Clock | None = None,
) -> T:
    """Await `work()` until it does not raise `on`, for `within` seconds at most; then its last error is
    raised.

    `within` bounds when the last try begins, not how long a try takes. `work` must be safe to repeat.
    """
    backoff, clock = backoff or Backoff(), clock or SystemClock()
    deadline = clock.monotonic() + within
    while True:
        try:
            return await work()
        except on:
            delay = backoff.next_delay()
            if clock.monotonic() + delay > deadline:
                raise
        await clock.sleep(delay)
