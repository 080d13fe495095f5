"""Machines that die by themselves: the sandbox is gone, with its reason, and nothing of it stays."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress

import pytest
import pytest_asyncio

from forkyard.base.errors import ForkyardError
from forkyard.sandboxes.driver import DriverError
from forkyard.sandboxes.endings import bury_rest, machine_died, remove_leftovers
from forkyard.sandboxes.errors import SandboxNotFound
from forkyard.sandboxes.state import State
from forkyard.testing.core import TEAM
from forkyard.testing.faults import Fault, fail, hold
from forkyard.testing.world import World


@pytest_asyncio.fixture
async def watched(world: World) -> AsyncGenerator[World]:
    """The events of the driver are handled."""
    world.server.start_events()
    await asyncio.sleep(0)
    yield world


async def test_a_dead_machine_ends_its_sandbox(watched: World) -> None:
    sandbox, other = await watched.create(), await watched.create()
    machine = watched.machine(sandbox.id)
    watched.host.kill(machine.name, "signal KILL")
    async with asyncio.timeout(5):
        while await watched.state(sandbox.id) is not State.GONE:
            await asyncio.sleep(0.0005)
    await watched.server.quiet()
    row = await watched.row(sandbox.id)
    assert row.end_reason == "its machine died: signal KILL"
    assert row.handle is None
    assert machine.name not in watched.host.machines
    assert sandbox.id not in watched.host.routes
    with pytest.raises(SandboxNotFound):
        await watched.server.sandboxes.get(TEAM, sandbox.id)
    assert [e.message for e in await watched.server.sandboxes.logs(TEAM, sandbox.id)][-1] == "gone"
    assert watched.machine(other.id)


@pytest.mark.parametrize("call", ["guest.init", "routes.set", "driver.watch"])
async def test_one_that_dies_while_it_is_created(watched: World, call: str) -> None:
    """Whenever it happens: an error, or a sandbox that is gone at once. Never one that only looks as if it ran."""
    fault = Fault(call, effect=lambda _: [watched.host.kill(name) for name in list(watched.host.machines)])
    watched.host.faults.add(fault)
    with suppress(ForkyardError):
        await watched.create()
    await watched.server.quiet()
    [row] = await watched.all_rows()
    assert row.state is State.GONE


@pytest.mark.parametrize("call", ["guest.init", "routes.set", "driver.watch"])
async def test_one_that_dies_while_nobody_listens_is_noticed_by_its_watch(world: World, call: str) -> None:
    world.host.faults.add(
        Fault(call, effect=lambda _: [world.host.kill(name) for name in list(world.host.machines)])
    )
    with suppress(ForkyardError):
        await world.create()
    await world.server.quiet()
    [row] = await world.all_rows()
    assert row.state is State.GONE


async def test_one_that_dies_while_it_is_resumed_leaves_it_paused(watched: World) -> None:
    service = watched.server.sandboxes
    sandbox = await watched.create()
    watched.machine(sandbox.id).inside.memory["x"] = "1"
    await service.pause(TEAM, sandbox.id)
    await watched.server.quiet()
    watched.host.faults.add(Fault("guest.init", effect=lambda c: watched.host.kill(c.subject)))
    with pytest.raises(ForkyardError):
        await service.resume(TEAM, sandbox.id, timeout_s=60)
    await watched.server.quiet()
    assert await watched.state(sandbox.id) is State.PAUSED
    await service.resume(TEAM, sandbox.id, timeout_s=60)
    assert watched.machine(sandbox.id).inside.memory == {"x": "1"}


async def test_the_death_of_a_paused_sandboxs_old_machine_is_no_death(watched: World) -> None:
    sandbox = await watched.create()
    name = watched.machine(sandbox.id).name
    held = watched.host.faults.add(hold("files.make_host_safe"))
    await watched.server.sandboxes.pause(TEAM, sandbox.id)
    async with asyncio.timeout(5):
        await held.reached.wait()
    watched.host.kill(name)
    await watched.server.quiet(but=1)
    assert await watched.state(sandbox.id) is State.PAUSED
    held.release()


async def test_unknown_names_are_nobodys_death(world: World) -> None:
    sandbox = await world.create()
    for name in ("warm-abcdefghijkl", "template-x", f"{sandbox.id}-99", sandbox.id, "", "x-1"):
        await machine_died(world.core, name, "x")
    assert await world.state(sandbox.id) is State.RUNNING


async def test_a_machine_that_cannot_be_destroyed_is_tried_again_for_long(world: World) -> None:
    sandbox = await world.create()
    name = world.machine(sandbox.id).name
    fault = world.host.faults.add(fail("driver.destroy", DriverError("busy"), times=6))
    await world.server.sandboxes.kill(TEAM, sandbox.id)
    await world.server.quiet()
    assert fault.hits == 5
    assert await world.state(sandbox.id) is State.GONE
    assert world.core.leftovers == {name}
    await remove_leftovers(world.core)
    assert world.core.leftovers == {name}
    await remove_leftovers(world.core)
    assert world.core.leftovers == set()
    assert name not in world.host.machines


async def test_a_long_transition_does_not_keep_others_from_being_buried(world: World) -> None:
    world.options["join_timeout"] = 0.0
    await world.stop()
    await world.start()
    busy, dead = await world.create(), await world.create()
    held = world.host.faults.add(hold("driver.checkpoint"))
    work = asyncio.create_task(world.server.sandboxes.snapshot(TEAM, busy.id))
    async with asyncio.timeout(5):
        await held.reached.wait()
    for sandbox in (busy, dead):
        world.core.unburied[f"{sandbox.id}-{sandbox.generation}"] = "signal KILL"
    world.host.kill(world.machine(dead.id).name)
    await world.server.do(bury_rest(world.core))
    assert await world.state(dead.id) is State.GONE
    assert list(world.core.unburied) == [f"{busy.id}-{busy.generation}"]
    world.core.unburied.clear()
    held.release()
    await work
