"""Create, pause, resume, connect, kill: what they do when nothing goes wrong."""

import asyncio
from datetime import timedelta

import pytest

from forkyard.base.errors import InvalidInput
from forkyard.sandboxes.errors import (
    AlreadyPaused,
    AlreadyRunning,
    NotRunning,
    SandboxNotFound,
    TemplateNotFound,
)
from forkyard.sandboxes.routing import RouteState
from forkyard.sandboxes.state import State
from forkyard.testing.core import TEAM
from forkyard.testing.world import World

OTHER = "team-2"


async def test_a_created_sandbox_runs_and_knows_itself(world: World) -> None:
    sandbox = await world.create(
        timeout_s=120, metadata={"a": "1"}, env_vars={"K": "v", "PATH": "/x"}, auto_resume=True
    )
    assert sandbox.state is State.RUNNING
    assert sandbox.end_at == world.clock.now() + timedelta(seconds=120)
    assert sandbox.template_name == "base"
    identity = world.machine(sandbox.id).identity
    assert identity is not None
    assert (identity.sandbox_id, identity.generation) == (sandbox.id, 1)
    assert identity.access_token == sandbox.envd_token
    assert identity.env_vars == {"PATH": "/x", "K": "v"}
    assert identity.default_user == "user"
    assert world.host.routes[sandbox.id].auto_resume


async def test_sandboxes_share_nothing(world: World) -> None:
    first, second = await asyncio.gather(world.create(), world.create())
    for name in ("id", "envd_token", "boot_id", "machine_id", "hostname"):
        assert getattr(first, name) != getattr(second, name)
    assert world.machine(first.id).address != world.machine(second.id).address


async def test_memory_disk_pid_and_id_survive_six_pauses(world: World) -> None:
    sandbox = await world.create()
    machine = world.machine(sandbox.id)
    pid = machine.inside.start("counter")
    for round_ in range(6):
        inside = world.machine(sandbox.id).inside
        inside.memory["counter"] = str(round_)
        inside.files[f"/f{round_}"] = str(round_)
        inside.files.pop(f"/f{round_ - 2}", None)
        paused = await world.server.sandboxes.pause(TEAM, sandbox.id)
        assert paused.state is State.PAUSED
        connected = await world.server.sandboxes.connect(TEAM, sandbox.id, timeout_s=60)
        assert connected.resumed
        assert connected.sandbox.id == sandbox.id
        assert connected.sandbox.generation == round_ + 2
        inside = world.machine(sandbox.id).inside
        assert inside.memory == {"counter": str(round_)}
        assert inside.processes == {"counter": pid}
        kept = {f"/f{n}" for n in range(max(0, round_ - 1), round_ + 1)}
        assert {name for name in inside.files if name.startswith("/f")} == kept
        assert connected.sandbox.boot_id == sandbox.boot_id


async def test_the_order_of_a_pause(world: World) -> None:
    sandbox = await world.create()
    world.host.faults.calls.clear()
    await world.server.sandboxes.pause(TEAM, sandbox.id)
    await world.server.quiet()
    calls = world.host.faults.names("routes.*", "guest.*", "driver.*", "files.*", "store.write")
    assert calls == [
        "store.write",  # the intent
        "routes.set",  # held
        "guest.quiesce",
        "driver.cut",
        "driver.checkpoint",
        "files.seal",
        "routes.set",  # paused
        "store.write",  # the commit
        "files.make_host_safe",
        "store.write",
        "driver.destroy",
    ]


async def test_the_order_of_a_kill(world: World) -> None:
    sandbox = await world.create()
    await world.server.quiet()
    world.host.faults.calls.clear()
    await world.server.sandboxes.kill(TEAM, sandbox.id)
    assert sandbox.id not in world.host.routes
    # SQLite goes down with the host: a kill waits for the disk. PostgreSQL's commits all do.
    assert bool(world.host.faults.names("store.flush")) == (world.core.store.database.dialect == "sqlite")
    await world.server.quiet()
    calls = world.host.faults.names("routes.*", "driver.*", "store.write")
    assert calls == ["store.write", "routes.remove", "driver.destroy", "store.write"]
    row = await world.row(sandbox.id)
    assert (row.state, row.end_reason) == (State.GONE, "killed by its owner")
    assert row.ended_at == world.clock.now()


async def test_a_killed_sandbox_is_not_found(world: World) -> None:
    sandbox = await world.create()
    service = world.server.sandboxes
    await service.kill(TEAM, sandbox.id)
    for call in (
        service.get(TEAM, sandbox.id),
        service.kill(TEAM, sandbox.id),
        service.pause(TEAM, sandbox.id),
        service.connect(TEAM, sandbox.id, timeout_s=5),
        service.resume(TEAM, sandbox.id, timeout_s=5),
        service.set_timeout(TEAM, sandbox.id, 5),
        service.refresh(TEAM, sandbox.id, 5),
        service.fork(TEAM, sandbox.id),
        service.snapshot(TEAM, sandbox.id),
        service.samples(TEAM, sandbox.id),
        service.set_network(TEAM, sandbox.id, allow_out=None, deny_out=None, allow_internet=None),
    ):
        with pytest.raises(SandboxNotFound):
            await call
    assert await service.wake(sandbox.id) is None


async def test_another_teams_sandbox_is_not_found(world: World) -> None:
    sandbox = await world.create()
    service = world.server.sandboxes
    for call in (
        service.get(OTHER, sandbox.id),
        service.kill(OTHER, sandbox.id),
        service.pause(OTHER, sandbox.id),
        service.connect(OTHER, sandbox.id, timeout_s=5),
        service.resume(OTHER, sandbox.id, timeout_s=5),
        service.set_timeout(OTHER, sandbox.id, 5),
        service.refresh(OTHER, sandbox.id, 5),
        service.fork(OTHER, sandbox.id),
        service.snapshot(OTHER, sandbox.id),
        service.samples(OTHER, sandbox.id),
        service.logs(OTHER, sandbox.id),
        service.set_network(OTHER, sandbox.id, allow_out=None, deny_out=None, allow_internet=None),
    ):
        with pytest.raises(SandboxNotFound):
            await call
    assert await world.state(sandbox.id) is State.RUNNING


async def test_a_paused_sandbox_can_be_killed(world: World) -> None:
    sandbox = await world.create()
    await world.server.sandboxes.pause(TEAM, sandbox.id)
    await world.server.sandboxes.kill(TEAM, sandbox.id)
    await world.server.quiet()
    assert await world.state(sandbox.id) is State.GONE


async def test_calling_twice(world: World) -> None:
    service = world.server.sandboxes
    sandbox = await world.create()
    with pytest.raises(AlreadyRunning):
        await service.resume(TEAM, sandbox.id, timeout_s=5)
    await service.pause(TEAM, sandbox.id)
    with pytest.raises(AlreadyPaused):
        await service.pause(TEAM, sandbox.id)
    for call in (
        service.set_timeout(TEAM, sandbox.id, 5),
        service.refresh(TEAM, sandbox.id, 5),
        service.fork(TEAM, sandbox.id),
        service.snapshot(TEAM, sandbox.id),
        service.set_network(TEAM, sandbox.id, allow_out=None, deny_out=None, allow_internet=None),
    ):
        with pytest.raises(NotRunning):
            await call
    await service.resume(TEAM, sandbox.id, timeout_s=5)
    assert await world.state(sandbox.id) is State.RUNNING


async def test_a_pause_without_memory_ends_processes_and_keeps_files(world: World) -> None:
    service = world.server.sandboxes
    sandbox = await world.create()
    inside = world.machine(sandbox.id).inside
    inside.start("counter")
    inside.memory["x"] = "1"
    inside.files["/f"] = "kept"
    paused = await service.pause(TEAM, sandbox.id, keep_memory=False)
    assert paused.paused_without_memory
    resumed = (await service.connect(TEAM, sandbox.id, timeout_s=5)).sandbox
    inside = world.machine(sandbox.id).inside
    assert (inside.memory, inside.processes) == ({}, {})
    assert inside.files["/f"] == "kept"
    assert resumed.boot_id != sandbox.boot_id
    assert not resumed.paused_without_memory


async def test_a_connect_without_memory_reboots(world: World) -> None:
    service = world.server.sandboxes
    sandbox = await world.create()
    world.machine(sandbox.id).inside.start("counter")
    world.machine(sandbox.id).inside.files["/f"] = "kept"
    await service.pause(TEAM, sandbox.id)
    resumed = (await service.connect(TEAM, sandbox.id, timeout_s=5, keep_memory=False)).sandbox
    inside = world.machine(sandbox.id).inside
    assert inside.processes == {}
    assert inside.files["/f"] == "kept"
    assert resumed.boot_id != sandbox.boot_id
    # And the next one keeps it, as usual.
    inside.start("again")
    await service.pause(TEAM, sandbox.id)
    again = (await service.connect(TEAM, sandbox.id, timeout_s=5)).sandbox
    assert again.boot_id == resumed.boot_id
    assert "again" in world.machine(sandbox.id).inside.processes


async def test_a_sandbox_that_runs_is_not_touched_by_a_connect_without_memory(world: World) -> None:
    sandbox = await world.create()
    world.machine(sandbox.id).inside.start("counter")
    connected = await world.server.sandboxes.connect(TEAM, sandbox.id, timeout_s=5, keep_memory=False)
    assert not connected.resumed
    assert "counter" in world.machine(sandbox.id).inside.processes


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        ({"timeout_s": 0}, "timeout"),
        ({"timeout_s": -1}, "timeout"),
        ({"timeout_s": 10**12}, "timeout"),
        ({"pause_keeps_memory": False}, "autoPauseMemory"),
        ({"pause_keeps_memory": False, "pause_on_timeout": True, "auto_resume": True}, "autoPauseMemory"),
        ({"public_traffic": False, "secure": False}, "network.allowPublicTraffic"),
        ({"metadata": {str(n): "" for n in range(300)}}, "metadata"),
        ({"metadata": {"k" * 501: ""}}, "metadata"),
        ({"env_vars": {"A=B": "1"}}, "envVars"),
        ({"env_vars": {"": "1"}}, "envVars"),
        ({"env_vars": {"A": "\0"}}, "envVars"),
        ({"env_vars": {"A": "x" * (65 << 10)}}, "envVars"),
        ({"allow_out": ["not an address"]}, "network.allowOut[0]"),
        ({"deny_out": ["1.2.3.4", "example.com"]}, "network.denyOut[1]"),
        ({"deny_out": ["::1"]}, "network.denyOut[0]"),
    ],
)
async def test_requests_that_are_refused_before_anything_is_made(
    world: World, request_: dict[str, object], field: str
) -> None:
    world.host.faults.calls.clear()
    with pytest.raises(InvalidInput) as refused:
        await world.create(**request_)
    assert refused.value.field == field
    assert world.host.faults.calls == []


@pytest.mark.parametrize("reference", ["nothing", "base:v2", "UPPER CASE", "", "a/b/c", "x" * 300, "\0"])
async def test_unknown_templates(world: World, reference: str) -> None:
    with pytest.raises(TemplateNotFound):
        await world.create(template=reference)


@pytest.mark.parametrize("reference", ["base", " BASE ", "base:default", "team/base"])
async def test_names_of_a_template(world: World, reference: str) -> None:
    assert (await world.create(template=reference)).template_name == "base"


async def test_a_template_by_its_id(world: World) -> None:
    assert world.template is not None
    sandbox = await world.create(template=world.template.template_id)
    assert sandbox.source_snapshot_id == world.template.id


async def test_an_insecure_sandbox_has_no_token(world: World) -> None:
    sandbox = await world.create(secure=False)
    assert sandbox.envd_token is None
    identity = world.machine(sandbox.id).identity
    assert identity is not None
    assert identity.access_token is None


async def test_private_traffic_has_a_token(world: World) -> None:
    sandbox = await world.create(public_traffic=False)
    route = world.host.routes[sandbox.id]
    assert not route.public
    assert route.traffic_token == sandbox.traffic_token
    assert sandbox.traffic_token is not None
    assert sandbox.traffic_token != sandbox.envd_token


async def test_the_journal_tells_what_happened(world: World) -> None:
    service = world.server.sandboxes
    sandbox = await world.create()
    await service.pause(TEAM, sandbox.id)
    await service.connect(TEAM, sandbox.id, timeout_s=5)
    await service.snapshot(TEAM, sandbox.id)
    await service.kill(TEAM, sandbox.id)
    await world.server.quiet()
    entries = await service.logs(TEAM, sandbox.id)
    assert [entry.message for entry in entries] == ["created", "paused", "resumed", "captured", "killed"]


async def test_lists_show_what_the_team_has_page_by_page(world: World) -> None:
    from forkyard.sandboxes.store import SandboxFilter

    service = world.server.sandboxes
    made = []
    for n in range(5):
        made.append((await world.create(metadata={"n": str(n % 2)})).id)
        await world.clock.advance(1)
    await world.create(OTHER)
    await service.pause(TEAM, made[1])
    await service.kill(TEAM, made[4])
    page, cursor = await service.list(SandboxFilter(TEAM), limit=3)
    rest, end = await service.list(SandboxFilter(TEAM), after=cursor, limit=3)
    assert end is None
    assert [row.id for row in [*page, *rest]] == made[3::-1]
    ascending, _ = await service.list(SandboxFilter(TEAM, ascending=True))
    assert [row.id for row in ascending] == made[:4]
    odd, _ = await service.list(SandboxFilter(TEAM, metadata={"n": "1"}))
    assert {row.id for row in odd} == {made[1], made[3]}
    paused, _ = await service.list(SandboxFilter(TEAM, states={State.PAUSED}))
    assert [row.id for row in paused] == [made[1]]


async def test_routes_follow_the_state(world: World) -> None:
    service = world.server.sandboxes
    sandbox = await world.create(auto_resume=True)
    assert world.host.routes[sandbox.id].state is RouteState.RUNNING
    await service.pause(TEAM, sandbox.id)
    assert world.host.routes[sandbox.id].state is RouteState.PAUSED
    route = await service.wake(sandbox.id)
    assert route is not None
    assert route == world.host.routes[sandbox.id]
    assert route.state is RouteState.RUNNING
