"""Runtime and envd binaries, each in a directory named by its hash: a snapshot needs the very files it came from."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from forkyard.base.logging import get_logger
from forkyard.sandboxes.driver import SnapshotUnusable

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Seen:
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int
    links: int

    def still(self, now: _Seen) -> bool:
        """Whether it is the same content. A link more or less moves the change time too: images are shared by links,
        and every server that starts or ends on this host would have the others read theirs again, a second each."""
        same = (self.inode, self.size, self.mtime_ns) == (now.inode, now.size, now.mtime_ns)
        return same and (self.ctime_ns == now.ctime_ns or self.links != now.links)


class FileHashes:
    """sha256 of files, computed again only when the file is another one."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[_Seen, str]] = {}

    async def sha256(self, path: Path) -> str:
        """Raises FileNotFoundError."""
        stat = os.stat(path)  # one system call; a thread for it takes longer
        seen = _Seen(stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_nlink)
        known = self._known.get(path)
        if known is not None and known[0].still(seen):
            self._known[path] = (seen, known[1])
            return known[1]
        digest = await asyncio.to_thread(_sha256, path)
        self._known[path] = (seen, digest)
        return digest

    async def check(self, path: Path, sha256: str, what: str) -> None:
        """Raise SnapshotUnusable unless the file is there with this content."""
        try:
            found = await self.sha256(path)
        except FileNotFoundError:
            raise SnapshotUnusable(
                f"the snapshot needs {what} {sha256[:12]}, which is not on this node"
            ) from None
        if found != sha256:
            # Clients read this: where it lies is for the log.
            log.error("a file is damaged", path=str(path), what=what, sha256=sha256, found=found)
            raise SnapshotUnusable(f"{what} {sha256[:12]}, which the snapshot needs, is damaged on this node")


class Binaries:
    """`<root>/<kind>/<sha256>/<name>`; several versions live side by side."""

    def __init__(self, root: Path, hashes: FileHashes) -> None:
        self._root = root
        self._hashes = hashes

    def path(self, name: str, sha256: str) -> Path:
        return self._root / name / sha256 / name

    def installed(self, name: str) -> list[str]:
        """Hashes of all versions."""
        try:
            return sorted(entry for entry in os.listdir(self._root / name) if not entry.startswith("."))
        except FileNotFoundError:
            return []

    async def install(self, source: Path) -> str:
        """Bring a binary in under its hash, once; answers the hash. Half a copy never gets the name, and one that was
        damaged is replaced."""
        sha256 = await self._hashes.sha256(source)
        target = self.path(source.name, sha256)
        if not target.exists() or await self._hashes.sha256(target) != sha256:
            await asyncio.to_thread(_copy, source, target)
        return sha256


def _copy(source: Path, target: Path) -> None:
    target.parent.parent.mkdir(parents=True, exist_ok=True)
    part = target.parent.with_name(f".{target.parent.name}.{os.getpid()}")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    copy = part / target.name
    shutil.copyfile(source, copy)
    copy.chmod(0o755)
    with copy.open("rb") as file:
        os.fsync(file.fileno())
    try:
        part.rename(target.parent)
    except OSError:
        try:
            copy.replace(target)
        finally:
            shutil.rmtree(part, ignore_errors=True)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
