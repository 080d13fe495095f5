"""Keys and teams on both databases."""

import asyncio
from datetime import timedelta

import pytest
from sqlalchemy import select, text

from forkyard.auth.audit import append_audit_txn, list_audit
from forkyard.auth.errors import (
    InvalidApiKey,
    KeyNotFound,
    LastAdminKey,
    RoleNotAllowed,
    TeamExists,
    TeamNotFound,
    TooManyKeys,
)
from forkyard.auth.keys import new_key
from forkyard.auth.limits import LimitsByTeam, TeamLimits
from forkyard.auth.models import ApiKey, Team
from forkyard.auth.principal import Principal
from forkyard.auth.roles import Role, Scope
from forkyard.auth.service import CACHE_SECONDS, AuthService, IssuedKey
from forkyard.auth.usage import WRITE_EVERY
from forkyard.base.errors import InvalidInput
from forkyard.base.logging import log_context
from forkyard.storage.session import Database
from forkyard.testing.clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def auth(database: Database, clock: ManualClock) -> AuthService:
    return AuthService(database, clock)


async def keep(_key: str) -> None:
    """A `save` for bootstrap that needs no file."""


async def first_key(auth: AuthService) -> tuple[IssuedKey, Principal]:
    issued = await auth.bootstrap(keep)
    assert issued is not None
    return issued, await auth.authenticate(issued.key)


async def test_first_start_makes_the_default_team_and_an_admin_key(auth: AuthService) -> None:
    saved: list[str] = []

    async def save(key: str) -> None:
        saved.append(key)

    issued = await auth.bootstrap(save)
    assert issued is not None
    assert saved == [issued.key]
    principal = await auth.authenticate(issued.key)
    assert (principal.role, principal.key_id) == (Role.ADMIN, issued.record.id)
    assert (await auth.get_team(principal)).name == "default"
    assert await auth.bootstrap(save) is None
    assert len(saved) == 1


async def test_a_key_that_could_not_be_saved_does_not_exist(auth: AuthService) -> None:
    async def fail(_key: str) -> None:
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        await auth.bootstrap(fail)
    assert await auth.find_team("default") is None
    assert await auth.bootstrap(keep) is not None


async def test_of_servers_that_start_together_one_makes_the_key(database: Database) -> None:
    others = [Database(database.url) for _ in range(4)]
    try:
        results = await asyncio.gather(*(AuthService(each).bootstrap(keep) for each in others))
    finally:
        for each in others:
            await each.close()
    issued = [result for result in results if result is not None]
    assert len(issued) == 1
    assert await AuthService(database).authenticate(issued[0].key)


async def test_the_key_itself_is_not_in_the_database(auth: AuthService, database: Database) -> None:
    issued, _ = await first_key(auth)
    secret = issued.key[8:-4]
    async with database.read() as session:
        for table in ("teams", "api_keys", "audit_log"):
            rows = (await session.execute(text(f"SELECT * FROM {table}"))).all()
            assert rows
            assert secret not in str(rows)
    assert (issued.record.prefix, issued.record.suffix) == (issued.key[:8], issued.key[-4:])


@pytest.mark.parametrize(
    "key",
    [
        None,
        "",
        "e2b_",
        "e2b_" + "0" * 39,
        "e2b_" + "G" * 40,
        "x" * 100_000,
        "e2b_" + "0" * 40 + "\n",
        "é" * 44,
    ],
)
async def test_what_is_no_key_is_refused(auth: AuthService, key: str | None) -> None:
    await first_key(auth)
    with pytest.raises(InvalidApiKey):
        await auth.authenticate(key)


async def test_unknown_keys_are_refused(auth: AuthService) -> None:
    issued, _ = await first_key(auth)
    last = "0" if issued.key[-1] != "0" else "1"
    for key in (new_key(), issued.key[:-1] + last, issued.key.upper()):
        with pytest.raises(InvalidApiKey):
            await auth.authenticate(key)


async def test_created_keys_are_listed_newest_first_and_have_their_role(
    auth: AuthService, clock: ManualClock
) -> None:
    _, admin = await first_key(auth)
    for role in Role:
        await clock.advance(1)
        issued = await auth.create_key(admin, name=f" {role} ", role=role)
        principal = await auth.authenticate(issued.key)
        assert (principal.role, principal.team_id) == (role, admin.team_id)
    names = [key.name for key in await auth.list_keys(admin)]
    assert names == [*reversed([role.value for role in Role]), "first key"]


async def test_roles_bind_key_management(auth: AuthService) -> None:
    _, admin = await first_key(auth)
    for role in (Role.MEMBER, Role.READ_ONLY, Role.SANDBOX_ONLY):
        issued = await auth.create_key(admin, name="x", role=role)
        principal = await auth.authenticate(issued.key)
        with pytest.raises(RoleNotAllowed, match=role):
            await auth.create_key(principal, name="x", role=Role.ADMIN)
        with pytest.raises(RoleNotAllowed):
            await auth.revoke_key(principal, admin.key_id)
        assert (Scope.TEAM_READ in principal.scopes) == (role != Role.SANDBOX_ONLY)
    with pytest.raises(RoleNotAllowed):
        await auth.list_keys(principal)


@pytest.mark.parametrize("name", ["", "  ", "x" * 101, "a\nb", "a\0b", "\x1b[31m"])
async def test_bad_names_are_invalid_input(auth: AuthService, name: str) -> None:
    _, admin = await first_key(auth)
    with pytest.raises(InvalidInput, match="name") as caught:
        await auth.create_key(admin, name=name, role=Role.MEMBER)
    assert caught.value.field == "name"


async def test_a_revoked_key_is_refused_at_once(auth: AuthService) -> None:
    _, admin = await first_key(auth)
    issued = await auth.create_key(admin, name="x", role=Role.MEMBER)
    await auth.authenticate(issued.key)
    await auth.revoke_key(admin, issued.record.id)
    with pytest.raises(InvalidApiKey):
        await auth.authenticate(issued.key)
    with pytest.raises(KeyNotFound):
        await auth.revoke_key(admin, issued.record.id)
    assert issued.record.id not in [key.id for key in await auth.list_keys(admin)]


async def test_a_look_up_that_began_before_the_revocation_is_not_kept(
    auth: AuthService, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, admin = await first_key(auth)
    issued = await auth.create_key(admin, name="x", role=Role.MEMBER)
    put = auth._cache.put
    looked_up, revoked = asyncio.Event(), asyncio.Event()
    look_up = auth._look_up

    async def slow_look_up(key_hash: str) -> object:
        def late_put(*arguments: object) -> None:
            late.append(arguments)

        late: list[tuple[object, ...]] = []
        monkeypatch.setattr(auth._cache, "put", late_put)
        entry = await look_up(key_hash)
        looked_up.set()
        await revoked.wait()
        for arguments in late:
            put(*arguments)  # type: ignore[arg-type]
        return entry

    monkeypatch.setattr(auth, "_look_up", slow_look_up)
    request = asyncio.create_task(auth.authenticate(issued.key))
    await looked_up.wait()
    await auth.revoke_key(admin, issued.record.id)
    revoked.set()
    await request  # it came before the revocation
    monkeypatch.undo()
    with pytest.raises(InvalidApiKey):
        await auth.authenticate(issued.key)


async def test_a_key_revoked_by_another_process_is_refused_within_seconds(
    auth: AuthService, database: Database, clock: ManualClock
) -> None:
    _, admin = await first_key(auth)
    issued = await auth.create_key(admin, name="x", role=Role.MEMBER)
    other = AuthService(database, clock)
    await other.authenticate(issued.key)
    await auth.revoke_key(admin, issued.record.id)
    await clock.advance(CACHE_SECONDS + 0.1)
    with pytest.raises(InvalidApiKey):
        await other.authenticate(issued.key)


async def test_an_expired_key_is_refused_also_while_it_is_cached(
    auth: AuthService, clock: ManualClock
) -> None:
    _, admin = await first_key(auth)
    soon = clock.now() + timedelta(seconds=2)
    issued = await auth.create_key(admin, name="x", role=Role.MEMBER, expires_at=soon)
    await auth.authenticate(issued.key)
    await clock.advance(2)
    with pytest.raises(InvalidApiKey):
        await auth.authenticate(issued.key)
    with pytest.raises(InvalidInput):
        await auth.create_key(admin, name="x", role=Role.MEMBER, expires_at=clock.now())


async def test_the_last_admin_key_cannot_be_revoked(auth: AuthService, clock: ManualClock) -> None:
    _, admin = await first_key(auth)
    with pytest.raises(LastAdminKey):
        await auth.revoke_key(admin, admin.key_id)
    soon = clock.now() + timedelta(seconds=2)
    second = await auth.create_key(admin, name="x", role=Role.ADMIN, expires_at=soon)
    await clock.advance(3)
    with pytest.raises(LastAdminKey):
        await auth.revoke_key(admin, admin.key_id)
    third = await auth.create_key(admin, name="y", role=Role.ADMIN)
    await auth.revoke_key(admin, admin.key_id)
    assert (await auth.authenticate(third.key)).role == Role.ADMIN
    assert second.record.id != third.record.id


async def test_two_admins_that_revoke_each_other_leave_one(auth: AuthService) -> None:
    _, first = await first_key(auth)
    second = await auth.authenticate((await auth.create_key(first, name="x", role=Role.ADMIN)).key)
    results = await asyncio.gather(
        auth.revoke_key(first, second.key_id), auth.revoke_key(second, first.key_id), return_exceptions=True
    )
    assert sorted(type(result) for result in results if result is not None) == [LastAdminKey]


async def test_another_teams_keys_do_not_exist(auth: AuthService) -> None:
    _, admin = await first_key(auth)
    other = await auth.create_team("other")
    stranger = await auth.authenticate(other.key)
    assert stranger.team_id != admin.team_id
    with pytest.raises(KeyNotFound):
        await auth.revoke_key(stranger, admin.key_id)
    assert [key.id for key in await auth.list_keys(stranger)] == [stranger.key_id]
    for key_id in ("", "x\0", "x" * 10_000, new_key(), stranger.key_id.upper()):
        with pytest.raises(KeyNotFound):
            await auth.revoke_key(admin, key_id)
    with pytest.raises(TeamExists):
        await auth.create_team(" other ")


async def test_keys_are_limited(auth: AuthService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forkyard.auth.service.MAX_KEYS", 5)
    _, admin = await first_key(auth)
    results = await asyncio.gather(
        *(auth.create_key(admin, name="x", role=Role.MEMBER) for _ in range(10)), return_exceptions=True
    )
    assert sum(isinstance(result, TooManyKeys) for result in results) == 6
    assert len(await auth.list_keys(admin)) == 5


async def last_use(database: Database, key_id: str) -> object:
    async with database.read() as session:
        return await session.scalar(select(ApiKey.last_used_at).where(ApiKey.id == key_id))


async def test_last_use_is_written_once_a_minute_by_a_task_of_its_own(
    auth: AuthService, database: Database, clock: ManualClock
) -> None:
    issued, admin = await first_key(auth)
    task = asyncio.create_task(auth.usage.run())
    await clock.wait_for_sleepers(1)
    await clock.advance(WRITE_EVERY - 20)
    await auth.authenticate(issued.key)
    used = clock.now()
    assert await last_use(database, admin.key_id) is None
    await clock.advance(20)
    async with asyncio.timeout(10):
        await clock.wait_for_sleepers(1)
    assert await last_use(database, admin.key_id) == used
    task.cancel()
    await asyncio.wait([task])


async def test_an_older_use_does_not_replace_a_newer_one(
    auth: AuthService, database: Database, clock: ManualClock
) -> None:
    _, admin = await first_key(auth)
    await auth.usage.flush()
    now = clock.now()
    auth.usage.note(admin.key_id, now + timedelta(seconds=9))
    await auth.usage.flush()
    auth.usage.note(admin.key_id, now)
    await auth.usage.flush()
    assert await last_use(database, admin.key_id) == now + timedelta(seconds=9)


async def test_uses_are_kept_when_they_cannot_be_written(
    auth: AuthService, database: Database, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, admin = await first_key(auth)

    def broken(**_options: object) -> None:
        raise LookupError

    monkeypatch.setattr(database, "write", broken)
    with pytest.raises(LookupError):
        await auth.usage.flush()
    monkeypatch.undo()
    await auth.usage.flush()
    assert await last_use(database, admin.key_id) == clock.now()


async def test_the_audit_log_tells_who_did_what(auth: AuthService, database: Database) -> None:
    _, admin = await first_key(auth)
    with log_context(request_id="r1"):
        issued = await auth.create_key(admin, name="x", role=Role.MEMBER)
        await auth.revoke_key(admin, issued.record.id)
    newest, middle, *start = await list_audit(database, admin.team_id)
    assert (newest.action, newest.actor, newest.target) == ("api_key.revoke", admin.key_id, issued.record.id)
    assert (middle.action, middle.request_id) == ("api_key.create", "r1")
    assert middle.details == {"name": "x", "role": "member", "prefix": issued.key[:8]}
    assert [entry.actor for entry in start] == ["operator", "operator"]
    assert [e.id for e in await list_audit(database, admin.team_id, before=newest.id, limit=1)] == [middle.id]
    other = await auth.create_team("other")
    assert len(await list_audit(database, other.record.team_id)) == 2


async def test_the_audit_log_holds_no_secrets_and_goes_with_its_transaction(
    auth: AuthService, database: Database, clock: ManualClock
) -> None:
    async def append(fail: bool) -> None:
        async with database.write() as session:
            append_audit_txn(
                session,
                at=clock.now(),
                team_id="t",
                actor="a",
                action="x.y",
                details={"token": "abc", "note": new_key()},
            )
            if fail:
                raise LookupError

    with pytest.raises(LookupError):
        await append(fail=True)
    await append(fail=False)
    (entry,) = await list_audit(database, "t")
    assert entry.details == {"token": "[redacted]", "note": "[redacted]"}


async def test_team_names_are_unique_also_when_made_at_once(auth: AuthService, database: Database) -> None:
    results = await asyncio.gather(*(auth.create_team("same") for _ in range(5)), return_exceptions=True)
    assert sum(isinstance(result, TeamExists) for result in results) == 4
    async with database.read() as session:
        assert len((await session.scalars(select(Team.id))).all()) == 1


async def test_limits_of_a_team_are_kept_changed_and_taken_away(
    auth: AuthService, database: Database, clock: ManualClock
) -> None:
    made = await auth.create_team("limited", TeamLimits(sandboxes=0, creates_per_second=0.5))
    await clock.advance(1)
    other = await auth.create_team("free")
    team_id = made.record.team_id
    known = LimitsByTeam(database, clock)
    await known.read()
    assert known.of(team_id) == TeamLimits(sandboxes=0, creates_per_second=0.5)
    assert known.of(other.record.team_id) == known.of("unknown") == TeamLimits()
    await auth.limit_team("limited", TeamLimits(vcpus=8))
    await known.read()
    assert known.of(team_id) == TeamLimits(vcpus=8)
    assert [(team.name, team.limits) for team in await auth.list_teams()] == [
        ("limited", {"vcpus": 8}),
        ("free", None),
    ]
    await auth.limit_team("limited", TeamLimits())
    await known.read()
    assert known.of(team_id) == TeamLimits()
    with pytest.raises(TeamNotFound):
        await auth.limit_team("nobody", TeamLimits())
    actions = [(entry.action, entry.details) for entry in await list_audit(database, team_id)]
    assert actions[:2] == [("team.limit", None), ("team.limit", {"vcpus": 8})]
