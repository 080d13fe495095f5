"""Snapshots on the local disk: one directory each, a manifest beside the driver's files.

A directory counts only when its row says `ready`; recovery removes the others. What a snapshot needs beside its own
files (image, envd and runtime by hash) is the driver's to check.

The contents are trusted for as long as the files are the very ones that were written or verified since the host
started: same inode, not written to since, which the `stat` that looks at their sizes tells. Others are read and
compared with their checksums before they are used: after a start of the host each snapshot once, and any that somebody
has touched. What rots on the disk without a write is found by `scrubbing`, which ends the trust.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import blake3

from forkyard.host.disk import fsync_tree, read_from_disk, remove_tree, write_atomically
from forkyard.host.processes import boot_id
from forkyard.sandboxes.driver import CheckpointFile, CheckpointResult
from forkyard.sandboxes.errors import SnapshotDamaged
from forkyard.storage.dialect import to_json

MANIFEST = "manifest.json"

_PIECE = 4 << 20


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a snapshot consists of and what a restore of it needs."""

    driver: str
    requires: Mapping[str, Any]
    files: tuple[CheckpointFile, ...]
    checksums: Mapping[str, str]
    """blake3 (hex) by file name; empty until the snapshot is host-safe."""
    stamps: Mapping[str, str]
    """By file name, what `stat` said when it was whole: another stamp means that it may have been changed."""
    boot_id: str
    """The start of the host in which the stamps were taken; "" when they are not to be trusted any more."""

    @property
    def size_bytes(self) -> int:
        return sum(file.size for file in self.files)

    def to_json(self) -> dict[str, Any]:
        return {
            "driver": self.driver,
            "requires": dict(self.requires),
            "files": [{"name": f.name, "size": f.size} for f in self.files],
            "checksums": dict(self.checksums),
            "stamps": dict(self.stamps),
            "boot_id": self.boot_id,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Manifest:
        return cls(
            value["driver"],
            value["requires"],
            tuple(CheckpointFile(f["name"], f["size"]) for f in value["files"]),
            value.get("checksums", {}),
            value.get("stamps", {}),
            value.get("boot_id", ""),
        )


class SnapshotFiles:
    """The directory that holds all snapshots of this node."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._verified: dict[str, Mapping[str, str]] = {}
        """Stamps of what was verified since the server started."""
        self._distrusted: set[str] = set()
        self._verifying: dict[str, asyncio.Task[None]] = {}

    def directory(self, snapshot_id: str) -> Path:
        return self.root / snapshot_id

    async def seal(self, snapshot_id: str, driver: str, result: CheckpointResult) -> Manifest:
        """Check what the driver wrote against what it said, and write the manifest beside it.

        Raises SnapshotDamaged when a file is missing or short.
        """
        stamps = await asyncio.to_thread(self._stamps, snapshot_id, result.files)
        manifest = Manifest(driver, result.requires, result.files, {}, stamps, boot_id())
        await self._write_manifest(snapshot_id, manifest)
        return manifest

    async def check(self, snapshot_id: str, manifest: Manifest) -> None:
        """Whether all files are there and are what was written. Raises SnapshotDamaged, naming the file.

        Their contents are read only if they are not trusted (see above): about 0.3 s for 1 GB.
        """
        stamps = await asyncio.to_thread(self._stamps, snapshot_id, manifest.files)
        if self._trusts(snapshot_id, manifest, stamps):
            return
        task = self._verifying.get(snapshot_id)
        if task is None:
            # One for all who want to use it now, whoever of them is cut off.
            task = asyncio.create_task(self._verify(snapshot_id, manifest, stamps))
            self._verifying[snapshot_id] = task
            task.add_done_callback(lambda done: self._verification_ended(snapshot_id, done))
        await asyncio.shield(task)

    async def make_host_safe(self, snapshot_id: str, manifest: Manifest) -> Manifest:
        """Fsync files and directories and compute their checksums; answers the manifest with them.

        Raises SnapshotDamaged if the files are not those that were sealed any more.
        """
        directory = self.directory(snapshot_id)
        checksums = await asyncio.to_thread(_checksums, directory, manifest.files)
        stamps = await asyncio.to_thread(self._stamps, snapshot_id, manifest.files)
        if manifest.boot_id == boot_id() and stamps != manifest.stamps:
            raise SnapshotDamaged(f"snapshot {snapshot_id}: its files were changed after they were written")
        sealed = replace(manifest, checksums=checksums, stamps=stamps, boot_id=boot_id())
        await self._write_manifest(snapshot_id, sealed)
        await asyncio.to_thread(fsync_tree, directory)
        return sealed

    async def scrub(
        self, snapshot_id: str, manifest: Manifest, breathe: Callable[[int], Awaitable[None]]
    ) -> None:
        """Read everything from the disk and compare, a piece at a time; `breathe(bytes)` is awaited after each.

        Raises SnapshotDamaged naming the file, and OSError (gone meanwhile, for instance).
        """
        for file in manifest.files:
            if file.name not in manifest.checksums:
                continue
            hasher, offset = blake3.blake3(), 0
            path = self.directory(snapshot_id) / file.name
            while piece := await asyncio.to_thread(read_from_disk, path, offset, _PIECE):
                hasher.update(piece)
                offset += len(piece)
                await breathe(len(piece))
            if hasher.hexdigest() != manifest.checksums[file.name]:
                raise _changed(snapshot_id, file.name)

    def distrust(self, snapshot_id: str) -> None:
        """Before the next use the contents are verified."""
        self._verified.pop(snapshot_id, None)
        self._distrusted.add(snapshot_id)

    async def remove(self, snapshot_id: str) -> None:
        self._verified.pop(snapshot_id, None)
        self._distrusted.discard(snapshot_id)
        await asyncio.to_thread(remove_tree, self.directory(snapshot_id))

    def present(self) -> Sequence[str]:
        """Ids of all directories there, complete or not."""
        try:
            return sorted(
                entry.name for entry in os.scandir(self.root) if entry.is_dir(follow_symlinks=False)
            )
        except FileNotFoundError:
            return []

    def _trusts(self, snapshot_id: str, manifest: Manifest, stamps: Mapping[str, str]) -> bool:
        if snapshot_id in self._distrusted:
            return False
        written_now = manifest.boot_id == boot_id() and manifest.stamps == stamps
        return written_now or self._verified.get(snapshot_id) == stamps

    async def _verify(self, snapshot_id: str, manifest: Manifest, stamps: Mapping[str, str]) -> None:
        if manifest.checksums:
            try:
                found = await asyncio.to_thread(_checksums, self.directory(snapshot_id), manifest.files)
            except OSError as error:
                raise SnapshotDamaged(f"snapshot {snapshot_id} cannot be read: {error}") from error
            for name, checksum in manifest.checksums.items():
                if found.get(name) != checksum:
                    raise _changed(snapshot_id, name)
        elif manifest.boot_id == boot_id():
            raise SnapshotDamaged(f"snapshot {snapshot_id}: its files were changed after they were written")
        # Else the host went down before there were checksums: nothing tells more than the sizes.
        self._verified[snapshot_id] = stamps
        self._distrusted.discard(snapshot_id)

    def _verification_ended(self, snapshot_id: str, task: asyncio.Task[None]) -> None:
        self._verifying.pop(snapshot_id, None)
        if not task.cancelled():
            task.exception()  # Whoever waited has it.

    def _stamps(self, snapshot_id: str, files: Sequence[CheckpointFile]) -> dict[str, str]:
        """Raises SnapshotDamaged when a file is missing or has another size."""
        directory = self.directory(snapshot_id)
        stamps: dict[str, str] = {}
        for file in files:
            try:
                found = (directory / file.name).stat(follow_symlinks=False)
            except FileNotFoundError:
                raise SnapshotDamaged(f"snapshot {snapshot_id}: {file.name} is missing") from None
            if found.st_size != file.size:
                raise SnapshotDamaged(
                    f"snapshot {snapshot_id}: {file.name} has {found.st_size} bytes instead of {file.size}"
                )
            stamps[file.name] = f"{found.st_ino}-{found.st_mtime_ns}-{found.st_ctime_ns}"
        return stamps

    async def _write_manifest(self, snapshot_id: str, manifest: Manifest) -> None:
        """Not durable by itself: `make_host_safe` syncs the whole directory after the last one."""
        path = self.directory(snapshot_id) / MANIFEST
        data = to_json(manifest.to_json()).encode()
        await asyncio.to_thread(write_atomically, path, data, durable=False)


def _changed(snapshot_id: str, name: str) -> SnapshotDamaged:
    return SnapshotDamaged(f"snapshot {snapshot_id}: the contents of {name} have changed")


def _checksums(directory: Path, files: Sequence[CheckpointFile]) -> dict[str, str]:
    """blake3 releases the interpreter lock while it hashes, so this may run in a thread beside the event loop.

    Not by mmap, which is no faster: a disk that cannot be read would then end the process.
    """
    buffer = bytearray(1 << 20)
    checksums: dict[str, str] = {}
    for file in files:
        hasher = blake3.blake3()
        with (directory / file.name).open("rb", buffering=0) as opened:
            while length := opened.readinto(buffer):
                hasher.update(memoryview(buffer)[:length])
        checksums[file.name] = hasher.hexdigest()
    return checksums
