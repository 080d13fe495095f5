"""The audit log: appended in the transaction that does what it tells, so that neither is there without the other."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from forkyard.auth.models import AuditEntry
from forkyard.base.logging import current_log_context, redact_values
from forkyard.storage.session import Database

SYSTEM = "system"
"""The actor for what the server does by itself, such as ending a sandbox at its deadline."""


def append_audit_txn(
    session: AsyncSession,
    *,
    at: datetime,
    team_id: str,
    actor: str,
    action: str,
    target: str | None = None,
    details: Mapping[str, Any] | None = None,
) -> None:
    """Add an entry to the session's transaction. `actor` is a `Principal.key_id` or SYSTEM.

    The request id comes from the log context. What looks like a secret in `details` is not stored.
    """
    session.add(
        AuditEntry(
            at=at,
            team_id=team_id,
            actor=actor,
            action=action,
            target=target,
            details=redact_values(details) if details else None,
            request_id=current_log_context().get("request_id"),
        )
    )


async def list_audit(
    database: Database, team_id: str, *, before: int | None = None, limit: int = 100
) -> Sequence[AuditEntry]:
    """Up to `limit` entries of a team, newest first; `before` (an entry's id) goes on where a page ended."""
    query = select(AuditEntry).where(AuditEntry.team_id == team_id)
    if before is not None:
        query = query.where(AuditEntry.id < before)
    async with database.read() as session:
        return (await session.scalars(query.order_by(AuditEntry.id.desc()).limit(limit))).all()
