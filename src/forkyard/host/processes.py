"""Processes that are not only children: handles that never mean another process, exits as events, detached starts."""

import asyncio
import json
import os
import signal
import socket
import struct
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast

from forkyard.host.cgroups import move_process
from forkyard.host.disk import write_atomically
from forkyard.host.errors import ProcessGone, SpawnFailed

_UCRED = struct.Struct("3i")
"""What SO_PEERCRED gives: pid, uid, gid."""


@dataclass(frozen=True, slots=True)
class ProcessHandle:
    """One process for good: the kernel gives a pid to others later, but never with the same start time."""

    pid: int
    start_time: int
    """Field 22 of /proc/PID/stat: clock ticks since boot."""

    @classmethod
    def of(cls, pid: int) -> "ProcessHandle":
        """The process that has this pid now. Raises ProcessGone."""
        found = _stat(pid)
        if found is None:
            raise ProcessGone(f"there is no process {pid}")
        return cls(pid, found.start_time)

    def alive(self) -> bool:
        """Whether it runs. A child of ours that has ended is reaped."""
        found = _stat(self.pid)
        if found is None or found.start_time != self.start_time:
            return False
        if found.state not in "ZX":
            return True
        if found.parent == os.getpid():
            _reap(self.pid)
        return False

    def open(self) -> int:
        """A pidfd of it, to be closed by the caller. Raises ProcessGone."""
        try:
            fd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            raise ProcessGone(f"process {self.pid} has ended") from None
        # Checked after opening: from here on the descriptor can mean no other process.
        found = _stat(self.pid)
        if found is None or found.start_time != self.start_time:
            os.close(fd)
            raise ProcessGone(f"process {self.pid} has ended")
        return fd

    def send(self, number: signal.Signals) -> bool:
        """Send it a signal; False if it has ended."""
        try:
            fd = self.open()
        except ProcessGone:
            return False
        try:
            signal.pidfd_send_signal(fd, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(fd)
        return True


async def wait_exit(process: ProcessHandle) -> None:
    """Wait until it has ended; it need not be a child. A child of ours is reaped."""
    try:
        fd = process.open()
    except ProcessGone:
        return
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()

    def on_exit() -> None:
        loop.remove_reader(fd)
        if not ended.done():
            ended.set_result(None)

    loop.add_reader(fd, on_exit)
    try:
        await ended
    finally:
        loop.remove_reader(fd)
        os.close(fd)
        process.alive()  # reaps it


async def end(process: ProcessHandle, grace: float) -> None:
    """SIGTERM, and SIGKILL if it still runs after `grace` seconds; returns when it has ended."""
    if not process.send(signal.SIGTERM):
        return
    try:
        async with asyncio.timeout(grace):
            await wait_exit(process)
    except TimeoutError:
        process.send(signal.SIGKILL)
        await wait_exit(process)


async def kill(process: ProcessHandle, patience: float = 10.0) -> bool:
    """SIGKILL, and wait until it has ended; False when that takes longer than `patience` seconds.

    Then the kernel still does something for it, but none of its own code runs any more.
    """
    process.send(signal.SIGKILL)
    try:
        async with asyncio.timeout(patience):
            await wait_exit(process)
    except TimeoutError:
        return False
    return True


def listener_of(path: Path) -> ProcessHandle | None:
    """The process that listens on a Unix socket, whether it answers or hangs; None when nobody does.

    Does not block. One whose queue of connections is full is not found either.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.setblocking(False)
        try:
            connection.connect(str(path))
            pid: int = _UCRED.unpack(
                connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
            )[0]
            process = ProcessHandle.of(pid)
        except (OSError, ProcessGone):
            return None
        try:
            connection.recv(1)
        except BlockingIOError:
            # Connected to it still: the handle is not of another process that got its pid meanwhile.
            return process
        except OSError:
            pass
        return None


async def spawn_detached(
    arguments: Sequence[str],
    *,
    output: Path,
    cgroup: str | None = None,
    env: Mapping[str, str] | None = None,
) -> ProcessHandle:
    """Start a program that lives on when we end: own session, working directory `/`, no pipe to us.

    Standard output and error are appended to `output` (mode 0600). With `cgroup` (a name in the root) it leaves our
    control group, so that stopping our service does not stop it. Whoever starts it looks after its end with
    `wait_exit` or `alive`. Raises SpawnFailed.
    """
    return await asyncio.to_thread(_spawn, list(arguments), output, cgroup, env)


class PidFile:
    """Remembers a process across our restarts."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, process: ProcessHandle) -> None:
        value = {"pid": process.pid, "start_time": process.start_time, "boot_id": boot_id()}
        write_atomically(self.path, json.dumps(value).encode(), durable=False)

    def read(self) -> ProcessHandle | None:
        """The process, if it still runs; None for a file that is missing, unreadable or from before a reboot."""
        try:
            value: Any = json.loads(self.path.read_bytes())
            fields = cast(dict[str, Any], value)
            process = ProcessHandle(int(fields["pid"]), int(fields["start_time"]))
            same_boot = fields["boot_id"] == boot_id()
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return process if same_boot and process.alive() else None

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class _Stat:
    state: str
    parent: int
    start_time: int


def _stat(pid: int) -> _Stat | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            line = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name in parentheses may hold spaces and parentheses of its own.
    fields = line[line.rindex(b")") + 2 :].split()
    return _Stat(fields[0].decode(), int(fields[1]), int(fields[19]))


def _reap(pid: int) -> None:
    with suppress(ChildProcessError):
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG)


def _spawn(
    arguments: list[str], output: Path, cgroup: str | None, env: Mapping[str, str] | None
) -> ProcessHandle:
    try:
        fd = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise SpawnFailed(f"cannot write {output}: {error.strerror}") from error
    try:
        child = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=fd,
            stderr=fd,
            cwd="/",
            env=dict(env) if env is not None else None,
            start_new_session=True,
        )
    except OSError as error:
        raise SpawnFailed(f"cannot start {arguments[0]}: {error.strerror or error}") from error
    finally:
        os.close(fd)
    # Nobody will ask this object again: it must neither warn nor reap when it is collected.
    child.returncode = 0
    process = ProcessHandle.of(child.pid)
    if cgroup is not None:
        try:
            move_process(child.pid, cgroup)
        except BaseException:
            process.send(signal.SIGKILL)
            os.waitid(os.P_PID, child.pid, os.WEXITED)
            raise
    return process


@cache
def boot_id() -> str:
    """Another one after each start of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
