"""Teams and API keys over HTTP, with the real key service."""

from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from forkyard.auth.limits import TeamLimits
from forkyard.auth.roles import Role, Scope
from forkyard.auth.service import AuthService
from forkyard.storage.engine import DatabaseUrl
from forkyard.storage.session import Database
from forkyard.testing.clock import START, ManualClock
from tests.unit.e2b.conftest import bare, client_of


@pytest.fixture(scope="module")
def app() -> FastAPI:
    return bare()


@pytest.fixture
async def admin(app: FastAPI, sqlite_copy: DatabaseUrl) -> AsyncGenerator[httpx.AsyncClient]:
    """A client with the first key of a team."""
    database = Database(sqlite_copy)
    try:
        app.state.auth = AuthService(database, ManualClock())
        issued = await app.state.auth.create_team("crew")
        async with client_of(app, issued.key) as client:
            yield client
    finally:
        await database.close()


async def call(
    client: httpx.AsyncClient,
    method: str,
    path: str,
    body: Any = None,
    *,
    status: int,
    key: str | None = None,
) -> Any:
    headers = {"X-API-KEY": key} if key else {}
    response = await client.request(method, path, json=body, headers=headers)
    assert response.status_code == status, response.text
    if status >= 400:
        assert response.json()["code"] == status
    return response.json() if response.content else None


async def create(client: httpx.AsyncClient, role: str, **body: Any) -> dict[str, Any]:
    return await call(client, "POST", "/v1/api-keys", {"name": role, "role": role, **body}, status=201)


async def test_a_key_sees_the_limits_of_its_team(admin: httpx.AsyncClient, app: FastAPI) -> None:
    assert set((await call(admin, "GET", "/v1/team", status=200))["limits"].values()) == {None}
    await app.state.auth.limit_team("crew", TeamLimits(sandboxes=3))
    assert (await call(admin, "GET", "/v1/team", status=200))["limits"]["sandboxes"] == 3


async def test_the_team_as_the_e2b_cli_wants_it(admin: httpx.AsyncClient) -> None:
    (team,) = await call(admin, "GET", "/teams", status=200)
    assert team == {"teamID": team["teamID"], "name": "crew", "apiKey": "", "isDefault": True}


async def test_a_key_sees_its_team_and_what_it_may_do(admin: httpx.AsyncClient) -> None:
    for role in Role:
        made = await create(admin, role.value)
        team = await call(admin, "GET", "/v1/team", status=200, key=made["key"])
        assert (team["name"], team["role"], team["key_id"]) == ("crew", role.value, made["id"])
        assert {Scope(scope) for scope in team["scopes"]} == role.scopes


async def test_a_key_is_shown_once(admin: httpx.AsyncClient) -> None:
    made = await create(admin, "member")
    assert made["key"].startswith(made["prefix"])
    assert made["key"].endswith(made["suffix"])
    keys = await call(admin, "GET", "/v1/api-keys", status=200)
    assert {key["name"] for key in keys} == {"member", "first key"}
    assert all("key" not in key and "hash" not in key for key in keys)
    assert made["key"] not in str(keys)


async def test_a_revoked_key_ends_at_once(admin: httpx.AsyncClient) -> None:
    made = await create(admin, "member")
    await call(admin, "GET", "/v1/team", status=200, key=made["key"])
    await call(admin, "DELETE", f"/v1/api-keys/{made['id']}", status=204)
    await call(admin, "GET", "/v1/team", status=401, key=made["key"])
    await call(admin, "DELETE", f"/v1/api-keys/{made['id']}", status=404)
    assert len(await call(admin, "GET", "/v1/api-keys", status=200)) == 1


async def test_the_last_admin_key_stays(admin: httpx.AsyncClient) -> None:
    (key,) = await call(admin, "GET", "/v1/api-keys", status=200)
    error = await call(admin, "DELETE", f"/v1/api-keys/{key['id']}", status=409)
    assert error["error_code"] == "last_admin_key"


@pytest.mark.parametrize("role", ["member", "read-only", "sandbox-only"])
async def test_only_admins_make_and_revoke_keys(admin: httpx.AsyncClient, role: str) -> None:
    made = await create(admin, role)
    body = {"name": "x", "role": "admin"}
    await call(admin, "POST", "/v1/api-keys", body, status=403, key=made["key"])
    await call(admin, "DELETE", f"/v1/api-keys/{made['id']}", status=403, key=made["key"])


async def test_a_sandbox_only_key_does_not_see_the_keys(admin: httpx.AsyncClient) -> None:
    made = await create(admin, "sandbox-only")
    await call(admin, "GET", "/v1/api-keys", status=403, key=made["key"])


async def test_another_teams_key_is_404(app: FastAPI, admin: httpx.AsyncClient) -> None:
    other = await app.state.auth.create_team("others")
    await call(admin, "DELETE", f"/v1/api-keys/{other.record.id}", status=404)
    await call(admin, "GET", "/v1/team", status=200, key=other.key)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "name"),
        ({"name": ""}, "name"),
        ({"name": "x" * 101}, "name"),
        ({"name": "a\nb"}, "name"),
        ({"name": "x", "role": "root"}, "role"),
        ({"name": "x", "expires_at": "2020-01-01T00:00:00Z"}, "expires_at"),
        ({"name": "x", "expires_at": "2030-01-01T00:00:00"}, "expires_at"),
        ({"name": "x", "expires_at": "soon"}, "expires_at"),
        ({"name": "x", "team": "other"}, "team"),
    ],
)
async def test_keys_that_make_no_sense(admin: httpx.AsyncClient, body: dict[str, Any], field: str) -> None:
    error = await call(admin, "POST", "/v1/api-keys", body, status=400)
    assert error["message"].startswith(field)


async def test_a_key_that_expires(admin: httpx.AsyncClient) -> None:
    made = await create(admin, "member", expires_at=START.replace(year=2027).isoformat())
    assert made["expires_at"] == "2027-01-01T00:00:00Z"
    assert made["last_used_at"] is None


@pytest.mark.parametrize("key_id", ["x", "%00", "0" * 36])
async def test_malformed_key_ids_are_404(admin: httpx.AsyncClient, key_id: str) -> None:
    await call(admin, "DELETE", f"/v1/api-keys/{key_id}", status=404)
