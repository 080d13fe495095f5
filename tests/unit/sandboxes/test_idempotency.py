"""The same key makes the same sandbox, once."""

import asyncio

import pytest

from forkyard.sandboxes.driver import DriverError
from forkyard.sandboxes.errors import IdempotencyMismatch, SandboxNotFound
from forkyard.testing.core import TEAM
from forkyard.testing.faults import fail, hold
from forkyard.testing.world import World


async def test_a_repeat_answers_the_same_sandbox(world: World) -> None:
    first = await world.create(idempotency_key="k", metadata={"a": "1"})
    assert (await world.create(idempotency_key="k", metadata={"a": "1"})).id == first.id
    await world.restart()
    assert (await world.create(idempotency_key="k", metadata={"a": "1"})).id == first.id
    assert len(await world.all_rows()) == 1


async def test_another_request_with_the_key_is_refused(world: World) -> None:
    await world.create(idempotency_key="k", timeout_s=60)
    with pytest.raises(IdempotencyMismatch):
        await world.create(idempotency_key="k", timeout_s=61)


async def test_keys_are_a_teams_own(world: World) -> None:
    mine = await world.create(idempotency_key="k")
    theirs = await world.create("team-2", idempotency_key="k")
    assert mine.id != theirs.id


async def test_many_at_once(world: World) -> None:
    results = await asyncio.gather(*(world.create(idempotency_key="k") for _ in range(10)))
    assert len({sandbox.id for sandbox in results}) == 1
    assert len(await world.all_rows()) == 1


async def test_a_repeat_during_the_create_waits_for_it(world: World) -> None:
    held = world.host.faults.add(hold("guest.init"))
    first = asyncio.create_task(world.create(idempotency_key="k"))
    async with asyncio.timeout(5):
        await held.reached.wait()
    second = asyncio.create_task(world.create(idempotency_key="k"))
    await asyncio.sleep(0)
    held.release()
    assert (await first).id == (await second).id


async def test_a_failed_create_gives_the_key_back(world: World) -> None:
    world.host.faults.add(fail("driver.restore", DriverError()))
    with pytest.raises(DriverError):
        await world.create(idempotency_key="k")
    sandbox = await world.create(idempotency_key="k")
    assert world.machine(sandbox.id)


async def test_a_repeat_of_a_create_that_fails_makes_its_own(world: World) -> None:
    held = world.host.faults.add(hold("guest.init"))
    world.host.faults.add(fail("guest.init", DriverError()))
    first = asyncio.create_task(world.create(idempotency_key="k"))
    async with asyncio.timeout(5):
        await held.reached.wait()
    second = asyncio.create_task(world.create(idempotency_key="k"))
    await asyncio.sleep(0)
    held.release()
    with pytest.raises(DriverError):
        await first
    assert world.machine((await second).id)


async def test_a_create_cut_off_by_a_crash_gives_the_key_back(world: World) -> None:
    world.server.life.die_at("start.restored")
    with pytest.raises(BaseException):  # noqa: B017, PT011 - the server is dead
        await world.create(idempotency_key="k")
    await world.restart()
    assert world.machine((await world.create(idempotency_key="k")).id)


async def test_the_key_of_a_sandbox_that_ended_makes_no_other(world: World) -> None:
    sandbox = await world.create(idempotency_key="k")
    await world.server.sandboxes.kill(TEAM, sandbox.id)
    with pytest.raises(SandboxNotFound):
        await world.create(idempotency_key="k")
