"""Machines: a container, a network slot and a record each, made and ended together."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from forkyard.base.clock import Clock
from forkyard.base.ids import new_short_id
from forkyard.base.logging import get_logger
from forkyard.base.tasks import Operations
from forkyard.drivers.gvisor.config import GvisorConfig, seen_by_keeper
from forkyard.drivers.gvisor.empties import Empties, Empty
from forkyard.drivers.gvisor.records import MachineRecord, MachineRecords
from forkyard.drivers.gvisor.runtime import Container, ContainerRequest
from forkyard.drivers.gvisor.runtimes import Runtimes
from forkyard.drivers.gvisor.slot_stock import PLAIN, SlotStock
from forkyard.drivers.gvisor.spec import cgroup_memory_limit, oci_spec
from forkyard.drivers.gvisor.turns import Turns
from forkyard.host.addresses import Slot
from forkyard.host.cgroups import MachineGroups
from forkyard.host.network import HostNetwork
from forkyard.sandboxes.driver import CheckpointFile, DriverError, MachineLost, MachineSpec, Shape

log = get_logger(__name__)


class Machines:
    """One operation at a time for each machine. Callers see to it that a call is not cut off in the middle."""

    def __init__(
        self,
        config: GvisorConfig,
        network: HostNetwork,
        groups: MachineGroups,
        runtimes: Runtimes,
        clock: Clock,
    ) -> None:
        self._config = config
        self._network = network
        self._groups = groups
        self._runtimes = runtimes
        self.records = MachineRecords(config.node_dir / "machines")
        self.slots: dict[str, Slot] = {}
        self._stock = SlotStock(network)
        self._turns = Turns()
        self._background = Operations()
        self._stuck: list[Empty] = []
        """Empty machines that could not be ended, and that nothing else remembers."""
        self.empties = Empties(
            most=config.empty_machines, make=self._make_empty, end=self._end_empty, clock=clock
        )

    # -- Start and end of the server -----------------------------------------------------------------

    async def open(self) -> None:
        """Take over records, slots and runtimes of the process before, and remove what nobody owns."""
        self.records.load()
        records = self.records.all()
        found = await self._network.open({r.slot: (r.egress, r.cut) for r in records})
        self.slots = {r.name: found[r.slot] for r in records if r.slot in found}
        for runtime in {r.shape.runtime for r in records}:
            await self._runtimes.get(runtime)

    async def end_strangers(self) -> None:
        """Containers without a record: empty ones of an earlier process, and what was being made when it died."""
        known = {record.container for record in self.records.all()}
        for runtime, container in await self._runtimes.containers():
            if container.id not in known:
                await runtime.delete(container.id)
                self._clean_files(container.id)
        await self._groups.sweep(known)

    async def close(self) -> None:
        """End what was prepared ahead."""
        await self.empties.drain()
        await self._end_stuck()
        await self._background.drain(10.0)
        await self._stock.drain()

    # -- One machine ---------------------------------------------------------------------------------

    def known(self, name: str) -> MachineRecord:
        """Raises MachineLost."""
        record = self.records.get(name)
        if record is None:
            raise MachineLost(f"machine {name} is not there any more")
        return record

    def slot(self, name: str) -> Slot:
        """Raises MachineLost."""
        slot = self.slots.get(name)
        if slot is None:
            raise MachineLost(f"machine {name} has no network any more")
        return slot

    async def container(self, record: MachineRecord) -> Container | None:
        return await (await self._runtimes.get(record.shape.runtime)).get(record.container)

    async def create(self, spec: MachineSpec) -> tuple[MachineRecord, Container]:
        async with self._turns.of(spec.name):
            self._check_new(spec.name)
            slot = await self._stock.take(spec.egress)
            try:
                record = self._record(spec, spec.name, slot)
                runtime = await self._runtimes.get(spec.shape.runtime)
                await runtime.create(spec.name, self._request(spec.name, spec.shape, slot))
                return record, await runtime.start(spec.name, slot)
            except BaseException:
                await self._abandon(spec.name, slot)
                raise

    async def restore(self, spec: MachineSpec, directory: Path) -> tuple[MachineRecord, Container]:
        with self.empties.operations.first():
            return await self._restore_anywhere(spec, directory)

    async def _restore_anywhere(self, spec: MachineSpec, directory: Path) -> tuple[MachineRecord, Container]:
        async with self._turns.of(spec.name):
            self._check_new(spec.name)
            empty = self.empties.take(spec.shape)
            if empty is not None:
                try:
                    return await self._restore(spec, directory, empty.slot, empty.container, made=True)
                except DriverError as error:
                    if self.records.get(spec.name) is not None:
                        raise  # It stands yet: whoever destroys the machine finds it by the record alone.
                    # It may have died while it waited, with nobody noticing yet: that is not the snapshot's fault.
                    log.warning("an empty machine failed", container=empty.container, error=str(error))
            slot = await self._stock.take(spec.egress)
            return await self._restore(spec, directory, slot, spec.name, made=False)

    async def _restore(
        self, spec: MachineSpec, directory: Path, slot: Slot, container_id: str, *, made: bool
    ) -> tuple[MachineRecord, Container]:
        try:
            record = self._record(spec, container_id, slot)
            runtime = await self._runtimes.get(spec.shape.runtime)
            if not made:
                await runtime.create(container_id, self._request(container_id, spec.shape, slot))
            elif spec.egress != PLAIN:
                await self._network.set_policy(slot, spec.egress)
            return record, await runtime.restore(container_id, directory, slot)
        except BaseException:
            await self._abandon(spec.name, slot)
            raise

    async def checkpoint(
        self, name: str, directory: Path, *, leave_running: bool
    ) -> tuple[MachineRecord, Sequence[CheckpointFile]]:
        async with self._turns.of(name):
            record = self.known(name)
            runtime = await self._runtimes.get(record.shape.runtime)
            with self.empties.operations.first():
                return record, await runtime.checkpoint(
                    record.container, directory, leave_running=leave_running
                )

    async def destroy(self, name: str) -> None:
        record = self.records.get(name)
        if record is None and not self._turns.busy(name):
            return
        if record is not None and self._turns.busy(name):
            # What is going on with it fails now, instead of being waited for.
            await (await self._runtimes.get(record.shape.runtime)).delete(record.container)
        async with self._turns.of(name):
            await self._destroy(name)

    async def _destroy(self, name: str) -> None:
        record = self.records.get(name)
        if record is None:
            return
        await (await self._runtimes.get(record.shape.runtime)).delete(record.container)
        slot = self.slots.pop(name, None)
        self.records.remove(name)
        self._clean_files(record.container)
        if slot is not None:
            await self._stock.give_back(slot)

    def _check_new(self, name: str) -> None:
        if self.records.get(name) is not None:
            raise DriverError(f"there is a machine called {name} already")

    def _record(self, spec: MachineSpec, container_id: str, slot: Slot) -> MachineRecord:
        record = MachineRecord(
            spec.name, container_id, slot.number, str(slot.address), spec.shape, spec.egress
        )
        self.slots[spec.name] = slot
        self.records.put(record)
        return record

    async def _abandon(self, name: str, slot: Slot) -> None:
        """After a failure: the machine that was being made goes, its slot too."""
        if self.records.get(name) is not None and self.slots.get(name) == slot:
            await self._destroy(name)
        else:
            await self._stock.give_back(slot)

    # -- Empty machines ------------------------------------------------------------------------------

    def empty_died(self, container_id: str, reason: str) -> None:
        """One of the empty machines has ended by itself; others are not concerned."""
        empty = self.empties.discard(container_id)
        if empty is not None:
            log.warning("an empty machine died", container=container_id, reason=reason)
            self._background.start_logged(self._end_empty(empty), f"end-{container_id}")

    async def _make_empty(self, shape: Shape) -> Empty:
        await self._end_stuck()
        container_id = f"empty-{new_short_id()}"
        empty = Empty(container_id, await self._stock.take(PLAIN), shape)
        try:
            runtime = await self._runtimes.get(shape.runtime)
            await runtime.create(container_id, self._request(container_id, shape, empty.slot))
        except BaseException:
            await self._end_empty(empty)
            raise
        return empty

    async def _end_stuck(self) -> None:
        """Try once more to end those that could not be ended."""
        stuck, self._stuck = self._stuck, []
        for empty in stuck:
            await self._end_empty(empty)

    async def _end_empty(self, empty: Empty) -> None:
        try:
            await (await self._runtimes.get(empty.shape.runtime)).delete(empty.container)
        except DriverError as error:
            log.warning("an empty machine cannot be ended", container=empty.container, error=error.message)
            self._stuck.append(empty)
            return
        self._clean_files(empty.container)
        await self._stock.give_back(empty.slot)

    # -- Files ---------------------------------------------------------------------------------------

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

    def prepared(self) -> Mapping[Shape, int]:
        return self.empties.counts()
