"""The templates that a team sees: its own and the shipped ones, with their builds and how often they were used."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, and_, func, or_, select

from forkyard.sandboxes.models import Sandbox, Snapshot, SnapshotKind, SnapshotName, SnapshotState
from forkyard.sandboxes.store import Cursor
from forkyard.storage.session import Database


@dataclass(frozen=True, slots=True)
class TemplateEntry:
    """One template as it stands."""

    template_id: str
    newest: Snapshot
    """What a create by its id starts from."""
    names: Sequence[SnapshotName]
    """The names, with tags, that lead to any of its builds."""
    builds: int
    created_at: datetime
    """Of its first build that is still there."""
    spawned: int
    """Sandboxes that the team made from it, as far back as records are kept."""
    last_spawned_at: datetime | None


@dataclass(frozen=True, slots=True)
class _Group:
    template_id: str
    created_at: datetime
    updated_at: datetime
    builds: int


class Catalog:
    """Reads only."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def templates(self, team_id: str, *, after: Cursor | None, limit: int) -> Sequence[TemplateEntry]:
        """One page by (created_at, template id), newest first."""
        return await self._entries(team_id, await self._groups(team_id, None, after, limit))

    async def template(self, team_id: str, template_id: str) -> TemplateEntry | None:
        """The template of that id, if the team sees it."""
        entries = await self._entries(team_id, await self._groups(team_id, template_id, None, 1))
        return entries[0] if entries else None

    async def builds(
        self, team_id: str, template_id: str, *, after: Cursor | None, limit: int
    ) -> Sequence[Snapshot]:
        """One page of a template's builds, newest first."""
        query = select(Snapshot).where(*_seen_by(team_id), Snapshot.template_id == template_id)
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

    async def _groups(
        self, team_id: str, template_id: str | None, after: Cursor | None, limit: int
    ) -> Sequence[_Group]:
        created, updated = func.min(Snapshot.created_at), func.max(Snapshot.created_at)
        query = (
            select(Snapshot.template_id, created, updated, func.count())
            .where(*_seen_by(team_id))
            .group_by(Snapshot.template_id)
            .order_by(created.desc(), Snapshot.template_id.desc())
            .limit(limit)
        )
        if template_id is not None:
            query = query.where(Snapshot.template_id == template_id)
        if after is not None:
            query = query.having(
                or_(created < after.at, and_(created == after.at, Snapshot.template_id < after.id))
            )
        async with self._db.read() as session:
            return [_Group(row[0], row[1], row[2], row[3]) for row in (await session.execute(query)).all()]

    async def _entries(self, team_id: str, groups: Sequence[_Group]) -> Sequence[TemplateEntry]:
        ids = [group.template_id for group in groups]
        if not ids:
            return []
        newest = await self._newest(team_id, groups)
        names = await self._names(team_id, ids)
        spawns = await self._spawns(team_id, ids)
        return [
            TemplateEntry(
                template_id=group.template_id,
                newest=newest[group.template_id],
                names=names[group.template_id],
                builds=group.builds,
                created_at=group.created_at,
                spawned=spawns.get(group.template_id, (0, None))[0],
                last_spawned_at=spawns.get(group.template_id, (0, None))[1],
            )
            for group in groups
            if group.template_id in newest  # Deleted between the two queries otherwise.
        ]

    async def _newest(self, team_id: str, groups: Sequence[_Group]) -> dict[str, Snapshot]:
        newest = or_(
            *(
                and_(Snapshot.template_id == group.template_id, Snapshot.created_at == group.updated_at)
                for group in groups
            )
        )
        query = select(Snapshot).where(*_seen_by(team_id), newest).order_by(Snapshot.id)
        async with self._db.read() as session:
            return {row.template_id: row for row in (await session.scalars(query)).all()}

    async def _names(self, team_id: str, template_ids: Collection[str]) -> dict[str, list[SnapshotName]]:
        query = (
            select(Snapshot.template_id, SnapshotName)
            .join(SnapshotName, SnapshotName.snapshot_id == Snapshot.id)
            .where(*_seen_by(team_id), Snapshot.template_id.in_(list(template_ids)))
            .order_by(SnapshotName.id)
        )
        names: dict[str, list[SnapshotName]] = defaultdict(list)
        async with self._db.read() as session:
            for row in (await session.execute(query)).all():
                names[row[0]].append(row[1])
        return names

    async def _spawns(self, team_id: str, template_ids: Collection[str]) -> dict[str, tuple[int, datetime]]:
        query = (
            select(Sandbox.template_id, func.count(), func.max(Sandbox.created_at))
            .where(Sandbox.team_id == team_id, Sandbox.template_id.in_(list(template_ids)))
            .group_by(Sandbox.template_id)
        )
        async with self._db.read() as session:
            return {row[0]: (row[1], row[2]) for row in (await session.execute(query)).all()}


def _seen_by(team_id: str) -> tuple[ColumnElement[bool], ...]:
    return (
        Snapshot.kind == SnapshotKind.TEMPLATE,
        Snapshot.state == SnapshotState.READY,
        or_(Snapshot.team_id == team_id, Snapshot.team_id.is_(None)),
    )
