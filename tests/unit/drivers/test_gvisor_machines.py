"""Machines of the gVisor driver on a runtime that fails."""

from pathlib import Path
from typing import Any

import pytest

from forkyard.drivers.gvisor.config import GvisorConfig
from forkyard.drivers.gvisor.driver import GvisorDriver
from forkyard.drivers.gvisor.empties import Empty
from forkyard.drivers.gvisor.keeper import Keeper, KeeperAway
from forkyard.drivers.gvisor.machines import Machines
from forkyard.drivers.gvisor.runtime import Container
from forkyard.host.addresses import DEFAULT_POOL, AddressPool, Slot
from forkyard.sandboxes.driver import (
    DriverError,
    EgressPolicy,
    Handle,
    MachineLost,
    MachineSpec,
    MachineStatus,
    Shape,
)
from forkyard.testing.clock import ManualClock

SHAPE = Shape("1" * 64, "2" * 64, "3" * 64, 2, 512, 1024)
SPEC = MachineSpec("m", SHAPE, EgressPolicy())


class Network:
    """Gives slots out by number, and knows which are out."""

    def __init__(self) -> None:
        self.used: set[int] = set()
        self._pool = AddressPool("abcdef")

    async def create(self, policy: EgressPolicy) -> Slot:
        slot = self._pool.slot(len(self.used))
        self.used.add(slot.number)
        return slot

    async def recycle(self, slot: Slot, policy: EgressPolicy) -> None: ...

    async def remove(self, slot: Slot) -> None:
        self.used.discard(slot.number)


class Runtime:
    """Containers by id; restores and ends of those in `broken` fail."""

    def __init__(self) -> None:
        self.containers: set[str] = set()
        self.broken: set[str] = set()

    async def get(self, name: str) -> Any:
        """Of the runtimes this one, of its containers the one of this id."""
        if name == SHAPE.runtime:
            return self
        return Container(name, "running", 1, 1, "")

    async def create(self, container: str, request: Any) -> None:
        self.containers.add(container)

    async def start(self, container: str, slot: Slot) -> Container:
        return Container(container, "running", 1, 1, "")

    async def restore(self, container: str, directory: Path, slot: Slot) -> Container:
        if container in self.broken:
            raise DriverError("it failed")
        return Container(container, "running", 1, 1, "")

    async def delete(self, container: str) -> None:
        if container in self.broken:
            raise DriverError("its processes do not end")
        self.containers.discard(container)


class Groups:
    def path(self, name: str) -> str:
        return f"/{name}"


def machines_on(runtime: Runtime, network: Network, path: Path) -> Machines:
    for folder in ("machines", "volumes", "logs"):
        (path / folder).mkdir()
    config = GvisorConfig("abcdef", path, path, path, path, path, DEFAULT_POOL)
    return Machines(config, network, Groups(), runtime, ManualClock())  # type: ignore[arg-type]


async def test_an_empty_machine_that_cannot_be_ended_is_ended_later(tmp_path: Path) -> None:
    runtime, network = Runtime(), Network()
    machines = machines_on(runtime, network, tmp_path)
    stuck = await machines._make_empty(SHAPE)
    machines.empties._ready[SHAPE] = [stuck]
    runtime.broken.add(stuck.container)
    machines.empty_died(stuck.container, "signal KILL")
    await machines._background.drain(5)
    assert stuck.container in runtime.containers
    other = await machines._make_empty(SHAPE)  # others are made all the same
    assert runtime.containers == {stuck.container, other.container}
    runtime.broken.clear()
    await machines._end_empty(other)
    await machines.close()
    assert (runtime.containers, network.used) == (set(), set())


async def test_what_cannot_be_taken_away_keeps_its_record(tmp_path: Path) -> None:
    runtime, network = Runtime(), Network()
    machines = machines_on(runtime, network, tmp_path)
    empty = Empty("empty-1", await network.create(SPEC.egress), SHAPE)
    runtime.containers.add(empty.container)
    runtime.broken.add(empty.container)
    machines.empties._ready[SHAPE] = [empty]
    with pytest.raises(DriverError, match="do not end"):
        await machines.restore(SPEC, tmp_path)
    assert [record.container for record in machines.records.all()] == ["empty-1"]
    # Whoever tries again, when that can work, leaves nothing.
    runtime.broken.clear()
    await machines.destroy(SPEC.name)
    await machines.close()
    assert (runtime.containers, network.used) == (set(), set())
    await machines.restore(SPEC, tmp_path)
    assert runtime.containers == {"m"}


async def test_a_machine_that_lost_its_network_does_not_run(tmp_path: Path) -> None:
    """Its process lives: it must not be taken for one whose network was given back."""
    machines = machines_on(Runtime(), Network(), tmp_path)
    driver = GvisorDriver(machines._config)
    driver._machines = machines
    record, _container = await machines.create(SPEC)
    handle = Handle(driver.name, record.name, record.address)
    assert (await driver.inspect(handle)).running
    machines.slots.clear()  # as `open` leaves it when a part of the slot is missing
    assert await driver.inspect(handle) == MachineStatus(False, "its network was lost")
    with pytest.raises(MachineLost, match="no network"):
        await driver.uncut(handle)
    await driver.destroy(handle)
    assert machines.records.all() == []


async def test_a_checkpoint_is_waited_for_as_long_as_the_keeper_works_on_it(tmp_path: Path) -> None:
    config = GvisorConfig("abcdef", tmp_path, tmp_path, tmp_path, tmp_path, tmp_path, DEFAULT_POOL)
    keeper = Keeper(config, "3" * 64, tmp_path / "keeper", ManualClock())
    waited: list[float] = []

    class Session:
        def request(self, *_call: object, timeout: Any, **_more: object) -> None:
            waited.append(timeout.total)
            raise KeeperAway("it went away")

    async def ensured() -> None: ...

    keeper._ensure = ensured  # type: ignore[method-assign]
    keeper._session = Session()  # type: ignore[assignment]
    for work in (
        keeper._once("GET", "/v1/info", None),
        keeper.checkpoint("m", tmp_path, leave_running=True),
        keeper.restore("m", tmp_path, AddressPool("abcdef").slot(1)),
    ):
        with pytest.raises(KeeperAway):
            await work
    machine = 64 << 30
    assert waited[0] <= 120
    assert min(waited[1:]) > 30 + machine / (50 << 20)
