"""The data directory: who it is (an id that all host resources carry) and that only one server uses it."""

import fcntl
import os
import re
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

from forkyard.base.ids import new_instance_id
from forkyard.host import namespaces
from forkyard.host.disk import full_disk_as_no_space, write_all, write_atomically
from forkyard.host.errors import DataDirectoryInUse, DataDirectoryUnusable

SHARED = Path("/run/forkyard")
"""What all instances of a host share. It goes with the last instance that leaves nothing running."""

CLAIMS = "instances"
"""One locked file an instance below it: a copied data directory would otherwise share, and sweep, the original's
machines."""

_ID_FILE = "instance"
_ID_LOCK = "lock"
_HOLDER = "{holder}"
_ID = re.compile(r"[a-z0-9]{6}")


class Instance:
    """An open data directory. The kernel releases its locks when the process ends, however that happens."""

    def __init__(self, directory: Path, identifier: str, locks: list[int], shared: Path) -> None:
        self.directory = directory
        self.id = identifier
        self._locks = locks
        self._shared = shared
        self._forgotten = False

    @classmethod
    def open(cls, directory: Path, shared: Path = SHARED) -> "Instance":
        """Make the directory (mode 0700) and its id if they are not there, and lock both.

        Raises DataDirectoryInUse, DataDirectoryUnusable, NoSpace.
        """
        locks: list[int] = []
        try:
            with full_disk_as_no_space(f"setting up {directory}"):
                absolute = _make(directory)
                locks.append(_lock(absolute / _ID_LOCK, str(os.getpid()), _in_use(absolute)))
                identifier = _read_id(absolute) or _write_id(absolute)
                with _alone(shared):
                    claims = shared / CLAIMS
                    claims.mkdir(mode=0o755, exist_ok=True)
                    locks.append(_lock(claims / identifier, str(absolute), _copied(absolute)))
        except OSError as error:
            _close(locks)
            raise DataDirectoryUnusable(f"the data directory {directory} cannot be used: {error}") from error
        except BaseException:
            _close(locks)
            raise
        return cls(absolute, identifier, locks, shared)

    def __enter__(self) -> "Instance":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def forget(self) -> None:
        """Nothing of this instance runs any more: `close` shall remove what the host remembers of it.

        An instance that only stops must not say this: its sandboxes are found by it.
        """
        self._forgotten = True

    def close(self) -> None:
        """Release the locks. May be called twice."""
        locks, self._locks = self._locks, []
        try:
            if locks and self._forgotten:
                with _alone(self._shared):
                    (self._shared / CLAIMS / self.id).unlink(missing_ok=True)
                    _remove_shared(self._shared)
        finally:
            _close(locks)


def read_instance_id(directory: Path) -> str | None:
    """The id of a data directory without locking it; None if it has none."""
    try:
        return _read_id(directory)
    except FileNotFoundError:
        return None


def _make(directory: Path) -> Path:
    absolute = directory.absolute()
    absolute.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = absolute.stat()
    if found.st_uid not in (os.geteuid(), 0):
        raise DataDirectoryUnusable(
            f"the data directory {absolute} belongs to user {found.st_uid}; it must be owned by the user of the server"
        )
    if found.st_mode & 0o077:
        # It holds tokens, snapshots and the database: nobody else may look in. But never shut others out of a
        # directory that is theirs (`--data-dir /tmp`).
        if os.listdir(absolute) and not (absolute / _ID_FILE).exists():
            raise DataDirectoryUnusable(
                f"{absolute} holds other files and is open to other users; give the server a directory of its own"
            )
        absolute.chmod(0o700)
    return absolute


def _read_id(directory: Path) -> str | None:
    try:
        text = (directory / _ID_FILE).read_text().strip()
    except FileNotFoundError:
        return None
    if not _ID.fullmatch(text):
        raise DataDirectoryUnusable(
            f"{directory / _ID_FILE} does not hold an instance id (six characters of a-z and 0-9); "
            "restore it from a backup, because running sandboxes are found by it"
        )
    return text


def _write_id(directory: Path) -> str:
    identifier = new_instance_id()
    write_atomically(directory / _ID_FILE, f"{identifier}\n".encode())
    return identifier


def _in_use(directory: Path) -> str:
    return f"another server (process {_HOLDER}) uses the data directory {directory}; stop it or choose another one"


def _copied(directory: Path) -> str:
    return (
        f"the data directory {directory} is a copy of {_HOLDER}, which a server is using on this host; "
        f"delete {directory / _ID_FILE} if the copy is to be an instance of its own"
    )


@contextmanager
def _alone(shared: Path) -> Generator[None]:
    """Only one process at a time makes or removes things in the shared directory; each is there for a moment."""
    while True:
        shared.mkdir(mode=0o755, parents=True, exist_ok=True)
        fd = os.open(shared, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            # Whoever held the lock before may have removed the directory.
            if (
                os.fstat(fd).st_nlink == 0
                or not shared.is_dir()
                or shared.stat().st_ino != os.fstat(fd).st_ino
            ):
                continue
            yield
            return
        finally:
            os.close(fd)


def _remove_shared(shared: Path) -> None:
    """Remove the shared directories if no instance is left, running or stopped. Nothing that holds files goes."""
    if any((shared / CLAIMS).iterdir()):
        return
    for entry in [*shared.iterdir(), shared]:
        with suppress(OSError):
            entry.rmdir()
    if shared == SHARED:
        namespaces.release_directory()


def _lock(path: Path, content: str, message: str) -> int:
    """Lock a file for as long as the answered descriptor is open, and write who holds it into it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(fd, 4096, 0).decode(errors="replace").strip() or "unknown"
            raise DataDirectoryInUse(message.replace(_HOLDER, holder)) from None
        os.ftruncate(fd, 0)
        os.lseek(fd, 0, os.SEEK_SET)
        write_all(fd, content.encode())
    except BaseException:
        os.close(fd)
        raise
    return fd


def _close(locks: list[int]) -> None:
    for fd in locks:
        with suppress(OSError):
            os.close(fd)
