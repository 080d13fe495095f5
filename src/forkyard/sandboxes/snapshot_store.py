"""Reads and writes of snapshots and their names."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import and_, bindparam, delete, exists, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from forkyard.sandboxes.durable_store import DurableStore, rowcount
from forkyard.sandboxes.models import DEFAULT_TAG, Snapshot, SnapshotKind, SnapshotName, SnapshotState
from forkyard.sandboxes.queries import Cursor
from forkyard.storage.dialect import insert_into

# Built once: every create asks one of these, and building a query takes longer than running it.
_NAMED = (
    select(Snapshot)
    .join(SnapshotName, SnapshotName.snapshot_id == Snapshot.id)
    .where(
        or_(SnapshotName.team_id == bindparam("team"), SnapshotName.team_id == ""),
        SnapshotName.name == bindparam("name"),
        SnapshotName.tag == bindparam("tag"),
        Snapshot.state == SnapshotState.READY,
    )
    .order_by(SnapshotName.team_id.desc())
    .limit(1)
)
_BY_ANY_ID = (
    select(Snapshot)
    .where(
        or_(
            and_(
                Snapshot.id == bindparam("any"),
                Snapshot.kind.in_([SnapshotKind.SNAPSHOT, SnapshotKind.TEMPLATE]),
            ),
            and_(Snapshot.template_id == bindparam("any"), Snapshot.kind == SnapshotKind.TEMPLATE),
        ),
        Snapshot.state == SnapshotState.READY,
        or_(Snapshot.team_id == bindparam("team"), Snapshot.team_id.is_(None)),
    )
    .order_by(Snapshot.created_at.desc())
    .limit(1)
)


class SnapshotStore(DurableStore):
    """Every snapshot of the database, templates among them."""

    async def snapshot(self, snapshot_id: str) -> Snapshot | None:
        async with self._db.read() as session:
            return await session.get(Snapshot, snapshot_id)

    async def is_deleted(self, snapshot_id: str) -> bool:
        """Whether it is marked for deletion, or gone already."""
        row = await self.snapshot(snapshot_id)
        return row is None or row.state == SnapshotState.DELETING

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
            return rowcount(result) == 1

    async def find_named(self, *, team_id: str, name: str, tag: str) -> Snapshot | None:
        """By name, the team's own before the shipped ones."""
        async with self._db.read() as session:
            found = await session.scalars(_NAMED, {"team": team_id, "name": name, "tag": tag})
            return found.one_or_none()

    async def find_by_id(self, *, team_id: str, any_id: str) -> Snapshot | None:
        """By snapshot id, or by template id (then its newest ready snapshot), if the team may use it."""
        async with self._db.read() as session:
            return (await session.scalars(_BY_ANY_ID, {"team": team_id, "any": any_id})).one_or_none()

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
            statement = insert_into(session, SnapshotName).values(
                team_id=team_id, name=name, tag=tag, snapshot_id=snapshot_id, created_at=now
            )
            await session.execute(
                statement.on_conflict_do_update(
                    index_elements=["team_id", "name", "tag"],
                    set_={"snapshot_id": snapshot_id, "created_at": now},
                )
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
            return await self.mark_deleting_txn(session, snapshot_ids)

    async def forget_snapshots(self, snapshot_ids: Collection[str]) -> None:
        """Delete the rows of snapshots marked for deletion; the files are gone."""
        query = delete(Snapshot).where(
            Snapshot.id.in_(list(snapshot_ids)), Snapshot.state == SnapshotState.DELETING
        )
        async with self._write() as session:
            await session.execute(query)

    async def mark_deleting_txn(self, session: AsyncSession, snapshot_ids: Collection[str]) -> int:
        """`mark_deleting` in the caller's transaction."""
        if not snapshot_ids:
            return 0
        await session.execute(delete(SnapshotName).where(SnapshotName.snapshot_id.in_(list(snapshot_ids))))
        result = await session.execute(
            update(Snapshot)
            .where(Snapshot.id.in_(list(snapshot_ids)), Snapshot.state != SnapshotState.DELETING)
            .values(state=SnapshotState.DELETING)
        )
        return rowcount(result)
