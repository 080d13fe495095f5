"""kill -9 at every named point, also of the next server while it recovers: all at rest afterwards, and nothing left."""

from contextlib import suppress

import pytest

from forkyard.sandboxes.driver import DriverError
from forkyard.sandboxes.state import State
from forkyard.testing.core import TEAM
from forkyard.testing.faults import Crashed, Fault
from forkyard.testing.world import World, check_consistent
from tests.unit.sandboxes.operations import OPERATIONS, Operation
from tests.unit.sandboxes.rounds import CRASHES, POINTS, after_restart, crash_at, crash_twice, named


@pytest.mark.parametrize(("operation", "point"), CRASHES, ids=named)
async def test_crash(world: World, operation: Operation, point: str) -> None:
    sandbox_id = await crash_at(world, operation, point)
    await world.restart()
    await after_restart(world, operation, sandbox_id)


@pytest.mark.parametrize(("operation", "point"), CRASHES[::3], ids=named)
async def test_crash_again_during_the_recovery(world: World, operation: Operation, point: str) -> None:
    """At one call; `tests/faults/core` tries all."""
    await crash_twice(world, operation, point, 5 + len(point) % 5)


def test_every_point_is_reached_by_some_operation() -> None:
    assert {point for _, point in CRASHES} == set(POINTS)


async def test_a_second_child_that_is_cut_off(world: World) -> None:
    fork = next(o for o in OPERATIONS if o.name == "fork")
    sandbox_id = await crash_at(world, fork, "start.committed", nth=2)
    recovered = await world.restart()
    assert len(recovered.adopted) == 3
    await after_restart(world, fork, sandbox_id)


async def test_a_new_watch_does_not_go_on_with_what_the_last_one_told(world: World) -> None:
    sandbox = await world.create()
    await world.server.quiet()
    ill = {"unhealthy_reason": "no answer"}
    await world.core.store.set_values(sandbox.id, states=[State.RUNNING], values=ill)
    await world.restart()
    assert (await world.row(sandbox.id)).unhealthy_reason is None


async def test_running_and_paused_sandboxes_are_found_again(world: World) -> None:
    running = await world.create()
    paused = await world.create()
    dead = await world.create()
    private = await world.create(deny_out=["8.8.8.8"], public_traffic=False)
    world.machine(running.id).inside.memory["x"] = "1"
    await world.server.sandboxes.pause(TEAM, paused.id)
    await world.server.quiet()
    name = world.machine(dead.id).name
    await world.crash()
    world.host.kill(name, "exited 1")
    recovered = await world.start()
    assert sorted(recovered.adopted) == sorted([running.id, private.id])
    assert recovered.paused == [paused.id]
    assert recovered.gone == [dead.id]
    assert recovered.swept_machines == [name]
    assert world.machine(running.id).inside.memory == {"x": "1"}
    row = await world.row(dead.id)
    assert (row.state, row.end_reason) == (State.GONE, "its machine died while the server was down: exited 1")
    await world.server.quiet()
    await check_consistent(world.server)


async def test_what_runs_is_routed_all_the_time_and_what_does_not_is_forgotten_first(world: World) -> None:
    running = await world.create()
    killed = await world.create()
    world.server.life.die_at("kill.claimed")
    with suppress(Crashed):
        await world.server.sandboxes.kill(TEAM, killed.id)
    assert killed.id in world.host.routes
    await world.crash()
    assert world.machine(running.id)
    world.host.faults.calls.clear()
    await world.start()
    calls = world.host.faults.names("routes.attach", "driver.destroy")
    assert calls[0] == "routes.attach"
    assert calls.count("driver.destroy") >= 1
    assert list(world.host.routes) == [running.id]


async def test_machines_and_files_without_a_record_are_swept(world: World) -> None:
    sandbox = await world.create()
    await world.crash()
    name = sandbox.id.replace("i", "j", 1) + "-1"
    machine = world.host.machine(sandbox.id)
    world.host.machines[name] = machine.__class__(name, "10.200.9.2", machine.shape, machine.egress, "x")
    (world.snapshot_folder / "leftover").mkdir()
    recovered = await world.start()
    assert recovered.swept_machines == [name]
    assert recovered.swept_snapshots == ["leftover"]
    assert await world.server.sandboxes.template(TEAM, "base")


async def test_a_sandbox_that_cannot_be_recovered_does_not_keep_the_others_from_it(world: World) -> None:
    good = await world.create()
    bad = await world.create()
    name = world.machine(bad.id).name
    world.server.life.die_at("pause.cut")
    with suppress(Crashed):
        await world.server.sandboxes.pause(TEAM, bad.id)
    await world.crash()
    fault = world.host.faults.add(Fault("driver.uncut", times=0, subject=name, error=DriverError("stuck")))
    recovered = await world.start()
    assert recovered.adopted == [good.id]
    assert recovered.unsettled == [bad.id]
    assert fault.hits > 1
    assert await world.state(bad.id) is State.PAUSING
    await world.server.tidy()
    assert await world.state(bad.id) is State.RUNNING


async def test_an_adopted_machine_gets_the_rules_of_its_record(world: World) -> None:
    """A crash between the record and the machine."""
    sandbox = await world.create()
    fault = world.host.faults.add(Fault("driver.set_egress", effect=lambda _: world.server.life.die()))
    with suppress(Crashed):
        await world.server.sandboxes.set_network(
            TEAM, sandbox.id, allow_out=None, deny_out=["8.8.8.8"], allow_internet=None
        )
    assert fault.hits == 1
    assert world.machine(sandbox.id).egress.deny == ()
    await world.restart()
    assert [str(network) for network in world.machine(sandbox.id).egress.deny] == ["8.8.8.8/32"]


async def test_what_the_last_server_did_not_make_host_safe_is_made_so(world: World) -> None:
    sandbox = await world.create()
    world.server.life.die_at("pause.committed")
    with suppress(Crashed):
        await world.server.sandboxes.pause(TEAM, sandbox.id)
    await world.restart()
    await world.server.quiet()
    row = await world.row(sandbox.id)
    snapshot = await world.core.store.snapshot(row.snapshot_id or "")
    assert snapshot is not None
    assert snapshot.durability == "host"
    assert set((snapshot.manifest or {})["checksums"]) == {"state.json", "pages.img"}
