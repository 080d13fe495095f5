"""Tables: teams, API keys, audit log."""

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, Index
from sqlalchemy.orm import Mapped, mapped_column

from forkyard.auth.roles import Role
from forkyard.storage.models import Base


class Team(Base):
    """Owns everything. What belongs to another team does not exist for a request."""

    __tablename__ = "teams"

    id: Mapped[str] = mapped_column(primary_key=True)
    """A UUID."""
    name: Mapped[str] = mapped_column(unique=True)
    created_at: Mapped[datetime]
    limits: Mapped[dict[str, Any] | None]
    """As `TeamLimits.to_json` gives them; None: those of every team."""


class ApiKey(Base):
    """One API key. The key itself is shown once and not stored. Revoked keys stay, for the audit log."""

    __tablename__ = "api_keys"

    id: Mapped[str] = mapped_column(primary_key=True)
    """A UUID."""
    team_id: Mapped[str] = mapped_column(ForeignKey("teams.id"), index=True)
    name: Mapped[str]
    role: Mapped[Role]
    hash: Mapped[str] = mapped_column(unique=True)
    """SHA-256 of the key in hexadecimal digits."""
    prefix: Mapped[str]
    suffix: Mapped[str]
    """The first 8 and last 4 characters of the key, for display."""
    created_by: Mapped[str]
    """Id of the key that created it, or `operator`."""
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]
    """Not later than a minute behind."""


class AuditEntry(Base):
    """Who did what to what, and when. Rows are only appended."""

    __tablename__ = "audit_log"
    __table_args__ = (Index(None, "team_id", "id"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    at: Mapped[datetime]
    team_id: Mapped[str]
    """No foreign key: entries outlive what they tell about."""
    actor: Mapped[str]
    """Id of an API key, or `operator`, or `system` for what the server did by itself."""
    action: Mapped[str]
    """What was done, as `noun.verb`: `api_key.create`."""
    target: Mapped[str | None]
    """Id of what it was done to."""
    details: Mapped[dict[str, Any] | None]
    request_id: Mapped[str | None]
    """The same as in the log lines of that request."""
