"""The versions of envd, runtime and image that lie in the data directory, what needs each, and removing the others."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from sqlalchemy import select

from forkyard.base.errors import ForkyardError
from forkyard.host.instance import CLAIMS, SHARED, Instance, read_instance_id
from forkyard.node.preflight import find_image
from forkyard.node.settings import Settings
from forkyard.sandboxes.models import Snapshot, SnapshotState
from forkyard.sandboxes.snapshots import Manifest
from forkyard.storage.session import Database

KINDS = ("envd", "runtime", "image")
"""As the shape of a machine names them."""

Needs = Counter[tuple[str, str]]
"""How many need a version, by kind and sha256."""


@dataclass(frozen=True, slots=True)
class Version:
    kind: str
    sha256: str
    path: Path
    size: int
    """Bytes."""
    current: bool
    """Whether new sandboxes get it (or what they get cannot be told)."""
    snapshots: int
    machines: int
    """Snapshots, and machines that run, which need it."""

    @property
    def needed(self) -> bool:
        return self.current or self.snapshots > 0 or self.machines > 0


async def list_versions(settings: Settings) -> list[Version]:
    """All that are there; [] where no server was ever started. Raises database errors, and OSError or ValueError
    when a record of a machine cannot be read."""
    node_id = await asyncio.to_thread(read_instance_id, settings.data_dir)
    path = settings.database.path
    if node_id is None or (path is not None and not await asyncio.to_thread(path.exists)):
        return []
    # Before the database: a machine that becomes a snapshot meanwhile is counted twice rather than not at all.
    machines = await asyncio.to_thread(_needs_of_machines, settings.node_dir / "machines")
    snapshots = await _needs_of_snapshots(settings, node_id)
    return await asyncio.to_thread(_versions, settings, snapshots, machines)


async def remove_unneeded(settings: Settings, shared: Path = SHARED) -> list[Version]:
    """Remove the versions that nothing needs; answers them.

    Raises DataDirectoryInUse while a server runs: it counts on what it has found there.
    """
    node_id = await asyncio.to_thread(read_instance_id, settings.data_dir)
    if node_id is None:
        return []
    known = (shared / CLAIMS / node_id).exists()
    with Instance.open(settings.data_dir, shared) as instance:
        if not known:
            instance.forget()  # We have started nothing that the host should remember it by.
        removed = [version for version in await list_versions(settings) if not version.needed]
        for version in removed:
            await asyncio.to_thread(_remove, version.path)
    return removed


async def _needs_of_snapshots(settings: Settings, node_id: str) -> Needs:
    database = Database(settings.database)
    # Columns that every schema has: doctor is asked after an upgrade too, before the server has migrated.
    query = select(Snapshot.manifest).where(
        Snapshot.node_id == node_id,
        Snapshot.state != SnapshotState.DELETING,
    )
    try:
        async with database.read() as session:
            manifests = (await session.scalars(query)).all()
    finally:
        await database.close()
    requires = (Manifest.from_json(manifest).requires for manifest in manifests if manifest is not None)
    return _count(cast(Mapping[str, Any], each.get("shape", {})) for each in requires)


def _needs_of_machines(records: Path) -> Needs:
    """From the records that the driver keeps of every machine that it makes."""
    shapes: list[Mapping[str, Any]] = []
    for path in records.glob("*.json") if records.is_dir() else ():
        try:
            shapes.append(json.loads(path.read_text())["shape"])
        except FileNotFoundError:
            continue  # it has just ended
        except (KeyError, TypeError) as error:
            raise ValueError(f"{path} is not the record of a machine") from error
    return _count(shapes)


def _count(shapes: Iterable[Mapping[str, Any]]) -> Needs:
    return Counter((kind, str(shape.get(kind))) for shape in shapes for kind in KINDS)


def _versions(settings: Settings, snapshots: Needs, machines: Needs) -> list[Version]:
    current = {
        "envd": _hash(settings.binaries / "envd"),
        "runtime": _hash(settings.binaries / "keeper"),
        "image": _image(settings),
    }
    places = [
        *(("envd", path.name, path) for path in _entries(settings.node_dir / "bin" / "envd")),
        *(("runtime", path.name, path) for path in _entries(settings.node_dir / "bin" / "keeper")),
        *(("image", path.stem, path) for path in _entries(settings.node_dir / "images", "*.erofs")),
    ]
    return [
        Version(
            kind,
            sha256,
            path,
            _size(path),
            current[kind] in (sha256, None),
            snapshots[(kind, sha256)],
            machines[(kind, sha256)],
        )
        for kind, sha256, path in places
    ]


def _entries(directory: Path, pattern: str = "*") -> list[Path]:
    if not directory.is_dir():
        return []
    return sorted(path for path in directory.glob(pattern) if not path.name.startswith("."))


def _hash(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        return None


def _image(settings: Settings) -> str | None:
    try:
        return find_image(settings).sha256
    except ForkyardError:
        return None


def _size(path: Path) -> int:
    files = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]
    return sum(each.stat().st_size for each in files)


def _remove(path: Path) -> None:
    if path.is_file():
        path.unlink()
    else:
        shutil.rmtree(path)
