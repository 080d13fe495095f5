"""The host goes down: commits that did not wait for the disk are lost, and files that were not synced.

On SQLite, which goes down with it. Whatever is lost: what was killed stays killed, no record leads to deleted files.
"""

import json
import shutil
import sqlite3
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import pytest_asyncio
from sqlalchemy.ext.asyncio import AsyncSession

from forkyard.base.errors import ForkyardError
from forkyard.sandboxes.errors import SnapshotDamaged
from forkyard.sandboxes.models import Durability
from forkyard.sandboxes.state import State
from forkyard.storage.engine import sqlite_url
from forkyard.storage.session import Database
from forkyard.testing.core import TEAM
from forkyard.testing.faults import Crashed, Fault
from forkyard.testing.inline import without_threads
from forkyard.testing.world import World, check_consistent, make_world
from tests.unit.sandboxes.operations import OPERATIONS, Operation, clear, prepared
from tests.unit.sandboxes.rounds import calls_of, named

pytestmark = pytest.mark.timeout(600)

ALLOWED = {
    "create": {State.GONE},
    "pause": {State.GONE, State.PAUSED},
    "pause-files": {State.GONE, State.PAUSED},
    "resume": {State.PAUSED, State.GONE},
    "reboot": {State.PAUSED, State.GONE},
    "snapshot": {State.GONE},
    "fork": {State.GONE},
    "kill": {State.GONE},
    "kill-paused": {State.PAUSED, State.GONE},
    "network": {State.GONE},
}
"""What a sandbox may be after the power cut. Its machine is gone in any case."""


class LossyDatabase(Database):
    """Keeps a copy of what is on the disk for certain: as it was at the last commit that waited."""

    def __init__(self, path: Path) -> None:
        super().__init__(sqlite_url(path))
        self.path = path
        self.certain = path.with_suffix(".certain")
        self._save()

    async def flush(self) -> None:
        await super().flush()
        self._save()

    @asynccontextmanager
    async def write(self, durable: bool = True) -> AsyncGenerator[AsyncSession]:
        async with super().write(durable) as session:
            yield session
        if durable:
            self._save()

    def _save(self) -> None:
        source, target = sqlite3.connect(self.path), sqlite3.connect(self.certain)
        source.backup(target)
        source.close()
        target.close()


@pytest_asyncio.fixture
async def world(sqlite_template: Path, tmp_path: Path) -> AsyncGenerator[World]:
    path = tmp_path / "test.db"
    shutil.copyfile(sqlite_template, path)
    with without_threads():
        database = LossyDatabase(path)
        async with make_world(database, tmp_path) as world:
            yield world
        await world.database.close()


async def power_cut(world: World) -> None:
    """The server, the machines, the edge and what was not on the disk are gone. Then the next server starts."""
    database = world.database
    assert isinstance(database, LossyDatabase)
    assert world.template is not None
    await world.crash()
    await database.close()
    lose_files(database, world.snapshot_folder, {world.template.id})
    world.host.power_cut()
    world.use(LossyDatabase(database.path))
    await world.start()
    await world.server.quiet()


def lose_files(database: LossyDatabase, snapshots: Path, keep: set[str]) -> None:
    for suffix in ("-wal", "-shm"):
        Path(f"{database.path}{suffix}").unlink(missing_ok=True)
    shutil.copyfile(database.certain, database.path)
    for folder in snapshots.iterdir():
        manifest = folder / "manifest.json"
        synced = manifest.is_file() and json.loads(manifest.read_text())["checksums"]
        if not synced and folder.name not in keep:
            shutil.rmtree(folder)


@pytest.mark.parametrize("operation", OPERATIONS, ids=named)
async def test_at_any_call(world: World, operation: Operation) -> None:
    for call, nth in await calls_of(world, operation):
        sandbox = await prepared_for_long(world, operation)
        fault = Fault(call, nth, effect=lambda _: world.server.life.die())
        world.host.faults.add(fault)
        answered = False
        with suppress(Crashed, ForkyardError):
            await world.server.do(operation.run(world, sandbox))
            answered = True
        with suppress(Crashed):
            await world.server.quiet()
        await power_cut(world)
        where = f"at {call} #{nth}"
        row = await world.core.store.get(sandbox.id)
        state = row.state if row is not None else State.GONE
        assert state in ALLOWED[operation.name], where
        if answered and operation.name.startswith("kill"):
            assert state is State.GONE, where
        await forget_lost_snapshots(world)
        await check_consistent(world.server)
        if state is State.PAUSED:
            await world.server.sandboxes.resume(TEAM, sandbox.id, timeout_s=60)
            assert world.machine(sandbox.id).inside.files["/x"] == sandbox.id, where
        await clear(world)


async def forget_lost_snapshots(world: World) -> None:
    """A named snapshot whose files were not on the disk yet: its record says so, and a start of it is refused."""
    for snapshot, _ in (await world.server.sandboxes.snapshots(TEAM))[0]:
        if not (world.snapshot_folder / snapshot.id).exists():
            assert snapshot.durability == Durability.PROCESS
            with pytest.raises(SnapshotDamaged):
                await world.create(template=snapshot.id)
            await world.server.sandboxes.delete_snapshot(TEAM, snapshot.id)
    await world.server.quiet()


async def prepared_for_long(world: World, operation: Operation):
    """As `prepared`, with everything so far on the disk."""
    world.host.faults.calls.clear()
    sandbox = await prepared(world, operation)
    await world.core.store.flush()
    await world.server.quiet()
    return sandbox


@pytest.mark.quick
async def test_a_resumed_and_killed_sandbox_does_not_come_back(world: World) -> None:
    """Neither commit waits for the disk by itself: the kill has to."""
    sandbox = await world.create()
    await world.server.sandboxes.pause(TEAM, sandbox.id)
    await world.server.quiet()
    held = world.host.faults.add(
        Fault("store.flush", held=True)
    )  # the purge of its snapshot, behind the resume
    await world.server.sandboxes.connect(TEAM, sandbox.id, timeout_s=60)
    await world.server.sandboxes.kill(TEAM, sandbox.id)
    held.release()
    await power_cut(world)
    row = await world.core.store.get(sandbox.id)
    assert row is None or row.state is State.GONE


@pytest.mark.quick
async def test_rules_set_after_a_resume_are_not_forgotten(world: World) -> None:
    """A host that goes down takes the resume back, but not stricter rules with it."""
    service = world.server.sandboxes
    sandbox = await world.create()
    await service.pause(TEAM, sandbox.id)
    await world.server.quiet()
    held = world.host.faults.add(Fault("store.flush", held=True))
    await service.connect(TEAM, sandbox.id, timeout_s=60)
    await service.set_network(TEAM, sandbox.id, allow_out=None, deny_out=["8.8.8.8"], allow_internet=None)
    held.release()
    await power_cut(world)
    row = await world.core.store.get(sandbox.id)
    assert row is None or row.state is State.GONE or row.deny_out == ["8.8.8.8"]
