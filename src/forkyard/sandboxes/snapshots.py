"""Snapshots on the local disk: one directory each, a manifest beside the driver's files.

A directory counts only when its row says `ready`; recovery removes the others. What a snapshot needs beside its own
files (image, envd and runtime by hash) is the driver's to check.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import blake3

from forkyard.host.disk import fsync_tree, remove_tree, write_atomically
from forkyard.sandboxes.driver import CheckpointFile, CheckpointResult
from forkyard.sandboxes.errors import SnapshotDamaged
from forkyard.storage.dialect import to_json

MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a snapshot consists of and what a restore of it needs."""

    driver: str
    requires: Mapping[str, Any]
    files: tuple[CheckpointFile, ...]
    checksums: Mapping[str, str]
    """blake3 (hex) by file name; empty until the snapshot is host-safe."""

    @property
    def size_bytes(self) -> int:
        return sum(file.size for file in self.files)

    def to_json(self) -> dict[str, Any]:
        return {
            "driver": self.driver,
            "requires": dict(self.requires),
            "files": [{"name": f.name, "size": f.size} for f in self.files],
            "checksums": dict(self.checksums),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Manifest:
        return cls(
            value["driver"],
            value["requires"],
            tuple(CheckpointFile(f["name"], f["size"]) for f in value["files"]),
            value.get("checksums", {}),
        )


class SnapshotFiles:
    """The directory that holds all snapshots of this node."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def directory(self, snapshot_id: str) -> Path:
        return self.root / snapshot_id

    async def seal(self, snapshot_id: str, driver: str, result: CheckpointResult) -> Manifest:
        """Check what the driver wrote against what it said, and write the manifest beside it.

        Raises SnapshotDamaged when a file is missing or short.
        """
        manifest = Manifest(driver, result.requires, result.files, {})
        await asyncio.to_thread(self._check_sizes, snapshot_id, manifest.files)
        await self._write_manifest(snapshot_id, manifest)
        return manifest

    async def check(self, snapshot_id: str, manifest: Manifest) -> None:
        """Whether all files are there in their full size. Raises SnapshotDamaged. Cheap: contents are not read."""
        await asyncio.to_thread(self._check_sizes, snapshot_id, manifest.files)

    async def make_host_safe(self, snapshot_id: str, manifest: Manifest) -> Manifest:
        """Fsync files and directories and compute their checksums; answers the manifest with them."""
        directory = self.directory(snapshot_id)
        checksums = await asyncio.to_thread(_checksums, directory, manifest.files)
        sealed = Manifest(manifest.driver, manifest.requires, manifest.files, checksums)
        await self._write_manifest(snapshot_id, sealed)
        await asyncio.to_thread(fsync_tree, directory)
        return sealed

    async def scrub(self, snapshot_id: str, manifest: Manifest) -> None:
        """Read everything and compare. Raises SnapshotDamaged naming the file."""
        await self.check(snapshot_id, manifest)
        found = await asyncio.to_thread(_checksums, self.directory(snapshot_id), manifest.files)
        for name, checksum in manifest.checksums.items():
            if found.get(name) != checksum:
                raise SnapshotDamaged(f"snapshot {snapshot_id}: the contents of {name} have changed")

    async def remove(self, snapshot_id: str) -> None:
        await asyncio.to_thread(remove_tree, self.directory(snapshot_id))

    def present(self) -> Sequence[str]:
        """Ids of all directories there, complete or not."""
        try:
            return sorted(
                entry.name for entry in os.scandir(self.root) if entry.is_dir(follow_symlinks=False)
            )
        except FileNotFoundError:
            return []

    def _check_sizes(self, snapshot_id: str, files: Sequence[CheckpointFile]) -> None:
        directory = self.directory(snapshot_id)
        for file in files:
            try:
                size = (directory / file.name).stat(follow_symlinks=False).st_size
            except FileNotFoundError:
                raise SnapshotDamaged(f"snapshot {snapshot_id}: {file.name} is missing") from None
            if size != file.size:
                raise SnapshotDamaged(
                    f"snapshot {snapshot_id}: {file.name} has {size} bytes instead of {file.size}"
                )

    async def _write_manifest(self, snapshot_id: str, manifest: Manifest) -> None:
        """Not durable by itself: `make_host_safe` syncs the whole directory after the last one."""
        path = self.directory(snapshot_id) / MANIFEST
        data = to_json(manifest.to_json()).encode()
        await asyncio.to_thread(write_atomically, path, data, durable=False)


def _checksums(directory: Path, files: Sequence[CheckpointFile]) -> dict[str, str]:
    """blake3 releases the interpreter lock while it hashes, so this may run in a thread beside the event loop."""
    return {
        file.name: blake3.blake3().update_mmap(directory / file.name).hexdigest()
        if file.size
        else blake3.blake3().hexdigest()
        for file in files
    }
