"""Who did what to which sandbox can be told afterwards, and no request waits for that."""

import asyncio
from datetime import timedelta

import pytest

from forkyard.auth import trail as module
from forkyard.auth.audit import SYSTEM, append_audit_txn, list_audit
from forkyard.auth.trail import AuditTrail
from forkyard.base.logging import log_context
from forkyard.sandboxes.driver import DriverError
from forkyard.storage.errors import DatabaseUnavailable
from forkyard.testing.core import TEAM
from forkyard.testing.faults import fail, hold
from forkyard.testing.world import World


async def told(world: World, team_id: str = TEAM) -> list[tuple[str, str, str | None]]:
    """Actor, action and target, oldest first."""
    await world.core.audit.flush()
    entries = await list_audit(world.database, team_id, limit=1000)
    return [(entry.actor, entry.action, entry.target) for entry in reversed(entries)]


async def test_what_a_key_does_is_told(world: World) -> None:
    service = world.server.sandboxes
    with log_context(actor="key-1", request_id="r-1"):
        first = await world.create(idempotency_key="k")
        await world.clock.advance(1)
        await world.create(idempotency_key="k")  # which makes none
        snapshot, _ = await service.snapshot(TEAM, first.id)
        [fork] = await service.fork(TEAM, first.id)
        await service.pause(TEAM, first.id)
        await service.connect(TEAM, first.id, timeout_s=60)
        await service.connect(TEAM, first.id, timeout_s=60)  # which finds it running
        await service.pause(TEAM, first.id)
        await service.resume(TEAM, first.id, timeout_s=60)
        await service.delete_snapshot(TEAM, snapshot.id)
        await service.kill(TEAM, first.id)
    assert [(action, target) for actor, action, target in await told(world) if actor == "key-1"] == [
        ("sandbox.create", first.id),
        ("snapshot.create", snapshot.id),
        ("sandbox.fork", first.id),
        ("sandbox.pause", first.id),
        ("sandbox.resume", first.id),
        ("sandbox.pause", first.id),
        ("sandbox.resume", first.id),
        ("snapshot.delete", snapshot.id),
        ("sandbox.kill", first.id),
    ]
    entries = {e.action: e for e in await list_audit(world.database, TEAM)}
    assert entries["sandbox.create"].request_id == "r-1"
    assert fork.sandbox is not None
    assert entries["sandbox.fork"].details == {"children": [fork.sandbox.id]}


async def test_what_the_server_does_by_itself_is_told_as_its_own(world: World) -> None:
    with log_context(actor="key-1"):
        ends = await world.create(timeout_s=10)
        sleeps = await world.create(timeout_s=10, pause_on_timeout=True, auto_resume=True)
    await world.clock.advance(11)
    await world.server.expiry.evict_due(world.clock.now())
    await world.server.quiet()
    assert await world.server.sandboxes.wake(sleeps.id)
    own = [(action, target) for actor, action, target in await told(world) if actor == SYSTEM]
    assert sorted(own[:2]) == sorted([("sandbox.kill", ends.id), ("sandbox.pause", sleeps.id)])
    assert own[2:] == [("sandbox.resume", sleeps.id)]


async def test_what_fails_is_not_told_and_what_is_cut_off_is(world: World) -> None:
    world.host.faults.add(fail("driver.restore", DriverError()))
    with pytest.raises(DriverError):
        await world.create()
    held = world.host.faults.add(hold("guest.init"))
    with log_context(actor="key-1"):
        creating = asyncio.create_task(world.create())
    async with asyncio.timeout(5):
        await held.reached.wait()
    creating.cancel()
    held.release()
    await world.server.quiet()
    assert [entry[:2] for entry in await told(world)] == [("key-1", "sandbox.create")]


async def test_no_request_waits_for_it(world: World) -> None:
    sandbox = await world.create()
    world.host.faults.calls.clear()
    await world.server.sandboxes.set_timeout(TEAM, sandbox.id, 60)
    await world.server.sandboxes.kill(TEAM, sandbox.id)
    await world.server.quiet()
    assert await list_audit(world.database, TEAM) == []
    assert len(await told(world)) == 2


async def test_entries_wait_for_a_database_that_is_away(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BATCH", 3)
    monkeypatch.setattr(module, "MOST_NOTED", 8)
    trail = AuditTrail(world.core.store.database, world.clock)
    for number in range(10):
        trail.note(TEAM, "sandbox.create", str(number))
    world.host.faults.add(fail("store.write", DatabaseUnavailable(), nth=2))
    with pytest.raises(DatabaseUnavailable):
        await trail.flush()
    await trail.flush()
    targets = [entry.target for entry in reversed(await list_audit(world.database, TEAM))]
    assert targets == [str(number) for number in range(2, 10)]


async def test_old_entries_go_but_those_about_keys(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH", 2)
    trail = world.core.audit
    async with world.database.write() as session:
        append_audit_txn(
            session, at=world.clock.now(), team_id=TEAM, actor="k", action="api_key.create", target="a"
        )
    for number in range(5):
        trail.note(TEAM, "sandbox.create", str(number))
    trail.note(TEAM, "snapshot.create", "s")
    await trail.flush()
    await world.clock.advance(100)
    trail.note(TEAM, "sandbox.create", "new")
    await trail.flush()
    await trail.purge(world.clock.now() - timedelta(seconds=50))
    assert [target for _, _, target in await told(world)] == ["a", "new"]
    await trail.purge(world.clock.now() + timedelta(seconds=50))
    assert [target for _, _, target in await told(world)] == ["a"]
