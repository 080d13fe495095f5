"""When keys were last used: remembered in memory, written once a minute, never while a request waits."""

from datetime import datetime

from sqlalchemy import or_, update

from forkyard.auth.models import ApiKey
from forkyard.base.clock import Clock
from forkyard.storage.session import Database

WRITE_EVERY = 60.0
"""Seconds between writes: how far `last_used_at` may be behind."""


class KeyUsage:
    """Last uses that are not written yet."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._last: dict[str, datetime] = {}

    def note(self, key_id: str, at: datetime) -> None:
        """The key was used."""
        self._last[key_id] = at

    async def flush(self) -> None:
        """Write what was noted. If that fails it is noted still, and the error is raised."""
        noted, self._last = self._last, {}
        if not noted:
            return
        try:
            # A crash of the host may take this back: not worth a wait for the disk.
            async with self._database.write(durable=False) as session:
                # In a fixed order, so that two servers that do this do not wait for each other.
                for key_id, at in sorted(noted.items()):
                    older = or_(ApiKey.last_used_at.is_(None), ApiKey.last_used_at < at)
                    await session.execute(
                        update(ApiKey).where(ApiKey.id == key_id, older).values(last_used_at=at)
                    )
        except BaseException:
            self._last = noted | self._last
            raise

    async def run(self) -> None:
        """Flush once a minute until cancelled."""
        while True:
            await self._clock.sleep(WRITE_EVERY)
            await self.flush()
