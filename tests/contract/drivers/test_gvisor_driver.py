"""The gVisor driver keeps the drivers' contract, with a keeper and with runsc's command line."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from forkyard.testing import gvisor_bench
from forkyard.testing.driver_contract import (
    CheckpointContract,
    DriverContract,
    NetworkContract,
    PrewarmContract,
    StatsContract,
)
from forkyard.testing.gvisor_bench import GvisorBench

pytestmark = [pytest.mark.root, pytest.mark.runtime]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if reason := gvisor_bench.missing():
        pytest.skip(reason)
    return gvisor_bench.make_image(tmp_path_factory.mktemp("image"))


@pytest.fixture(params=["keeper", "command line"])
async def bench(request: pytest.FixtureRequest, image: Path) -> AsyncIterator[GvisorBench]:
    async with gvisor_bench.opened(image, keeper=request.param == "keeper") as bench:
        yield bench


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
