"""The fake keeps the drivers' contract: what is tested on it holds for real ones too."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from forkyard.sandboxes.driver import EgressPolicy, Handle, MachineSpec, Shape
from forkyard.testing.driver_contract import (
    CheckpointContract,
    DriverContract,
    NetworkContract,
    PrewarmContract,
    StatsContract,
)
from forkyard.testing.fake_driver import FakeDriver
from forkyard.testing.fake_host import IMAGE, FakeHost


class FakeBench:
    def __init__(self, directory: Path) -> None:
        self.host = FakeHost()
        self.driver = FakeDriver(self.host)
        self.directory = directory

    def spec(self, name: str) -> MachineSpec:
        shape: Shape = self.driver.shape(image=IMAGE, vcpus=2, memory_mb=256, disk_mb=512)
        return MachineSpec(name, shape, EgressPolicy())

    async def kill(self, handle: Handle) -> None:
        self.host.kill(handle.name)

    async def reopen(self) -> None:
        await self.driver.close()
        self.driver = FakeDriver(self.host)
        await self.driver.open()

    async def left(self, name: str) -> list[str]:
        return [name] if name in self.host.machines else []


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[FakeBench]:
    bench = FakeBench(tmp_path)
    await bench.driver.open()
    yield bench
    await bench.driver.close()


class TestDriver(DriverContract):
    pass


class TestCheckpoint(CheckpointContract):
    pass


class TestNetwork(NetworkContract):
    pass


class TestStats(StatsContract):
    pass


class TestPrewarm(PrewarmContract):
    pass
