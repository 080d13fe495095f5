"""Lists of sandboxes: order, pages, filters."""

from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from tests.unit.e2b.conftest import STRANGER, Api

SECOND = timedelta(seconds=1)


def ids(sandboxes: list[dict[str, Any]]) -> list[str]:
    return [sandbox["sandboxID"] for sandbox in sandboxes]


async def pages(api: Api, query: dict[str, Any]) -> list[list[str]]:
    """All pages of a list, as ids."""
    found: list[list[str]] = []
    token = ""
    while True:
        response = await api.request("GET", "/v2/sandboxes", params={**query, "nextToken": token}, status=200)
        found.append(ids(response.json()))
        token = response.headers.get("x-next-token", "")
        if not token:
            return found


async def test_the_newest_come_first(api: Api) -> None:
    made = ids([await api.create() for _ in range(3)])
    assert ids(await api.get("/v2/sandboxes")) == made[::-1]
    assert ids(await api.get("/v2/sandboxes?order=desc")) == made[::-1]
    assert ids(await api.get("/v2/sandboxes?order=asc")) == made
    assert ids(await api.get("/sandboxes")) == made[::-1]


async def test_what_a_list_shows(api: Api) -> None:
    made = await api.create(metadata={"a": "b"})
    (listed,) = await api.get("/v2/sandboxes")
    detail = await api.detail(made)
    assert listed == {name: detail[name] for name in listed}
    assert {"startedAt", "endAt", "cpuCount", "memoryMB", "diskSizeMB", "state", "metadata"} <= set(listed)
    assert "envdAccessToken" not in listed


@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_pages_show_each_sandbox_once(api: Api, order: str) -> None:
    made = [await api.create() for _ in range(5)]
    await api.pause(made[1])
    await api.pause(made[3])
    whole = ids(await api.get(f"/v2/sandboxes?order={order}"))
    for limit, lengths in ((1, [1] * 5), (2, [2, 2, 1]), (5, [5]), (100, [5])):
        found = await pages(api, {"limit": limit, "order": order})
        assert [len(page) for page in found] == lengths
        assert [i for page in found for i in page] == whole


async def test_sandboxes_of_one_moment_are_all_shown(api: Api) -> None:
    made = await api.create()
    await api.post(f"/sandboxes/{made['sandboxID']}/fork", {"count": 4}, status=201)
    found = await pages(api, {"limit": 1})
    assert len(found) == 5
    assert len({page[0] for page in found}) == 5


async def test_what_is_made_meanwhile_does_not_shift_the_pages(api: Api) -> None:
    made = ids([await api.create() for _ in range(3)])
    first = await api.request("GET", "/v2/sandboxes?limit=2", status=200)
    await api.create()
    rest = await api.get("/v2/sandboxes", params={"nextToken": first.headers["x-next-token"]})
    assert ids(first.json()) + ids(rest) == made[::-1]


async def test_a_token_of_the_other_order_is_refused(api: Api) -> None:
    for _ in range(2):
        await api.create()
    first = await api.request("GET", "/v2/sandboxes?limit=1", status=200)
    query = {"order": "asc", "nextToken": first.headers["x-next-token"]}
    await api.get("/v2/sandboxes", params=query, status=400)


async def test_states(api: Api) -> None:
    running, paused = await api.create(), await api.create()
    await api.pause(paused)
    assert ids(await api.get("/v2/sandboxes?state=running")) == [running["sandboxID"]]
    assert ids(await api.get("/v2/sandboxes?state=paused")) == [paused["sandboxID"]]
    for query in ("state=running,paused", "state=running%2Cpaused", "state=paused&state=running", ""):
        assert len(await api.get(f"/v2/sandboxes?{query}")) == 2
    assert ids(await api.get("/sandboxes")) == [running["sandboxID"]]


async def test_metadata(api: Api) -> None:
    metadata = {"user": "a b&c=d", "ü": "é+%", "empty": ""}
    made = await api.create(metadata=metadata)
    await api.create(metadata={"user": "a b&c=d", "ü": "other", "empty": ""})
    await api.create()
    filter_ = urlencode({quote(key): quote(value) for key, value in metadata.items()})
    for path in ("/v2/sandboxes", "/sandboxes"):
        assert ids(await api.get(path, params={"metadata": filter_})) == [made["sandboxID"]]
        assert len(await api.get(path, params={"metadata": "empty="})) == 2
        assert await api.get(path, params={"metadata": "user=none"}) == []
        assert await api.get(path, params={"metadata": "User=a b"}) == []


async def test_started_after_includes_the_moment_itself(api: Api) -> None:
    first, second = await api.create(), await api.create()
    started = datetime.fromisoformat((await api.detail(first))["startedAt"])
    microsecond = timedelta(microseconds=1)
    both = {first["sandboxID"], second["sandboxID"]}
    for moment, expected in (
        (started - microsecond, both),
        (started, both),
        (started + microsecond, {second["sandboxID"]}),
        (started + SECOND, {second["sandboxID"]}),
        (started + 2 * SECOND, set[str]()),
    ):
        query = {"startedAfter": moment.isoformat()}
        assert set(ids(await api.get("/v2/sandboxes", params=query))) == expected
    elsewhere = (await api.detail(first))["startedAt"].replace("Z", "+00:00")
    assert len(await api.get("/v2/sandboxes", params={"startedAfter": elsewhere})) == 2


async def test_templates(api: Api) -> None:
    made = await api.create()
    for template in (made["templateID"], "base", "BASE", "team/base"):
        assert len(await api.get("/v2/sandboxes", params={"template": template})) == 1
    assert await api.get("/v2/sandboxes", params={"template": "unknown-template"}) == []


async def test_how_many_run_in_all(api: Api) -> None:
    made = [await api.create(metadata={"n": str(number % 2)}) for number in range(5)]
    await api.pause(made[0])
    await api.post("/v2/sandboxes", {"templateID": "base"}, status=201, key=STRANGER)
    for query, total in (
        ("", "4"),
        ("?limit=1", "4"),
        ("?limit=1&state=running", "4"),
        ("?metadata=n%3D0", "2"),
        ("?metadata=n%3D0&limit=1", "2"),
        ("?template=other", "0"),
    ):
        response = await api.request("GET", f"/v2/sandboxes{query}", status=200)
        assert response.headers["x-total-running"] == total, query
    last = await api.request("GET", "/v2/sandboxes?limit=3", status=200)
    query = {"nextToken": last.headers["x-next-token"]}
    response = await api.request("GET", "/v2/sandboxes", params=query, status=200)
    assert (len(response.json()), response.headers["x-total-running"]) == (2, "4")
    paused = await api.request("GET", "/v2/sandboxes?state=paused", status=200)
    assert "x-total-running" not in paused.headers


async def test_version_1_lists_all_that_run(api: Api) -> None:
    made = await api.create(timeout=3600)
    for _ in range(3):
        await api.post(f"/sandboxes/{made['sandboxID']}/fork", {"count": 34, "timeout": 3600}, status=201)
    assert len(set(ids(await api.get("/sandboxes")))) == 103
