"""Wakes those who wait for a sandbox to leave a transition.

The database says what the state is; this only saves waiters in the same process the poll. A waiter in another
process, or one whose notice got lost, looks again by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import datetime

LOOK_AGAIN_S = 0.25


class Changes:
    def __init__(self) -> None:
        self._waiters: dict[str, set[asyncio.Event]] = {}

    def waiting(self, sandbox_id: str) -> int:
        """How many wait for a change of this sandbox."""
        return len(self._waiters.get(sandbox_id, ()))

    def notify(self, sandbox_id: str) -> None:
        for event in self._waiters.get(sandbox_id, ()):
            event.set()

    @contextmanager
    def watch(self, sandbox_id: str) -> Generator[Watch]:
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


class Gates:
    """Keeps a commit that lets others go on, and the route that belongs to it, together.

    Between the commit of `running` and its route nobody may claim the sandbox: the route that he sets would be undone
    by ours. The other way round, a request could reach a machine whose commit then fails, and what it did is lost.
    """

    def __init__(self) -> None:
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}

    @asynccontextmanager
    async def closed(self, sandbox_id: str) -> AsyncGenerator[None]:
        """One at a time for each sandbox."""
        lock, users = self._locks.get(sandbox_id, (asyncio.Lock(), 0))
        self._locks[sandbox_id] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            lock, users = self._locks[sandbox_id]
            if users > 1:
                self._locks[sandbox_id] = (lock, users - 1)
            else:
                del self._locks[sandbox_id]


class Deadlines:
    """Wakes the expiry loop when a deadline may be earlier than the one it waits for.

    Whatever makes a sandbox `running`, or moves its deadline, says so here; a deadline that passed during another
    transition is noticed that way too.
    """

    def __init__(self) -> None:
        self._changed = asyncio.Event()
        self._waiting_until: datetime | None = None

    @property
    def resting(self) -> bool:
        """Whether the loop waits, having seen every change so far."""
        return self._waiting_until is not None and not self._changed.is_set()

    def moved(self, end_at: datetime) -> None:
        if self._waiting_until is None or end_at < self._waiting_until:
            self._changed.set()

    def look_again(self) -> None:
        """Wake the loop whatever it waits for."""
        self._changed.set()

    def begin(self) -> None:
        """The loop looks at all deadlines now; what changes from here on wakes it."""
        self._changed.clear()
        self._waiting_until = None

    async def changed(self, until: datetime) -> None:
        """Wait for an earlier deadline than `until`; returns at once if there was a change since `begin`."""
        self._waiting_until = until
        await self._changed.wait()


class Watch:
    def __init__(self, event: asyncio.Event) -> None:
        self._event = event

    async def wait(self, timeout_s: float) -> None:
        """Until something changed, but at most `timeout_s` and never longer than the interval of the poll."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._event.wait(), min(timeout_s, LOOK_AGAIN_S))
        self._event.clear()
