"""Time to live: an absolute deadline, and exactly one outcome at it."""

import asyncio
from collections.abc import AsyncGenerator
from datetime import timedelta

import pytest
import pytest_asyncio

from forkyard.base.errors import InvalidInput
from forkyard.sandboxes.driver import DriverError
from forkyard.sandboxes.errors import NotRunning
from forkyard.sandboxes.models import Sandbox
from forkyard.sandboxes.state import State
from forkyard.testing.core import TEAM
from forkyard.testing.faults import Fault, fail, hold
from forkyard.testing.world import World


@pytest_asyncio.fixture
async def expiring(world: World) -> AsyncGenerator[World]:
    """The loop of a node runs."""
    world.server.start(world.server.expiry.run)
    await asyncio.sleep(0)
    yield world


async def left(world: World, sandbox: Sandbox) -> float:
    return ((await world.row(sandbox.id)).end_at - world.clock.now()).total_seconds()


async def pass_time(world: World, seconds: float) -> None:
    """Let the clock run, and the loop do what it has to."""
    await world.server.let_expiry_rest()
    await world.clock.advance(seconds)
    await world.server.let_expiry_rest()
    await world.server.quiet()


async def test_it_ends_at_its_deadline_and_not_before(expiring: World) -> None:
    sandbox = await expiring.create(timeout_s=30)
    await pass_time(expiring, 29.9)
    assert await expiring.state(sandbox.id) is State.RUNNING
    await pass_time(expiring, 0.2)
    row = await expiring.row(sandbox.id)
    assert (row.state, row.end_reason) == (State.GONE, "its time to live was over")


async def test_it_is_paused_at_its_deadline_if_it_asked_for_that(expiring: World) -> None:
    sandbox = await expiring.create(timeout_s=30, pause_on_timeout=True)
    expiring.machine(sandbox.id).inside.memory["x"] = "1"
    await pass_time(expiring, 31)
    assert await expiring.state(sandbox.id) is State.PAUSED
    await expiring.server.sandboxes.connect(TEAM, sandbox.id, timeout_s=30)
    assert expiring.machine(sandbox.id).inside.memory == {"x": "1"}
    await pass_time(expiring, 31)
    assert await expiring.state(sandbox.id) is State.PAUSED


async def test_a_pause_at_the_deadline_without_memory(expiring: World) -> None:
    sandbox = await expiring.create(timeout_s=30, pause_on_timeout=True, pause_keeps_memory=False)
    expiring.machine(sandbox.id).inside.start("counter")
    await pass_time(expiring, 31)
    assert (await expiring.row(sandbox.id)).paused_without_memory


@pytest.mark.parametrize("fails", [False, True])
async def test_a_deadline_that_is_moved_during_a_capture_is_kept(expiring: World, fails: bool) -> None:
    sandbox = await expiring.create(timeout_s=1800)
    error = DriverError("it fails") if fails else None
    held = expiring.host.faults.add(Fault("driver.checkpoint", held=True, error=error))
    service = expiring.server.sandboxes
    work = asyncio.create_task(service.snapshot(TEAM, sandbox.id))
    await held.reached.wait()
    await service.set_timeout(TEAM, sandbox.id, 10)
    await expiring.server.let_expiry_rest()
    held.release()
    await asyncio.gather(work, return_exceptions=True)
    await pass_time(expiring, 11)
    assert await expiring.state(sandbox.id) is State.GONE


async def test_connect_never_shortens_and_set_timeout_may(world: World) -> None:
    service = world.server.sandboxes
    sandbox = await world.create(timeout_s=1800)
    for timeout in (1, 60, 300):
        await service.connect(TEAM, sandbox.id, timeout_s=timeout)
        assert await left(world, sandbox) == 1800
    await service.refresh(TEAM, sandbox.id, 10)
    assert await left(world, sandbox) == 1800
    await service.connect(TEAM, sandbox.id, timeout_s=3600)
    assert await left(world, sandbox) == 3600
    await service.set_timeout(TEAM, sandbox.id, 30)
    assert await left(world, sandbox) == 30
    await service.refresh(TEAM, sandbox.id, 100)
    assert await left(world, sandbox) == 100
    await service.pause(TEAM, sandbox.id)
    await service.connect(TEAM, sandbox.id, timeout_s=60)
    assert await left(world, sandbox) == 60


async def test_the_deadline_counts_from_the_start_not_from_the_request(world: World) -> None:
    held = world.host.faults.add(hold("driver.restore"))
    creating = asyncio.create_task(world.create(timeout_s=10))
    async with asyncio.timeout(5):
        await held.reached.wait()
    await world.clock.advance(8)
    held.release()
    assert await left(world, await creating) == 10


@pytest.mark.parametrize("timeout", [0, -1, 10**12])
async def test_timeouts_that_are_refused(world: World, timeout: int) -> None:
    service = world.server.sandboxes
    sandbox = await world.create()
    for call in (
        service.connect(TEAM, sandbox.id, timeout_s=timeout),
        service.resume(TEAM, sandbox.id, timeout_s=timeout),
        service.fork(TEAM, sandbox.id, timeout_s=timeout),
    ):
        with pytest.raises(InvalidInput):
            await call
    if timeout:
        with pytest.raises(InvalidInput):
            await service.set_timeout(TEAM, sandbox.id, timeout)
    if timeout:
        with pytest.raises(InvalidInput):
            await service.refresh(TEAM, sandbox.id, timeout)


async def test_a_timeout_of_zero_is_now(expiring: World) -> None:
    sandbox = await expiring.create(pause_on_timeout=True)
    await expiring.server.let_expiry_rest()
    await expiring.server.sandboxes.set_timeout(TEAM, sandbox.id, 0)
    await pass_time(expiring, 0)
    assert await expiring.state(sandbox.id) is State.PAUSED


async def test_a_deadline_that_moves_closer_is_seen_at_once(expiring: World) -> None:
    sandbox = await expiring.create(timeout_s=25)
    await expiring.server.let_expiry_rest()
    await expiring.server.sandboxes.set_timeout(TEAM, sandbox.id, 3)
    await pass_time(expiring, 3.1)
    assert await expiring.state(sandbox.id) is State.GONE


async def test_a_create_whose_caller_was_cut_off_ends_in_time_too(expiring: World) -> None:
    await expiring.server.let_expiry_rest()
    held = expiring.host.faults.add(hold("guest.init"))
    creating = asyncio.create_task(expiring.create(timeout_s=5))
    async with asyncio.timeout(5):
        await held.reached.wait()
    creating.cancel()
    await asyncio.sleep(0)
    held.release()
    await pass_time(expiring, 0)
    [row] = await expiring.core.store.of_node(expiring.core.node_id)
    assert row.state is State.RUNNING
    await pass_time(expiring, 5.1)
    assert await expiring.state(row.id) is State.GONE


@pytest.mark.parametrize("operation", ["snapshot", "pause that fails"])
async def test_a_deadline_that_passes_during_a_transition(expiring: World, operation: str) -> None:
    sandbox = await expiring.create(timeout_s=20)
    service = expiring.server.sandboxes
    held = expiring.host.faults.add(hold("driver.checkpoint"))
    if operation == "snapshot":
        task = asyncio.create_task(service.snapshot(TEAM, sandbox.id))
    else:
        expiring.host.faults.add(fail("driver.checkpoint", DriverError()))
        task = asyncio.create_task(service.pause(TEAM, sandbox.id))
    async with asyncio.timeout(5):
        await held.reached.wait()
    await expiring.server.let_expiry_rest()
    await expiring.clock.advance(21)
    held.release()
    await asyncio.gather(task, return_exceptions=True)
    await pass_time(expiring, 0)
    assert await expiring.state(sandbox.id) is State.GONE


async def test_an_extension_in_the_last_moment_wins_or_loses_whole(expiring: World) -> None:
    sandboxes = [await expiring.create(timeout_s=5) for _ in range(6)]
    await expiring.server.let_expiry_rest()
    await expiring.clock.advance(4.999)

    async def extend(sandbox: Sandbox) -> bool:
        try:
            await expiring.server.sandboxes.set_timeout(TEAM, sandbox.id, 60)
        except Exception:
            return False
        return True

    tasks = [asyncio.create_task(extend(sandbox)) for sandbox in sandboxes]
    await expiring.clock.advance(0.001)
    results = await asyncio.gather(*tasks)
    await pass_time(expiring, 0.5)
    for sandbox, extended in zip(sandboxes, results, strict=True):
        assert await expiring.state(sandbox.id) is (State.RUNNING if extended else State.GONE)


async def test_an_eviction_that_fails_is_tried_again(expiring: World) -> None:
    sandbox = await expiring.create(timeout_s=5, pause_on_timeout=True)
    fault = expiring.host.faults.add(fail("driver.checkpoint", DriverError("full"), times=2))
    await pass_time(expiring, 5.1)
    assert fault.hits == 1
    assert await expiring.state(sandbox.id) is State.RUNNING
    await pass_time(expiring, 9.5)
    assert fault.hits == 1
    await pass_time(expiring, 1)
    assert fault.hits == 2
    await pass_time(expiring, 10.5)
    assert await expiring.state(sandbox.id) is State.PAUSED


async def test_one_slow_eviction_does_not_hold_up_the_others(expiring: World) -> None:
    slow = await expiring.create(timeout_s=5, pause_on_timeout=True)
    others = [await expiring.create(timeout_s=5) for _ in range(3)]
    later = await expiring.create(timeout_s=8)
    held = expiring.host.faults.add(Fault("driver.checkpoint", held=True))
    await expiring.server.let_expiry_rest()
    await expiring.clock.advance(5.1)
    async with asyncio.timeout(10):
        await held.reached.wait()
        for sandbox in others:
            while await expiring.state(sandbox.id) is not State.GONE:
                await asyncio.sleep(0.001)
        await expiring.server.let_expiry_rest()
        await expiring.clock.advance(3)
        while await expiring.state(later.id) is not State.GONE:
            await asyncio.sleep(0.001)
    assert await expiring.state(slow.id) is State.PAUSING
    held.release()
    await expiring.server.quiet()
    assert await expiring.state(slow.id) is State.PAUSED


async def test_deadlines_are_met_after_a_restart(expiring: World) -> None:
    over = await expiring.create(timeout_s=10)
    later = await expiring.create(timeout_s=100)
    await expiring.crash()
    await expiring.clock.advance(50)
    await expiring.start()
    expiring.server.start(expiring.server.expiry.run)
    await pass_time(expiring, 0)
    assert await expiring.state(over.id) is State.GONE
    assert await expiring.state(later.id) is State.RUNNING
    await pass_time(expiring, 51)
    assert await expiring.state(later.id) is State.GONE


async def test_a_wake_gives_at_least_five_minutes(world: World) -> None:
    service = world.server.sandboxes
    short = await world.create(timeout_s=10, auto_resume=True)
    long = await world.create(timeout_s=1000, auto_resume=True)
    for sandbox, expected in ((short, 300), (long, 1000)):
        await service.pause(TEAM, sandbox.id)
        await service.wake(sandbox.id)
        assert await left(world, sandbox) == expected


async def test_a_paused_sandbox_has_no_deadline(expiring: World) -> None:
    sandbox = await expiring.create(timeout_s=10)
    await expiring.server.sandboxes.pause(TEAM, sandbox.id)
    await pass_time(expiring, 1000)
    assert await expiring.state(sandbox.id) is State.PAUSED
    with pytest.raises(NotRunning):
        await expiring.server.sandboxes.set_timeout(TEAM, sandbox.id, 5)


async def test_the_wall_clock_may_be_set(expiring: World) -> None:
    sandbox = await expiring.create(timeout_s=100)
    await expiring.server.let_expiry_rest()
    expiring.clock.step_wall_clock(200)
    await pass_time(expiring, 31)
    assert await expiring.state(sandbox.id) is State.GONE
    assert (await expiring.row(sandbox.id)).end_at < expiring.clock.now() - timedelta(seconds=100)
