"""A snapshot with a missing or damaged file, or one that needs what is not there any more: refused before anything is
stopped or started; the sandbox stays paused and goes on when the file is back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from forkyard.sandboxes.models import Durability, Snapshot, SnapshotKind
from forkyard.sandboxes.state import State
from tests.e2e.server import ServerProcess
from tests.e2e.waiting import until
from tests.faults.inspection import check_agreement, records
from tests.faults.witness import Witness, call


@pytest.fixture(scope="module")
def paused(server: ServerProcess) -> Witness:
    witness = Witness.create(server)
    witness.pause()

    def safe() -> bool | None:
        return snapshot_of(server, witness).durability == Durability.HOST or None

    # What is changed before there are checksums is never used again.
    until(safe, "its files are synced and have checksums")
    return witness


def snapshot_of(server: ServerProcess, witness: Witness) -> Snapshot:
    rows = records(server.data_dir)
    wanted = next(row.snapshot_id for row in rows.sandboxes if row.id == witness.id)
    return next(snapshot for snapshot in rows.snapshots if snapshot.id == wanted)


def truncate(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"more")


def flip(path: Path) -> None:
    """One bit, in the middle: the size stays."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.quick
@pytest.mark.parametrize("damage", [Path.unlink, truncate, lengthen, empty, flip])
@pytest.mark.parametrize("name", ["checkpoint.img", "pages.img", "pages_meta.img"])
def test_a_damaged_file_is_refused(
    server: ServerProcess, paused: Witness, name: str, damage: Callable[[Path], None]
) -> None:
    path = server.data_dir / "snapshots" / snapshot_of(server, paused).id / name
    data = path.read_bytes()
    damage(path)
    try:
        answer = call(server, "POST", f"/sandboxes/{paused.id}/connect", {"timeout": 3600})
        assert answer.status == 409, answer
        assert name in answer.body["message"]
        assert records(server.data_dir).state(paused.id) is State.PAUSED
    finally:
        path.write_bytes(data)


@pytest.mark.quick
@pytest.mark.parametrize("what", ["image", "envd", "runtime"])
def test_another_image_daemon_or_runtime_is_refused(
    server: ServerProcess, paused: Witness, what: str
) -> None:
    manifest = snapshot_of(server, paused).manifest
    assert manifest is not None
    needed = manifest["requires"]["shape"][what]
    node = server.data_dir / "node"
    (path,) = [
        path
        for path in (*node.glob("images/*"), *node.glob("bin/*/*/*"))
        if needed in (path.parent.name, path.stem)
    ]
    aside = path.with_name(".aside")
    path.rename(aside)
    try:
        path.write_bytes(b"something else")
        _check_refused(server, paused)
        path.unlink()
        _check_refused(server, paused)
    finally:
        path.unlink(missing_ok=True)
        aside.rename(path)


def _check_refused(server: ServerProcess, paused: Witness) -> None:
    answer = call(server, "POST", f"/sandboxes/{paused.id}/connect", {"timeout": 3600})
    assert answer.status in (409, 500), answer
    assert answer.body["message"]
    assert records(server.data_dir).state(paused.id) is State.PAUSED


@pytest.mark.quick
def test_what_was_refused_goes_on_when_all_is_there_again(server: ServerProcess, paused: Witness) -> None:
    paused.check()
    paused.kill()
    check_agreement(server.data_dir)


@pytest.mark.quick
def test_damage_inside_a_file_leaves_the_sandbox_paused(server: ServerProcess) -> None:
    """Found while it is restored: that start fails, and the snapshot stays."""
    witness = Witness.create(server)
    witness.pause()
    path = server.data_dir / "snapshots" / snapshot_of(server, witness).id / "checkpoint.img"
    data = path.read_bytes()
    middle = len(data) // 2
    path.write_bytes(
        data[:middle] + bytes(byte ^ 0xFF for byte in data[middle : middle + 64]) + data[middle + 64 :]
    )
    answer = call(server, "POST", f"/sandboxes/{witness.id}/connect", {"timeout": 3600})
    assert answer.status >= 400, answer
    assert records(server.data_dir).state(witness.id) is State.PAUSED
    path.write_bytes(data)
    witness.check()
    witness.kill()
    check_agreement(server.data_dir)


@pytest.mark.quick
@pytest.mark.parametrize("damage", [Path.unlink, flip])
def test_a_damaged_template_is_made_again_at_the_next_start(
    server: ServerProcess, damage: Callable[[Path], None]
) -> None:
    def templates() -> list[str]:
        return [s.id for s in records(server.data_dir).snapshots if s.kind == SnapshotKind.TEMPLATE]

    (template,) = templates()
    assert server.stop() == 0
    damage(server.data_dir / "snapshots" / template / "pages.img")
    server.start()
    assert templates() != [template]
    witness = Witness.create(server)
    witness.check()
    witness.kill()
    check_agreement(server.data_dir)
