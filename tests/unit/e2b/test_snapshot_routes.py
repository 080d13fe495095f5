"""Snapshots and templates over HTTP."""

from typing import Any
from urllib.parse import quote
from uuid import UUID

import pytest

from forkyard.testing.core import TEAM, add_template
from tests.unit.e2b.conftest import READ_ONLY, SANDBOX_ONLY, STRANGER, Api


async def take(api: Api, sandbox: dict[str, Any], **body: Any) -> dict[str, Any]:
    """A new snapshot; a second later than the last one."""
    await api.clock.advance(1)
    return await api.post(f"/sandboxes/{sandbox['sandboxID']}/snapshots", body, status=201)


async def listed(api: Api, **query: Any) -> list[str]:
    return [snapshot["snapshotID"] for snapshot in await api.get("/snapshots", params=query)]


def template_path(reference: str) -> str:
    """As the Python SDK sends it."""
    return f"/templates/{quote(reference, safe='')}"


async def test_a_snapshot_without_a_name(api: Api) -> None:
    made = await api.create()
    taken = await take(api, made)
    assert set(taken) == {"snapshotID", "names"}
    assert taken["names"] == []
    snapshot_id, _, tag = taken["snapshotID"].partition(":")
    assert (len(snapshot_id), tag) == (20, "default")
    assert (await api.detail(made))["state"] == "running"


@pytest.mark.parametrize(
    ("name", "snapshot_id"),
    [("my-snap", "my-snap:default"), ("My-Snap:V2", "my-snap:v2"), ("team/my-snap", "my-snap:default")],
)
async def test_a_snapshot_with_a_name(api: Api, name: str, snapshot_id: str) -> None:
    taken = await take(api, await api.create(), name=name)
    assert taken == {"snapshotID": snapshot_id, "names": ["my-snap"]}
    assert await api.get("/snapshots") == [taken]


@pytest.mark.parametrize(
    "name", ["a b", ":x", "x:", "a/b/c", "x" * 129, "ü", "x:" + "0" * 8 + "-0000-4000-8000-" + "0" * 12]
)
async def test_names_that_are_none(api: Api, name: str) -> None:
    made = await api.create()
    error = await api.post(f"/sandboxes/{made['sandboxID']}/snapshots", {"name": name}, status=400)
    assert error["message"].startswith("name")
    assert await api.get("/snapshots") == []


@pytest.mark.parametrize("name", [None, "kept", "kept:v1"])
async def test_sandboxes_start_from_a_snapshot_that_outlives_its_source(api: Api, name: str | None) -> None:
    made = await api.create()
    taken = await take(api, made, **({"name": name} if name else {}))
    await api.request("DELETE", f"/sandboxes/{made['sandboxID']}", status=204)
    for _ in range(2):
        started = await api.create(templateID=taken["snapshotID"])
        assert started["sandboxID"] != made["sandboxID"]
        assert started["templateID"] == made["templateID"]


async def test_a_name_leads_to_the_newest_and_the_older_one_stays_by_id(api: Api) -> None:
    made = await api.create()
    first = await take(api, made, name="point")
    assert await listed(api) == [first["snapshotID"]]
    assert await take(api, made, name="point") == first
    by_name, by_id = await listed(api)
    assert by_name == "point:default"
    assert len(by_id.partition(":")[0]) == 20


async def test_deleting(api: Api) -> None:
    made = await api.create()
    taken = [await take(api, made), await take(api, made, name="a"), await take(api, made, name="team/b:v1")]
    await api.request("DELETE", template_path(taken[0]["snapshotID"]), status=204)
    await api.request("DELETE", template_path("a"), status=204)
    await api.request("DELETE", template_path("team/b:v1"), status=204)
    for snapshot in taken:
        error = (await api.request("DELETE", template_path(snapshot["snapshotID"]), status=404)).json()
        assert error["error_code"] == "snapshot_not_found"
        await api.post("/v2/sandboxes", {"templateID": snapshot["snapshotID"]}, status=404)
    assert await api.get("/snapshots") == []


@pytest.mark.parametrize("reference", ["unknown", "x" * 20, "a b", "%", "..", "x:", "ü", "a" * 600])
async def test_deleting_what_is_not_there(api: Api, reference: str) -> None:
    response = await api.http.delete(template_path(reference))
    assert response.status_code in (400, 404)
    assert response.json()["code"] == response.status_code


async def test_another_team_neither_uses_nor_deletes_a_snapshot(api: Api) -> None:
    taken = await take(api, await api.create(), name="mine")
    for reference in ("mine", taken["snapshotID"]):
        await api.post("/v2/sandboxes", {"templateID": reference}, status=404, key=STRANGER)
        await api.request("DELETE", template_path(reference), status=404, key=STRANGER)
        await api.get(f"/templates/aliases/{reference}", status=404, key=STRANGER)
    assert len(await api.get("/snapshots")) == 1


async def test_filters_of_the_list(api: Api) -> None:
    one, other = await api.create(), await api.create()
    plain = await take(api, one)
    default = await take(api, one, name="named")
    tagged = await take(api, other, name="named:v2")
    assert await listed(api) == [tagged["snapshotID"], default["snapshotID"], plain["snapshotID"]]
    assert await listed(api, sandboxID=one["sandboxID"]) == [default["snapshotID"], plain["snapshotID"]]
    assert await listed(api, sandboxID=f"{other['sandboxID']}-client") == [tagged["snapshotID"]]
    assert await listed(api, sandboxID="NO ID") == []
    assert await listed(api, name="named") == [tagged["snapshotID"], default["snapshotID"]]
    assert await listed(api, name="named:default") == [default["snapshotID"]]
    assert await listed(api, name="named:v2") == [tagged["snapshotID"]]
    assert await listed(api, name="named:v3") == []
    assert await listed(api, name="named-does-not-exist") == []
    assert await listed(api, name=plain["snapshotID"]) == [plain["snapshotID"]]
    assert await listed(api, name=plain["snapshotID"].partition(":")[0]) == [plain["snapshotID"]]
    await api.get("/snapshots", params={"name": "a b"}, status=400)


async def test_pages(api: Api) -> None:
    made = await api.create()
    taken = [(await take(api, made))["snapshotID"] for _ in range(3)]
    token, found = "", list[str]()
    for _ in taken:
        response = await api.request("GET", "/snapshots", params={"limit": 1, "nextToken": token}, status=200)
        found += [snapshot["snapshotID"] for snapshot in response.json()]
        token = response.headers.get("x-next-token", "")
    assert found == taken[::-1]
    assert token == ""


async def test_a_paused_sandbox_is_not_captured(api: Api) -> None:
    made = await api.create()
    await api.pause(made)
    await api.post(f"/sandboxes/{made['sandboxID']}/snapshots", status=409)


# -- templates ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("alias", ["base", "BASE", "base:default", "team/base", "team%2Fbase%3Adefault"])
async def test_the_shipped_template_exists(api: Api, alias: str) -> None:
    found = await api.get(f"/templates/aliases/{alias}")
    assert found == {"templateID": (await api.create())["templateID"], "public": True}


@pytest.mark.parametrize("alias", ["nothing", "base:v2", "a b", "aliases", "x" * 20])
async def test_aliases_that_do_not_exist(api: Api, alias: str) -> None:
    error = await api.get(f"/templates/aliases/{alias}", status=404)
    assert error["error_code"] == "template_not_found"


@pytest.mark.parametrize("path", ["/templates", "/v2/templates"])
async def test_templates_of_the_team_and_shipped_ones(api: Api, path: str) -> None:
    shipped = (await api.create())["templateID"]
    await api.create()
    await api.clock.advance(1)
    own = await add_template(api.server.core, name="own", team_id=TEAM)
    await add_template(api.server.core, name="theirs", team_id="team-2")
    first, second = await api.get(path)
    assert (first["templateID"], first["names"], first["public"]) == (own.template_id, ["own"], False)
    assert (first["spawnCount"], first["lastSpawnedAt"], first["isDefault"]) == (0, None, False)
    assert (second["templateID"], second["aliases"], second["public"]) == (shipped, ["base"], True)
    assert second["spawnCount"] == 2
    assert second["lastSpawnedAt"]
    assert second["buildStatus"] == "ready"
    UUID(second["buildID"])


async def test_pages_of_templates(api: Api) -> None:
    for number in range(3):
        await api.clock.advance(1)
        await add_template(api.server.core, name=f"t{number}", team_id=TEAM)
    token, found = "", list[str]()
    for _ in range(4):
        response = await api.request(
            "GET", "/v2/templates", params={"limit": 1, "nextToken": token}, status=200
        )
        found += [name for template in response.json() for name in template["names"]]
        token = response.headers.get("x-next-token", "")
    assert (found, token) == (["t2", "t1", "t0", "base"], "")


async def test_a_template_with_its_builds(api: Api) -> None:
    for reference in ("base", (await api.create())["templateID"]):
        template = await api.get(f"/templates/{reference}")
        assert template["names"] == ["base"]
        (build,) = template["builds"]
        assert (build["status"], build["cpuCount"]) == ("ready", 2)


async def test_templates_that_are_not_there(api: Api) -> None:
    await take(api, await api.create(), name="snap")
    await add_template(api.server.core, name="theirs", team_id="team-2")
    for reference in ("nothing", "snap", "theirs"):
        await api.get(f"/templates/{reference}", status=404)


@pytest.mark.parametrize("path", ["/templates", "/v2/templates"])
async def test_only_the_own_team_may_be_named(api: Api, path: str) -> None:
    assert len(await api.get(f"{path}?teamID={TEAM}")) == 1
    await api.get(f"{path}?teamID=team-2", status=404)


async def test_a_shipped_template_is_not_deleted(api: Api) -> None:
    await api.request("DELETE", "/templates/base", status=404)
    await api.create()


async def test_who_may_delete_what(api: Api) -> None:
    await add_template(api.server.core, name="own", team_id=TEAM)
    taken = await take(api, await api.create())
    for reference in ("own", taken["snapshotID"]):
        await api.request("DELETE", template_path(reference), status=403, key=READ_ONLY)
    await api.request("DELETE", "/templates/own", status=403, key=SANDBOX_ONLY)
    await api.request("DELETE", template_path(taken["snapshotID"]), status=204, key=SANDBOX_ONLY)
    await api.request("DELETE", "/templates/own", status=204)
    await api.get("/templates/aliases/own", status=404)
