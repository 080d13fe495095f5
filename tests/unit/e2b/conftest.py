from collections.abc import AsyncGenerator

import httpx
import pytest
from fastapi import FastAPI

from forkyard.auth.errors import InvalidApiKey
from forkyard.auth.principal import Principal
from forkyard.auth.roles import Role
from forkyard.e2b.app import create_app

KEYS = {f"e2b_{role.value[0] * 40}": role for role in Role}
"""A key of each role."""

ADMIN = next(key for key, role in KEYS.items() if role is Role.ADMIN)


class FakeAuth:
    """Knows KEYS, all of one team."""

    async def authenticate(self, key: str | None) -> Principal:
        if key not in KEYS:
            raise InvalidApiKey()
        return Principal("team", f"key-{KEYS[key].value}", KEYS[key])


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
