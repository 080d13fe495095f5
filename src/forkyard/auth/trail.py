"""Audit entries of what happens to sandboxes: noted while the request goes on, written in batches behind its answer.

A request must not wait for the database once more. So a crash may take the entries of the last second with it, which
those about keys (`audit.append_audit_txn`) never risk.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import delete, or_, select

from forkyard.auth.audit import SYSTEM
from forkyard.auth.models import AuditEntry
from forkyard.base.clock import Clock
from forkyard.base.errors import ForkyardError
from forkyard.base.logging import current_log_context, get_logger, redact_values
from forkyard.storage.session import Database

log = get_logger(__name__)

WRITE_EVERY_S = 1.0

MOST_NOTED = 10_000
"""Entries kept while the database is away; the oldest are dropped then."""

BATCH = 500
"""Entries a transaction."""

KEEP = timedelta(days=90)
"""How long entries about sandboxes and snapshots are kept. Others are kept for good."""

_PASSING = ("sandbox.", "snapshot.")


class AuditTrail:
    """What was done and is not written yet. The actor is the `actor` of the log context, else SYSTEM."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._noted: deque[dict[str, Any]] = deque()
        self._flushing = asyncio.Lock()
        self._purged_to = 0

    def note(self, team_id: str, action: str, target: str, details: Mapping[str, Any] | None = None) -> None:
        """Takes microseconds. What looks like a secret in `details` is not stored."""
        context = current_log_context()
        if len(self._noted) >= MOST_NOTED:
            lost = self._noted.popleft()
            log.error(
                "an audit entry is lost: the database is away", action=lost["action"], target=lost["target"]
            )
        self._noted.append(
            {
                "at": self._clock.now(),
                "team_id": team_id,
                "actor": context.get("actor", SYSTEM),
                "action": action,
                "target": target,
                "details": redact_values(details) if details else None,
                "request_id": context.get("request_id"),
            }
        )

    async def flush(self) -> None:
        """Write what was noted. If that fails it is noted still, and the error is raised."""
        async with self._flushing:
            while self._noted:
                batch = [self._noted.popleft() for _ in range(min(BATCH, len(self._noted)))]
                try:
                    async with self._database.write(durable=False) as session:
                        session.add_all(AuditEntry(**values) for values in batch)
                except BaseException:
                    self._noted.extendleft(reversed(batch))
                    raise

    async def run(self) -> None:
        """Write every second, and purge now and then, until cancelled."""
        purge_at = self._clock.monotonic()
        while True:
            await self._clock.sleep(WRITE_EVERY_S)
            try:
                await self.flush()
                if self._clock.monotonic() >= purge_at:
                    await self.purge(self._clock.now() - KEEP)
                    purge_at = self._clock.monotonic() + 3600.0
            except ForkyardError as error:
                log.warning("audit entries could not be written yet", error=error.message)

    async def purge(self, before: datetime) -> None:
        """Delete entries about sandboxes and snapshots that are older. Ids rise with time, so nothing is read twice."""
        while True:
            query = select(AuditEntry.id, AuditEntry.at).where(AuditEntry.id > self._purged_to)
            async with self._database.read() as session:
                rows = (await session.execute(query.order_by(AuditEntry.id).limit(BATCH))).all()
            old = [entry_id for entry_id, at in rows if at < before]
            if not old:
                return
            passing = or_(*(AuditEntry.action.startswith(prefix) for prefix in _PASSING))
            async with self._database.write(durable=False) as session:
                await session.execute(delete(AuditEntry).where(AuditEntry.id.in_(old), passing))
            self._purged_to = old[-1]
            if len(old) < len(rows) or len(rows) < BATCH:
                return
