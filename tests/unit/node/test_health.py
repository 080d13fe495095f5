"""What is told of a sandbox's health is told once, whatever goes on with it at that moment."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import nullcontext
from pathlib import Path

import pytest
import pytest_asyncio

from forkyard.node.events import MachineEvents
from forkyard.sandboxes.driver import DriverError, MachineEvent, MachineEventKind
from forkyard.storage.engine import DatabaseUrl
from forkyard.storage.errors import DatabaseUnavailable
from forkyard.testing.core import TEAM
from forkyard.testing.database import emptied_database
from forkyard.testing.faults import Fault, fail, hold
from forkyard.testing.inline import without_threads
from forkyard.testing.world import World, make_world

ILL = "no answer"


@pytest_asyncio.fixture
async def world(database_url: DatabaseUrl, tmp_path: Path) -> AsyncGenerator[World]:
    with without_threads() if database_url.path else nullcontext():
        async with emptied_database(database_url) as database, make_world(database, tmp_path) as world:
            yield world


def unhealthy(world: World, machine: str) -> asyncio.Task[None]:
    events = MachineEvents(world.core, world.server.pool)
    event = MachineEvent(MachineEventKind.UNHEALTHY, machine, ILL)
    return world.core.operations.start(events.handle(event))


@pytest.mark.parametrize("fails", [True, False])
async def test_told_during_a_pause(world: World, fails: bool) -> None:
    sandbox = await world.create()
    name = world.machine(sandbox.id).name
    held = world.host.faults.add(
        Fault("driver.checkpoint", held=True, error=DriverError("broken") if fails else None)
    )
    pause = asyncio.create_task(world.server.sandboxes.pause(TEAM, sandbox.id))
    async with asyncio.timeout(5):
        await held.reached.wait()
    await unhealthy(world, name)
    held.release()
    await asyncio.gather(pause, return_exceptions=True)
    # One that is paused has no daemon that could be ill.
    assert (await world.row(sandbox.id)).unhealthy_reason == (ILL if fails else None)


async def test_told_while_the_database_is_away(world: World) -> None:
    sandbox = await world.create()
    name = world.machine(sandbox.id).name
    world.host.faults.add(fail("store.write", DatabaseUnavailable(), times=2))
    await world.server.do(unhealthy(world, name))
    assert (await world.row(sandbox.id)).unhealthy_reason == ILL


async def test_what_is_told_late_is_not_said_of_the_next_machine(world: World) -> None:
    service = world.server.sandboxes
    sandbox = await world.create()
    await world.server.quiet()
    held = world.host.faults.add(hold("store.read", after=True))
    telling = unhealthy(world, world.machine(sandbox.id).name)
    async with asyncio.timeout(5):
        await held.reached.wait()
    await service.pause(TEAM, sandbox.id)
    await service.connect(TEAM, sandbox.id, timeout_s=60)
    held.release()
    await telling
    assert (await world.row(sandbox.id)).unhealthy_reason is None
