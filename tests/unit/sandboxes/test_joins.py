"""Calls that meet: they join the transition in progress instead of failing or doing it twice."""

import asyncio

import pytest

from forkyard.sandboxes.driver import DriverError
from forkyard.sandboxes.errors import AlreadyPaused, SandboxNotFound, WrongState
from forkyard.sandboxes.state import State
from forkyard.testing.core import TEAM
from forkyard.testing.faults import Fault, fail, hold
from forkyard.testing.world import World


async def reached(fault: Fault) -> None:
    async with asyncio.timeout(10):
        await fault.reached.wait()


async def joined(world: World, sandbox_id: str, count: int) -> None:
    """Until so many calls wait for the transition in progress."""
    async with asyncio.timeout(10):
        while world.core.changes.waiting(sandbox_id) < count:
            await asyncio.sleep(0.001)


async def test_two_resumes_make_one_machine(world: World) -> None:
    service = world.server.sandboxes
    sandbox = await world.create()
    await service.pause(TEAM, sandbox.id)
    results = await asyncio.gather(
        *(service.resume(TEAM, sandbox.id, timeout_s=60) for _ in range(5)),
        *(service.connect(TEAM, sandbox.id, timeout_s=60) for _ in range(5)),
    )
    assert {r.generation for r in results[:5]} == {2}
    assert sum(c.resumed for c in results[5:]) <= 1
    assert len(world.host.of(sandbox.id)) == 1
    assert world.host.faults.names("driver.restore").count("driver.restore") == 2  # create and one resume


async def test_a_resume_whose_first_try_fails_is_tried_by_the_one_who_waits(world: World) -> None:
    service = world.server.sandboxes
    sandbox = await world.create()
    await service.pause(TEAM, sandbox.id)
    world.host.faults.add(fail("driver.restore", DriverError("once")))
    first, second = await asyncio.gather(
        service.resume(TEAM, sandbox.id, timeout_s=60),
        service.resume(TEAM, sandbox.id, timeout_s=60),
        return_exceptions=True,
    )
    assert isinstance(first, DriverError)
    assert not isinstance(second, BaseException)
    assert second.generation == 3


async def test_two_pauses_make_one_snapshot(world: World) -> None:
    service = world.server.sandboxes
    sandbox = await world.create()
    held = world.host.faults.add(hold("driver.checkpoint"))
    pauses = [asyncio.create_task(service.pause(TEAM, sandbox.id)) for _ in range(4)]
    await reached(held)
    await joined(world, sandbox.id, 3)
    held.release()
    results = await asyncio.gather(*pauses)
    assert len({row.snapshot_id for row in results}) == 1
    assert (
        world.host.faults.names("driver.checkpoint").count("driver.checkpoint") == 2
    )  # the template's, and one


async def test_a_pause_whose_first_try_fails_is_tried_by_the_one_who_waits(world: World) -> None:
    service = world.server.sandboxes
    sandbox = await world.create()
    world.host.faults.add(fail("driver.checkpoint", DriverError("once")))
    first, second = await asyncio.gather(
        service.pause(TEAM, sandbox.id), service.pause(TEAM, sandbox.id), return_exceptions=True
    )
    assert isinstance(first, DriverError)
    assert not isinstance(second, BaseException)
    assert await world.state(sandbox.id) is State.PAUSED


@pytest.mark.parametrize("call", ["pause", "kill", "connect", "snapshot", "fork", "get", "set_timeout"])
async def test_calls_during_a_create_wait_for_it(world: World, call: str) -> None:
    service = world.server.sandboxes
    held = world.host.faults.add(hold("guest.init"))
    creating = asyncio.create_task(world.create())
    await reached(held)
    [row] = await world.core.store.of_node(world.core.node_id)
    calls = {
        "pause": lambda: service.pause(TEAM, row.id),
        "kill": lambda: service.kill(TEAM, row.id),
        "connect": lambda: service.connect(TEAM, row.id, timeout_s=900),
        "snapshot": lambda: service.snapshot(TEAM, row.id),
        "fork": lambda: service.fork(TEAM, row.id),
        "get": lambda: service.get(TEAM, row.id),
        "set_timeout": lambda: service.set_timeout(TEAM, row.id, 5),
    }
    task = asyncio.create_task(calls[call]())
    if call == "get":
        assert (await task).state is State.CREATING
    else:
        for _ in range(50):
            await asyncio.sleep(0)
        assert not task.done()
    held.release()
    sandbox = await creating
    await task
    await world.server.quiet()
    expected = {"pause": State.PAUSED, "kill": State.GONE}.get(call, State.RUNNING)
    assert await world.state(sandbox.id) is expected


async def test_a_call_that_waited_for_a_create_that_fails_finds_nothing(world: World) -> None:
    held = world.host.faults.add(hold("guest.init"))
    world.host.faults.add(fail("guest.init", DriverError("no")))
    creating = asyncio.create_task(world.create())
    await reached(held)
    [row] = await world.core.store.of_node(world.core.node_id)
    killing = asyncio.create_task(world.server.sandboxes.kill(TEAM, row.id))
    held.release()
    with pytest.raises(DriverError):
        await creating
    with pytest.raises(SandboxNotFound):
        await killing


@pytest.mark.parametrize("call", ["connect", "resume", "wake"])
async def test_a_call_during_a_pause_waits_and_resumes(world: World, call: str) -> None:
    service = world.server.sandboxes
    sandbox = await world.create(auto_resume=True)
    world.machine(sandbox.id).inside.memory["x"] = "1"
    held = world.host.faults.add(hold("driver.checkpoint"))
    pausing = asyncio.create_task(service.pause(TEAM, sandbox.id))
    await reached(held)
    calls = {
        "connect": lambda: service.connect(TEAM, sandbox.id, timeout_s=60),
        "resume": lambda: service.resume(TEAM, sandbox.id, timeout_s=60),
        "wake": lambda: service.wake(sandbox.id),
    }
    task = asyncio.create_task(calls[call]())
    await asyncio.sleep(0)
    held.release()
    assert (await pausing).state is State.PAUSED
    await task
    assert world.machine(sandbox.id).inside.memory == {"x": "1"}
    assert (await world.row(sandbox.id)).generation == 2


async def test_a_wake_during_a_resume_waits_for_it(world: World) -> None:
    service = world.server.sandboxes
    sandbox = await world.create()  # without auto-resume: the resume is somebody else's
    await service.pause(TEAM, sandbox.id)
    held = world.host.faults.add(hold("driver.restore"))
    resuming = asyncio.create_task(service.resume(TEAM, sandbox.id, timeout_s=60))
    await reached(held)
    waking = asyncio.create_task(service.wake(sandbox.id))
    await asyncio.sleep(0)
    held.release()
    await resuming
    route = await waking
    assert route is not None
    assert route.generation == 2


async def test_a_paused_sandbox_wakes_only_if_it_asked_for_it(world: World) -> None:
    service = world.server.sandboxes
    sandbox = await world.create()
    await service.pause(TEAM, sandbox.id)
    assert await service.wake(sandbox.id) is None
    assert await world.state(sandbox.id) is State.PAUSED
    assert await service.wake("i0123456789abcdefghi") is None


async def test_what_does_not_touch_the_machine_does_not_wait_for_a_capture(world: World) -> None:
    service = world.server.sandboxes
    sandbox = await world.create()
    held = world.host.faults.add(hold("driver.checkpoint"))
    capturing = asyncio.create_task(service.snapshot(TEAM, sandbox.id))
    await reached(held)
    async with asyncio.timeout(5):
        await service.set_timeout(TEAM, sandbox.id, 77)
        await service.refresh(TEAM, sandbox.id, 100)
        route = await service.wake(sandbox.id)
    assert route is not None
    held.release()
    await capturing
    row = await world.row(sandbox.id)
    assert (row.end_at - world.clock.now()).total_seconds() == 100


@pytest.mark.parametrize("state", ["pausing", "resuming", "snapshotting"])
async def test_a_kill_waits_for_the_transition(world: World, state: str) -> None:
    service = world.server.sandboxes
    sandbox = await world.create()
    if state == "resuming":
        await service.pause(TEAM, sandbox.id)
        held = world.host.faults.add(hold("driver.restore"))
        moving = asyncio.create_task(service.resume(TEAM, sandbox.id, timeout_s=60))
    else:
        held = world.host.faults.add(hold("driver.checkpoint"))
        work = service.pause if state == "pausing" else service.snapshot
        moving = asyncio.create_task(work(TEAM, sandbox.id))
    await reached(held)
    assert await world.state(sandbox.id) is State(state)
    killing = asyncio.create_task(service.kill(TEAM, sandbox.id))
    for _ in range(50):
        await asyncio.sleep(0)
    assert not killing.done()
    held.release()
    await moving
    await killing
    await world.server.quiet()
    assert await world.state(sandbox.id) is State.GONE


async def test_two_kills(world: World) -> None:
    service = world.server.sandboxes
    sandbox = await world.create()
    results = await asyncio.gather(
        *(service.kill(TEAM, sandbox.id) for _ in range(3)), return_exceptions=True
    )
    assert sum(result is None for result in results) == 1
    assert all(isinstance(r, SandboxNotFound) for r in results if r is not None)


async def test_nobody_waits_for_ever(world: World) -> None:
    service = world.server.sandboxes
    sandbox = await world.create()
    held = world.host.faults.add(hold("driver.checkpoint"))
    pausing = asyncio.create_task(service.pause(TEAM, sandbox.id))
    await reached(held)
    killing = asyncio.create_task(service.kill(TEAM, sandbox.id))
    await asyncio.sleep(0.01)
    await world.clock.advance(world.core.settings.join_timeout + 1)
    world.core.changes.notify(sandbox.id)
    with pytest.raises(WrongState, match="still pausing"):
        await killing
    held.release()
    await pausing
    with pytest.raises(AlreadyPaused):
        await service.pause(TEAM, sandbox.id)


async def test_a_waiter_in_another_process_sees_the_change_by_itself(world: World) -> None:
    """No notice reaches it: it looks again."""
    service = world.server.sandboxes
    sandbox = await world.create()
    held = world.host.faults.add(hold("driver.checkpoint"))
    pausing = asyncio.create_task(service.pause(TEAM, sandbox.id))
    await reached(held)
    world.core.changes.notify = lambda sandbox_id: None  # type: ignore[method-assign]
    connecting = asyncio.create_task(service.connect(TEAM, sandbox.id, timeout_s=60))
    await asyncio.sleep(0)
    held.release()
    await pausing
    assert (await connecting).resumed
