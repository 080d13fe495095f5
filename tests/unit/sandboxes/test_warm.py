"""The warm pool: a create takes a machine from it at once or not at all, and never waits on it."""

import asyncio
from collections.abc import AsyncGenerator

import pytest
import pytest_asyncio

from forkyard.sandboxes.admission import Limits
from forkyard.sandboxes.driver import DriverError
from forkyard.sandboxes.errors import SandboxLimit
from forkyard.sandboxes.models import Snapshot
from forkyard.sandboxes.state import State
from forkyard.testing.core import TEAM
from forkyard.testing.faults import Crashed, Fault, fail, hold
from forkyard.testing.world import World, check_consistent


def template(world: World) -> Snapshot:
    assert world.template is not None
    return world.template


async def filled(world: World, count: int) -> None:
    """The pool's loop runs, and that many machines wait."""
    world.server.start(world.server.pool.run)
    world.server.pool.target(template(world), count)
    await ready(world, count)


async def ready(world: World, count: int) -> None:
    async with asyncio.timeout(10):
        while world.server.pool.ready().get(template(world).id, 0) != count:
            await asyncio.sleep(0.0005)


@pytest_asyncio.fixture
async def warm(world: World) -> AsyncGenerator[World]:
    await filled(world, 2)
    yield world


async def test_a_create_takes_a_warm_machine_and_the_pool_is_filled_again(warm: World) -> None:
    waiting = set(warm.host.machines)
    restores = len(warm.host.faults.names("driver.restore"))
    sandbox = await warm.create(deny_out=["8.8.8.8"], env_vars={"K": "v"})
    machine = warm.machine(sandbox.id)
    assert machine.name in waiting
    assert machine.identity is not None
    assert machine.identity.env_vars["K"] == "v"
    assert [str(n) for n in machine.egress.deny] == ["8.8.8.8/32"]
    await ready(warm, 2)
    assert len(warm.host.faults.names("driver.restore")) == restores + 1


async def test_an_empty_pool_is_not_waited_for(warm: World) -> None:
    warm.host.faults.add(hold("driver.restore", subject="warm-*"))
    sandboxes = await asyncio.gather(*(warm.create() for _ in range(4)))
    names = [warm.machine(sandbox.id).name for sandbox in sandboxes]
    assert sum(name.startswith("warm-") for name in names) == 2


async def test_a_sandbox_on_a_warm_machine_lives_like_any_other(warm: World) -> None:
    service = warm.server.sandboxes
    sandbox = await warm.create()
    warm.machine(sandbox.id).inside.memory["x"] = "1"
    await service.pause(TEAM, sandbox.id)
    await service.connect(TEAM, sandbox.id, timeout_s=60)
    assert warm.machine(sandbox.id).inside.memory == {"x": "1"}
    [result] = await service.fork(TEAM, sandbox.id)
    assert result.sandbox is not None
    await service.kill(TEAM, sandbox.id)
    await warm.server.quiet()
    assert not [name for name in warm.host.machines if name.startswith(sandbox.id)]


@pytest.mark.parametrize("fault", ["dead", "silent", "set_egress"])
async def test_a_machine_that_is_of_no_use_costs_a_cold_start(warm: World, fault: str) -> None:
    machines = [m for name, m in warm.host.machines.items() if name.startswith("warm-")]
    for machine in machines:
        machine.alive = fault != "dead"
        machine.silent = fault == "silent"
    if fault == "set_egress":
        warm.host.faults.add(fail("driver.set_egress", DriverError(), subject="warm-*", times=0))
    sandbox = await warm.create(deny_out=["8.8.8.8"])
    assert warm.machine(sandbox.id).name == f"{sandbox.id}-1"
    await warm.server.quiet()
    assert sum(machine.name in warm.host.machines for machine in machines) == 1
    for machine in machines:
        machine.alive, machine.silent = True, False


async def test_a_machine_that_dies_in_the_pool_is_replaced(warm: World) -> None:
    warm.server.start_events()
    await asyncio.sleep(0)
    victim = next(name for name in warm.host.machines if name.startswith("warm-"))
    warm.host.kill(victim)
    async with asyncio.timeout(10):
        while victim in warm.host.machines:
            await asyncio.sleep(0.0005)
    await ready(warm, 2)


async def test_a_refused_create_gives_its_machine_back(world: World) -> None:
    world.options["team"] = Limits(sandboxes=1)
    await world.stop()
    await world.start()
    await filled(world, 1)
    await world.create()
    await ready(world, 1)
    waiting = set(world.host.machines)
    with pytest.raises(SandboxLimit):
        await world.create()
    assert world.server.pool.ready()[template(world).id] == 1
    assert set(world.host.machines) == waiting


async def test_a_repeated_create_gives_its_machine_back(warm: World) -> None:
    first = await warm.create(idempotency_key="k")
    await ready(warm, 2)
    assert (await warm.create(idempotency_key="k")).id == first.id
    await ready(warm, 2)


async def test_a_target_of_zero_lets_them_go(warm: World) -> None:
    warm.server.pool.target(template(warm), 0)
    async with asyncio.timeout(10):
        while any(name.startswith("warm-") for name in warm.host.machines):
            await asyncio.sleep(0.0005)


async def test_when_memory_is_low_they_go_and_creates_go_on(warm: World) -> None:
    warm.server.pool.hold(True)
    await ready(warm, 0)
    sandbox = await warm.create()
    assert warm.machine(sandbox.id).name == f"{sandbox.id}-1"
    assert len(warm.host.machines) == 1
    warm.server.pool.hold(False)
    await ready(warm, 2)


async def test_only_a_machine_that_has_answered_is_offered(world: World) -> None:
    unhealthy = world.host.faults.add(Fault("guest.health", held=True))
    world.server.start(world.server.pool.run)
    world.server.pool.target(template(world), 1)
    async with asyncio.timeout(10):
        await unhealthy.reached.wait()
    assert world.server.pool.ready().get(template(world).id, 0) == 0
    sandbox = await world.create()
    assert world.machine(sandbox.id).name == f"{sandbox.id}-1"
    unhealthy.release()
    await ready(world, 1)


async def test_one_template_that_cannot_be_restored_does_not_empty_the_other_pools(world: World) -> None:
    service = world.server.sandboxes
    broken, _ = await service.snapshot(TEAM, (await world.create()).id)
    world.host.faults.add(fail("driver.check", DriverError("broken"), times=0, subject=broken.id))
    world.server.start(world.server.pool.run)
    world.server.pool.target(broken, 1)
    world.server.pool.target(template(world), 2)
    await ready(world, 2)
    assert not world.server.pool.ready().get(broken.id)
    tries = len([c for c in world.host.faults.calls if c.subject == broken.id and c.name == "driver.check"])
    assert tries == 1
    world.host.faults.clear()
    async with asyncio.timeout(10):
        while not world.server.pool.ready().get(broken.id):
            await world.clock.advance(0.1)
            await asyncio.sleep(0.0005)


async def test_after_a_crash_the_pool_is_swept(warm: World) -> None:
    sandbox = await warm.create()
    await ready(warm, 2)
    waiting = {name for name in warm.host.machines if name.startswith("warm-")} - {
        warm.machine(sandbox.id).name
    }
    await warm.crash()
    recovered = await warm.start()
    assert set(recovered.swept_machines) == waiting
    assert recovered.adopted == [sandbox.id]


@pytest.mark.parametrize("point", ["start.claimed", "start.initialised"])
async def test_a_warm_create_cut_off_by_a_crash_leaves_nothing(warm: World, point: str) -> None:
    warm.server.life.die_at(point)
    with pytest.raises(Crashed):
        await warm.create()
    await warm.restart()
    await warm.server.quiet()
    await check_consistent(warm.server)
    assert list(warm.host.machines) == []


async def test_a_machine_that_dies_while_it_is_claimed_ends_the_create_or_the_sandbox(warm: World) -> None:
    warm.server.start_events()
    await asyncio.sleep(0)
    warm.host.faults.add(Fault("routes.set", effect=lambda _: warm.host.kill(_newest(warm))))
    sandbox = await warm.create()
    await warm.server.quiet()
    row = await warm.row(sandbox.id)
    assert row.state is State.GONE
    assert "died" in (row.end_reason or "")


def _newest(world: World) -> str:
    [machine] = [m for m in world.host.machines.values() if m.identity and m.identity.generation > 0]
    return machine.name


async def test_a_clean_stop_ends_the_warm_ones(warm: World) -> None:
    await warm.stop()
    assert warm.host.machines == {}
    await warm.start()
