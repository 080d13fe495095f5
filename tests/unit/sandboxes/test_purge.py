"""What ended long ago is forgotten, with all that belongs to it; what lives is not, however old it is."""

from pathlib import Path

import pytest
from sqlalchemy import func, select

from forkyard.sandboxes import upkeep as upkeep_module
from forkyard.sandboxes.errors import SandboxNotFound
from forkyard.sandboxes.models import IdempotencyKey, SandboxTag
from forkyard.sandboxes.upkeep import purge_ended, upkeep
from forkyard.testing.core import TEAM
from forkyard.testing.faults import fail
from forkyard.testing.world import World

DAY = 24 * 3600.0


def journals(world: World) -> set[str]:
    return {path.stem for path in (world.snapshot_folder.parent / "journal").glob("*.jsonl")}


async def tags(world: World) -> int:
    async with world.database.read() as session:
        return (await session.execute(select(func.count()).select_from(SandboxTag))).scalar_one()


async def end(world: World, sandbox_id: str) -> None:
    await world.server.sandboxes.kill(TEAM, sandbox_id)
    await world.server.quiet()


async def test_what_ended_long_ago_is_forgotten_and_nothing_else(world: World) -> None:
    long_ago = await world.create(idempotency_key="long-ago", metadata={"a": "1", "b": "2"})
    old = await world.create(idempotency_key="old", metadata={"a": "1"})
    await end(world, long_ago.id)
    await world.clock.advance(5 * DAY)
    lately = await world.create(idempotency_key="lately")
    await end(world, lately.id)
    await upkeep(world.core)
    assert len(await world.all_rows()) == 3

    await world.clock.advance(3 * DAY)
    await upkeep(world.core)
    assert {row.id for row in await world.all_rows()} == {old.id, lately.id}
    assert journals(world) == {old.id, lately.id}
    assert await tags(world) == 1
    with pytest.raises(SandboxNotFound):
        await world.server.sandboxes.logs(TEAM, long_ago.id)
    # The key of what is forgotten is free; a living sandbox keeps its own.
    assert (await world.create(idempotency_key="long-ago")).id != long_ago.id
    assert (await world.create(idempotency_key="old", metadata={"a": "1"})).id == old.id
    with pytest.raises(SandboxNotFound):
        await world.create(idempotency_key="lately")


async def test_many_are_forgotten_in_batches(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep_module, "PURGE_BATCH", 2)
    monkeypatch.setattr(upkeep_module, "PURGE_BATCHES", 2)
    for _ in range(5):
        await end(world, (await world.create()).id)
    await world.clock.advance(8 * DAY)
    await purge_ended(world.core)
    assert len(await world.all_rows()) == 1
    await purge_ended(world.core)
    assert await world.all_rows() == []
    assert journals(world) == set()


async def test_a_purge_that_was_cut_off_is_finished_by_the_next(world: World) -> None:
    sandbox = await world.create(idempotency_key="k")
    await end(world, sandbox.id)
    await world.clock.advance(8 * DAY)
    world.host.faults.add(fail("store.write", OSError("the database is away")))
    with pytest.raises(OSError, match="away"):
        await purge_ended(world.core)
    await purge_ended(world.core)
    assert await world.all_rows() == []
    async with world.database.read() as session:
        assert (await session.scalars(select(IdempotencyKey))).all() == []
    assert not (Path(world.snapshot_folder.parent) / "journal" / f"{sandbox.id}.jsonl").exists()
