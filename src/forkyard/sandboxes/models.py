"""Tables of the sandbox core.

Rows are read and handed around detached, as records: nobody changes a field of one. Every change is a
compare-and-set in `store.py`.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    ForeignKey,
    Index,
    Integer,
    String,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column

from forkyard.sandboxes.state import State
from forkyard.storage.models import Base, JsonColumn, UtcDateTime

_ENDED = text("ended_at IS NOT NULL")


class Sandbox(Base):
    """One sandbox, from its creation until it is purged some time after its end."""

    __tablename__ = "sandboxes"
    __table_args__ = (
        Index("ix_sandboxes_team_state_started", "team_id", "state", "started_at", "id"),
        # What is gone stays for days and is by far the most: what the node looks at all the time must not read it.
        Index("ix_sandboxes_node_state_end", "node_id", "state", "end_at"),
        Index("ix_sandboxes_ended", "node_id", "ended_at", sqlite_where=_ENDED, postgresql_where=_ENDED),
    )

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    team_id: Mapped[str] = mapped_column(String(36))
    node_id: Mapped[str] = mapped_column(String(36))
    """The node that has its machine or snapshot; only that node acts."""

    state: Mapped[State]
    generation: Mapped[int] = mapped_column(Integer, default=1)
    """Counts machines: each create or resume takes the next one before it starts anything."""
    transition: Mapped[str | None] = mapped_column(String(40))
    """Owner token of the transition in progress; None in a steady state."""
    transition_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    transition_snapshot_id: Mapped[str | None] = mapped_column(String(40))
    """The snapshot that the transition in progress writes."""
    transition_intent: Mapped[dict[str, Any] | None] = mapped_column(JsonColumn)
    """What the transition in progress was asked for, as far as whoever finishes it after a crash has to know: of a
    resume `{timeout_s, boot_id, end_processes}`, of a kill `{reason}`."""

    handle: Mapped[dict[str, Any] | None] = mapped_column(JsonColumn)
    """The machine's handle, from the moment that it exists until it is destroyed or replaced."""
    snapshot_id: Mapped[str | None] = mapped_column(String(40))
    """What a paused sandbox goes on from."""

    template_id: Mapped[str] = mapped_column(String(40))
    template_name: Mapped[str | None] = mapped_column(String(200))
    source_snapshot_id: Mapped[str] = mapped_column(String(40))
    """The snapshot it was created from."""
    parent_id: Mapped[str | None] = mapped_column(String(40))
    """The sandbox it was forked from."""

    vcpus: Mapped[int] = mapped_column(Integer)
    memory_mb: Mapped[int] = mapped_column(Integer)
    disk_mb: Mapped[int] = mapped_column(Integer)

    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    started_at: Mapped[datetime] = mapped_column(UtcDateTime)
    end_at: Mapped[datetime] = mapped_column(UtcDateTime)
    """Absolute deadline; what happens then is `pause_on_timeout`."""
    timeout_s: Mapped[int] = mapped_column(Integer)
    """The last timeout asked for: what a wake by a request gives (at least 300 s)."""
    paused_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    ended_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    end_reason: Mapped[str | None] = mapped_column(String(400))
    unhealthy_reason: Mapped[str | None] = mapped_column(String(400))
    """Why the machine is thought to be ill (its daemon does not answer); None while it is well."""

    pause_on_timeout: Mapped[bool] = mapped_column(Boolean, default=False)
    pause_keeps_memory: Mapped[bool] = mapped_column(Boolean, default=True)
    """For the pause at the timeout."""
    paused_without_memory: Mapped[bool] = mapped_column(Boolean, default=False)
    """How the present pause was made."""
    auto_resume: Mapped[bool] = mapped_column(Boolean, default=False)

    envd_version: Mapped[str] = mapped_column(String(20))
    envd_token: Mapped[str | None] = mapped_column(String(100))
    traffic_token: Mapped[str | None] = mapped_column(String(100))
    public_traffic: Mapped[bool] = mapped_column(Boolean, default=True)
    allow_internet: Mapped[bool | None] = mapped_column(Boolean)
    """As the client said it; None when it said nothing (allowed)."""
    allow_out: Mapped[list[str] | None] = mapped_column(JsonColumn)
    deny_out: Mapped[list[str] | None] = mapped_column(JsonColumn)
    mask_host: Mapped[str | None] = mapped_column(String(300))

    settings: Mapped[dict[str, Any]] = mapped_column(JsonColumn)
    """The image's settings, from its snapshot: `{env, user, workdir}`."""
    env_vars: Mapped[dict[str, str]] = mapped_column(JsonColumn)
    user_metadata: Mapped[dict[str, str]] = mapped_column("metadata", JsonColumn)
    hostname: Mapped[str] = mapped_column(String(64))
    boot_id: Mapped[str] = mapped_column(String(36))
    machine_id: Mapped[str] = mapped_column(String(32))


class SandboxTag(Base):
    """One pair of a sandbox's metadata, for filters."""

    __tablename__ = "sandbox_tags"

    sandbox_id: Mapped[str] = mapped_column(ForeignKey("sandboxes.id", ondelete="CASCADE"), primary_key=True)
    key: Mapped[str] = mapped_column(String(500), primary_key=True)
    value: Mapped[str] = mapped_column(Text)


class IdempotencyKey(Base):
    """Which sandbox a team's idempotency key made."""

    __tablename__ = "idempotency_keys"

    team_id: Mapped[str] = mapped_column(String(36), primary_key=True)
    key: Mapped[str] = mapped_column(String(255), primary_key=True)
    request_hash: Mapped[str] = mapped_column(String(64))
    sandbox_id: Mapped[str] = mapped_column(String(40), index=True)
    """The key is in use for as long as the record of this sandbox is there."""
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class SnapshotKind:
    """Who owns a snapshot. Strings, because they are stored."""

    TEMPLATE = "template"
    SNAPSHOT = "snapshot"
    PAUSE = "pause"
    FORK = "fork"


class SnapshotState:
    WRITING = "writing"
    READY = "ready"
    DELETING = "deleting"


class Durability:
    """How much a snapshot survives."""

    PROCESS = "process"
    HOST = "host"
    NODE = "node"


class Snapshot(Base):
    """A captured machine on disk: pause, snapshot, fork and template are one mechanism with different owners."""

    __tablename__ = "snapshots"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    team_id: Mapped[str | None] = mapped_column(String(36), index=True)
    """None: for every team (shipped templates)."""
    node_id: Mapped[str] = mapped_column(String(36))
    kind: Mapped[str] = mapped_column(String(16))
    state: Mapped[str] = mapped_column(String(16), index=True)
    durability: Mapped[str] = mapped_column(String(16), default=Durability.PROCESS)
    sandbox_id: Mapped[str | None] = mapped_column(String(40), index=True)
    """The sandbox it was taken from."""
    template_id: Mapped[str] = mapped_column(String(40), index=True)
    """The template that the captured machine descends from; for a template itself its own, stable over rebuilds."""
    generation: Mapped[int] = mapped_column(Integer, default=0)
    """The generation that the captured machine knew; what is made from it takes a higher one."""
    parent_id: Mapped[str | None] = mapped_column(String(40))
    vcpus: Mapped[int] = mapped_column(Integer)
    memory_mb: Mapped[int] = mapped_column(Integer)
    disk_mb: Mapped[int] = mapped_column(Integer)
    size_bytes: Mapped[int] = mapped_column(BigInteger, default=0)
    envd_version: Mapped[str] = mapped_column(String(20))
    keeps_memory: Mapped[bool] = mapped_column(Boolean, default=True)
    settings: Mapped[dict[str, Any]] = mapped_column(JsonColumn)
    """Image settings a sandbox made from it starts with: `{env, user, workdir}`."""
    manifest: Mapped[dict[str, Any] | None] = mapped_column(JsonColumn)
    """`{driver, requires, files: [{name, size}]}`, once it is written."""
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


DEFAULT_TAG = "default"
"""The tag of a name that is given without one."""


class SnapshotName(Base):
    """A name (with tag) that leads to a snapshot or template. `team_id` "" holds the names that every team sees."""

    __tablename__ = "snapshot_names"
    __table_args__ = (UniqueConstraint("team_id", "name", "tag"),)

    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=True)
    team_id: Mapped[str] = mapped_column(String(36))
    name: Mapped[str] = mapped_column(String(128))
    tag: Mapped[str] = mapped_column(String(128))
    snapshot_id: Mapped[str] = mapped_column(ForeignKey("snapshots.id", ondelete="CASCADE"), index=True)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
