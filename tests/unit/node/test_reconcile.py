"""The net under everything, while sandboxes come and go."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import nullcontext
from pathlib import Path

import pytest_asyncio

from forkyard.node.events import MachineEvents
from forkyard.node.reconcile import Reconciler
from forkyard.sandboxes.driver import DriverError, MachineEvent, MachineEventKind
from forkyard.sandboxes.state import State
from forkyard.storage.engine import DatabaseUrl
from forkyard.testing.core import TEAM
from forkyard.testing.database import emptied_database
from forkyard.testing.fake_host import FakeMachine
from forkyard.testing.faults import fail, hold
from forkyard.testing.inline import without_threads
from forkyard.testing.world import World, make_world


@pytest_asyncio.fixture
async def world(database_url: DatabaseUrl, tmp_path: Path) -> AsyncGenerator[World]:
    with without_threads() if database_url.path else nullcontext():
        async with emptied_database(database_url) as database, make_world(database, tmp_path) as world:
            yield world


async def test_a_sandbox_that_comes_up_during_a_look_stays(world: World) -> None:
    # What the look asks first has been answered, and what it asks next has not.
    first = world.host.faults.add(hold("*", after=True))
    look = Reconciler(world.core, world.server.pool).look()
    looking = world.core.operations.start(look, "look")
    async with asyncio.timeout(5):
        await first.reached.wait()
    sandbox = await world.create()
    first.release()
    await looking
    await world.server.quiet()
    assert await world.state(sandbox.id) is State.RUNNING


async def test_a_machine_that_nobody_owns_is_removed_at_the_second_look(world: World) -> None:
    sandbox = await world.create()
    machine = world.machine(sandbox.id)
    reconciler = Reconciler(world.core, world.server.pool)
    world.host.machines["stray"] = FakeMachine("stray", "10.9.9.9", machine.shape, machine.egress, "stray")
    await reconciler.look()
    assert "stray" in world.host.machines
    await reconciler.look()
    assert world.host.machines == {machine.name: machine}


async def test_a_warm_machine_that_died_is_removed_though_that_fails_first(world: World) -> None:
    world.server.pool.target(world.template, 1)
    world.server.start(world.server.pool.run)
    while not sum(world.server.pool.ready().values()):
        await world.clock.advance(0)
    [name] = world.host.machines
    world.host.machines[name].alive = False
    world.host.faults.add(fail("driver.destroy", DriverError("busy"), subject=name))
    events = MachineEvents(world.core, world.server.pool)
    world.server.pool.target(world.template, 0)
    await world.server.do(events.handle(MachineEvent(MachineEventKind.EXIT, name, "signal KILL")))
    assert name not in world.host.machines


async def test_that_one_is_well_still_is_no_news(world: World) -> None:
    """A keeper that takes over tells it of every machine."""
    sandbox = await world.create()
    await world.server.quiet()
    before = len(await world.server.sandboxes.logs(TEAM, sandbox.id))
    events = MachineEvents(world.core, world.server.pool)
    await events.handle(MachineEvent(MachineEventKind.HEALTHY, world.machine(sandbox.id).name))
    assert len(await world.server.sandboxes.logs(TEAM, sandbox.id)) == before


async def test_one_that_gets_well_during_a_capture_is_well(world: World) -> None:
    sandbox = await world.create()
    name = world.machine(sandbox.id).name
    events = MachineEvents(world.core, world.server.pool)
    await events.handle(MachineEvent(MachineEventKind.UNHEALTHY, name, "no answer"))
    assert (await world.row(sandbox.id)).unhealthy_reason == "no answer"
    held = world.host.faults.add(hold("driver.checkpoint"))
    capture = asyncio.create_task(world.server.sandboxes.snapshot(TEAM, sandbox.id))
    async with asyncio.timeout(5):
        await held.reached.wait()
    await events.handle(MachineEvent(MachineEventKind.HEALTHY, name))
    held.release()
    await capture
    assert (await world.row(sandbox.id)).unhealthy_reason is None
