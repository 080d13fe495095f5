"""Control groups, version 1 and 2: what machines use, and removing what is left of them.

The groups of an instance's machines are `/forkyard-<instance>/<name>`; those of its services stand beside it,
`/forkyard-<instance>-<service>`, because version 2 allows processes only in leaves.
"""

import asyncio
import errno
import os
import re
import signal
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from forkyard.host.errors import HostError, RequirementMissing

ROOT = Path("/sys/fs/cgroup")

CONTROLLERS = ("cpu", "memory", "pids", "io", "cpuset")
"""Those that machines need in version 2; each is switched on where the kernel has it."""

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_REMOVE_TIMEOUT = 5.0
_LOOK = 0.005
_CHUNK = 64 << 10
_FILE_CACHE = (b"inactive_file", b"active_file")
_TOTAL_FILE_CACHE = tuple(b"total_" + name for name in _FILE_CACHE)


@dataclass(frozen=True, slots=True)
class Hierarchies:
    """Where control groups are mounted."""

    version: Literal[1, 2]
    by_controller: dict[str, Path]
    """In version 2 all names lead to the same directory."""

    @property
    def roots(self) -> list[Path]:
        """Every directory in which a group of ours may be, named hierarchies without controllers too."""
        return sorted(set(self.by_controller.values()))

    @classmethod
    def detect(cls, mounts: str) -> "Hierarchies":
        """From the text of /proc/self/mounts. Raises RequirementMissing."""
        first: dict[str, Path] = {}
        unified: Path | None = None
        for line in mounts.splitlines():
            _source, target, kind, options, *_ = line.split(" ")
            if kind == "cgroup2" and unified is None:
                unified = Path(target)
            elif kind == "cgroup":
                for option in options.split(","):
                    if option in _VERSION_1 or option.startswith("name="):
                        first.setdefault(option, Path(target))
        if "memory" in first:
            if unified is not None:
                first["unified"] = unified
            return cls(1, first)
        if unified is not None:
            return cls(2, dict.fromkeys(CONTROLLERS, unified))
        raise RequirementMissing(
            "no control groups are mounted; mount them with `mount -t cgroup2 none /sys/fs/cgroup`"
        )


_VERSION_1 = {"cpu", "cpuacct", "cpuset", "memory", "pids", "devices", "freezer", "blkio"} | {
    "net_cls",
    "net_prio",
    "hugetlb",
    "perf_event",
    "rdma",
}


@lru_cache(maxsize=1)
def hierarchies() -> Hierarchies:
    """Those of this host. Raises RequirementMissing."""
    return Hierarchies.detect(Path("/proc/self/mounts").read_text())


@dataclass(frozen=True, slots=True)
class Usage:
    """What one machine uses now."""

    cpu_ns: int
    """CPU time since its group was made."""
    memory: int
    """Bytes, page cache included."""
    cache: int
    """Bytes of page cache of files in it: what the kernel takes back before it kills. The memory of a sandbox
    is shared memory, which the kernel's own `cache` counts too."""
    pids: int


class MachineGroups:
    """The groups of one instance's machines. Methods that are not async block, for about 0.1 ms a machine."""

    def __init__(self, instance: str, where: Hierarchies | None = None) -> None:
        self._where = where or hierarchies()
        self._base = f"forkyard-{instance}"

    def path(self, name: str) -> str:
        """As an OCI spec's `cgroupsPath` has it."""
        return f"/{self._base}/{_checked(name)}"

    def prepare(self) -> None:
        """Make the instance's group; in version 2 also switch the controllers on. Raises RequirementMissing."""
        if self._where.version == 1:
            return  # the runtime makes what it needs
        root = self._where.roots[0]
        have = (root / "cgroup.controllers").read_text().split()
        wanted = [name for name in CONTROLLERS if name in have]
        if missing := {"cpu", "memory", "pids"} - set(wanted):
            raise RequirementMissing(
                f"the control group controllers {sorted(missing)} are not available; "
                "boot with `cgroup_enable=memory` or delegate them to this container"
            )
        _enable(root, wanted)
        (root / self._base).mkdir(exist_ok=True)
        _enable(root / self._base, wanted)

    def names(self) -> list[str]:
        """Of all groups there, of living machines or not."""
        found: set[str] = set()
        for root in self._where.roots:
            with suppress(FileNotFoundError), os.scandir(root / self._base) as entries:
                found.update(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
        return sorted(found)

    def usage(self) -> dict[str, Usage]:
        """Of all machines, by name, in one pass. One that goes meanwhile is left out."""
        read = _Reader(self._where, self._base)
        try:
            found = {name: read.usage(name) for name in read.names()}
        finally:
            read.close()
        return {name: usage for name, usage in found.items() if usage is not None}

    async def remove(self, name: str) -> None:
        """Kill what is left in a machine's group and remove it. Idempotent. Raises HostError after 5 s."""
        await _kill_and_remove(f"{self._base}/{_checked(name)}", self._where)

    async def sweep(self, keep: set[str]) -> list[str]:
        """Remove the groups of all machines but those in `keep`; answers the names removed."""
        doomed = [name for name in self.names() if name not in keep]
        for name in doomed:
            await self.remove(name)
        return doomed

    async def remove_all(self) -> None:
        """Remove the groups of all machines and the instance's own."""
        await _kill_and_remove(self._base, self._where)


def move_process(pid: int, group: str, where: Hierarchies | None = None) -> None:
    """Put a process into a group in the root, made if it is not there, in all hierarchies. Raises HostError."""
    found = where or hierarchies()
    moved = False
    failure: OSError | None = None
    for root in found.roots:
        directory = root / _checked(group)
        try:
            directory.mkdir(exist_ok=True)
            _copy_cpuset(root, directory)
            (directory / "cgroup.procs").write_text(str(pid))
            moved = True
        except OSError as error:
            # Some hosts forbid single hierarchies (systemd's own, devices); that is no reason to stay in the others.
            failure = error
    if not moved and failure is not None:
        raise HostError(f"cannot move process {pid} into control group {group}: {failure.strerror}")


async def remove_group(group: str, where: Hierarchies | None = None) -> None:
    """Kill what is left in a group in the root and remove it. Idempotent. Raises HostError after 5 s."""
    await _kill_and_remove(_checked(group), where or hierarchies())


async def _kill_and_remove(group: str, where: Hierarchies) -> None:
    directories = [root / group for root in where.roots]
    try:
        async with asyncio.timeout(_REMOVE_TIMEOUT):
            while not _remove(directories):
                _kill(directories)
                await asyncio.sleep(_LOOK)
    except TimeoutError:
        raise HostError(f"control group {group} cannot be removed: processes in it do not end") from None


class _Reader:
    """Reads the files of many groups below one directory a controller."""

    def __init__(self, where: Hierarchies, base: str) -> None:
        self._version = where.version
        self._fds: dict[str, int] = {}
        for controller in ("cpu", "memory", "pids") if where.version == 2 else ("cpuacct", "memory", "pids"):
            root = where.by_controller.get(controller)
            if root is not None:
                with suppress(FileNotFoundError):
                    self._fds[controller] = os.open(root / base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def close(self) -> None:
        for fd in self._fds.values():
            os.close(fd)

    def names(self) -> list[str]:
        if "memory" not in self._fds:
            return []
        with os.scandir(self._fds["memory"]) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]

    def usage(self, name: str) -> Usage | None:
        try:
            if self._version == 2:
                return Usage(
                    cpu_ns=_field(self._read("cpu", f"{name}/cpu.stat"), b"usage_usec") * 1000,
                    memory=int(self._read("memory", f"{name}/memory.current")),
                    cache=_sum(self._read("memory", f"{name}/memory.stat"), _FILE_CACHE),
                    pids=int(self._read("pids", f"{name}/pids.current") or 0),
                )
            return Usage(
                cpu_ns=int(self._read("cpuacct", f"{name}/cpuacct.usage") or 0),
                memory=int(self._read("memory", f"{name}/memory.usage_in_bytes")),
                cache=_sum(self._read("memory", f"{name}/memory.stat"), _TOTAL_FILE_CACHE),
                pids=int(self._read("pids", f"{name}/pids.current") or 0),
            )
        except (FileNotFoundError, OSError) as error:
            if error.errno in (errno.ENOENT, errno.ENODEV):
                return None
            raise

    def _read(self, controller: str, path: str) -> bytes:
        """b"" where this host has no such controller."""
        base = self._fds.get(controller)
        if base is None:
            return b""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=base)
        try:
            return os.read(fd, _CHUNK)
        finally:
            os.close(fd)


def _field(text: bytes, name: bytes) -> int:
    return _sum(text, (name,))


def _sum(text: bytes, names: Collection[bytes]) -> int:
    fields = (line.partition(b" ") for line in text.splitlines())
    return sum(int(value) for key, _, value in fields if key in names)


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name) or name in (".", ".."):
        raise HostError(f"{name!r} cannot name a control group")
    return name


def _enable(directory: Path, controllers: Iterable[str]) -> None:
    for controller in controllers:
        try:
            (directory / "cgroup.subtree_control").write_text(f"+{controller}")
        except OSError as error:
            if controller in ("io", "cpuset"):
                continue
            raise RequirementMissing(
                f"cannot switch the control group controller {controller} on in {directory} ({error.strerror}); "
                "the processes in that group have to be in a group of their own below it"
            ) from error


def _copy_cpuset(root: Path, directory: Path) -> None:
    """In version 1 a new cpuset is empty, and takes no process before it has CPUs and memory nodes."""
    for name in ("cpuset.cpus", "cpuset.mems"):
        source = root / name
        if source.exists() and not (directory / name).read_text().strip():
            (directory / name).write_text(source.read_text())


def _remove(directories: Iterable[Path]) -> bool:
    """Remove groups with those below them; False if one still holds processes."""
    done = True
    for directory in directories:
        for root, _names, _files in os.walk(directory, topdown=False):
            try:
                os.rmdir(root)
            except FileNotFoundError:
                continue
            except OSError as error:
                if error.errno not in (errno.EBUSY, errno.ENOTEMPTY):
                    raise
                done = False
    return done


def _kill(directories: Iterable[Path]) -> None:
    for directory in directories:
        for root, _names, _files in os.walk(directory):
            with suppress(OSError):
                if (Path(root) / "cgroup.kill").exists():
                    (Path(root) / "cgroup.kill").write_text("1")
                    continue
            with suppress(OSError):
                for line in (Path(root) / "cgroup.procs").read_text().split():
                    _kill_member(int(line), Path(root))


def _kill_member(pid: int, group: Path) -> None:
    """Only if the process is (still) in the group: its pid may be another's by now."""
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return
    try:
        if str(pid) in (group / "cgroup.procs").read_text().split():
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(fd, signal.SIGKILL)
    except FileNotFoundError:
        pass
    finally:
        os.close(fd)
