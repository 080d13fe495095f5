"""Named locks held to the end of a transaction."""

import hashlib

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession


async def lock_txn(session: AsyncSession, name: str) -> None:
    """Let one transaction of that name go on at a time, across processes.

    On SQLite a writer is alone anyway, and nothing is done.
    """
    if session.get_bind().dialect.name != "postgresql":
        return
    key = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), signed=True)
    await session.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": key})
