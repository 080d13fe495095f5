"""Tells the owner of a sandbox, in its log, which processes were killed because memory ran out.

The killer is inside (gVisor has none of its own), so its list is asked for: only of sandboxes whose memory is short,
because an idle one must cost nothing.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from forkyard.base.errors import ForkyardError
from forkyard.base.logging import get_logger
from forkyard.guest.errors import GuestRefused
from forkyard.guest.memory_kills import MemoryKills
from forkyard.sandboxes.core import Core
from forkyard.sandboxes.driver import Handle
from forkyard.sandboxes.models import Sandbox
from forkyard.sandboxes.samples import Samples
from forkyard.sandboxes.state import State

log = get_logger(__name__)

INTERVAL_S = 1.0
WATCH_S = 30.0
"""How long a sandbox is asked after the last sign that its memory is short."""
SHORT_SHARE = 0.6
"""Of its memory in use: below the lowest mark at which the driver tells of it."""
_WITH_MACHINE = (State.RUNNING, State.SNAPSHOTTING)
_TIMEOUT_S = 2.0
_MOST_LINES = 20
"""Of one answer; the others are counted."""


class KillList(Protocol):
    """`GuestClient`, as far as it is needed here."""

    async def take_memory_kills(self, address: str, *, timeout_s: float) -> MemoryKills: ...


class MemoryKillLog:
    """One loop a node; it rests while no sandbox is watched."""

    def __init__(self, core: Core, guests: KillList, samples: Samples) -> None:
        self._core = core
        self._guests = guests
        self._samples = samples
        self._until: dict[str, float] = {}
        self._watching = asyncio.Event()

    def watch(self, sandbox_id: str) -> None:
        """Its memory is running out: ask it for some time."""
        self._until[sandbox_id] = self._core.clock.monotonic() + WATCH_S
        self._watching.set()

    async def run(self) -> None:
        """Ask until cancelled."""
        while True:
            await self._watching.wait()
            await self.look()
            await self._core.clock.sleep(INTERVAL_S)

    async def look(self) -> None:
        """Ask every watched sandbox once; those that need not be watched any more are let go."""
        now = self._core.clock.monotonic()
        for sandbox_id in list(self._until):
            if self._is_short(sandbox_id):
                self._until[sandbox_id] = now + WATCH_S
        await asyncio.gather(*(self._ask(sandbox_id) for sandbox_id in list(self._until)))
        # After the last question, so that what was killed just before the end is told too.
        self._until = {each: until for each, until in self._until.items() if until > now}
        if not self._until:
            self._watching.clear()

    def _is_short(self, sandbox_id: str) -> bool:
        samples = self._samples.of(sandbox_id)
        return bool(samples) and samples[-1].memory_used > SHORT_SHARE * samples[-1].memory_total

    async def _ask(self, sandbox_id: str) -> None:
        row = await self._core.store.get(sandbox_id)
        if row is None or row.state not in _WITH_MACHINE or row.handle is None:
            self._until.pop(sandbox_id, None)
            return
        try:
            found = await self._guests.take_memory_kills(
                Handle.from_json(row.handle).address, timeout_s=_TIMEOUT_S
            )
        except GuestRefused:  # made by an envd that keeps no list
            self._until.pop(sandbox_id, None)
            return
        except ForkyardError as error:
            log.debug(
                "a sandbox was not heard of its killed processes", sandbox_id=row.id, error=error.message
            )
            return
        self._tell(row, found)

    def _tell(self, row: Sandbox, found: MemoryKills) -> None:
        for kill in found.kills[:_MOST_LINES]:
            self._core.journal.write(
                row.id,
                "out of memory: a process was killed",
                level="warn",
                pid=kill.pid,
                name=kill.name,
                memory_mb=kill.rss_bytes >> 20,
            )
        more = len(found.kills[_MOST_LINES:]) + found.dropped
        if more:
            self._core.journal.write(
                row.id, "out of memory: more processes were killed", level="warn", count=more
            )
        if found.kills or found.dropped:
            self.watch(row.id)
