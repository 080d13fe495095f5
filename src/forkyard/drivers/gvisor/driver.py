"""The gVisor driver: implements every protocol of `sandboxes.driver`."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from forkyard.base.clock import Clock, SystemClock
from forkyard.base.tasks import Operations, Supervisor
from forkyard.drivers.gvisor.binaries import Binaries, FileHashes
from forkyard.drivers.gvisor.config import GvisorConfig
from forkyard.drivers.gvisor.cpu import cpu_features
from forkyard.drivers.gvisor.disk_use import DiskUse
from forkyard.drivers.gvisor.machines import Machines
from forkyard.drivers.gvisor.records import MachineRecord
from forkyard.drivers.gvisor.runtime import Container, ContainerEvent
from forkyard.drivers.gvisor.runtimes import Runtimes
from forkyard.drivers.gvisor.spec import memory_marks
from forkyard.host.cgroups import MachineGroups
from forkyard.host.firewall import FirewallConfig
from forkyard.host.network import HostNetwork
from forkyard.host.processes import ProcessHandle
from forkyard.sandboxes.driver import (
    CheckpointFile,
    CheckpointResult,
    EgressPolicy,
    Handle,
    MachineEvent,
    MachineEventKind,
    MachineSpec,
    MachineStats,
    MachineStatus,
    Shape,
    SnapshotUnusable,
)

ENVD_PORT = 49983

T = TypeVar("T")


class GvisorDriver:
    """Operations go on to their end when the caller is cut off; what they made then is taken away again."""

    name = "gvisor"

    def __init__(self, config: GvisorConfig, clock: Clock | None = None) -> None:
        self._config = config
        self._clock = clock or SystemClock()
        self._hashes = FileHashes()
        self._binaries = Binaries(config.node_dir / "bin", self._hashes)
        self._network = HostNetwork(
            config.instance,
            config.data_dir,
            FirewallConfig(slot_range=config.subnets, extra_allowed_internal=config.internal_allowed),
        )
        self._groups = MachineGroups(config.instance)
        self._runtimes = Runtimes(config, self._binaries, self._hashes, self._clock, self._tell)
        self._machines = Machines(config, self._network, self._groups, self._runtimes, self._clock)
        self._loops = Supervisor(self._clock)
        self._operations = Operations()
        self._events: asyncio.Queue[MachineEvent | None] = asyncio.Queue()
        self._disk_use = DiskUse()
        self._newest_runtime = ""
        self._newest_envd = ""

    # -- Driver --------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Bring binaries in, adopt or start keepers, take over network and machines, remove what nobody owns."""
        config = self._config
        for name in ("images", "disks", "logs", "volumes", "machines"):
            (config.node_dir / name).mkdir(parents=True, exist_ok=True)
        self._newest_runtime = await self._binaries.install(config.binaries / "keeper")
        self._newest_envd = await self._binaries.install(config.binaries / "envd")
        self._groups.prepare()
        await self._machines.open()
        await self._runtimes.get(self._newest_runtime)
        await self._machines.end_strangers()
        self._loops.start("empty-machines", self._machines.empties.run)

    async def close(self) -> None:
        """Machines go on. Without any, the keepers, the packet filter and the control groups go too."""
        await self._loops.stop()
        await self._operations.drain(10.0)
        await self._machines.close()
        left = bool(self._machines.records.all())
        await self._runtimes.close(shutdown=not left)
        if not left:
            await self._network.teardown()
            await self._groups.remove_all()
        await self._network.close()
        self._events.put_nowait(None)

    async def ping(self) -> None:
        await self._runtimes.ping()

    def shape(self, *, image: str, vcpus: int, memory_mb: int, disk_mb: int) -> Shape:
        return Shape(image, self._newest_envd, self._newest_runtime, vcpus, memory_mb, disk_mb)

    async def create(self, spec: MachineSpec) -> Handle:
        work = self._machines.create(spec)
        made = await self._or_undone(work, f"create-{spec.name}", lambda: self._machines.destroy(spec.name))
        return _handle(*made)

    async def inspect(self, handle: Handle) -> MachineStatus:
        record = self._machines.records.get(handle.name)
        container = await self._machines.container(record) if record is not None else None
        if container is None:
            return MachineStatus(False, "it is not there any more")
        if handle.name not in self._machines.slots:
            # Its process may live: nothing reaches it, and nothing ever will.
            return MachineStatus(False, "its network was lost")
        return MachineStatus(container.status == "running", container.reason or container.status)

    async def destroy(self, handle_or_name: Handle | str) -> None:
        name = handle_or_name if isinstance(handle_or_name, str) else handle_or_name.name
        await self._operations.run_detached(self._machines.destroy(name), f"destroy-{name}")

    async def list_handles(self) -> Sequence[Handle]:
        found = {container.id: container for _runtime, container in await self._runtimes.containers()}
        return [_handle(record, found.get(record.container)) for record in self._machines.records.all()]

    async def events(self) -> AsyncIterator[MachineEvent]:
        while (event := await self._events.get()) is not None:
            yield event

    async def watch(self, handle: Handle) -> None:
        record = self._machines.known(handle.name)
        runtime = await self._runtimes.get(record.shape.runtime)
        await runtime.watch(
            record.container,
            guest_url=f"http://{record.address}:{ENVD_PORT}",
            memory_marks=memory_marks(record.shape),
        )

    # -- Checkpoint, Restore -------------------------------------------------------------------------

    async def checkpoint(
        self, handle: Handle, directory: Path, *, leave_running: bool = True
    ) -> CheckpointResult:
        work = self._machines.checkpoint(handle.name, directory, leave_running=leave_running)
        record, files = await self._or_undone(
            work,
            f"checkpoint-{handle.name}",
            lambda: asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True),
        )
        return CheckpointResult(tuple(files), {"shape": asdict(record.shape), "cpu": cpu_features()})

    def spec_of(
        self, requires: Mapping[str, Any], *, name: str, egress: EgressPolicy, hostname: str = "sandbox"
    ) -> MachineSpec:
        return MachineSpec(name, Shape(**requires["shape"]), egress, hostname)

    async def check(
        self, directory: Path, requires: Mapping[str, Any], files: Sequence[CheckpointFile]
    ) -> None:
        await asyncio.to_thread(_check_files, directory, files)
        shape = Shape(**requires["shape"])
        missing = sorted(set(requires.get("cpu", ())) - set(cpu_features()))
        if missing:
            raise SnapshotUnusable(f"this processor lacks what the snapshot needs: {' '.join(missing)[:300]}")
        await self._hashes.check(self._binaries.path("keeper", shape.runtime), shape.runtime, "runtime")
        await self._hashes.check(self._binaries.path("envd", shape.envd), shape.envd, "envd")
        await self._hashes.check(
            self._config.node_dir / "images" / f"{shape.image}.erofs", shape.image, "image"
        )

    async def restore(self, spec: MachineSpec, directory: Path) -> Handle:
        work = self._machines.restore(spec, directory)
        made = await self._or_undone(work, f"restore-{spec.name}", lambda: self._machines.destroy(spec.name))
        return _handle(*made)

    # -- Network, Stats, Prewarm ---------------------------------------------------------------------

    async def cut(self, handle: Handle) -> None:
        await self._network.cut(self._machines.slot(handle.name))
        self._machines.records.change(handle.name, cut=True)

    async def uncut(self, handle: Handle) -> None:
        await self._network.uncut(self._machines.slot(handle.name))
        self._machines.records.change(handle.name, cut=False)

    async def set_egress(self, handle: Handle, policy: EgressPolicy) -> None:
        await self._network.set_policy(self._machines.slot(handle.name), policy)
        self._machines.records.change(handle.name, egress=policy)

    async def stats(self, handles: Sequence[Handle]) -> Mapping[str, MachineStats]:
        return await asyncio.to_thread(self._stats, handles)

    def demand(self, shape: Shape, count: int) -> None:
        self._machines.empties.demand(shape, count)

    def hold(self, held: bool) -> None:
        self._machines.empties.hold(held)

    def prepared(self) -> Mapping[Shape, int]:
        return self._machines.prepared()

    # ------------------------------------------------------------------------------------------------

    async def _or_undone(
        self, work: Coroutine[Any, Any, T], name: str, undo: Callable[[], Awaitable[None]]
    ) -> T:
        """Wait for `work`. If we are cut off it goes on to its end, and then what it made is taken away."""
        task = self._operations.start(work, name)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            self._operations.start_logged(_after(task, undo), f"undo-{name}")
            raise

    def _tell(self, event: ContainerEvent) -> None:
        record = self._machines.records.by_container(event.id)
        if record is not None:
            self._events.put_nowait(MachineEvent(MachineEventKind(event.type), record.name, event.reason))
        elif event.type == "exit":
            self._machines.empty_died(event.id, event.reason)

    def _stats(self, handles: Sequence[Handle]) -> Mapping[str, MachineStats]:
        usage = self._groups.usage()
        result: dict[str, MachineStats] = {}
        alive: set[tuple[int, int]] = set()
        for handle in handles:
            record = self._machines.records.get(handle.name)
            used = usage.get(record.container) if record is not None else None
            if used is None:
                continue
            key = (int(handle.data.get("pid", 0)), int(handle.data.get("pid_start_time", 0)))
            alive.add(key)
            result[handle.name] = MachineStats(
                cpu_ns=used.cpu_ns,
                memory=used.memory,
                memory_cache=used.cache,
                disk=self._disk_use.bytes_of(*key),
            )
        self._disk_use.forget_all_but(alive)
        return result


async def _after(task: asyncio.Task[Any], undo: Callable[[], Awaitable[None]]) -> None:
    await asyncio.wait([task])
    if task.cancelled() or task.exception() is None:
        await undo()


def _check_files(directory: Path, files: Sequence[CheckpointFile]) -> None:
    for file in files:
        try:
            size = (directory / file.name).stat(follow_symlinks=False).st_size
        except OSError:
            raise SnapshotUnusable(f"the snapshot's file {file.name} is missing") from None
        if size != file.size:
            raise SnapshotUnusable(
                f"the snapshot's file {file.name} has {size} bytes, not {file.size}: it is damaged"
            )


def _handle(record: MachineRecord, container: Container | None) -> Handle:
    data: dict[str, Any] = {
        "container": record.container,
        "slot": record.slot,
        "runtime": record.shape.runtime,
    }
    if container is not None:
        data |= {"pid": container.pid, "pid_start_time": container.pid_start_time}
    return Handle(GvisorDriver.name, record.name, record.address, data)


def process_of(handle: Handle) -> ProcessHandle:
    """The sandbox process, for tests and measurements."""
    return ProcessHandle(int(handle.data["pid"]), int(handle.data["pid_start_time"]))
