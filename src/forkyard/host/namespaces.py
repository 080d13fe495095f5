"""Network namespaces by name, as `ip netns` has them: made, entered and removed by threads, never by forks.

A thread that has changed its namespace is never used again: it ends with the work it was started for.
"""

import ctypes
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from forkyard.host.errors import HostError

DIRECTORY = Path("/run/netns")
"""Where `ip netns` looks too, so that its commands work on our namespaces."""

T = TypeVar("T")

_NEW_NET = 0x40000000
_BIND, _SHARED, _RECURSIVE = 4096, 1 << 20, 16384
_DETACH = 2
_MOST_STACKED = 16

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mount.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p]
_libc.umount2.argtypes = [ctypes.c_char_p, ctypes.c_int]
_libc.setns.argtypes = [ctypes.c_int, ctypes.c_int]
_libc.unshare.argtypes = [ctypes.c_int]


def prepare_directory() -> None:
    """Make DIRECTORY a mount of its own that is shared, so that other mount namespaces see what is made in it.

    Call it before any process is started that is to use the namespaces from a mount namespace of its own.
    """
    DIRECTORY.mkdir(mode=0o755, parents=True, exist_ok=True)
    path = bytes(DIRECTORY)
    if not _is_mount(DIRECTORY):
        _mount(path, path, _BIND | _RECURSIVE)
    _mount(b"none", path, _SHARED | _RECURSIVE)


def release_directory() -> None:
    """Undo `prepare_directory` if there is no namespace in it; with any, the kernel refuses."""
    with suppress(OSError):
        if not os.listdir(DIRECTORY):
            for _ in range(_MOST_STACKED):  # two instances that prepare it at once mount it twice
                if _libc.umount2(bytes(DIRECTORY), 0) != 0:
                    break
            DIRECTORY.rmdir()


def path_of(name: str) -> Path:
    return DIRECTORY / name


def names(prefix: str) -> list[str]:
    """All namespaces (also half-made ones) whose name begins with `prefix`."""
    try:
        return sorted(name for name in os.listdir(DIRECTORY) if name.startswith(prefix))
    except FileNotFoundError:
        return []


def open_namespace(name: str) -> int:
    """A file descriptor of the namespace. Raises FileNotFoundError, and HostError if nothing is mounted there."""
    fd = os.open(path_of(name), os.O_RDONLY | os.O_CLOEXEC)
    # An interrupted `create` leaves an empty file.
    if os.fstat(fd).st_dev == DIRECTORY.stat().st_dev:
        os.close(fd)
        raise HostError(f"network namespace {name} was never finished")
    return fd


def create(name: str, inside: Callable[[], T]) -> T:
    """Make a namespace and run `inside` in it, in a thread of its own; answers what it answers.

    On any error the namespace is removed again. Raises FileExistsError if there is one of that name. Blocks.
    """
    path = path_of(name)

    def work() -> T:
        os.close(os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444))
        try:
            _check(_libc.unshare(_NEW_NET), "making a network namespace")
            _mount(b"/proc/thread-self/ns/net", bytes(path), _BIND)
            return inside()
        except BaseException:
            remove(name)
            raise

    return in_thread(work)


def enter(name: str, inside: Callable[[], T]) -> T:
    """Run `inside` in the namespace, in a thread of its own. Raises FileNotFoundError. Blocks."""

    def work() -> T:
        fd = open_namespace(name)
        try:
            _check(_libc.setns(fd, _NEW_NET), f"entering network namespace {name}")
        finally:
            os.close(fd)
        return inside()

    return in_thread(work)


def remove(name: str) -> None:
    """Unmount and remove it; a missing one is fine. It lives on, nameless, while a process is in it."""
    path = bytes(path_of(name))
    for _ in range(_MOST_STACKED):
        if _libc.umount2(path, _DETACH) != 0:
            break
    with suppress(FileNotFoundError):
        os.unlink(path)


def in_thread(work: Callable[[], T]) -> T:
    """Run `work` in a new thread that ends with it, and wait. Its error is raised here."""
    result: Future[T] = Future()

    def body() -> None:
        try:
            result.set_result(work())
        except BaseException as error:
            result.set_exception(error)

    thread = threading.Thread(target=body, name="namespace", daemon=True)
    thread.start()
    thread.join()
    return result.result()


def _is_mount(path: Path) -> bool:
    wanted = str(path)
    with open("/proc/self/mountinfo") as file:
        return any(line.split(" ", 5)[4] == wanted for line in file)


def _mount(source: bytes, target: bytes, flags: int) -> None:
    _check(_libc.mount(source, target, b"none", flags, None), f"mounting {target.decode()}")


def _check(result: int, doing: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise HostError(f"{doing}: {os.strerror(number)}")
