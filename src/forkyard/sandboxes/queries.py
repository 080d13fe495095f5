"""Reads of sandboxes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, and_, exists, func, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from forkyard.sandboxes.durable_store import DurableStore
from forkyard.sandboxes.models import IdempotencyKey, Sandbox, SandboxTag
from forkyard.sandboxes.state import MOVING, VISIBLE, State


@dataclass(frozen=True, slots=True)
class SandboxFilter:
    """What a list shows; None means any."""

    team_id: str
    states: Collection[State] = VISIBLE
    metadata: Mapping[str, str] | None = None
    template: str | None = None
    """Template id or name."""
    started_after: datetime | None = None
    """Inclusive."""
    ascending: bool = False


@dataclass(frozen=True, slots=True)
class Cursor:
    """Position after the last item of a page."""

    at: datetime
    id: str


@dataclass(frozen=True, slots=True)
class Usage:
    """What running (or starting) sandboxes take."""

    sandboxes: int
    vcpus: int
    memory_mb: int
    disk_mb: int


NOTHING = Usage(0, 0, 0, 0)

# What is asked for by name is found by the index; "not gone" would read everything that is.
_NOT_GONE = sorted(frozenset(State) - {State.GONE})
_TAKING_ROOM = sorted(frozenset(State) - {State.PAUSED, State.GONE, State.KILLING})


class SandboxQueries(DurableStore):
    """What there is, as it was last committed."""

    async def get(self, sandbox_id: str) -> Sandbox | None:
        async with self._db.read() as session:
            return await session.get(Sandbox, sandbox_id)

    async def count(self, wanted: SandboxFilter) -> int:
        """How many `list` would give in all."""
        query = select(func.count()).select_from(Sandbox).where(*_conditions(wanted))
        async with self._db.read() as session:
            return (await session.execute(query)).scalar_one()

    async def visible_ids(self, team_id: str, sandbox_ids: Collection[str]) -> Sequence[str]:
        """Those of the ids that the team has and sees."""
        query = select(Sandbox.id).where(
            Sandbox.id.in_(list(sandbox_ids)), Sandbox.team_id == team_id, Sandbox.state.in_(list(VISIBLE))
        )
        async with self._db.read() as session:
            return (await session.scalars(query)).all()

    async def list(self, wanted: SandboxFilter, *, after: Cursor | None, limit: int) -> Sequence[Sandbox]:
        """One page by (started_at, id), newest first unless `ascending`."""
        query = select(Sandbox).where(*_conditions(wanted))
        if wanted.ascending:
            if after is not None:
                query = query.where(
                    or_(
                        Sandbox.started_at > after.at,
                        and_(Sandbox.started_at == after.at, Sandbox.id > after.id),
                    )
                )
            query = query.order_by(Sandbox.started_at.asc(), Sandbox.id.asc())
        else:
            if after is not None:
                query = query.where(
                    or_(
                        Sandbox.started_at < after.at,
                        and_(Sandbox.started_at == after.at, Sandbox.id < after.id),
                    )
                )
            query = query.order_by(Sandbox.started_at.desc(), Sandbox.id.desc())
        async with self._db.read() as session:
            return (await session.scalars(query.limit(limit))).all()

    async def of_node(self, node_id: str) -> Sequence[Sandbox]:
        """Everything of this node that is not gone, for recovery."""
        query = select(Sandbox).where(Sandbox.node_id == node_id, Sandbox.state.in_(_NOT_GONE))
        async with self._db.read() as session:
            return (await session.scalars(query)).all()

    async def running(self, node_id: str) -> Sequence[Sandbox]:
        """Sandboxes of this node that have a machine in use."""
        query = select(Sandbox).where(
            Sandbox.node_id == node_id, Sandbox.state.in_([State.RUNNING, State.SNAPSHOTTING])
        )
        async with self._db.read() as session:
            return (await session.scalars(query)).all()

    async def by_machine(self, node_id: str, machine: str) -> Sandbox | None:
        """The sandbox whose machine has this name."""
        query = select(Sandbox).where(
            Sandbox.node_id == node_id,
            Sandbox.state.in_(_NOT_GONE),
            Sandbox.handle["name"].as_string() == machine,
        )
        async with self._db.read() as session:
            return (await session.scalars(query.limit(1))).one_or_none()

    async def moving(self, node_id: str, *, since: datetime) -> Sequence[Sandbox]:
        """Sandboxes in a transition that began before `since`."""
        query = select(Sandbox).where(
            Sandbox.node_id == node_id,
            Sandbox.state.in_(sorted(MOVING)),
            Sandbox.transition_at < since,
        )
        async with self._db.read() as session:
            return (await session.scalars(query)).all()

    async def expired(self, node_id: str, now: datetime) -> Sequence[Sandbox]:
        query = select(Sandbox).where(
            Sandbox.node_id == node_id, Sandbox.state == State.RUNNING, Sandbox.end_at <= now
        )
        async with self._db.read() as session:
            return (await session.scalars(query)).all()

    async def next_deadline(self, node_id: str, *, after: datetime) -> datetime | None:
        query = select(func.min(Sandbox.end_at)).where(
            Sandbox.node_id == node_id, Sandbox.state == State.RUNNING, Sandbox.end_at > after
        )
        async with self._db.read() as session:
            return (await session.execute(query)).scalar_one()

    async def idempotent(self, team_id: str, key: str) -> IdempotencyKey | None:
        async with self._db.read() as session:
            return await session.get(IdempotencyKey, (team_id, key))

    async def ended(self, node_id: str, *, before: datetime, limit: int) -> Sequence[str]:
        """Ids of sandboxes that ended before, the longest ended first."""
        query = select(Sandbox.id).where(
            Sandbox.node_id == node_id, Sandbox.state == State.GONE, Sandbox.ended_at < before
        )
        async with self._db.read() as session:
            return (await session.scalars(query.order_by(Sandbox.ended_at).limit(limit))).all()

    async def usage(self, *, node_id: str | None = None, team_id: str | None = None) -> Usage:
        async with self._db.read() as session:
            return await self.usage_txn(session, node_id=node_id, team_id=team_id)

    async def usage_txn(
        self, session: AsyncSession, *, node_id: str | None = None, team_id: str | None = None
    ) -> Usage:
        query = select(
            func.count(),
            func.coalesce(func.sum(Sandbox.vcpus), 0),
            func.coalesce(func.sum(Sandbox.memory_mb), 0),
            func.coalesce(func.sum(Sandbox.disk_mb), 0),
        ).where(Sandbox.state.in_(_TAKING_ROOM))
        if node_id is not None:
            query = query.where(Sandbox.node_id == node_id)
        if team_id is not None:
            query = query.where(Sandbox.team_id == team_id)
        row = (await session.execute(query)).one()
        return Usage(int(row[0]), int(row[1]), int(row[2]), int(row[3]))

    async def count_by_state(self, node_id: str) -> dict[State, int]:
        query = (
            select(Sandbox.state, func.count())
            .where(Sandbox.node_id == node_id, Sandbox.state.in_(_NOT_GONE))
            .group_by(Sandbox.state)
        )
        async with self._db.read() as session:
            return {State(state): int(count) for state, count in (await session.execute(query)).all()}


def _conditions(wanted: SandboxFilter) -> list[ColumnElement[bool]]:
    conditions = [Sandbox.team_id == wanted.team_id, Sandbox.state.in_(list(wanted.states))]
    if wanted.template is not None:
        conditions.append(
            or_(Sandbox.template_id == wanted.template, Sandbox.template_name == wanted.template)
        )
    if wanted.started_after is not None:
        conditions.append(Sandbox.started_at >= wanted.started_after)
    conditions.extend(
        exists().where(SandboxTag.sandbox_id == Sandbox.id, SandboxTag.key == key, SandboxTag.value == value)
        for key, value in (wanted.metadata or {}).items()
    )
    return conditions
