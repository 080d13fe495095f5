"""What was changed is not restored; and what nobody can have changed is not read to find that out."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from forkyard.sandboxes import snapshots
from forkyard.sandboxes.errors import SnapshotDamaged
from forkyard.sandboxes.scrubbing import Scrub
from forkyard.sandboxes.snapshots import SnapshotFiles
from forkyard.sandboxes.state import State
from forkyard.testing.core import TEAM
from forkyard.testing.fake_driver import PAGES_FILE, STATE_FILE
from forkyard.testing.faults import hold
from forkyard.testing.world import World


class Reads:
    """Counts the times that a snapshot was read as a whole."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.snapshots: list[str] = []
        read = snapshots._checksums  # pyright: ignore[reportPrivateUsage]

        def counted(directory: Path, files: object) -> dict[str, str]:
            self.snapshots.append(directory.name)
            return read(directory, files)  # type: ignore[arg-type]

        monkeypatch.setattr(snapshots, "_checksums", counted)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    return Reads(monkeypatch)


@pytest.fixture
def restart_host(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """The host is another one from here on, as far as its boot id tells."""
    return lambda: monkeypatch.setattr(snapshots, "boot_id", lambda: "another")


@pytest.fixture
def rot(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Change a byte as a disk does: nothing that `stat` tells changes with it."""
    real = SnapshotFiles._stamps  # pyright: ignore[reportPrivateUsage]
    before: dict[str, dict[str, str]] = {}

    def remembered(self: SnapshotFiles, snapshot_id: str, files: object) -> dict[str, str]:
        return before.setdefault(snapshot_id, real(self, snapshot_id, files))  # type: ignore[arg-type]

    monkeypatch.setattr(SnapshotFiles, "_stamps", remembered)
    return flip


def flip(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))


async def paused(world: World) -> tuple[str, Path]:
    """Id and snapshot folder of a paused sandbox."""
    sandbox = await world.create()
    world.machine(sandbox.id).inside.memory["x"] = "what must not change"
    row = await world.server.sandboxes.pause(TEAM, sandbox.id)
    await world.server.quiet()
    return sandbox.id, world.snapshot_folder / (row.snapshot_id or "")


async def refused(world: World, sandbox_id: str, name: str) -> None:
    with pytest.raises(SnapshotDamaged, match=name):
        await world.server.sandboxes.connect(TEAM, sandbox_id, timeout_s=60)
    assert await world.state(sandbox_id) is State.PAUSED
    await world.server.quiet()


@pytest.mark.parametrize("name", [PAGES_FILE, STATE_FILE])
async def test_a_flipped_byte_is_refused_and_the_right_one_is_not(world: World, name: str) -> None:
    sandbox_id, folder = await paused(world)
    flip(folder / name)
    for _ in range(2):
        await refused(world, sandbox_id, name)
    await world.restart()
    await refused(world, sandbox_id, name)
    flip(folder / name)
    assert (await world.server.sandboxes.connect(TEAM, sandbox_id, timeout_s=60)).resumed


async def test_a_byte_flipped_before_there_are_checksums_is_refused(world: World) -> None:
    sandbox = await world.create()
    held = world.host.faults.add(hold("files.make_host_safe"))
    row = await world.server.sandboxes.pause(TEAM, sandbox.id)
    folder = world.snapshot_folder / (row.snapshot_id or "")
    flip(folder / PAGES_FILE)
    held.release()
    await world.server.quiet()
    await refused(world, sandbox.id, "changed")
    await world.server.sandboxes.kill(TEAM, sandbox.id)


async def test_a_resume_reads_nothing_to_find_that_out(world: World, reads: Reads) -> None:
    sandbox_id, folder = await paused(world)
    assert reads.snapshots == [folder.name]  # its checksums, behind the answer
    await world.server.sandboxes.connect(TEAM, sandbox_id, timeout_s=60)
    await world.server.sandboxes.pause(TEAM, sandbox_id)
    await world.server.quiet()
    await world.restart()
    reads.snapshots.clear()
    await world.server.sandboxes.connect(TEAM, sandbox_id, timeout_s=60)
    assert reads.snapshots == []


async def test_after_a_start_of_the_host_each_is_read_once(
    world: World, reads: Reads, restart_host: Callable[[], None]
) -> None:
    sandbox_id, folder = await paused(world)
    source = await world.create()
    snapshot, _names = await world.server.sandboxes.snapshot(TEAM, source.id)
    await world.server.quiet()
    restart_host()
    await world.restart()
    reads.snapshots.clear()
    await asyncio.gather(*(world.create(template=snapshot.id) for _ in range(3)))
    await world.create(template=snapshot.id)
    await world.server.sandboxes.connect(TEAM, sandbox_id, timeout_s=60)
    assert sorted(reads.snapshots) == sorted([snapshot.id, folder.name])


async def test_what_rotted_while_the_host_was_off_is_refused(
    world: World, rot: Callable[[Path], None], restart_host: Callable[[], None]
) -> None:
    sandbox_id, folder = await paused(world)
    rot(folder / PAGES_FILE)
    restart_host()
    await world.restart()
    await refused(world, sandbox_id, PAGES_FILE)
    rot(folder / PAGES_FILE)


async def test_what_rots_is_found_by_the_scrub(world: World, rot: Callable[[Path], None]) -> None:
    sandbox_id, folder = await paused(world)
    scrub = Scrub(world.core)
    await world.server.do(scrub.round())
    rot(folder / PAGES_FILE)
    await world.server.do(scrub.round())
    entries = await world.server.sandboxes.logs(TEAM, sandbox_id)
    assert [entry.message for entry in entries].count("snapshot is damaged") == 1
    await refused(world, sandbox_id, PAGES_FILE)
    # A server that comes later knows it too.
    await world.restart()
    await refused(world, sandbox_id, PAGES_FILE)
    rot(folder / PAGES_FILE)
    assert (await world.server.sandboxes.connect(TEAM, sandbox_id, timeout_s=60)).resumed


async def test_the_scrub_leaves_alone_what_goes_meanwhile(world: World) -> None:
    sandbox_id, _folder = await paused(world)
    held = world.host.faults.add(hold("store.read", after=True))
    scrubbing = world.core.operations.start(Scrub(world.core).round(), "scrub")
    await held.reached.wait()
    held.release()
    await world.server.sandboxes.kill(TEAM, sandbox_id)
    await world.server.quiet()
    await scrubbing
    assert world.core.telemetry.damaged._value.get() == 0  # type: ignore[attr-defined]
