"""What is at /metrics, and that it moves."""

from collections.abc import AsyncGenerator
from contextlib import nullcontext
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from forkyard.auth.principal import Principal
from forkyard.auth.roles import Role
from forkyard.node.api import make_app
from forkyard.node.edge_client import EdgeAway
from forkyard.node.loop_lag import LoopLag
from forkyard.node.readiness import Readiness
from forkyard.sandboxes import admission
from forkyard.sandboxes.admission import Limits
from forkyard.sandboxes.errors import DiskFull, SandboxLimit
from forkyard.storage.engine import DatabaseUrl
from forkyard.testing.core import TEAM
from forkyard.testing.database import emptied_database
from forkyard.testing.inline import without_threads
from forkyard.testing.world import World, make_world

NAMES = {
    "forkyard_sandbox_stage_duration_seconds",
    "forkyard_sandboxes",
    "forkyard_sandbox_deaths_total",
    "forkyard_sandbox_unhealthy_total",
    "forkyard_warm_pool_claims_total",
    "forkyard_admission_refused_total",
    "forkyard_pool_ready",
    "forkyard_snapshots_damaged_total",
    "forkyard_swept_total",
    "forkyard_event_loop_lag_seconds",
}
"""What dashboards and alarms may rely on."""


class Auth:
    async def authenticate(self, _key: str | None) -> Principal:
        return Principal(TEAM, "key", Role.ADMIN)


class NoEdge:
    async def metrics(self) -> bytes:
        raise EdgeAway("none")


@pytest_asyncio.fixture
async def world(database_url: DatabaseUrl, tmp_path: Path) -> AsyncGenerator[World]:
    with without_threads() if database_url.path else nullcontext():
        async with (
            emptied_database(database_url) as database,
            make_world(database, tmp_path, team=Limits(sandboxes=1)) as world,
        ):
            yield world


async def scrape(world: World) -> str:
    app = make_app(
        sandboxes=world.server.sandboxes,
        auth=Auth(),  # type: ignore[arg-type]
        registry=world.core.telemetry.registry,
        edge=NoEdge(),  # type: ignore[arg-type]
        readiness=Readiness(),
        public_domain=None,
    )
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://api") as client:
        response = await client.get("/metrics", headers={"X-API-KEY": "any"})
    assert response.status_code == 200
    return response.text


async def test_the_names_are_there(world: World) -> None:
    LoopLag(world.core.telemetry.registry)
    text = await scrape(world)
    families = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    assert families >= NAMES


async def test_what_was_refused_is_counted_by_its_reason(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = await world.create()
    with pytest.raises(SandboxLimit):
        await world.create()
    with pytest.raises(SandboxLimit):
        await world.server.sandboxes.fork(TEAM, sandbox.id)
    monkeypatch.setattr(admission, "free_bytes", lambda _path: -1)
    with pytest.raises(DiskFull):
        await world.server.sandboxes.pause(TEAM, sandbox.id)
    text = await scrape(world)
    assert 'forkyard_admission_refused_total{reason="sandbox_limit"} 2.0' in text
    assert 'forkyard_admission_refused_total{reason="disk_full"} 1.0' in text


async def test_what_is_ready_is_shown(world: World) -> None:
    assert world.template is not None
    assert 'forkyard_pool_ready{pool="warm"} 0.0' in await scrape(world)
    world.server.pool.target(world.template, 2)
    world.server.start(world.server.pool.run)
    while sum(world.server.pool.ready().values()) < 2:
        await world.clock.advance(0)
    world.core.driver.demand(world.core.driver.shape(image="0" * 64, vcpus=1, memory_mb=1, disk_mb=1), 3)
    text = await scrape(world)
    assert 'forkyard_pool_ready{pool="warm"} 2.0' in text
    assert 'forkyard_pool_ready{pool="empty"} 3.0' in text
