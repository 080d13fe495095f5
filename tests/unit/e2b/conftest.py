from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from forkyard.auth.errors import InvalidApiKey
from forkyard.auth.principal import Principal
from forkyard.auth.roles import Role
from forkyard.e2b.app import create_app
from forkyard.storage.engine import DatabaseUrl
from forkyard.storage.session import Database
from forkyard.testing.core import TEAM, Server, WorldClock, add_template, running_server
from forkyard.testing.fake_host import FakeHost

KEYS = {f"e2b_{role.value[0] * 40}": role for role in Role}
"""A key of each role."""

ADMIN = next(key for key, role in KEYS.items() if role is Role.ADMIN)
READ_ONLY = next(key for key, role in KEYS.items() if role is Role.READ_ONLY)
SANDBOX_ONLY = next(key for key, role in KEYS.items() if role is Role.SANDBOX_ONLY)
STRANGER = "e2b_" + "9" * 40
"""The admin key of another team."""

DOMAIN = "sandboxes.example"


class FakeAuth:
    """Knows KEYS, all of one team, and STRANGER."""

    async def authenticate(self, key: str | None) -> Principal:
        if key == STRANGER:
            return Principal("team-2", "key-2", Role.ADMIN)
        if key not in KEYS:
            raise InvalidApiKey()
        return Principal(TEAM, f"key-{KEYS[key].value}", KEYS[key])


@pytest.fixture(scope="session")
def bare_app() -> FastAPI:
    """The app without a sandbox core: for what never gets that far. Made once, because FastAPI takes long for it."""
    app = bare()
    app.openapi()
    return app


def bare() -> FastAPI:
    app = create_app()
    app.state.auth = FakeAuth()
    app.state.sandboxes = None
    app.state.public_domain = None
    return app


@pytest.fixture
async def client(bare_app: FastAPI) -> AsyncGenerator[httpx.AsyncClient]:
    async with client_of(bare_app) as client:
        yield client


def client_of(app: FastAPI, key: str = ADMIN) -> httpx.AsyncClient:
    """A client that calls the app without a socket."""
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://api", headers={"X-API-KEY": key})


@dataclass(slots=True)
class Api:
    """The app over a real core on a fake host, with the template `base`."""

    http: httpx.AsyncClient
    server: Server

    @property
    def clock(self) -> WorldClock:
        return self.server.clock

    @property
    def host(self) -> FakeHost:
        return self.server.host

    async def request(
        self, method: str, path: str, body: Any = None, *, status: int, key: str = ADMIN, **options: Any
    ) -> httpx.Response:
        """Call and check the status; of an error, the form too."""
        if body is not None:
            options["json"] = body
        headers = {"X-API-KEY": key, **options.pop("headers", {})}
        response = await self.http.request(method, path, headers=headers, **options)
        assert response.status_code == status, response.text
        if status >= 400:
            assert response.json()["code"] == status
            assert response.json()["message"]
        if status == 204:
            assert response.content == b""
        return response

    async def get(self, path: str, *, status: int = 200, **options: Any) -> Any:
        return (await self.request("GET", path, status=status, **options)).json()

    async def post(self, path: str, body: Any = None, *, status: int, **options: Any) -> Any:
        response = await self.request("POST", path, body, status=status, **options)
        return response.json() if response.content else None

    async def create(self, **body: Any) -> dict[str, Any]:
        """A new sandbox; a second later than the last one."""
        await self.clock.advance(1)
        return await self.post("/v2/sandboxes", {"templateID": "base", **body}, status=201)

    async def detail(self, sandbox: dict[str, Any]) -> dict[str, Any]:
        return await self.get(f"/sandboxes/{sandbox['sandboxID']}")

    async def pause(self, sandbox: dict[str, Any], **body: Any) -> None:
        await self.post(f"/sandboxes/{sandbox['sandboxID']}/pause", body, status=204)


@pytest.fixture(scope="session")
def full_app() -> FastAPI:
    return bare()


@pytest.fixture
def server_options() -> dict[str, Any]:
    """Override to give the core limits or settings."""
    return {}


@pytest.fixture
async def api(
    full_app: FastAPI, sqlite_copy: DatabaseUrl, tmp_path: Path, server_options: dict[str, Any]
) -> AsyncGenerator[Api]:
    database = Database(sqlite_copy)
    try:
        async with (
            running_server(database, FakeHost(), WorldClock(), tmp_path, **server_options) as server,
            client_of(full_app) as http,
        ):
            await add_template(server.core)
            full_app.state.sandboxes = server.sandboxes
            full_app.state.public_domain = DOMAIN
            yield Api(http, server)
    finally:
        await database.close()
