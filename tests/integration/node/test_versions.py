"""Versions in a data directory: who needs them, on both databases, and removing the others."""

import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from forkyard.host.errors import DataDirectoryInUse
from forkyard.host.instance import Instance
from forkyard.node.preflight import BaseImage
from forkyard.node.settings import Settings
from forkyard.node.versions import Version, list_versions, remove_unneeded
from forkyard.sandboxes.models import Snapshot, SnapshotState
from forkyard.storage.session import Database


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """Stands for what the instances of a host share."""
    return tmp_path / "shared"


@pytest.fixture
def settings(tmp_path: Path, database: Database, shared: Path) -> Settings:
    """Versions `new` (what is built now), `old` and `older` of everything."""
    url = database.url
    made = Settings(
        data_dir=tmp_path / "data",
        bin_dir=tmp_path / "bin",
        image_dir=tmp_path / "images",
        database_url=url.dsn or f"sqlite:///{url.path}",
    )
    for folder in (made.binaries, made.images, made.node_dir / "images", made.node_dir / "machines"):
        folder.mkdir(parents=True)
    for name in ("envd", "keeper"):
        (made.binaries / name).write_text("new")
        for content in ("new", "old", "older"):
            folder = made.node_dir / "bin" / name / sha(content)
            folder.mkdir(parents=True)
            (folder / name).write_text(content)
    for content in ("new", "old", "older"):
        (made.node_dir / "images" / f"{sha(content)}.erofs").write_text(content)
    fields = dict.fromkeys(BaseImage.__dataclass_fields__, "")
    (made.images / "base.json").write_text(json.dumps({**fields, "sha256": sha("new")}))
    made.data_dir.chmod(0o700)
    with Instance.open(made.data_dir, shared):
        pass
    return made


def shape(content: str) -> dict[str, object]:
    return {"image": sha(content), "envd": sha(content), "runtime": sha(content), "vcpus": 1}


async def add_snapshot(settings: Settings, database: Database, content: str, state: str, node: str) -> None:
    manifest = {"driver": "gvisor", "requires": {"shape": shape(content)}, "files": []}
    async with database.write() as session:
        session.add(
            Snapshot(
                id=f"{content}-{state}-{node}"[:40],
                node_id=node,
                kind="snapshot",
                state=state,
                template_id="t",
                vcpus=1,
                memory_mb=1,
                disk_mb=1,
                envd_version="1",
                settings={},
                manifest=manifest,
                created_at=datetime.now(UTC),
            )
        )


def node_of(settings: Settings) -> str:
    return (settings.data_dir / "instance").read_text().strip()


def by_content(versions: list[Version], kind: str) -> dict[str, tuple[bool, int, int]]:
    names = {sha(content): content for content in ("new", "old", "older")}
    return {names[v.sha256]: (v.current, v.snapshots, v.machines) for v in versions if v.kind == kind}


@pytest.mark.parametrize("kind", ["envd", "runtime", "image"])
async def test_snapshots_and_machines_that_run_both_count(
    settings: Settings, database: Database, kind: str
) -> None:
    await add_snapshot(settings, database, "old", SnapshotState.READY, node_of(settings))
    await add_snapshot(settings, database, "old", SnapshotState.DELETING, node_of(settings))
    await add_snapshot(settings, database, "older", SnapshotState.READY, "another node")
    (settings.node_dir / "machines" / "m.json").write_text(json.dumps({"shape": shape("old")}))
    found = by_content(await list_versions(settings), kind)
    assert found == {"new": (True, 0, 0), "old": (False, 1, 1), "older": (False, 0, 0)}


async def test_only_what_nothing_needs_is_removed(settings: Settings, shared: Path) -> None:
    (settings.node_dir / "machines" / "m.json").write_text(json.dumps({"shape": shape("old")}))
    assert len(await remove_unneeded(settings, shared)) == 3
    left = await list_versions(settings)
    assert sorted(by_content(left, "envd")) == sorted(by_content(left, "image")) == ["new", "old"]
    assert await remove_unneeded(settings, shared) == []


async def test_without_what_is_built_all_could_be_what_new_sandboxes_get(
    settings: Settings, shared: Path
) -> None:
    for path in (settings.binaries / "envd", settings.binaries / "keeper", settings.images / "base.json"):
        path.unlink()
    assert all(version.current for version in await list_versions(settings))
    assert await remove_unneeded(settings, shared) == []


async def test_nothing_is_removed_while_a_server_runs_or_a_record_is_damaged(
    settings: Settings, shared: Path
) -> None:
    before = await list_versions(settings)
    with Instance.open(settings.data_dir, shared), pytest.raises(DataDirectoryInUse):
        await remove_unneeded(settings, shared)
    (settings.node_dir / "machines" / "m.json").write_text("{}")
    with pytest.raises(ValueError, match="not the record"):
        await remove_unneeded(settings, shared)
    (settings.node_dir / "machines" / "m.json").unlink()
    assert await list_versions(settings) == before
