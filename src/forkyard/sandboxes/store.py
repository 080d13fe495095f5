"""Reads and compare-and-set writes of sandboxes and snapshots.

Functions ending in `_txn` run inside the caller's transaction. No method holds a transaction over anything
but its own statements.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, and_, delete, exists, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from forkyard.sandboxes.models import (
    DEFAULT_TAG,
    IdempotencyKey,
    Sandbox,
    SandboxTag,
    Snapshot,
    SnapshotKind,
    SnapshotName,
    SnapshotState,
)
from forkyard.sandboxes.state import STEADY, VISIBLE, State, may_follow
from forkyard.storage.session import Database


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


class SandboxStore:
    def __init__(self, database: Database) -> None:
        self._db = database

    # -- sandboxes -----------------------------------------------------------------------------------

    async def get(self, sandbox_id: str) -> Sandbox | None:
        async with self._db.read() as session:
            return await session.get(Sandbox, sandbox_id)

    @property
    def database(self) -> Database:
        """For queries of other modules about the same tables."""
        return self._db

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
        query = select(Sandbox).where(Sandbox.node_id == node_id, Sandbox.state != State.GONE)
        async with self._db.read() as session:
            return (await session.scalars(query)).all()

    async def running(self, node_id: str) -> Sequence[Sandbox]:
        """Sandboxes of this node that have a machine in use."""
        query = select(Sandbox).where(
            Sandbox.node_id == node_id, Sandbox.state.in_([State.RUNNING, State.SNAPSHOTTING])
        )
        async with self._db.read() as session:
            return (await session.scalars(query)).all()

    async def expired(self, node_id: str, now: datetime) -> Sequence[Sandbox]:
        query = select(Sandbox).where(
            Sandbox.node_id == node_id, Sandbox.state == State.RUNNING, Sandbox.end_at <= now
        )
        async with self._db.read() as session:
            return (await session.scalars(query)).all()

    async def next_deadline(self, node_id: str) -> datetime | None:
        query = select(func.min(Sandbox.end_at)).where(
            Sandbox.node_id == node_id, Sandbox.state == State.RUNNING
        )
        async with self._db.read() as session:
            return (await session.execute(query)).scalar_one()

    async def insert(
        self,
        sandboxes: Sequence[Sandbox],
        *,
        limits: LimitCheck | None = None,
        key: IdempotencyKey | None = None,
    ) -> Sandbox | None:
        """Write new sandboxes (state `creating`) in one transaction, if `limits` allows it.

        With an idempotency key that exists already nothing is written and the key's sandbox is returned (its
        `request_hash` is for the caller to compare, see `idempotent`).
        """
        async with self._db.write() as session:
            if key is not None:
                known = await session.get(IdempotencyKey, (key.team_id, key.key))
                if known is not None:
                    return await session.get(Sandbox, known.sandbox_id)
            if limits is not None:
                await limits.check_txn(self, session)
            session.add_all(sandboxes)
            await session.flush()
            session.add_all(
                SandboxTag(sandbox_id=s.id, key=k, value=v)
                for s in sandboxes
                for k, v in s.user_metadata.items()
            )
            if key is not None:
                session.add(key)
        return None

    async def idempotent(self, team_id: str, key: str) -> IdempotencyKey | None:
        async with self._db.read() as session:
            return await session.get(IdempotencyKey, (team_id, key))

    async def begin(
        self,
        sandbox_id: str,
        *,
        allowed: Collection[State],
        to: State,
        token: str,
        now: datetime,
        expired_at: datetime | None = None,
        next_generation: bool = False,
        snapshot: Snapshot | None = None,
        limits: LimitCheck | None = None,
    ) -> Sandbox | None:
        """Claim a transition: from one of the steady `allowed` states to `to`, owned by `token`.

        None when the sandbox is not in one of them (any more). `expired_at`: only when its deadline is not later
        than that, so that an extension that came first wins. `snapshot` (state `writing`) is written in the same
        transaction: the intent to make it.
        """
        for state in allowed:
            if state not in STEADY or not may_follow(state, to):
                raise ValueError(f"no transition {state} -> {to}")
        values: dict[str, Any] = {"state": to, "transition": token, "transition_at": now}
        if next_generation:
            values["generation"] = Sandbox.generation + 1
        if snapshot is not None:
            values["transition_snapshot_id"] = snapshot.id
        query = update(Sandbox).where(Sandbox.id == sandbox_id, Sandbox.state.in_(list(allowed)))
        if expired_at is not None:
            query = query.where(Sandbox.end_at <= expired_at)
        async with self._db.write() as session:
            if limits is not None:
                await limits.check_txn(self, session)
            row = (await session.scalars(query.values(**values).returning(Sandbox))).one_or_none()
            if row is not None and snapshot is not None:
                session.add(snapshot)
            return row

    async def finish(
        self,
        sandbox_id: str,
        *,
        token: str,
        to: State,
        values: Mapping[str, Any] | None = None,
        snapshot_ready: Mapping[str, Any] | None = None,
        snapshot_drop: Collection[str] = (),
    ) -> Sandbox | None:
        """Commit the transition that `token` owns. None when it is not the owner any more; then nothing was written.

        `snapshot_ready`: values for the snapshot the transition wrote, which becomes `ready`; otherwise that snapshot
        is marked for deletion. `snapshot_drop`: further snapshots to mark.
        """
        async with self._db.write() as session:
            row = (
                await session.scalars(
                    select(Sandbox)
                    .where(Sandbox.id == sandbox_id, Sandbox.transition == token)
                    .with_for_update()
                )
            ).one_or_none()
            if row is None:
                return None
            if not may_follow(row.state, to):
                raise ValueError(f"no transition {row.state} -> {to}")
            written = row.transition_snapshot_id
            row.state = to
            row.transition = row.transition_at = row.transition_snapshot_id = None
            for name, value in (values or {}).items():
                setattr(row, name, value)
            drop = set(snapshot_drop)
            if written is not None and snapshot_ready is not None:
                await session.execute(
                    update(Snapshot)
                    .where(Snapshot.id == written)
                    .values(state=SnapshotState.READY, **snapshot_ready)
                )
            elif written is not None:
                drop.add(written)
            await self._mark_deleting_txn(session, drop)
            return row

    async def set_handle(self, sandbox_id: str, *, token: str, handle: dict[str, Any]) -> bool:
        """Remember the machine of a transition in progress; False when `token` does not own it any more."""
        query = update(Sandbox).where(Sandbox.id == sandbox_id, Sandbox.transition == token)
        async with self._db.write() as session:
            return _rowcount(await session.execute(query.values(handle=handle))) == 1

    async def end(self, sandbox_id: str, *, generation: int, reason: str, now: datetime) -> Sandbox | None:
        """The machine of that generation died by itself: a running sandbox is gone. None when it was not running it."""
        query = (
            update(Sandbox)
            .where(Sandbox.id == sandbox_id, Sandbox.generation == generation, Sandbox.state == State.RUNNING)
            .values(state=State.GONE, ended_at=now, end_reason=reason[:400])
            .returning(Sandbox)
        )
        async with self._db.write() as session:
            return (await session.scalars(query)).one_or_none()

    async def set_values(
        self, sandbox_id: str, *, states: Collection[State], values: Mapping[str, Any]
    ) -> Sandbox | None:
        """Change plain fields of a sandbox in one of these states; None when it is in another."""
        query = (
            update(Sandbox)
            .where(Sandbox.id == sandbox_id, Sandbox.state.in_(list(states)))
            .values(**values)
            .returning(Sandbox)
        )
        async with self._db.write() as session:
            return (await session.scalars(query)).one_or_none()

    async def extend(self, sandbox_id: str, *, end_at: datetime, timeout_s: int) -> Sandbox | None:
        """Move the deadline of a running sandbox later, never earlier; None when it does not run."""
        async with self._db.write() as session:
            row = (
                await session.scalars(
                    select(Sandbox)
                    .where(Sandbox.id == sandbox_id, Sandbox.state.in_([State.RUNNING, State.SNAPSHOTTING]))
                    .with_for_update()
                )
            ).one_or_none()
            if row is not None and row.end_at < end_at:
                row.end_at = end_at
                row.timeout_s = timeout_s
            return row

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
        ).where(Sandbox.state.not_in([State.PAUSED, State.GONE, State.KILLING]))
        if node_id is not None:
            query = query.where(Sandbox.node_id == node_id)
        if team_id is not None:
            query = query.where(Sandbox.team_id == team_id)
        row = (await session.execute(query)).one()
        return Usage(int(row[0]), int(row[1]), int(row[2]), int(row[3]))

    async def count_by_state(self, node_id: str) -> dict[State, int]:
        query = (
            select(Sandbox.state, func.count())
            .where(Sandbox.node_id == node_id, Sandbox.state != State.GONE)
            .group_by(Sandbox.state)
        )
        async with self._db.read() as session:
            return {State(state): int(count) for state, count in (await session.execute(query)).all()}

    async def purge(self, *, ended_before: datetime) -> int:
        """Forget sandboxes that ended before, and idempotency keys of that age."""
        async with self._db.write() as session:
            gone = await session.execute(
                delete(Sandbox).where(Sandbox.state == State.GONE, Sandbox.ended_at < ended_before)
            )
            await session.execute(delete(IdempotencyKey).where(IdempotencyKey.created_at < ended_before))
            return _rowcount(gone)

    # -- snapshots -----------------------------------------------------------------------------------

    async def snapshot(self, snapshot_id: str) -> Snapshot | None:
        async with self._db.read() as session:
            return await session.get(Snapshot, snapshot_id)

    async def insert_snapshot(self, snapshot: Snapshot, names: Sequence[SnapshotName] = ()) -> None:
        async with self._db.write() as session:
            session.add(snapshot)
            await session.flush()
            session.add_all(names)

    async def update_snapshot(self, snapshot_id: str, values: Mapping[str, Any]) -> bool:
        async with self._db.write() as session:
            result = await session.execute(
                update(Snapshot)
                .where(Snapshot.id == snapshot_id, Snapshot.state != SnapshotState.DELETING)
                .values(**values)
            )
            return _rowcount(result) == 1

    async def find_named(self, *, team_id: str, name: str, tag: str) -> Snapshot | None:
        """By name, the team's own before the shipped ones."""
        query = (
            select(Snapshot)
            .join(SnapshotName, SnapshotName.snapshot_id == Snapshot.id)
            .where(
                SnapshotName.team_id.in_([team_id, ""]),
                SnapshotName.name == name,
                SnapshotName.tag == tag,
                Snapshot.state == SnapshotState.READY,
            )
            .order_by(SnapshotName.team_id.desc())
            .limit(1)
        )
        async with self._db.read() as session:
            return (await session.scalars(query)).one_or_none()

    async def find_by_id(self, *, team_id: str, any_id: str) -> Snapshot | None:
        """By snapshot id, or by template id (then its newest ready snapshot), if the team may use it."""
        query = (
            select(Snapshot)
            .where(
                or_(
                    and_(
                        Snapshot.id == any_id,
                        Snapshot.kind.in_([SnapshotKind.SNAPSHOT, SnapshotKind.TEMPLATE]),
                    ),
                    and_(Snapshot.template_id == any_id, Snapshot.kind == SnapshotKind.TEMPLATE),
                ),
                Snapshot.state == SnapshotState.READY,
                or_(Snapshot.team_id == team_id, Snapshot.team_id.is_(None)),
            )
            .order_by(Snapshot.created_at.desc())
            .limit(1)
        )
        async with self._db.read() as session:
            return (await session.scalars(query)).one_or_none()

    async def names_of(self, snapshot_ids: Collection[str]) -> dict[str, list[SnapshotName]]:
        query = select(SnapshotName).where(SnapshotName.snapshot_id.in_(list(snapshot_ids)))
        names: dict[str, list[SnapshotName]] = {i: [] for i in snapshot_ids}
        async with self._db.read() as session:
            for name in (await session.scalars(query.order_by(SnapshotName.id))).all():
                names[name.snapshot_id].append(name)
        return names

    async def set_name(self, *, team_id: str, name: str, tag: str, snapshot_id: str, now: datetime) -> None:
        """Let a name lead to this snapshot, wherever it led before."""
        async with self._db.write() as session:
            await session.execute(
                delete(SnapshotName).where(
                    SnapshotName.team_id == team_id, SnapshotName.name == name, SnapshotName.tag == tag
                )
            )
            session.add(
                SnapshotName(team_id=team_id, name=name, tag=tag, snapshot_id=snapshot_id, created_at=now)
            )

    async def list_snapshots(
        self,
        *,
        team_id: str,
        sandbox_id: str | None = None,
        name: tuple[str, str | None] | None = None,
        after: Cursor | None = None,
        limit: int,
    ) -> Sequence[Snapshot]:
        """A team's snapshots (kind `snapshot`), newest first; `name` is a name or id, and a tag or None for any."""
        query = select(Snapshot).where(
            Snapshot.team_id == team_id,
            Snapshot.kind == SnapshotKind.SNAPSHOT,
            Snapshot.state == SnapshotState.READY,
        )
        if sandbox_id is not None:
            query = query.where(Snapshot.sandbox_id == sandbox_id)
        if name is not None:
            alias, tag = name
            named = exists().where(
                SnapshotName.snapshot_id == Snapshot.id,
                SnapshotName.team_id == team_id,
                SnapshotName.name == alias,
                *([] if tag is None else [SnapshotName.tag == tag]),
            )
            by_id = tag is None or tag == DEFAULT_TAG
            query = query.where(or_(named, Snapshot.id == alias) if by_id else named)
        if after is not None:
            query = query.where(
                or_(
                    Snapshot.created_at < after.at,
                    and_(Snapshot.created_at == after.at, Snapshot.id < after.id),
                )
            )
        query = query.order_by(Snapshot.created_at.desc(), Snapshot.id.desc()).limit(limit)
        async with self._db.read() as session:
            return (await session.scalars(query)).all()

    async def snapshots_in(self, node_id: str, states: Collection[str]) -> Sequence[Snapshot]:
        query = select(Snapshot).where(Snapshot.node_id == node_id, Snapshot.state.in_(list(states)))
        async with self._db.read() as session:
            return (await session.scalars(query)).all()

    async def mark_deleting(self, snapshot_ids: Collection[str]) -> int:
        """Nobody can use these any more; the files go next. Answers how many were not marked before."""
        async with self._db.write() as session:
            return await self._mark_deleting_txn(session, snapshot_ids)

    async def forget_snapshot(self, snapshot_id: str) -> None:
        """Delete the row; the files are gone."""
        async with self._db.write() as session:
            await session.execute(
                delete(Snapshot).where(Snapshot.id == snapshot_id, Snapshot.state == SnapshotState.DELETING)
            )

    async def _mark_deleting_txn(self, session: AsyncSession, snapshot_ids: Collection[str]) -> int:
        if not snapshot_ids:
            return 0
        await session.execute(delete(SnapshotName).where(SnapshotName.snapshot_id.in_(list(snapshot_ids))))
        result = await session.execute(
            update(Snapshot)
            .where(Snapshot.id.in_(list(snapshot_ids)), Snapshot.state != SnapshotState.DELETING)
            .values(state=SnapshotState.DELETING)
        )
        return _rowcount(result)


class LimitCheck:
    """Checked inside the transaction that takes what the limits bound. See `admission.py`."""

    async def check_txn(self, store: SandboxStore, session: AsyncSession) -> None:
        raise NotImplementedError


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


def _rowcount(result: Any) -> int:
    return int(result.rowcount)
