"""Children of one capture: alike inside, each with an identity of its own, and independent from then on."""

import asyncio

import pytest

from forkyard.base.errors import InvalidInput
from forkyard.sandboxes.admission import Limits
from forkyard.sandboxes.driver import DriverError
from forkyard.sandboxes.errors import NotRunning, SandboxLimit
from forkyard.sandboxes.state import State
from forkyard.testing.core import TEAM
from forkyard.testing.faults import Fault, fail, hold
from forkyard.testing.world import World


async def test_children_go_on_from_the_capture_and_diverge(world: World) -> None:
    sandbox = await world.create()
    source = world.machine(sandbox.id).inside
    source.memory["x"] = "before"
    source.files["/x"] = "before"
    pid = source.start("counter")
    results = await world.server.sandboxes.fork(TEAM, sandbox.id, count=4)
    children = [result.sandbox for result in results if result.sandbox]
    assert len(children) == 4
    assert source.memory == {"x": "before"}
    for child in children:
        inside = world.machine(child.id).inside
        assert inside.memory == {"x": "before"}
        assert inside.processes == {"counter": pid}
        inside.memory["x"] = inside.files["/x"] = child.id
    source.memory["x"] = "source"
    for child in children:
        assert world.machine(child.id).inside.memory["x"] == child.id
        assert world.machine(child.id).inside.files["/x"] == child.id
    assert source.files["/x"] == "before"
    # And each goes its own way through pause and resume.
    await asyncio.gather(*(world.server.sandboxes.pause(TEAM, child.id) for child in children))
    await asyncio.gather(
        *(world.server.sandboxes.connect(TEAM, child.id, timeout_s=60) for child in children)
    )
    for child in children:
        assert world.machine(child.id).inside.memory["x"] == child.id


async def test_nothing_that_identifies_it_is_shared(world: World) -> None:
    sandbox = await world.create(public_traffic=False)
    results = await world.server.sandboxes.fork(TEAM, sandbox.id, count=3)
    family = [sandbox, *(result.sandbox for result in results if result.sandbox)]
    assert len(family) == 4
    for name in ("id", "envd_token", "traffic_token", "boot_id", "machine_id", "hostname"):
        assert len({getattr(row, name) for row in family}) == 4, name
    machines = [world.machine(row.id) for row in family]
    assert len({m.address for m in machines}) == len({m.inside.entropy for m in machines}) == 4
    for row, machine in zip(family, machines, strict=True):
        assert machine.identity is not None
        assert machine.identity.sandbox_id == row.id
        assert machine.identity.access_token == row.envd_token
        assert machine.hostname == row.id


async def test_what_a_child_inherits(world: World) -> None:
    sandbox = await world.create(
        timeout_s=500,
        pause_on_timeout=True,
        auto_resume=True,
        metadata={"a": "1"},
        env_vars={"K": "v"},
        deny_out=["8.8.8.8"],
        allow_internet=False,
        allow_out=["1.1.1.1"],
    )
    [result] = await world.server.sandboxes.fork(TEAM, sandbox.id)
    child = result.sandbox
    assert child is not None
    for name in (
        "team_id",
        "timeout_s",
        "pause_on_timeout",
        "auto_resume",
        "user_metadata",
        "env_vars",
        "deny_out",
        "allow_internet",
        "allow_out",
        "template_id",
        "template_name",
        "vcpus",
        "memory_mb",
        "disk_mb",
    ):
        assert getattr(child, name) == getattr(sandbox, name), name
    assert child.parent_id == sandbox.id
    assert world.machine(child.id).egress == world.machine(sandbox.id).egress
    from forkyard.sandboxes.store import SandboxFilter

    found, _ = await world.server.sandboxes.list(SandboxFilter(TEAM, metadata={"a": "1"}))
    assert {row.id for row in found} == {sandbox.id, child.id}


async def test_a_childs_own_timeout_and_the_sources_deadline(world: World) -> None:
    sandbox = await world.create(timeout_s=500)
    await world.clock.advance(10)
    [result] = await world.server.sandboxes.fork(TEAM, sandbox.id, timeout_s=60)
    assert result.sandbox is not None
    assert (result.sandbox.end_at - world.clock.now()).total_seconds() == 60
    assert (await world.row(sandbox.id)).end_at == sandbox.end_at
    assert (await world.row(sandbox.id)).generation == sandbox.generation


async def test_network_rules_set_after_the_capture_hold_for_the_children(world: World) -> None:
    service = world.server.sandboxes
    sandbox = await world.create()
    # The capture is over, and the source runs again, when its snapshot is read.
    captured = world.host.faults.add(
        Fault("files.seal", effect=lambda _: held_read.append(_hold_next_read(world)))
    )
    held_read: list[Fault] = []
    forking = asyncio.create_task(service.fork(TEAM, sandbox.id))
    async with asyncio.timeout(5):
        await captured.reached.wait()
        await held_read[0].reached.wait()
    await service.set_network(TEAM, sandbox.id, allow_out=None, deny_out=["8.8.8.8"], allow_internet=None)
    held_read[0].release()
    [result] = await forking
    assert result.sandbox is not None
    assert world.machine(result.sandbox.id).egress == world.machine(sandbox.id).egress
    assert world.machine(sandbox.id).egress.deny


def _hold_next_read(world: World) -> Fault:
    return world.host.faults.add(hold("store.read"))


async def test_each_child_fails_by_itself(world: World) -> None:
    sandbox = await world.create()
    world.host.faults.add(fail("driver.restore", DriverError("this one not"), nth=2))
    results = await world.server.sandboxes.fork(TEAM, sandbox.id, count=3)
    assert sum(result.sandbox is not None for result in results) == 2
    errors = [result.error for result in results if result.error]
    assert [error.message for error in errors] == ["this one not"]
    assert all((result.sandbox is None) != (result.error is None) for result in results)


async def test_a_bug_in_one_child_is_an_error_of_that_child(world: World) -> None:
    sandbox = await world.create()
    world.host.faults.add(fail("driver.restore", ZeroDivisionError("bug")))
    results = await world.server.sandboxes.fork(TEAM, sandbox.id, count=2)
    assert [type(result.error).__name__ for result in results if result.error] == ["TransitionFailed"]


@pytest.mark.parametrize("count", [0, -1, 101])
async def test_counts_that_are_refused(world: World, count: int) -> None:
    sandbox = await world.create()
    with pytest.raises(InvalidInput):
        await world.server.sandboxes.fork(TEAM, sandbox.id, count=count)


async def test_a_hundred_children(world: World) -> None:
    sandbox = await world.create()
    results = await world.server.sandboxes.fork(TEAM, sandbox.id, count=100)
    assert len({result.sandbox.id for result in results if result.sandbox}) == 100


async def test_children_restore_a_few_at_a_time(world: World) -> None:
    sandbox = await world.create()
    held = [world.host.faults.add(hold("driver.restore", nth=n)) for n in (1, 2)]
    forking = asyncio.create_task(world.server.sandboxes.fork(TEAM, sandbox.id, count=5))
    async with asyncio.timeout(5):
        for fault in held:
            await fault.reached.wait()
    for _ in range(100):
        await asyncio.sleep(0)
    assert world.host.faults.names("driver.restore").count("driver.restore") == 3  # the source's own, and two
    for fault in held:
        fault.release()
    assert len(await forking) == 5


async def test_a_paused_sandbox_cannot_be_forked(world: World) -> None:
    sandbox = await world.create()
    await world.server.sandboxes.pause(TEAM, sandbox.id)
    with pytest.raises(NotRunning):
        await world.server.sandboxes.fork(TEAM, sandbox.id)


async def test_over_the_limit_nothing_is_stopped(world: World) -> None:
    world.options["team"] = Limits(sandboxes=3)
    await world.stop()
    await world.start()
    sandbox = await world.create()
    world.host.faults.calls.clear()
    with pytest.raises(SandboxLimit):
        await world.server.sandboxes.fork(TEAM, sandbox.id, count=3)
    assert world.host.faults.names("driver.*", "guest.*") == []
    assert len(await world.server.sandboxes.fork(TEAM, sandbox.id, count=2)) == 2


async def test_who_takes_the_room_during_the_capture_wins(world: World) -> None:
    world.options["team"] = Limits(sandboxes=2)
    await world.stop()
    await world.start()
    sandbox = await world.create()
    held = world.host.faults.add(hold("driver.checkpoint"))
    forking = asyncio.create_task(world.server.sandboxes.fork(TEAM, sandbox.id))
    async with asyncio.timeout(5):
        await held.reached.wait()
    await world.create()
    held.release()
    with pytest.raises(SandboxLimit):
        await forking
    assert await world.state(sandbox.id) is State.RUNNING


async def test_the_source_may_end_while_its_children_start(world: World) -> None:
    sandbox = await world.create()
    held = world.host.faults.add(hold("driver.restore"))
    forking = asyncio.create_task(world.server.sandboxes.fork(TEAM, sandbox.id, count=2))
    async with asyncio.timeout(5):
        await held.reached.wait()
    await world.server.sandboxes.kill(TEAM, sandbox.id)
    held.release()
    results = await forking
    assert all(result.sandbox for result in results)
