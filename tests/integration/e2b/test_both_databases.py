"""The API's queries on SQLite and PostgreSQL."""

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx
import pytest

from forkyard.auth.service import AuthService
from forkyard.e2b.app import create_app
from forkyard.storage.session import Database
from forkyard.testing.core import Server, WorldClock, add_template, running_server
from forkyard.testing.fake_host import FakeHost


@pytest.fixture
async def server(database: Database, tmp_path: Path) -> AsyncGenerator[Server]:
    async with running_server(database, FakeHost(), WorldClock(), tmp_path) as server:
        yield server


@pytest.fixture
async def team(server: Server, database: Database) -> AsyncGenerator[httpx.AsyncClient]:
    """A client of a team, over ASGI."""
    app = create_app()
    app.state.sandboxes = server.sandboxes
    app.state.auth = AuthService(database, server.clock)
    app.state.public_domain = None
    issued = await app.state.auth.create_team("crew")
    await add_template(server.core)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    headers = {"X-API-KEY": issued.key}
    async with httpx.AsyncClient(transport=transport, base_url="http://api", headers=headers) as client:
        yield client


async def get(team: httpx.AsyncClient, path: str, **query: Any) -> Any:
    response = await team.get(path, params=query)
    assert response.status_code == 200, response.text
    return response.json()


async def create(team: httpx.AsyncClient, server: Server, **body: Any) -> str:
    await server.clock.advance(1)
    response = await team.post("/v2/sandboxes", json={"templateID": "base", **body})
    assert response.status_code == 201, response.text
    return response.json()["sandboxID"]


async def test_lists_of_sandboxes(team: httpx.AsyncClient, server: Server) -> None:
    metadata = {"ü": "quote ' \" \\ %", "x": ""}
    made = [await create(team, server, metadata=metadata if n % 2 else {}) for n in range(4)]
    await team.post(f"/sandboxes/{made[0]}/pause")
    listed = await get(team, "/v2/sandboxes")
    assert [item["sandboxID"] for item in listed] == made[::-1]
    query = {"metadata": "%C3%BC=quote+%2527+%2522+%255C+%2525&x=", "limit": 1}
    first = await team.get("/v2/sandboxes", params=query)
    assert [item["sandboxID"] for item in first.json()] == [made[3]]
    assert first.headers["x-total-running"] == "2"
    query["nextToken"] = first.headers["x-next-token"]
    last = await team.get("/v2/sandboxes", params=query)
    assert [item["sandboxID"] for item in last.json()] == [made[1]]
    assert "x-next-token" not in last.headers
    started = listed[1]["startedAt"]
    assert len(await get(team, "/v2/sandboxes", startedAfter=started, order="asc")) == 2
    assert len(await get(team, "/v2/sandboxes", template="base", state="paused")) == 1


async def test_text_that_databases_do_not_take(team: httpx.AsyncClient) -> None:
    for body in ({"metadata": {"k" * 501: "v"}}, {"metadata": {"a\0": "v"}}, {"envVars": {"A": "\0"}}):
        response = await team.post("/v2/sandboxes", json={"templateID": "base", **body})
        assert response.status_code == 400, response.text
    for path in ("/sandboxes/a%00b", "/templates/aliases/a%00b", "/v2/sandboxes?metadata=a%3D%2500"):
        assert (await team.get(path)).status_code in (400, 404)


async def test_templates(team: httpx.AsyncClient, server: Server) -> None:
    team_id = (await get(team, "/teams"))[0]["teamID"]
    await create(team, server)
    for number in range(2):
        await server.clock.advance(1)
        await add_template(server.core, name=f"own-{number}", team_id=team_id)
    names = [template["names"] for template in await get(team, "/templates")]
    assert names == [["own-1"], ["own-0"], ["base"]]
    first = await team.get("/v2/templates", params={"limit": 2})
    rest = await get(team, "/v2/templates", nextToken=first.headers["x-next-token"])
    assert [template["names"] for template in rest] == [["base"]]
    assert rest[0]["spawnCount"] == 1
    assert len((await get(team, "/templates/own-0"))["builds"]) == 1


async def test_snapshots(team: httpx.AsyncClient, server: Server) -> None:
    sandbox = await create(team, server)
    for body in ({}, {"name": "a"}, {"name": "a:v2"}, {"name": "a"}):
        await server.clock.advance(1)
        response = await team.post(f"/sandboxes/{sandbox}/snapshots", json=body)
        assert response.status_code == 201, response.text
    assert len(await get(team, "/snapshots", sandboxID=sandbox)) == 4
    named = [snapshot["snapshotID"] for snapshot in await get(team, "/snapshots", name="a")]
    assert named == ["a:default", "a:v2"]
    assert (await team.delete("/templates/a%3Av2")).status_code == 204
    assert len(await get(team, "/snapshots", name="a")) == 1


async def test_idempotency(team: httpx.AsyncClient) -> None:
    headers = {"Idempotency-Key": "k"}
    bodies = ({"templateID": "base"}, {"templateID": "base"}, {"templateID": "base", "timeout": 5})
    answers = [await team.post("/v2/sandboxes", json=body, headers=headers) for body in bodies]
    assert [answer.status_code for answer in answers] == [201, 201, 422]
    assert answers[0].json() == answers[1].json()
