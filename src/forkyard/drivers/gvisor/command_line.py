"""Runtime without a keeper: runsc's own command line, one process a call. It takes about twice as long.

Containers lie in the keeper's directories and have its records, so that a server can go from one to the other.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import fcntl
import os
import shutil
import signal
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import aiohttp

from forkyard.base.clock import Clock
from forkyard.base.logging import get_logger
from forkyard.base.tasks import Supervisor
from forkyard.drivers.gvisor.config import NODE, GvisorConfig
from forkyard.drivers.gvisor.container_files import ContainerFiles, Phase
from forkyard.drivers.gvisor.memory_marks import INTERVAL_S, MemoryMarks
from forkyard.drivers.gvisor.runsc_process import NoSpace, Runsc, RunscFailed
from forkyard.drivers.gvisor.runtime import Container, ContainerEvent, ContainerRequest, ContainerUnusable
from forkyard.drivers.gvisor.turns import Turns
from forkyard.host import namespaces
from forkyard.host.addresses import PREFIX_LENGTH, Slot
from forkyard.host.cgroups import MachineGroups, hierarchies
from forkyard.host.netlink import links
from forkyard.host.netlink.connection import ROUTE, NetlinkConnection
from forkyard.host.processes import ProcessHandle, wait_exit
from forkyard.host.slots import GUEST_INTERFACE
from forkyard.sandboxes.driver import CheckpointFile, DriverError, HostFull, MachineLost

log = get_logger(__name__)

_INNER = "s"
"""What every container is called in its own directory; part of a socket's path, which must be short."""

_CALL_S = 60.0
_BYTES_PER_S = 50 << 20
_DESTROY_S = 10.0
_HEALTH_INTERVAL_S = 3.0
_HEALTH_TIMEOUT = aiohttp.ClientTimeout(total=2.5)
_STRIKES = 2
_OOM_SCORE = "500"
_SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER"""


class CommandLine:
    """Implements `Runtime` by running the binary."""

    def __init__(self, config: GvisorConfig, runtime: str, binary: Path, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._root = config.node_dir / "keeper" / runtime[:12]
        self._runsc = Runsc(binary, config.node_dir, self._root)
        self._groups = MachineGroups(config.instance)
        self._events: asyncio.Queue[ContainerEvent] = asyncio.Queue()
        self._loops = Supervisor(clock)
        self._marks = MemoryMarks()
        self._turns = Turns()
        self._lock: int | None = None

    # -- Runtime -------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Raises DriverError while a keeper looks after the same containers."""
        self._root.mkdir(parents=True, exist_ok=True, mode=0o711)
        self._lock = os.open(self._root / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            await self.close()
            raise DriverError(
                "a keeper looks after the containers; end it before serving without one"
            ) from None
        # Sandboxes are orphans of the commands that start them, and runsc waits for whoever reaps them.
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
        for files in self._all():
            await self._adopt(files)

    async def close(self) -> None:
        await self._loops.stop()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    async def shutdown(self) -> None:
        """There is no process to end."""

    async def ping(self) -> None:
        """It has no process of its own."""

    async def list(self) -> Sequence[Container]:
        return [c for files in self._all() if (c := _container(files)) is not None]

    async def get(self, container_id: str) -> Container | None:
        return _container(self._files(container_id))

    async def create(self, container_id: str, request: ContainerRequest) -> Container:
        async with self._turns.of(container_id):
            return await self._create(self._files(container_id), request)

    async def _create(self, files: ContainerFiles, request: ContainerRequest) -> Container:
        try:
            files.make(request.spec)
        except FileExistsError:
            raise DriverError(f"there is a container {files.id} already") from None
        try:
            await asyncio.to_thread(_put_net, request.slot)
            # A file, never a pipe: the sandbox keeps it for its life.
            output = self._config.node_dir / Path(request.log).relative_to(NODE)
            await self._run(
                files, "create", "--bundle", self._runsc.inside(files.path), _INNER, output=output
            )
            pids = files.state_pids()
            files.write(Phase.CREATED, cgroup=request.spec["linux"]["cgroupsPath"], pids=pids)
            _adjust(request, pids)
        except BaseException as error:
            await self._delete(files)
            _raise(error)
        self._follow(files)
        return self._known(files)

    async def start(self, container_id: str, slot: Slot) -> Container:
        return await self._begin(container_id, slot, "start", _INNER)

    async def restore(self, container_id: str, directory: Path, slot: Slot) -> Container:
        bundle = self._runsc.inside(self._files(container_id).path)
        return await self._begin(
            container_id,
            slot,
            "restore",
            "--detach",
            "--bundle",
            bundle,
            "--image-path",
            str(directory),
            _INNER,
        )

    async def _begin(self, container_id: str, slot: Slot, *command: str) -> Container:
        async with self._turns.of(container_id):
            files = self._files(container_id)
            container = self._known(files)
            if container.status != "created":
                raise ContainerUnusable(f"container {container_id} is {container.status}, not created")
            try:
                files.write(Phase.STARTING)
                await asyncio.to_thread(_put_net, slot)
                await self._run(files, *command)
                files.write(Phase.RUNNING)
            except BaseException as error:
                await self._delete(files)
                _raise(error)
            return self._known(files)

    async def checkpoint(
        self, container_id: str, directory: Path, *, leave_running: bool
    ) -> Sequence[CheckpointFile]:
        async with self._turns.of(container_id):
            files = self._files(container_id)
            if self._known(files).status != "running":
                raise MachineLost(f"container {container_id} does not run")
            try:
                directory.mkdir(mode=0o700)  # noqa: ASYNC240 - one system call
            except OSError as error:
                _raise(error)
            try:
                await self._run_checkpoint(files, directory, leave_running=leave_running)
                return await asyncio.to_thread(_checkpoint_files, directory)
            except BaseException as error:
                await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)
                _raise(error)

    async def _run_checkpoint(self, files: ContainerFiles, directory: Path, *, leave_running: bool) -> None:
        command = ["checkpoint", "--compression=none", "--exclude-committed-zero-pages"]
        if leave_running:
            command.append("--leave-running")
        used = self._groups.usage().get(files.id)
        timeout = _CALL_S + (used.memory / _BYTES_PER_S if used else 0.0)
        await self._run(files, *command, f"--image-path={directory}", _INNER, timeout=timeout)

    async def delete(self, container_id: str) -> None:
        files = self._files(container_id)
        # What is going on with it fails now, instead of being waited for.
        for process in files.pids():
            process.send(signal.SIGKILL)
        async with self._turns.of(container_id):
            await self._delete(files)

    async def _delete(self, files: ContainerFiles) -> None:
        if not files.path.exists():
            return
        processes = files.pids() or files.state_pids()
        files.write(Phase.ENDING)
        for process in processes:
            process.send(signal.SIGKILL)
        try:
            async with asyncio.timeout(_DESTROY_S):
                for process in processes:
                    await wait_exit(process)  # reaps it too
        except TimeoutError:
            raise DriverError(f"the processes of {files.id} do not end though they were killed") from None
        if files.has_state():
            with suppress(RunscFailed, TimeoutError):
                await self._run(files, "delete", "--force", _INNER)
        await self._groups.remove(files.id)
        await asyncio.to_thread(shutil.rmtree, files.path, ignore_errors=True)

    async def watch(self, container_id: str, *, guest_url: str, memory_marks: Sequence[int]) -> None:
        self._marks.set(container_id, memory_marks)
        if "memory" not in self._loops.running:
            self._loops.start("memory", self._memory)
        name = f"health-{container_id}"
        if name not in self._loops.running:
            self._loops.start(name, lambda: self._health(container_id, f"{guest_url}/health"))

    async def events(self) -> AsyncIterator[ContainerEvent]:
        while True:
            yield await self._events.get()

    # ------------------------------------------------------------------------------------------------

    def _files(self, container_id: str) -> ContainerFiles:
        return ContainerFiles(self._root / container_id)

    def _all(self) -> list[ContainerFiles]:
        return [ContainerFiles(path) for path in sorted(self._root.iterdir()) if path.is_dir()]

    def _known(self, files: ContainerFiles) -> Container:
        container = _container(files)
        if container is None:
            raise MachineLost(f"container {files.id} is not there any more")
        return container

    async def _run(
        self, files: ContainerFiles, *command: str, output: Path | None = None, timeout: float = _CALL_S
    ) -> None:
        await self._runsc.run(files.path, command, output=output, timeout=timeout)

    async def _adopt(self, files: ContainerFiles) -> None:
        if files.phase() in (Phase.CREATED, Phase.RUNNING):
            self._follow(files)
            return
        log.info("undoing what was half done", container=files.id)
        await self._delete(files)

    def _follow(self, files: ContainerFiles) -> None:
        """Tell of the sandbox's end, unless somebody asked for it."""

        async def follow() -> None:
            pids = files.pids()
            if pids:
                await wait_exit(pids[0])
            if files.phase() in (Phase.CREATED, Phase.RUNNING):
                self._events.put_nowait(ContainerEvent("exit", files.id, "unknown"))

        name = f"exit-{files.id}"
        if name not in self._loops.running:
            self._loops.start(name, follow)

    async def _memory(self) -> None:
        while True:
            usage = await asyncio.to_thread(self._groups.usage)
            for container_id in self._marks.look(usage):
                self._events.put_nowait(ContainerEvent("memory", container_id, ""))
            await self._clock.sleep(INTERVAL_S)

    async def _health(self, container_id: str, url: str) -> None:
        failures = 0
        connector = aiohttp.TCPConnector(force_close=True)
        async with aiohttp.ClientSession(connector=connector, timeout=_HEALTH_TIMEOUT) as session:
            while (container := await self.get(container_id)) is not None and container.status == "running":
                try:
                    async with session.get(url, allow_redirects=False) as response:
                        well = response.status < 300
                except (aiohttp.ClientError, TimeoutError, OSError):
                    well = False
                if well and failures >= _STRIKES:
                    self._events.put_nowait(ContainerEvent("healthy", container_id, ""))
                failures = 0 if well else failures + 1
                if failures == _STRIKES:
                    self._events.put_nowait(ContainerEvent("unhealthy", container_id, "it does not answer"))
                await self._clock.sleep(_HEALTH_INTERVAL_S)


def _container(files: ContainerFiles) -> Container | None:
    phase = files.phase()
    pids = files.pids()
    if phase not in (Phase.CREATED, Phase.STARTING, Phase.RUNNING) or not pids:
        return None
    status = "running" if phase is Phase.RUNNING else "created"
    if not pids[0].alive():
        return Container(files.id, "stopped", pids[0].pid, pids[0].start_time, "unknown")
    return Container(files.id, status, pids[0].pid, pids[0].start_time, "")


def _put_net(slot: Slot) -> None:
    """runsc takes address and route off the interface when it starts or restores a sandbox."""

    def inside() -> None:
        index = socket.if_nametoindex(GUEST_INTERFACE)
        with NetlinkConnection(ROUTE) as connection:
            connection.change(
                [
                    links.set_address(index, slot.address, PREFIX_LENGTH),
                    links.link_up(index),
                    links.set_default_route(index, slot.gateway),
                ]
            )

    namespaces.enter(slot.namespace, inside)


def _adjust(request: ContainerRequest, processes: Sequence[ProcessHandle]) -> None:
    """What runsc does not do: the cgroup's limit over the one it took from the spec, and the out-of-memory score."""
    for process in processes:
        Path(f"/proc/{process.pid}/oom_score_adj").write_text(_OOM_SCORE)
    where = hierarchies()
    root = where.by_controller.get("memory")
    if root is not None:
        name = "memory.max" if where.version == 2 else "memory.limit_in_bytes"
        cgroup = str(request.spec["linux"]["cgroupsPath"]).removeprefix("/")
        (root / cgroup / name).write_text(str(request.cgroup_memory_limit))


def _checkpoint_files(directory: Path) -> list[CheckpointFile]:
    found = [CheckpointFile(path.name, path.stat().st_size) for path in sorted(directory.iterdir())]
    if not any(file.name == "checkpoint.img" and file.size for file in found):
        raise DriverError("the sandbox says that it wrote a checkpoint, but there is none")
    return found


def _raise(error: BaseException) -> NoReturn:
    """Raise it as what it means to the driver's caller."""
    match error:
        case NoSpace():
            raise HostFull(str(error)) from error
        case TimeoutError():
            raise MachineLost("the sandbox does not answer") from error
        case RunscFailed():
            raise DriverError(str(error)) from error
        case OSError() if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise HostFull(str(error)) from error
        case OSError():
            raise DriverError(str(error)) from error
        case _:
            raise error
