"""Time to live: an absolute deadline, at which a sandbox is paused or killed."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

from forkyard.base.errors import ForkyardError
from forkyard.base.logging import get_logger
from forkyard.sandboxes.core import Core
from forkyard.sandboxes.endings import kill
from forkyard.sandboxes.errors import AlreadyPaused, SandboxNotFound
from forkyard.sandboxes.models import Sandbox
from forkyard.sandboxes.pausing import pause

log = get_logger(__name__)

PARALLEL = 8
"""Evictions at once: a mass expiry must not wait behind one slow pause."""

RETRY_S = 10.0
"""After an eviction that failed (a full disk, say) the sandbox runs on and is tried again."""

LOOK_AGAIN_S = 30.0
"""A deadline written by another process is seen at the latest after this."""


class Expiry:
    """One loop a node. It sleeps until the next deadline; `Core.deadlines` wakes it for an earlier one."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._bound = asyncio.Semaphore(PARALLEL)
        self._busy: set[str] = set()
        self._retry_at: dict[str, datetime] = {}

    async def run(self) -> None:
        """Evict until cancelled. Evictions in progress are detached and go on."""
        while True:
            self._core.deadlines.begin()
            now = self._core.clock.now()
            await self.evict_due(now)
            await self._wait(now)

    async def evict_due(self, now: datetime) -> None:
        """Start the eviction of everything that is due at this moment."""
        due = await self._core.store.expired(self._core.node_id, now)
        ids = {row.id for row in due}
        # Ended, extended or paused by others meanwhile.
        self._retry_at = {i: at for i, at in self._retry_at.items() if i in ids}
        for row in due:
            if row.id in self._busy or self._retry_at.get(row.id, now) > now:
                continue
            self._busy.add(row.id)
            self._core.operations.start_logged(self._evict(row, now), f"expire-{row.id}")

    async def _evict(self, row: Sandbox, now: datetime) -> None:
        core = self._core
        try:
            async with self._bound:
                if row.pause_on_timeout:
                    done = await pause(
                        core, row.id, team_id=None, keep_memory=row.pause_keeps_memory, expired_at=now
                    )
                else:
                    done = await kill(
                        core, row.id, team_id=None, reason="its time to live was over", expired_at=now
                    )
            if done:
                action = "sandbox.pause" if row.pause_on_timeout else "sandbox.kill"
                core.audit.note(row.team_id, action, row.id, {"reason": "its time to live was over"})
            self._retry_at.pop(row.id, None)
        except (SandboxNotFound, AlreadyPaused):
            self._retry_at.pop(row.id, None)
        except Exception as error:
            message = error.message if isinstance(error, ForkyardError) else repr(error)
            log.warning("eviction failed", sandbox_id=row.id, error=message, retry_s=RETRY_S)
            self._retry_at[row.id] = core.clock.now() + timedelta(seconds=RETRY_S)
        finally:
            self._busy.discard(row.id)
            core.deadlines.look_again()

    async def _wait(self, now: datetime) -> None:
        """Until there is more to do than was at `now`: a deadline that passed since then counts as the next one."""
        core = self._core
        # What is due is being evicted (its end wakes this loop) or waits for its retry.
        deadline = await core.store.next_deadline(core.node_id, after=now)
        candidates = [
            now + timedelta(seconds=LOOK_AGAIN_S),
            *(at for at in self._retry_at.values() if at > now),
        ]
        until = min(candidates if deadline is None else [deadline, *candidates])
        timer = asyncio.create_task(core.clock.wait_until(until))
        earlier = asyncio.create_task(core.deadlines.changed(until))
        try:
            await asyncio.wait({timer, earlier}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            earlier.cancel()
