"""Calls of every operation fail, once or for long: nothing is lost or left, and it works on afterwards.

Some calls of each operation here; `tests/faults/core` goes through all of them.
"""

import asyncio

import pytest

from forkyard.base.errors import ForkyardError
from forkyard.sandboxes.driver import DriverError, HostFull
from forkyard.sandboxes.state import State
from forkyard.testing.core import TEAM
from forkyard.testing.fake_driver import full_disk, hanging_checkpoint, unrestorable
from forkyard.testing.faults import Fault
from forkyard.testing.world import World
from tests.unit.sandboxes.operations import OPERATIONS, Operation, nothing_is_lost, prepared
from tests.unit.sandboxes.rounds import (
    ERRORS,
    calls_of,
    failing_from,
    failing_once,
    named,
    round_cancelled,
    round_with,
    some,
)

PAUSE = next(o for o in OPERATIONS if o.name == "pause")
SOME = 3


@pytest.mark.parametrize("operation", OPERATIONS, ids=named)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_a_call_fails_once(world: World, operation: Operation, after: bool) -> None:
    for call, nth in some(await calls_of(world, operation), SOME, f"{operation.name} {after}"):
        await round_with(world, operation, failing_once(call, nth, after=after))


@pytest.mark.parametrize("operation", OPERATIONS, ids=named)
@pytest.mark.parametrize("part", ERRORS)
async def test_a_part_fails_and_stays_away(world: World, operation: Operation, part: str) -> None:
    calls = [call for call, _ in await calls_of(world, operation) if call.startswith(part)]
    for nth in {1, len(calls) // 2, len(calls)} - {0}:
        await round_with(world, operation, failing_from(part, nth))


@pytest.mark.parametrize("operation", OPERATIONS, ids=named)
async def test_the_operation_itself_is_cancelled(world: World, operation: Operation) -> None:
    for call, nth in some(await calls_of(world, operation), SOME, operation.name):
        await round_cancelled(world, operation, call, nth)


@pytest.mark.parametrize("call", ["guest.quiesce", "driver.cut", "driver.checkpoint", "driver.uncut"])
async def test_a_machine_that_dies_during_a_pause(world: World, call: str) -> None:
    sandbox = await prepared(world, PAUSE)
    if call == "driver.uncut":
        world.host.faults.add(Fault("driver.checkpoint", error=DriverError()))
    world.host.faults.add(Fault(call, effect=lambda c: world.host.kill(c.subject)))
    with pytest.raises(ForkyardError, match="died"):
        await world.server.do(PAUSE.run(world, sandbox))
    row = await world.row(sandbox.id)
    assert row.state is State.GONE
    assert "died during a pause" in (row.end_reason or "")


async def test_a_machine_that_dies_after_its_checkpoint_is_paused(world: World) -> None:
    sandbox = await prepared(world, PAUSE)
    name = world.machine(sandbox.id).name
    world.host.faults.add(Fault("files.seal", effect=lambda _: world.host.kill(name)))
    await PAUSE.run(world, sandbox)
    await nothing_is_lost(world, PAUSE, sandbox)


async def test_a_failed_create_tells_why_and_leaves_its_record(world: World) -> None:
    world.host.faults.add(Fault("driver.restore", error=DriverError("the kernel did not start")))
    with pytest.raises(DriverError, match="the kernel did not start"):
        await world.create(metadata={"n": "1"})
    await world.server.quiet()
    rows = [row for row in await world.all_rows() if row.state is State.GONE]
    assert [row.end_reason for row in rows] == ["could not be started: the kernel did not start"]


async def test_a_failed_pause_without_memory_leaves_one_that_starts_processes(world: World) -> None:
    sandbox = await world.create()
    world.machine(sandbox.id).inside.start("counter")
    world.host.faults.add(full_disk())
    with pytest.raises(HostFull):
        await world.server.sandboxes.pause(TEAM, sandbox.id, keep_memory=False)
    assert await world.state(sandbox.id) is State.RUNNING
    inside = world.machine(sandbox.id).inside
    assert inside.processes == {}
    inside.start("another")


async def test_so_does_one_whose_pause_without_memory_was_cut_off_by_a_crash(world: World) -> None:
    sandbox = await world.create()
    hanging = world.host.faults.add(hanging_checkpoint())
    work = asyncio.create_task(world.server.sandboxes.pause(TEAM, sandbox.id, keep_memory=False))
    async with asyncio.timeout(5):
        await hanging.reached.wait()
    await world.crash()
    await asyncio.gather(work, return_exceptions=True)
    await world.start()
    world.machine(sandbox.id).inside.start("another")


async def test_a_full_disk_during_a_pause_leaves_it_running(world: World) -> None:
    sandbox = await prepared(world, PAUSE)
    world.host.faults.add(full_disk())
    with pytest.raises(HostFull):
        await PAUSE.run(world, sandbox)
    assert await world.state(sandbox.id) is State.RUNNING
    assert not world.machine(sandbox.id).cut
    await nothing_is_lost(world, PAUSE, sandbox)


async def test_a_restore_that_never_works_leaves_it_paused(world: World) -> None:
    resume = next(o for o in OPERATIONS if o.name == "resume")
    sandbox = await prepared(world, resume)
    world.host.faults.add(unrestorable())
    for _ in range(3):
        with pytest.raises(DriverError):
            await resume.run(world, sandbox)
        await world.server.quiet()
        assert await world.state(sandbox.id) is State.PAUSED
    world.host.faults.clear()
    await nothing_is_lost(world, resume, sandbox)
