"""The gVisor driver: shapes, slots and containers put together into machines."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from forkyard.base.clock import Clock, SystemClock
from forkyard.base.ids import new_short_id
from forkyard.base.logging import get_logger
from forkyard.base.tasks import Operations, Supervisor
from forkyard.drivers.gvisor.binaries import Binaries, FileHashes
from forkyard.drivers.gvisor.config import GvisorConfig, seen_by_keeper
from forkyard.drivers.gvisor.cpu import cpu_features
from forkyard.drivers.gvisor.disk_use import DiskUse
from forkyard.drivers.gvisor.empties import Empties, Empty
from forkyard.drivers.gvisor.keeper import Keeper
from forkyard.drivers.gvisor.records import MachineRecord, MachineRecords
from forkyard.drivers.gvisor.runtime import Container, ContainerEvent, ContainerRequest, Runtime
from forkyard.drivers.gvisor.slot_stock import PLAIN, SlotStock
from forkyard.drivers.gvisor.spec import cgroup_memory_limit, memory_marks, oci_spec
from forkyard.host.addresses import Slot
from forkyard.host.cgroups import MachineGroups
from forkyard.host.firewall import FirewallConfig
from forkyard.host.network import HostNetwork
from forkyard.host.processes import ProcessHandle
from forkyard.sandboxes.driver import (
    CheckpointFile,
    CheckpointResult,
    DriverError,
    EgressPolicy,
    Handle,
    MachineEvent,
    MachineEventKind,
    MachineLost,
    MachineSpec,
    MachineStats,
    MachineStatus,
    Shape,
    SnapshotUnusable,
)

log = get_logger(__name__)

ENVD_PORT = 49983


class GvisorDriver:
    """Implements every protocol of `sandboxes.driver`."""

    name = "gvisor"

    def __init__(self, config: GvisorConfig, clock: Clock | None = None) -> None:
        self._config = config
        self._clock = clock or SystemClock()
        self._hashes = FileHashes()
        self._binaries = Binaries(config.node_dir / "bin", self._hashes)
        self._records = MachineRecords(config.node_dir / "machines")
        self._network = HostNetwork(
            config.instance,
            config.data_dir,
            FirewallConfig(slot_range=config.subnets, extra_allowed_internal=config.internal_allowed),
        )
        self._slots: dict[str, Slot] = {}
        self._stock = SlotStock(self._network)
        self._groups = MachineGroups(config.instance)
        self._runtimes: dict[str, Runtime] = {}
        self._opening = asyncio.Lock()
        self._empties = Empties(
            most=config.empty_machines, make=self._make_empty, end=self._end_empty, clock=self._clock
        )
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
        self._records.load()
        self._groups.prepare()
        slots = await self._network.open({r.slot: (r.egress, r.cut) for r in self._records.all()})
        self._slots = {r.name: slots[r.slot] for r in self._records.all() if r.slot in slots}
        needed = {r.shape.runtime for r in self._records.all()} | {self._newest_runtime}
        for runtime in needed:
            await self._runtime(runtime)
        await self._end_strangers()
        self._loops.start("empty-machines", self._empties.run)

    async def close(self) -> None:
        """Machines go on. Without any, the keepers, the packet filter and the control groups go too."""
        await self._loops.stop()
        await self._empties.drain()
        await self._operations.drain(10.0)
        await self._stock.drain()
        left = bool(self._records.all())
        for runtime in self._runtimes.values():
            if not left:
                await runtime.shutdown()
            await runtime.close()
        self._runtimes.clear()
        if not left:
            await self._network.teardown()
            await self._groups.remove_all()
        await self._network.close()
        self._events.put_nowait(None)

    def shape(self, *, image: str, vcpus: int, memory_mb: int, disk_mb: int) -> Shape:
        return Shape(image, self._newest_envd, self._newest_runtime, vcpus, memory_mb, disk_mb)

    async def create(self, spec: MachineSpec) -> Handle:
        return await self._operations.run_detached(self._create(spec), f"create-{spec.name}")

    async def inspect(self, handle: Handle) -> MachineStatus:
        record = self._records.get(handle.name)
        if record is None:
            return MachineStatus(False, "it is not there any more")
        container = await (await self._runtime(record.shape.runtime)).get(record.container)
        if container is None:
            return MachineStatus(False, "it is not there any more")
        return MachineStatus(container.status == "running", container.reason or container.status)

    async def destroy(self, handle_or_name: Handle | str) -> None:
        name = handle_or_name if isinstance(handle_or_name, str) else handle_or_name.name
        await self._operations.run_detached(self._destroy(name), f"destroy-{name}")

    async def list_handles(self) -> Sequence[Handle]:
        return [_handle(record, None) for record in self._records.all()]

    async def events(self) -> AsyncIterator[MachineEvent]:
        while (event := await self._events.get()) is not None:
            yield event

    async def watch(self, handle: Handle) -> None:
        record = self._known(handle.name)
        runtime = await self._runtime(record.shape.runtime)
        await runtime.watch(
            record.container,
            health_url=f"http://{record.address}:{ENVD_PORT}/health",
            memory_marks=memory_marks(record.shape),
        )

    # -- Checkpoint, Restore -------------------------------------------------------------------------

    async def checkpoint(
        self, handle: Handle, directory: Path, *, leave_running: bool = True
    ) -> CheckpointResult:
        record = self._known(handle.name)
        runtime = await self._runtime(record.shape.runtime)
        work = runtime.checkpoint(record.container, directory, leave_running=leave_running)
        files = await self._operations.run_detached(work, f"checkpoint-{handle.name}")
        return CheckpointResult(tuple(files), {"shape": _shape_to_json(record.shape), "cpu": cpu_features()})

    def spec_of(
        self, requires: Mapping[str, Any], *, name: str, egress: EgressPolicy, hostname: str = "sandbox"
    ) -> MachineSpec:
        return MachineSpec(name, Shape(**requires["shape"]), egress, hostname)

    async def check(
        self, directory: Path, requires: Mapping[str, Any], files: Sequence[CheckpointFile]
    ) -> None:
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
        return await self._operations.run_detached(self._restore(spec, directory), f"restore-{spec.name}")

    # -- Network, Stats, Prewarm ---------------------------------------------------------------------

    async def cut(self, handle: Handle) -> None:
        await self._network.cut(self._slot(handle.name))
        self._records.change(handle.name, cut=True)

    async def uncut(self, handle: Handle) -> None:
        slot = self._slots.get(handle.name)
        if slot is None:
            return
        await self._network.uncut(slot)
        self._records.change(handle.name, cut=False)

    async def set_egress(self, handle: Handle, policy: EgressPolicy) -> None:
        await self._network.set_policy(self._slot(handle.name), policy)
        self._records.change(handle.name, egress=policy)

    async def stats(self, handles: Sequence[Handle]) -> Mapping[str, MachineStats]:
        return await asyncio.to_thread(self._stats, handles)

    def demand(self, shape: Shape, count: int) -> None:
        self._empties.demand(shape, count)

    def prepared(self) -> Mapping[Shape, int]:
        return self._empties.counts()

    # ------------------------------------------------------------------------------------------------

    async def _create(self, spec: MachineSpec) -> Handle:
        slot = await self._stock.take(spec.egress)
        try:
            record = self._record(spec, spec.name, slot)
            runtime = await self._runtime(spec.shape.runtime)
            await runtime.create(spec.name, self._request(spec.name, spec.shape, slot))
            container = await runtime.start(spec.name, slot)
        except BaseException:
            await self._abandon(spec.name, slot)
            raise
        return _handle(record, container)

    async def _restore(self, spec: MachineSpec, directory: Path) -> Handle:
        empty = self._empties.take(spec.shape)
        if empty is None:
            slot = await self._stock.take(spec.egress)
            container_id = spec.name
        else:
            slot, container_id = empty.slot, empty.container
        try:
            record = self._record(spec, container_id, slot)
            runtime = await self._runtime(spec.shape.runtime)
            if empty is None:
                await runtime.create(container_id, self._request(container_id, spec.shape, slot))
            elif spec.egress != PLAIN:
                await self._network.set_policy(slot, spec.egress)
            container = await runtime.restore(container_id, directory, slot)
        except BaseException:
            await self._abandon(spec.name, slot)
            raise
        return _handle(record, container)

    def _record(self, spec: MachineSpec, container_id: str, slot: Slot) -> MachineRecord:
        if self._records.get(spec.name) is not None:
            raise DriverError(f"there is a machine called {spec.name} already")
        record = MachineRecord(
            spec.name, container_id, slot.number, str(slot.address), spec.shape, spec.egress
        )
        self._slots[spec.name] = slot
        self._records.put(record)
        return record

    async def _abandon(self, name: str, slot: Slot) -> None:
        """After a failure: the machine that was being made goes, its slot too."""
        if self._records.get(name) is not None and self._slots.get(name) == slot:
            await self._destroy(name)
        else:
            await self._stock.give_back(slot)

    async def _destroy(self, name: str) -> None:
        record = self._records.get(name)
        if record is None:
            return
        runtime = await self._runtime(record.shape.runtime)
        await runtime.delete(record.container)
        slot = self._slots.pop(name, None)
        self._records.remove(name)
        self._clean_files(record.container)
        if slot is not None:
            await self._stock.give_back(slot)

    async def _make_empty(self, shape: Shape) -> Empty:
        container_id = f"empty-{new_short_id()}"
        slot = await self._stock.take(PLAIN)
        runtime = await self._runtime(shape.runtime)
        try:
            await runtime.create(container_id, self._request(container_id, shape, slot))
        except BaseException:
            await self._end_empty(Empty(container_id, slot, shape))
            raise
        return Empty(container_id, slot, shape)

    async def _end_empty(self, empty: Empty) -> None:
        runtime = await self._runtime(empty.shape.runtime)
        await runtime.delete(empty.container)
        self._clean_files(empty.container)
        await self._stock.give_back(empty.slot)

    def _request(self, container_id: str, shape: Shape, slot: Slot) -> ContainerRequest:
        node = self._config.node_dir
        volumes = node / "volumes" / container_id
        volumes.mkdir(parents=True, exist_ok=True)
        return ContainerRequest(
            spec=oci_spec(
                shape,
                netns=slot.netns_path,
                cgroup=self._groups.path(container_id),
                volumes=seen_by_keeper(self._config, volumes),
            ),
            log=seen_by_keeper(self._config, node / "logs" / f"{container_id}.log"),
            cgroup_memory_limit=cgroup_memory_limit(shape),
            slot=slot,
        )

    def _clean_files(self, container_id: str) -> None:
        shutil.rmtree(self._config.node_dir / "volumes" / container_id, ignore_errors=True)
        (self._config.node_dir / "logs" / f"{container_id}.log").unlink(missing_ok=True)

    async def _runtime(self, sha256: str) -> Runtime:
        """The runtime of that version, started if it is not there. Raises SnapshotUnusable when it is not installed."""
        runtime = self._runtimes.get(sha256)
        if runtime is not None:
            return runtime
        async with self._opening:
            if sha256 in self._runtimes:
                return self._runtimes[sha256]
            binary = self._binaries.path("keeper", sha256)
            await self._hashes.check(binary, sha256, "runtime")
            runtime = Keeper(self._config, sha256, binary, self._clock)
            await runtime.open()
            self._runtimes[sha256] = runtime
            self._loops.start(f"events-{sha256[:12]}", lambda: self._follow(runtime))
            return runtime

    async def _follow(self, runtime: Runtime) -> None:
        async for event in runtime.events():
            self._tell(event)

    def _tell(self, event: ContainerEvent) -> None:
        record = self._records.by_container(event.id)
        if record is not None:
            self._events.put_nowait(MachineEvent(MachineEventKind(event.type), record.name, event.reason))
        elif event.type == "exit" and (empty := self._empties.discard(event.id)) is not None:
            log.warning("an empty machine died", container=event.id, reason=event.reason)
            self._operations.start_logged(self._end_empty(empty), f"end-{event.id}")

    async def _end_strangers(self) -> None:
        """Containers without a record: empty ones of an earlier process, and what was being made when it died."""
        known = {record.container for record in self._records.all()}
        for runtime in self._runtimes.values():
            for container in await runtime.list():
                if container.id not in known:
                    await runtime.delete(container.id)
                    self._clean_files(container.id)
        await self._groups.sweep(known)

    def _known(self, name: str) -> MachineRecord:
        record = self._records.get(name)
        if record is None:
            raise MachineLost(f"machine {name} is not there any more")
        return record

    def _slot(self, name: str) -> Slot:
        slot = self._slots.get(name)
        if slot is None:
            raise MachineLost(f"machine {name} has no network any more")
        return slot

    def _stats(self, handles: Sequence[Handle]) -> Mapping[str, MachineStats]:
        usage = self._groups.usage()
        result: dict[str, MachineStats] = {}
        alive: set[tuple[int, int]] = set()
        for handle in handles:
            record = self._records.get(handle.name)
            used = usage.get(record.container) if record is not None else None
            if used is None:
                continue
            key = (int(handle.data["pid"]), int(handle.data["pid_start_time"]))
            alive.add(key)
            result[handle.name] = MachineStats(
                cpu_ns=used.cpu_ns,
                memory=used.memory,
                memory_cache=used.cache,
                disk=self._disk_use.bytes_of(*key),
            )
        self._disk_use.forget_all_but(alive)
        return result


def _handle(record: MachineRecord, container: Container | None) -> Handle:
    data: dict[str, Any] = {
        "container": record.container,
        "slot": record.slot,
        "runtime": record.shape.runtime,
    }
    if container is not None:
        data |= {"pid": container.pid, "pid_start_time": container.pid_start_time}
    return Handle(GvisorDriver.name, record.name, record.address, data)


def _shape_to_json(shape: Shape) -> dict[str, Any]:
    return {
        "image": shape.image,
        "envd": shape.envd,
        "runtime": shape.runtime,
        "vcpus": shape.vcpus,
        "memory_mb": shape.memory_mb,
        "disk_mb": shape.disk_mb,
    }


def process_of(handle: Handle) -> ProcessHandle:
    """The sandbox process, for tests and measurements."""
    return ProcessHandle(int(handle.data["pid"]), int(handle.data["pid_start_time"]))
