"""Files that survive: space, atomic writes, fsync, removal. All functions block; call them in threads."""

import errno
import os
import re
import secrets
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from forkyard.host.errors import HostError, NoSpace

_OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MOUNT_ID = re.compile(r"^mnt_id:\s*(\d+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """Of one file system, in bytes; `free` is what is left for us."""

    total: int
    free: int
    free_inodes: int


def disk_space(path: Path) -> DiskSpace:
    """Space of the file system that `path` (or, if it is not there yet, its nearest parent) lies on."""
    while True:
        try:
            found = os.statvfs(path)
        except FileNotFoundError:
            path = path.parent
            continue
        # Some file systems (btrfs) have no fixed number of inodes and say 0 of 0.
        inodes = found.f_favail if found.f_files else 1 << 62
        return DiskSpace(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize, inodes)


def free_bytes(path: Path) -> int:
    """Bytes that can still be written to the file system of `path`."""
    return disk_space(path).free


@dataclass(frozen=True, slots=True)
class Watermark:
    """Free space that must be left: below it, work that writes is refused before anything is stopped."""

    min_free_bytes: int = 2 << 30
    min_free_inodes: int = 1000

    def check(self, path: Path, need: int = 0) -> None:
        """Raises NoSpace if writing `need` bytes under `path` would go below the mark."""
        space = disk_space(path)
        if space.free - need < self.min_free_bytes:
            raise NoSpace(
                f"{space.free >> 20} MB are free on the file system of {path}; "
                f"{(self.min_free_bytes + need) >> 20} MB are needed"
            )
        if space.free_inodes < self.min_free_inodes:
            raise NoSpace(f"the file system of {path} has only {space.free_inodes} free inodes")


@contextmanager
def full_disk_as_no_space(what: str) -> Generator[None]:
    """Turn "no space left" and "quota exceeded" from the kernel into NoSpace; `what` names what was written."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise NoSpace(f"{what}: {error.strerror}") from error
        raise


def fsync_file(path: Path) -> None:
    """Bring a file's content to the disk. Symbolic links are refused."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def fsync_directory(path: Path) -> None:
    """Bring a directory's entries (not the files' contents) to the disk."""
    fd = os.open(path, _OPEN_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def fsync_tree(path: Path) -> None:
    """Bring everything under directory `path`, and its own entry in its parent, to the disk."""
    for _root, _directories, files, fd in os.fwalk(path, topdown=False, onerror=_raise):
        for name in files:
            if stat.S_ISREG(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
                file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
                try:
                    os.fsync(file)
                finally:
                    os.close(file)
        os.fsync(fd)
    fsync_directory(path.parent)


def write_atomically(path: Path, data: bytes, *, mode: int = 0o600, durable: bool = True) -> None:
    """Make `path` hold `data`: at every moment, a power cut included, it has the old content or all of the new.

    `durable=False` leaves out the fsyncs (for files under /run that no restart of the machine survives).
    Raises NoSpace; then the old content is there and nothing else.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with full_disk_as_no_space(f"writing {path}"):
        fd = os.open(temporary, flags, mode)
        try:
            try:
                os.fchmod(fd, mode)
                write_all(fd, data)
                if durable:
                    os.fsync(fd)
            finally:
                os.close(fd)
            os.replace(temporary, path)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(temporary)
            raise
        if durable:
            fsync_directory(path.parent)


def read_from_disk(path: Path, offset: int, length: int) -> bytes:
    """Up to `length` bytes, b"" at the end: from the disk, unless they are in memory already.

    What was not in memory does not stay there: others need the room more. Symbolic links are refused.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        buffer = bytearray(min(length, max(0, os.fstat(fd).st_size - offset)))
        try:
            done = os.preadv(fd, [buffer], offset, os.RWF_NOWAIT) if buffer else 0
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EOPNOTSUPP):
                raise
            done = 0
        in_memory = done
        while done < len(buffer) and (read := os.preadv(fd, [memoryview(buffer)[done:]], offset + done)):
            done += read
        if done > in_memory:
            os.posix_fadvise(fd, offset + in_memory, done - in_memory, os.POSIX_FADV_DONTNEED)
        return bytes(buffer[:done])
    finally:
        os.close(fd)


def write_all(fd: int, data: bytes) -> None:
    """`os.write` until everything is written."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def remove_tree(path: Path) -> None:
    """Remove a file or a directory with everything in it; a missing one is fine.

    The content may be hostile: symbolic links are removed, never followed, and directories may be nested
    deeper than any path can be long. Never goes into another mount: raises HostError when there is one.
    """
    try:
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            path.unlink(missing_ok=True)
            return
        parent = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        _remove_directory(parent, path.name, path)
    finally:
        os.close(parent)


@dataclass(slots=True)
class _Level:
    """A directory being emptied: its name in its parent, who that parent is, and the directories left in it."""

    name: str
    parent: tuple[int, int]
    todo: list[str]


def _remove_directory(parent: int, name: str, shown: Path) -> None:
    """Depth first with one open directory at a time; the way back up is `..`, checked by device and inode."""
    mount = _mount_id(parent)
    here = os.dup(parent)
    levels: list[_Level] = []
    try:
        todo: list[str] = [name]
        while True:
            if todo:
                entering = todo.pop()
                below = _open_to_remove(here, entering)
                if below is None:
                    continue
                level = _Level(entering, _identity(here), [])
                os.close(here)
                here = below
                if _mount_id(here) != mount:
                    raise HostError(f"{shown} was not removed: something is mounted at or below {entering!r}")
                level.todo = _unlink_files(here)
                levels.append(level)
                todo = level.todo
                continue
            if not levels:
                return
            done = levels.pop()
            above = os.open("..", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=here)
            os.close(here)
            here = above
            if _identity(here) != done.parent:
                raise HostError(f"{shown} was moved while it was removed")
            with suppress(FileNotFoundError):
                os.rmdir(done.name, dir_fd=here)
            todo = levels[-1].todo if levels else []
    finally:
        os.close(here)


def _open_to_remove(parent: int, name: str) -> int | None:
    """Open directory `name`; None if it is gone meanwhile, or was no directory any more and is now removed."""
    try:
        return os.open(name, _OPEN_DIRECTORY, dir_fd=parent)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.ELOOP):
            raise
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=parent)
        return None


def _unlink_files(directory: int) -> list[str]:
    """Remove all entries that are not directories; answers the names of those that are."""
    directories: list[str] = []
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                directories.append(entry.name)
            else:
                with suppress(FileNotFoundError):
                    os.unlink(entry.name, dir_fd=directory)
    return directories


def _raise(error: OSError) -> None:
    raise error


def _identity(fd: int) -> tuple[int, int]:
    found = os.fstat(fd)
    return found.st_dev, found.st_ino


def _mount_id(fd: int) -> str:
    with open(f"/proc/self/fdinfo/{fd}") as file:
        match = _MOUNT_ID.search(file.read())
    return match[1] if match else ""
