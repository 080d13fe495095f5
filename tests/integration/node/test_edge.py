"""The real edge, stopped in the middle of its life: nothing goes on to what was taken away from it."""

import asyncio
import shutil
import signal
import socket
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from forkyard.base.clock import SystemClock
from forkyard.host.processes import ProcessHandle
from forkyard.node import edge_client, edge_supervisor, log_files
from forkyard.node import routes as routes_module
from forkyard.node.edge_client import EdgeClient
from forkyard.node.edge_supervisor import EdgeSupervisor
from forkyard.node.log_files import LogFiles
from forkyard.node.readiness import Readiness
from forkyard.node.routes import EdgeRoutes
from forkyard.node.settings import Settings
from forkyard.sandboxes.routing import Route, RouteState

pytestmark = [pytest.mark.root]

EDGE = Path(__file__).parents[3] / "build/bin/edge"
ID = "i0123456789abcdefghij"
PATIENCE = 30.0


class Bench:
    """An edge with its supervisor, and something behind it that answers `here`."""

    def __init__(self, data_dir: Path, port: int) -> None:
        self.settings = Settings(data_dir=data_dir, port=port)
        self.client = EdgeClient(self.settings.edge_socket)
        self.routes = EdgeRoutes(self.client, SystemClock())
        self.readiness = Readiness("edge")
        self.supervisor = self.make_supervisor()
        self.backend_port = 0

    def make_supervisor(self) -> EdgeSupervisor:
        return EdgeSupervisor(
            self.settings,
            EDGE,
            self.client,
            self.routes,
            self.readiness,
            SystemClock(),
            cgroup=f"forkyard-test-{self.settings.data_dir.name}-edge",
        )

    def route(self, generation: int = 1) -> Route:
        return Route(ID, generation, RouteState.RUNNING, "127.0.0.1", None, None, True, False, None)

    async def ask(self) -> int:
        """Status of a request for the sandbox."""
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2.0)) as session,
            session.get(
                f"http://127.0.0.1:{self.settings.port}/",
                headers={"E2b-Sandbox-Id": ID, "E2b-Sandbox-Port": str(self.backend_port)},
            ) as response,
        ):
            return response.status

    async def answers(self, status: int) -> bool:
        with suppress(aiohttp.ClientError, TimeoutError):
            return await self.ask() == status
        return False


async def eventually(true: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await true():
            await asyncio.sleep(0.02)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    if not EDGE.exists():
        pytest.skip("needs build/bin/edge: run scripts/build-go.sh")
    monkeypatch.setattr(edge_client, "_TIMEOUT", aiohttp.ClientTimeout(total=0.5))
    monkeypatch.setattr(routes_module, "_SYNC_WAIT_S", 1.0)
    data_dir = Path(tempfile.mkdtemp(prefix="fye-"))
    bench = Bench(data_dir, free_port())
    for directory in (bench.settings.run_dir, bench.settings.log_dir):
        directory.mkdir(parents=True)

    async def here(_request: web.Request) -> web.Response:
        return web.Response(text="here")

    app = web.Application()
    app.router.add_get("/", here)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    # In the place of a control plane, that knows of no sandbox to wake.
    await web.UnixSite(runner, str(bench.settings.api_socket)).start()
    bench.backend_port = next(a[1] for a in runner.addresses if isinstance(a, tuple))
    await bench.client.open()
    try:
        yield bench
    finally:
        await bench.supervisor.shutdown()
        await bench.client.close()
        await runner.cleanup()
        await asyncio.to_thread(shutil.rmtree, data_dir)


@pytest.fixture
async def running(bench: Bench) -> AsyncIterator[Bench]:
    await bench.supervisor.attach()
    loop = asyncio.create_task(bench.supervisor.run())
    await bench.routes.set(bench.route())
    assert await bench.ask() == 200
    yield bench
    loop.cancel()
    await asyncio.gather(loop, return_exceptions=True)


def stop(process: ProcessHandle) -> None:
    assert process.send(signal.SIGSTOP)


async def test_a_removal_returns_when_a_hung_edge_is_dead_and_the_next_lacks_the_route(
    running: Bench,
) -> None:
    hung = running.client.process()
    stop(hung)
    # Sent while it hangs: it would be let through to the old address the moment that the edge goes on.
    early = asyncio.create_task(running.ask())
    await running.routes.remove(ID, 1)
    assert not hung.alive()
    with pytest.raises((aiohttp.ClientError, TimeoutError)):
        await early
    await eventually(lambda: running.answers(502))
    await running.routes.set(running.route(2))
    assert await running.ask() == 200


async def test_an_edge_that_hangs_is_replaced_though_nothing_changes(
    running: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edge_supervisor, "_PROBE_S", 0.1)
    monkeypatch.setattr(edge_supervisor, "_HUNG_S", 1.0)
    # The wait in progress has the old interval.
    first = running.client.process()
    first.send(signal.SIGKILL)
    await eventually(lambda: running.answers(200))
    hung = running.client.process()
    stop(hung)
    await eventually(lambda: running.answers(200))
    assert not hung.alive()
    assert running.readiness.missing() == ()


async def test_an_edge_that_hangs_when_the_server_starts_is_replaced(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edge_supervisor, "_HUNG_S", 1.0)
    await bench.supervisor.attach()
    hung = bench.client.process()
    stop(hung)
    bench.supervisor = bench.make_supervisor()
    await bench.routes.set(bench.route())
    await bench.supervisor.attach()
    assert not hung.alive()
    assert await bench.ask() == 200


async def test_an_edge_that_hangs_is_ended_with_the_server(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edge_supervisor, "_START_S", 1.0)
    await bench.supervisor.attach()
    hung = bench.client.process()
    stop(hung)
    await bench.supervisor.shutdown()
    assert not hung.alive()


async def test_its_log_is_cut_while_it_writes(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    await bench.supervisor.attach()
    path = bench.settings.log_dir / "edge.log"

    async def written() -> bool:
        return path.stat().st_size > 0

    await eventually(written)
    monkeypatch.setattr(log_files, "MAX_BYTES", 10)
    LogFiles(bench.settings.log_dir, bench.settings.run_dir, SystemClock()).look()
    assert path.stat().st_size == 0
    assert path.with_name("edge.log.1").read_bytes().startswith(b"{")
    await bench.routes.attach()
    await eventually(written)
    assert b"route table replaced" in path.read_bytes()
    assert b"\0" not in path.read_bytes()
