"""Real namespaces and packet filters, removed again whatever happens."""

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from forkyard.base.ids import new_instance_id
from forkyard.host.firewall import FirewallConfig
from forkyard.host.network import HostNetwork
from tests.integration.host import lab

OpenNetwork = Callable[..., Coroutine[Any, Any, HostNetwork]]


@pytest.fixture(autouse=True, scope="session")
def _real_host() -> None:
    if reason := lab.missing_rights():
        pytest.skip(reason)


@pytest.fixture
def internet() -> Iterator[lab.Internet]:
    net = lab.build_internet()
    yield net
    lab.destroy_internet(net)


@pytest.fixture
def instance() -> Iterator[str]:
    """An instance id; nothing of it may be left at the end of a test that passed."""
    made = new_instance_id()
    yield made
    left = lab.leftovers(made)
    lab.clean(made)
    assert left == []


@pytest.fixture
async def open_network(tmp_path: Path) -> AsyncIterator[OpenNetwork]:
    """Opens networks of any instance; all are torn down."""
    opened: list[HostNetwork] = []

    async def open_one(instance: str, config: FirewallConfig | None = None, **more: Any) -> HostNetwork:
        made = HostNetwork(instance, tmp_path, config, **more)
        opened.append(made)
        await made.open({})
        return made

    yield open_one
    for made in opened:
        await made.teardown()
        await made.close()


@pytest.fixture
async def network(instance: str, open_network: OpenNetwork) -> HostNetwork:
    return await open_network(instance)
