"""The API on a loopback port: everything real but the driver, the daemons and the edge."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import uvicorn

from forkyard.auth.service import AuthService
from forkyard.base.clock import SystemClock
from forkyard.e2b.app import create_app
from forkyard.sandboxes.expiry import Expiry
from forkyard.sandboxes.samples import Samples
from forkyard.sandboxes.service import Sandboxes
from forkyard.sandboxes.warm import WarmPool
from forkyard.storage.engine import sqlite_url
from forkyard.storage.migrations import migrate
from forkyard.storage.session import Database
from forkyard.testing.core import add_template, make_core
from forkyard.testing.fake_host import FakeHost


@dataclass(frozen=True, slots=True)
class LiveApi:
    url: str
    key: str
    other_key: str
    """Of another team."""


@pytest.fixture(scope="session")
def live_api(tmp_path_factory: pytest.TempPathFactory) -> Generator[LiveApi]:
    """A server in a thread of its own, because the SDK's synchronous client and schemathesis block theirs."""
    folder = tmp_path_factory.mktemp("api")
    ready = threading.Event()
    outcome: list[LiveApi | BaseException] = []
    stop = threading.Event()

    async def serve() -> None:
        async with _serving(folder) as api:
            outcome.append(api)
            ready.set()
            await asyncio.to_thread(stop.wait)

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            outcome.append(error)
            ready.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert ready.wait(60)
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    yield outcome[0]
    stop.set()
    thread.join(30)
    assert not thread.is_alive()
    if len(outcome) > 1 and isinstance(outcome[1], BaseException):
        raise outcome[1]


@asynccontextmanager
async def _serving(folder: Path) -> AsyncGenerator[LiveApi]:
    url = sqlite_url(folder / "api.db")
    await migrate(url)
    database, host, clock = Database(url), FakeHost(), SystemClock()
    core = make_core(database, host, clock, folder)
    pool, expiry, samples = WarmPool(core), Expiry(core), Samples(core)
    await core.driver.open()
    await add_template(core)
    app = create_app()
    app.state.sandboxes = Sandboxes(core, pool=pool, samples=samples)
    app.state.auth = auth = AuthService(database, clock)
    app.state.public_domain = None
    keys = [(await auth.create_team(name)).key for name in ("one", "two")]
    server = uvicorn.Server(
        uvicorn.Config(app, host="127.0.0.1", port=0, lifespan="off", access_log=False, log_config=None)
    )
    loops = [asyncio.create_task(work) for work in (server.serve(), expiry.run(), samples.run())]
    try:
        async with asyncio.timeout(30):
            while not server.started:
                await asyncio.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield LiveApi(f"http://127.0.0.1:{port}", keys[0], keys[1])
        server.should_exit = True
        await loops[0]
    finally:
        for loop in loops:
            loop.cancel()
        await asyncio.gather(*loops, return_exceptions=True)
        await core.operations.drain(10)
        await core.driver.close()
        await database.close()
