"""What `forkyard doctor` looks at: host, programs, remains of dead instances, versions still needed."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

from forkyard.base.errors import ForkyardError
from forkyard.host.checks import CheckResult, Status
from forkyard.host.instance import read_instance_id
from forkyard.host.remains import Remains, clean, find_remains
from forkyard.host.settings import apply_settings, undo_settings
from forkyard.node.edge_process import find_edge
from forkyard.node.preflight import check_certificate, check_machine, find_image, missing_programs
from forkyard.node.settings import Settings
from forkyard.sandboxes.models import SnapshotState
from forkyard.sandboxes.snapshots import Manifest
from forkyard.sandboxes.store import SandboxStore
from forkyard.storage.engine import sqlite_url
from forkyard.storage.session import Database

__all__ = ["CheckResult", "Status", "clean_up", "examine", "fix"]


async def examine(settings: Settings) -> list[CheckResult]:
    """Every check, in a fixed order; nothing is changed."""
    results = [_programs(settings), _image(settings)]
    certificate = await check_certificate(settings)
    results += [certificate] if certificate else []
    results += await check_machine(settings, await find_edge(settings))
    results += [_remains_result(found) for found in await find_remains() if found.dead]
    results += await _versions(settings)
    return results


def fix(*, undo: bool) -> list[str]:
    """Apply (or undo) the host settings that were measured to help; answers what was changed. Blocks."""
    return undo_settings() if undo else apply_settings()


async def clean_up() -> list[str]:
    """Remove what instances left that are dead; answers their ids."""
    cleaned: list[str] = []
    for found in await find_remains():
        if found.dead:
            await clean(found)
            cleaned.append(found.instance)
    return cleaned


def _programs(settings: Settings) -> CheckResult:
    missing = missing_programs(settings)
    if not missing:
        return CheckResult("programs", Status.OK, f"keeper, envd and edge in {settings.binaries}")
    return CheckResult(
        "programs",
        Status.FAILED,
        f"{', '.join(missing)} missing in {settings.binaries}",
        "a server cannot start without them",
        "run `make bootstrap`, or set FORKYARD_BIN_DIR",
    )


def _image(settings: Settings) -> CheckResult:
    try:
        image = find_image(settings)
    except ForkyardError as error:
        return CheckResult("base image", Status.FAILED, error.message)
    return CheckResult("base image", Status.OK, f"{image.image[:12]}, {image.size >> 20} MiB")


def _remains_result(found: Remains) -> CheckResult:
    return CheckResult(
        "remains",
        Status.WARNING,
        f"instance {found.instance} is dead and left something behind",
        "it takes addresses, memory or processor time",
        "run `forkyard doctor --clean`",
    )


async def _versions(settings: Settings) -> list[CheckResult]:
    """For each version of envd and runtime that lies there: what keeps it alive."""
    database_file = settings.data_dir / "forkyard.db"
    node_id = await asyncio.to_thread(read_instance_id, settings.data_dir)
    root = settings.node_dir / "bin"
    if node_id is None or settings.database_url or not await asyncio.to_thread(database_file.exists):
        return []
    database = Database(sqlite_url(database_file))
    try:
        needed = await _needed(SandboxStore(database), node_id)
    finally:
        await database.close()
    results: list[CheckResult] = []
    for name, kind in (("envd", "envd"), ("keeper", "runtime")):
        installed = await asyncio.to_thread(_installed, root / name)
        for sha256 in installed:
            users = needed[(kind, sha256)]
            found = (
                f"{sha256[:12]}: needed by {users} snapshots"
                if users
                else f"{sha256[:12]}: not needed by a snapshot"
            )
            results.append(CheckResult(f"{kind} version", Status.OK, found))
    return results


async def _needed(store: SandboxStore, node_id: str) -> Counter[tuple[str, str]]:
    users: Counter[tuple[str, str]] = Counter()
    for snapshot in await store.snapshots_in(node_id, [SnapshotState.READY]):
        if snapshot.manifest is None:
            continue
        shape = Manifest.from_json(snapshot.manifest).requires.get("shape", {})
        for kind in ("envd", "runtime"):
            users[(kind, str(shape.get(kind)))] += 1
    return users


def _installed(directory: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in directory.iterdir() if not entry.name.startswith("."))
    except FileNotFoundError:
        return []
