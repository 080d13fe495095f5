"""Wakes those who wait for a sandbox to leave a transition.

The database says what the state is; this only saves waiters in the same process the poll. A waiter in another
process, or one whose notice got lost, looks again by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

LOOK_AGAIN_S = 0.25


class Changes:
    def __init__(self) -> None:
        self._waiters: dict[str, set[asyncio.Event]] = {}

    def notify(self, sandbox_id: str) -> None:
        for event in self._waiters.get(sandbox_id, ()):
            event.set()

    @contextmanager
    def watch(self, sandbox_id: str) -> Iterator[Watch]:
        """Enter before reading the state, so that no change between the read and the wait is missed."""
        event = asyncio.Event()
        waiters = self._waiters.setdefault(sandbox_id, set())
        waiters.add(event)
        try:
            yield Watch(event)
        finally:
            waiters.discard(event)
            if not waiters:
                self._waiters.pop(sandbox_id, None)


class Watch:
    def __init__(self, event: asyncio.Event) -> None:
        self._event = event

    async def wait(self, timeout_s: float) -> None:
        """Until something changed, but at most `timeout_s` and never longer than the interval of the poll."""
        try:
            await asyncio.wait_for(self._event.wait(), min(timeout_s, LOOK_AGAIN_S))
        except TimeoutError:
            pass
        self._event.clear()
