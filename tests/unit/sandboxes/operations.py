"""The operations of the core, each with what it needs beforehand and what may have become of the sandbox afterwards."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from forkyard.sandboxes.models import Sandbox
from forkyard.sandboxes.state import State
from forkyard.testing.core import TEAM
from forkyard.testing.world import World


@dataclass(frozen=True)
class Operation:
    name: str
    paused: bool
    """Whether it starts from a paused sandbox; else from a running one (or, for a create, from none)."""
    run: Callable[[World, Sandbox], Awaitable[object]]
    undone: State
    """The state after it has failed with nothing done."""
    done: State
    keeps_memory: bool = True


async def _create(world: World, _sandbox: Sandbox) -> object:
    return await world.create(metadata={"made": "by create"})


async def _pause(world: World, sandbox: Sandbox) -> object:
    return await world.server.sandboxes.pause(TEAM, sandbox.id)


async def _pause_files(world: World, sandbox: Sandbox) -> object:
    return await world.server.sandboxes.pause(TEAM, sandbox.id, keep_memory=False)


async def _resume(world: World, sandbox: Sandbox) -> object:
    return await world.server.sandboxes.resume(TEAM, sandbox.id, timeout_s=100)


async def _reboot(world: World, sandbox: Sandbox) -> object:
    return await world.server.sandboxes.connect(TEAM, sandbox.id, timeout_s=100, keep_memory=False)


async def _snapshot(world: World, sandbox: Sandbox) -> object:
    return await world.server.sandboxes.snapshot(TEAM, sandbox.id, name="snap")


async def _fork(world: World, sandbox: Sandbox) -> object:
    return await world.server.sandboxes.fork(TEAM, sandbox.id, count=2)


async def _kill(world: World, sandbox: Sandbox) -> object:
    return await world.server.sandboxes.kill(TEAM, sandbox.id)


async def _network(world: World, sandbox: Sandbox) -> object:
    return await world.server.sandboxes.set_network(
        TEAM, sandbox.id, allow_out=None, deny_out=["8.8.8.8"], allow_internet=None
    )


R, P, G = State.RUNNING, State.PAUSED, State.GONE

OPERATIONS = [
    Operation("create", False, _create, R, R),
    Operation("pause", False, _pause, R, P),
    Operation("pause-files", False, _pause_files, R, P, keeps_memory=False),
    Operation("resume", True, _resume, P, R),
    Operation("reboot", True, _reboot, P, R, keeps_memory=False),
    Operation("snapshot", False, _snapshot, R, R),
    Operation("fork", False, _fork, R, R),
    Operation("kill", False, _kill, R, G),
    Operation("kill-paused", True, _kill, P, G),
    Operation("network", False, _network, R, R),
]


async def prepared(world: World, operation: Operation) -> Sandbox:
    """A sandbox in the state that the operation starts from, with something in memory and on disk."""
    sandbox = await world.create()
    inside = world.machine(sandbox.id).inside
    inside.memory["x"] = sandbox.id
    inside.files["/x"] = sandbox.id
    inside.start("counter")
    if operation.paused:
        sandbox = await world.server.sandboxes.pause(TEAM, sandbox.id)
    await world.server.quiet()
    world.host.faults.calls.clear()
    return sandbox


async def nothing_is_lost(world: World, operation: Operation, sandbox: Sandbox) -> None:
    """Whatever it came to: memory and disk are there, if need be after a resume, and it works on."""
    state = await world.state(sandbox.id)
    if state is State.GONE:
        return
    if state is State.PAUSED:
        await world.server.sandboxes.resume(TEAM, sandbox.id, timeout_s=100)
    inside = world.machine(sandbox.id).inside
    assert inside.files["/x"] == sandbox.id
    if operation.keeps_memory:
        assert inside.memory["x"] == sandbox.id
        assert "counter" in inside.processes


async def clear(world: World) -> None:
    """Kill all that is there, so that the next round begins with nothing."""
    for row in await world.core.store.of_node(world.core.node_id):
        await world.server.sandboxes.kill(row.team_id, row.id)
    for snapshot in await world.core.store.snapshots_in(world.core.node_id, ["ready"]):
        if snapshot.kind == "snapshot":
            await world.server.sandboxes.delete_snapshot(TEAM, snapshot.id)
    await world.server.tidy()
