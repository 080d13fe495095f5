"""API keys: making, listing, revoking, and telling who makes a request."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, func, null, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from forkyard.auth.audit import append_audit_txn
from forkyard.auth.cache import CachedKey, KeyCache
from forkyard.auth.errors import (
    InvalidApiKey,
    KeyNotFound,
    LastAdminKey,
    TeamExists,
    TeamNotFound,
    TooManyKeys,
)
from forkyard.auth.keys import hash_key, is_key, key_prefix, key_suffix, new_key
from forkyard.auth.limits import LimitsByTeam, TeamLimits
from forkyard.auth.models import ApiKey, Team
from forkyard.auth.principal import OPERATOR, Principal
from forkyard.auth.roles import Role, Scope
from forkyard.auth.usage import KeyUsage
from forkyard.base.clock import Clock, SystemClock
from forkyard.base.errors import InvalidInput
from forkyard.base.ids import is_uuid, new_uuid
from forkyard.storage.dialect import insert_into, lock_name_txn
from forkyard.storage.session import Database

DEFAULT_TEAM = "default"
"""Name of the team that the first start makes."""

FIRST_KEY = "first key"
"""Name of the key that a team is made with."""

CACHE_SECONDS = 5.0
"""How long a key that another process revoked may still work in this one."""

MAX_KEYS = 1000
"""Valid keys a team may have."""

MAX_NAME = 100
"""Characters in the name of a key or team."""


@dataclass(frozen=True, slots=True)
class IssuedKey:
    """A new key: the only time that `key` itself is known."""

    record: ApiKey
    key: str


class AuthService:
    """Teams and API keys of one database."""

    def __init__(self, database: Database, clock: Clock | None = None) -> None:
        self._database = database
        self._clock = clock or SystemClock()
        self._cache = KeyCache(CACHE_SECONDS)
        self.usage = KeyUsage(database, self._clock)
        """Run its `run()` in the background, and `flush()` at the end."""
        self.limits = LimitsByTeam(database, self._clock)
        """Run its `run()` in the background."""

    async def authenticate(self, key: str | None) -> Principal:
        """Who has this key. Takes microseconds if the key was used in the last seconds, else one look-up.

        Raises InvalidApiKey, which does not say why, and DatabaseUnavailable.
        """
        if key is None or not is_key(key):
            raise InvalidApiKey()
        key_hash = hash_key(key)
        entry = self._cache.get(key_hash, self._clock.monotonic()) or await self._look_up(key_hash)
        now = self._clock.now()
        if entry.expires_at is not None and entry.expires_at <= now:
            raise InvalidApiKey()
        self.usage.note(entry.principal.key_id, now)
        return entry.principal

    async def create_key(
        self, principal: Principal, *, name: str, role: Role, expires_at: datetime | None = None
    ) -> IssuedKey:
        """Make a key in the principal's team. The key is in the answer and nowhere else.

        Raises RoleNotAllowed, InvalidInput (name, expires_at) and TooManyKeys.
        """
        principal.require(Scope.TEAM_WRITE)
        name = _valid_name(name)
        now = self._clock.now()
        if expires_at is not None and (expires_at.tzinfo is None or expires_at <= now):
            raise InvalidInput("expires_at must be in the future, with a time zone", field="expires_at")
        async with self._database.write() as session:
            await _lock_keys_txn(session, principal.team_id)
            if await _count_valid_txn(session, principal.team_id, now) >= MAX_KEYS:
                raise TooManyKeys()
            issued = _issue_txn(session, principal, new_key(), name, role, now, expires_at)
        return issued

    async def list_keys(self, principal: Principal) -> Sequence[ApiKey]:
        """The keys of the principal's team that are not revoked, newest first. Raises RoleNotAllowed."""
        principal.require(Scope.TEAM_READ)
        query = select(ApiKey).where(ApiKey.team_id == principal.team_id, ApiKey.revoked_at.is_(None))
        async with self._database.read() as session:
            return (await session.scalars(query.order_by(ApiKey.created_at.desc(), ApiKey.id))).all()

    async def revoke_key(self, principal: Principal, key_id: str) -> None:
        """End a key of the principal's team: at once in this process, within CACHE_SECONDS in others.

        Raises RoleNotAllowed, KeyNotFound (revoked before, too) and LastAdminKey.
        """
        principal.require(Scope.TEAM_WRITE)
        if not is_uuid(key_id):
            raise KeyNotFound()
        now = self._clock.now()
        async with self._database.write() as session:
            await _lock_keys_txn(session, principal.team_id)
            key = await session.get(ApiKey, key_id)
            if key is None or key.team_id != principal.team_id or key.revoked_at is not None:
                raise KeyNotFound()
            if key.role == Role.ADMIN:
                await _keep_an_admin_txn(session, key, now)
            key.revoked_at = now
            append_audit_txn(
                session,
                at=now,
                team_id=principal.team_id,
                actor=principal.key_id,
                action="api_key.revoke",
                target=key_id,
                details={"name": key.name, "prefix": key.prefix},
            )
        self._cache.forget(key_id)

    async def bootstrap(self, save: Callable[[str], Awaitable[None]]) -> IssuedKey | None:
        """On the first start make the team `default` and its first admin key; later do nothing and return
        None.

        `save(key)` must put the key where its owner finds it, over what may be there. It is called before the
        commit: if we are killed in between, the next start makes and saves a new key, and never is there a
        key in the database that nobody knows. Of several servers that start at once one does this. (The one
        place where something else happens inside a transaction; it happens once in the life of a database.)
        """
        now = self._clock.now()
        async with self._database.write() as session:
            team_id = await _insert_team_txn(session, DEFAULT_TEAM, now)
            if team_id is None:
                return None
            key = new_key()
            issued = _issue_txn(session, Principal.operator(team_id), key, FIRST_KEY, Role.ADMIN, now, None)
            await save(key)
        return issued

    async def create_team(self, name: str, limits: TeamLimits | None = None) -> IssuedKey:
        """Make a team; its id is in the record of its first admin key. For whoever runs the server.

        Raises InvalidInput and TeamExists.
        """
        name = _valid_name(name)
        now = self._clock.now()
        async with self._database.write() as session:
            team_id = await _insert_team_txn(session, name, now, limits)
            if team_id is None:
                raise TeamExists()
            return _issue_txn(
                session, Principal.operator(team_id), new_key(), FIRST_KEY, Role.ADMIN, now, None
            )

    async def limit_team(self, name: str, limits: TeamLimits) -> Team:
        """Give a team these limits in place of those it has. For whoever runs the server. Raises TeamNotFound."""
        async with self._database.write() as session:
            team = await session.scalar(select(Team).where(Team.name == name.strip()).with_for_update())
            if team is None:
                raise TeamNotFound()
            team.limits = limits.to_json()
            append_audit_txn(
                session,
                at=self._clock.now(),
                team_id=team.id,
                actor=OPERATOR,
                action="team.limit",
                target=team.id,
                details=team.limits,
            )
        return team

    async def list_teams(self) -> Sequence[Team]:
        """All teams, the oldest first. For whoever runs the server."""
        async with self._database.read() as session:
            return (await session.scalars(select(Team).order_by(Team.created_at, Team.id))).all()

    async def find_team(self, name: str) -> Team | None:
        """The team of that name."""
        async with self._database.read() as session:
            return await session.scalar(select(Team).where(Team.name == name))

    async def get_team(self, principal: Principal) -> Team:
        """The principal's team."""
        async with self._database.read() as session:
            return await session.get_one(Team, principal.team_id)

    async def _look_up(self, key_hash: str) -> CachedKey:
        begun = self._cache.begin()
        seen = self._clock.monotonic()
        query = select(ApiKey.id, ApiKey.team_id, ApiKey.role, ApiKey.expires_at).where(
            ApiKey.hash == key_hash, ApiKey.revoked_at.is_(None)
        )
        async with self._database.read() as session:
            row = (await session.execute(query)).one_or_none()
        if row is None:
            raise InvalidApiKey()
        entry = CachedKey(Principal(row.team_id, row.id, row.role), row.expires_at, seen)
        self._cache.put(key_hash, entry, begun)
        return entry


def _valid_name(name: str) -> str:
    name = name.strip()
    if not name or len(name) > MAX_NAME or not name.isprintable():
        raise InvalidInput(f"name must have 1 to {MAX_NAME} printable characters", field="name")
    return name


async def _insert_team_txn(
    session: AsyncSession, name: str, now: datetime, limits: TeamLimits | None = None
) -> str | None:
    """The id of the new team; None if there is one of that name (waits for a transaction that makes one)."""
    stored = limits.to_json() if limits is not None else None
    insert = insert_into(session, Team).values(
        {Team.id: new_uuid(), Team.name: name, Team.created_at: now, Team.limits: stored or null()}
    )
    team_id = await session.scalar(insert.on_conflict_do_nothing().returning(Team.id))
    if team_id is not None:
        append_audit_txn(
            session,
            at=now,
            team_id=team_id,
            actor=OPERATOR,
            action="team.create",
            target=team_id,
            details={"name": name, **({"limits": stored} if stored else {})},
        )
    return team_id


async def _lock_keys_txn(session: AsyncSession, team_id: str) -> None:
    await lock_name_txn(session, f"api_keys:{team_id}")


async def _count_valid_txn(
    session: AsyncSession, team_id: str, now: datetime, *where: ColumnElement[bool]
) -> int:
    query = select(func.count()).where(
        ApiKey.team_id == team_id,
        ApiKey.revoked_at.is_(None),
        or_(ApiKey.expires_at.is_(None), ApiKey.expires_at > now),
        *where,
    )
    return await session.scalar(query) or 0


async def _keep_an_admin_txn(session: AsyncSession, key: ApiKey, now: datetime) -> None:
    others = (ApiKey.role == Role.ADMIN, ApiKey.id != key.id)
    if await _count_valid_txn(session, key.team_id, now, *others) == 0:
        raise LastAdminKey()


def _issue_txn(
    session: AsyncSession,
    principal: Principal,
    key: str,
    name: str,
    role: Role,
    now: datetime,
    expires_at: datetime | None,
) -> IssuedKey:
    record = ApiKey(
        id=new_uuid(),
        team_id=principal.team_id,
        name=name,
        role=role,
        hash=hash_key(key),
        prefix=key_prefix(key),
        suffix=key_suffix(key),
        created_by=principal.key_id,
        created_at=now,
        expires_at=expires_at,
    )
    session.add(record)
    append_audit_txn(
        session,
        at=now,
        team_id=principal.team_id,
        actor=principal.key_id,
        action="api_key.create",
        target=record.id,
        details={"name": name, "role": role.value, "prefix": record.prefix},
    )
    return IssuedKey(record, key)
