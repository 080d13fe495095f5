"""What all stores of the core have in common: the database, and which commits wait for the disk.

A crash of the host ends all its machines, so on SQLite, which lives on that host, most commits about a machine need
not wait: if one is lost with the machine, recovery sees an older state of a sandbox that is gone either way (or
paused, when the lost commit was that of a resume). What must not come back is waited for: a kill (`flush`, while the
route is taken away), network rules, snapshots and their names; and before the files of a snapshot are deleted the
commit that gave it up is made durable, so that no record ever leads to deleted files. PostgreSQL can crash alone,
with the machines living on: there every commit waits.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from forkyard.storage.session import Database


class DurableStore:
    def __init__(self, database: Database) -> None:
        self._db = database
        self._dies_with_host = database.dialect == "sqlite"

    @property
    def database(self) -> Database:
        """For queries of other modules about the same tables."""
        return self._db

    async def flush(self) -> None:
        """Make every commit before this call survive a crash of the host."""
        if self._dies_with_host:
            await self._db.flush()

    def _write(self, durable: bool = False) -> AbstractAsyncContextManager[AsyncSession]:
        """A transaction that does not wait for the disk, where that is good enough (see above)."""
        return self._db.write(durable or not self._dies_with_host)


def rowcount(result: Any) -> int:
    """Rows that an UPDATE or DELETE met."""
    return int(result.rowcount)
