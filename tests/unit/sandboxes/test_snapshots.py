"""Snapshots that outlive their sandbox, their names, and what damage does."""

import asyncio

import pytest
from structlog.testing import capture_logs

from forkyard.base.errors import InvalidInput
from forkyard.sandboxes.driver import SnapshotUnusable
from forkyard.sandboxes.errors import SnapshotDamaged, SnapshotNotFound, TemplateNotFound
from forkyard.sandboxes.state import State
from forkyard.storage.errors import DatabaseUnavailable
from forkyard.testing.core import TEAM
from forkyard.testing.fake_driver import PAGES_FILE
from forkyard.testing.fake_host import ENVD
from forkyard.testing.faults import fail, hold
from forkyard.testing.world import World

OTHER = "team-2"


async def test_a_snapshot_outlives_its_sandbox_and_can_be_started_often(world: World) -> None:
    service = world.server.sandboxes
    sandbox = await world.create()
    world.machine(sandbox.id).inside.memory["x"] = "1"
    snapshot, names = await service.snapshot(TEAM, sandbox.id)
    assert list(names) == []
    assert await world.state(sandbox.id) is State.RUNNING
    world.machine(sandbox.id).inside.memory["x"] = "2"
    await service.kill(TEAM, sandbox.id)
    copies = [await world.create(template=snapshot.id) for _ in range(3)]
    assert {world.machine(copy.id).inside.memory["x"] for copy in copies} == {"1"}
    assert {copy.generation for copy in copies} == {2}
    assert {copy.template_id for copy in copies} == {sandbox.template_id}
    assert copies[0].env_vars == {}


async def test_names_lead_to_the_newest(world: World) -> None:
    service = world.server.sandboxes
    sandbox = await world.create()
    inside = world.machine(sandbox.id).inside
    for version in ("1", "2"):
        inside.memory["x"] = version
        _, names = await service.snapshot(TEAM, sandbox.id, name="Mine:v1")
        assert [(name.name, name.tag) for name in names] == [("mine", "v1")]
    await service.snapshot(TEAM, sandbox.id, name="mine")
    copy = await world.create(template="mine:v1")
    assert world.machine(copy.id).inside.memory["x"] == "2"
    assert copy.template_name == "mine"
    with pytest.raises(TemplateNotFound):
        await world.create(template="mine:v2")


async def test_a_teams_names_are_its_own_and_go_before_shipped_ones(world: World) -> None:
    service = world.server.sandboxes
    mine = await world.create()
    theirs = await world.create(OTHER)
    world.machine(mine.id).inside.memory["x"] = "mine"
    world.machine(theirs.id).inside.memory["x"] = "theirs"
    await service.snapshot(TEAM, mine.id, name="base")
    await service.snapshot(OTHER, theirs.id, name="private")
    assert world.machine((await world.create()).id).inside.memory == {"x": "mine"}
    assert world.machine((await world.create("team-3")).id).inside.memory == {}
    with pytest.raises(TemplateNotFound):
        await world.create(template="private")


async def test_another_teams_snapshot_is_not_found(world: World) -> None:
    service = world.server.sandboxes
    snapshot, _ = await service.snapshot(TEAM, (await world.create()).id)
    with pytest.raises(TemplateNotFound):
        await world.create(OTHER, template=snapshot.id)
    with pytest.raises(SnapshotNotFound):
        await service.delete_snapshot(OTHER, snapshot.id)
    assert (await service.snapshots(OTHER))[0] == []


async def test_a_shipped_template_cannot_be_deleted(world: World) -> None:
    assert world.template is not None
    for reference in ("base", world.template.id, world.template.template_id):
        with pytest.raises(SnapshotNotFound):
            await world.server.sandboxes.delete_snapshot(TEAM, reference)


async def test_a_deleted_snapshot_is_gone_and_what_was_made_from_it_lives(world: World) -> None:
    service = world.server.sandboxes
    sandbox = await world.create()
    snapshot, _ = await service.snapshot(TEAM, sandbox.id, name="mine")
    copy = await world.create(template="mine")
    await service.pause(TEAM, copy.id)
    await service.delete_snapshot(TEAM, "mine")
    for reference in ("mine", snapshot.id):
        with pytest.raises(SnapshotNotFound):
            await service.delete_snapshot(TEAM, reference)
        with pytest.raises(TemplateNotFound):
            await world.create(template=reference)
    await world.server.quiet()
    assert not (world.snapshot_folder / snapshot.id).exists()
    assert (await service.connect(TEAM, copy.id, timeout_s=60)).resumed


@pytest.mark.parametrize("call", ["files.check", "driver.check", "driver.restore"])
async def test_a_create_from_a_snapshot_that_is_deleted_meanwhile_does_not_find_it(
    world: World, call: str
) -> None:
    service = world.server.sandboxes
    snapshot, _ = await service.snapshot(TEAM, (await world.create()).id, name="mine")
    await world.server.quiet()
    held = world.host.faults.add(hold(call))
    create = asyncio.create_task(world.create(template="mine"))
    await held.reached.wait()
    await service.delete_snapshot(TEAM, "mine")
    await world.server.quiet(but=1)
    assert not (world.snapshot_folder / snapshot.id).exists()
    held.release()
    with pytest.raises(TemplateNotFound, match="mine"):
        await create
    await world.server.quiet()


async def test_a_snapshot_deleted_before_it_is_host_safe_is_no_trouble(world: World) -> None:
    service = world.server.sandboxes
    held = world.host.faults.add(hold("files.make_host_safe"))
    snapshot, _ = await service.snapshot(TEAM, (await world.create()).id)
    await held.reached.wait()
    await service.delete_snapshot(TEAM, snapshot.id)
    await world.server.quiet(but=1)
    assert not (world.snapshot_folder / snapshot.id).exists()
    with capture_logs() as logged:
        held.release()
        await world.server.quiet()
    assert [line["event"] for line in logged if line["log_level"] != "debug"] == []


async def test_pauses_of_sandboxes_are_nobodys_snapshots(world: World) -> None:
    service = world.server.sandboxes
    sandbox = await world.create()
    paused = await service.pause(TEAM, sandbox.id)
    assert paused.snapshot_id is not None
    with pytest.raises(TemplateNotFound):
        await world.create(template=paused.snapshot_id)
    with pytest.raises(SnapshotNotFound):
        await service.delete_snapshot(TEAM, paused.snapshot_id)
    assert (await service.snapshots(TEAM))[0] == []


async def test_lists_of_snapshots(world: World) -> None:
    service = world.server.sandboxes
    first, second = await world.create(), await world.create()
    made = []
    for sandbox, name in ((first, "a"), (second, None), (first, "b:v1"), (first, "a:v2")):
        snapshot, _ = await service.snapshot(TEAM, sandbox.id, name=name)
        made.append(snapshot.id)
        await world.clock.advance(1)
    everything, _ = await service.snapshots(TEAM)
    assert [snapshot.id for snapshot, _ in everything] == made[::-1]
    of_first, _ = await service.snapshots(TEAM, sandbox_id=first.id)
    assert [snapshot.id for snapshot, _ in of_first] == [made[3], made[2], made[0]]
    named, _ = await service.snapshots(TEAM, name="a:v2")
    assert [snapshot.id for snapshot, _ in named] == [made[3]]
    page, cursor = await service.snapshots(TEAM, limit=3)
    rest, end = await service.snapshots(TEAM, limit=3, after=cursor)
    assert [snapshot.id for snapshot, _ in [*page, *rest]] == made[::-1]
    assert end is None
    with pytest.raises(InvalidInput):
        await service.snapshots(TEAM, limit=0)


@pytest.mark.parametrize("name", ["", "a/b/c", "ä", "x" * 200, ":v1", "a:", "a b"])
async def test_names_that_are_refused_before_anything_is_stopped(world: World, name: str) -> None:
    sandbox = await world.create()
    world.host.faults.calls.clear()
    with pytest.raises(InvalidInput):
        await world.server.sandboxes.snapshot(TEAM, sandbox.id, name=name)
    assert world.host.faults.calls == []


async def test_a_snapshot_that_cannot_be_named_is_not_kept(world: World) -> None:
    sandbox = await world.create()
    # The claim, the commit, and the name.
    world.host.faults.add(fail("store.write", DatabaseUnavailable(), nth=3))
    with pytest.raises(DatabaseUnavailable):
        await world.server.sandboxes.snapshot(TEAM, sandbox.id, name="mine")
    await world.server.quiet()
    assert (await world.server.sandboxes.snapshots(TEAM))[0] == []


async def test_a_snapshot_without_memory_starts_with_no_processes(world: World) -> None:
    sandbox = await world.create()
    inside = world.machine(sandbox.id).inside
    inside.start("counter")
    inside.files["/x"] = "kept"
    snapshot, _ = await world.server.sandboxes.snapshot(TEAM, sandbox.id, keep_memory=False)
    assert "counter" in inside.processes
    copy = world.machine((await world.create(template=snapshot.id)).id).inside
    assert copy.processes == {}
    assert copy.files["/x"] == "kept"
    copy.start("its own")


@pytest.mark.parametrize("damage", ["missing", "short", "folder"])
async def test_a_damaged_pause_stays_paused_until_it_is_whole_again(world: World, damage: str) -> None:
    service = world.server.sandboxes
    sandbox = await world.create()
    paused = await service.pause(TEAM, sandbox.id)
    await world.server.quiet()
    folder = world.snapshot_folder / (paused.snapshot_id or "")
    data = (folder / PAGES_FILE).read_bytes()
    if damage == "missing":
        (folder / PAGES_FILE).unlink()
    elif damage == "short":
        (folder / PAGES_FILE).write_bytes(data[:-1])
    else:
        folder.rename(world.snapshot_folder / "elsewhere")
    restores = len(world.host.faults.names("driver.restore"))
    for _ in range(2):
        with pytest.raises((SnapshotDamaged, SnapshotUnusable), match=r"missing|bytes|not there"):
            await service.resume(TEAM, sandbox.id, timeout_s=60)
        assert await world.state(sandbox.id) is State.PAUSED
    assert len(world.host.faults.names("driver.restore")) == restores
    if damage == "folder":
        (world.snapshot_folder / "elsewhere").rename(folder)
    (folder / PAGES_FILE).write_bytes(data)
    assert (await service.resume(TEAM, sandbox.id, timeout_s=60)).state is State.RUNNING


async def test_a_new_envd_beside_the_old_one_changes_nothing_for_old_snapshots(world: World) -> None:
    service = world.server.sandboxes
    sandbox = await world.create()
    await service.pause(TEAM, sandbox.id)
    world.host.envds.append("f" * 64)
    assert (await service.connect(TEAM, sandbox.id, timeout_s=60)).resumed
    assert world.machine(sandbox.id).shape.envd == ENVD
    await service.pause(TEAM, sandbox.id)
    world.host.envds.remove(ENVD)
    with pytest.raises(SnapshotUnusable, match="envd"):
        await service.resume(TEAM, sandbox.id, timeout_s=60)
    world.host.envds.insert(0, ENVD)


async def test_the_files_of_a_pause_are_gone_after_the_resume(world: World) -> None:
    service = world.server.sandboxes
    sandbox = await world.create()
    for _ in range(3):
        await service.pause(TEAM, sandbox.id)
        await service.connect(TEAM, sandbox.id, timeout_s=60)
        await world.server.quiet()
        assert len(list(world.snapshot_folder.iterdir())) == 1  # the template's


async def test_two_pauses_at_once_of_the_same_source(world: World) -> None:
    sandboxes = [await world.create() for _ in range(8)]
    service = world.server.sandboxes
    rows = await asyncio.gather(*(service.pause(TEAM, sandbox.id) for sandbox in sandboxes))
    assert len({row.snapshot_id for row in rows}) == 8
    await asyncio.gather(*(service.connect(TEAM, s.id, timeout_s=60) for s in sandboxes))
