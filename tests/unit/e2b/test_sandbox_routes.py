"""Sandboxes over HTTP: the routes of the E2B API on a real core with a fake host."""

from datetime import datetime
from typing import Any

import pytest

from forkyard.e2b.views import CLIENT_ID
from forkyard.sandboxes.admission import Limits
from forkyard.testing.faults import fail
from tests.unit.e2b.conftest import DOMAIN, READ_ONLY, STRANGER, Api


def seconds(sandbox: dict[str, Any]) -> float:
    """How long it was given to live."""
    start, end = (datetime.fromisoformat(sandbox[name]) for name in ("startedAt", "endAt"))
    return (end - start).total_seconds()


# -- create ------------------------------------------------------------------------------------------


async def test_version_2_is_always_secured_and_lives_300_seconds(api: Api) -> None:
    made = await api.create()
    detail = await api.detail(made)
    assert made == {
        "templateID": detail["templateID"],
        "sandboxID": made["sandboxID"],
        "clientID": CLIENT_ID,
        "envdVersion": detail["envdVersion"],
        "alias": "base",
        "envdAccessToken": made["envdAccessToken"],
        "trafficAccessToken": None,
        "domain": DOMAIN,
    }
    assert len(made["envdAccessToken"]) >= 32
    assert "-" not in made["sandboxID"]
    assert seconds(detail) == 300


@pytest.mark.parametrize(("secure", "has_token"), [(None, False), (False, False), (True, True)])
async def test_version_1_is_secured_on_request_and_lives_15_seconds(
    api: Api, secure: bool | None, has_token: bool
) -> None:
    body = {"templateID": "base"} | ({} if secure is None else {"secure": secure})
    made = await api.post("/sandboxes", body, status=201)
    assert ("envdAccessToken" in made) == has_token
    assert seconds(await api.detail(made)) == 15


async def test_details_of_a_sandbox(api: Api) -> None:
    made = await api.create(
        timeout=60,
        autoPause=True,
        autoResume={"enabled": True},
        allow_internet_access=False,
        metadata={"a": "b"},
        network={
            "allowOut": ["1.1.1.1"],
            "denyOut": ["8.8.8.0/24"],
            "allowPublicTraffic": False,
            "maskRequestHost": "app.example:${PORT}",
        },
    )
    detail = await api.detail(made)
    started = detail.pop("startedAt")
    assert detail.pop("endAt") > started
    assert detail == {
        "templateID": made["templateID"],
        "sandboxID": made["sandboxID"],
        "clientID": CLIENT_ID,
        "cpuCount": 2,
        "memoryMB": 512,
        "diskSizeMB": 1024,
        "state": "running",
        "envdVersion": made["envdVersion"],
        "alias": "base",
        "metadata": {"a": "b"},
        "envdAccessToken": made["envdAccessToken"],
        "allowInternetAccess": False,
        "domain": DOMAIN,
        "network": {
            "allowPublicTraffic": False,
            "allowOut": ["1.1.1.1"],
            "denyOut": ["8.8.8.0/24"],
            "maskRequestHost": "app.example:${PORT}",
        },
        "lifecycle": {"autoResume": True, "onTimeout": "pause"},
    }
    assert made["trafficAccessToken"]


async def test_what_was_not_asked_for_is_null_or_left_out(api: Api) -> None:
    detail = await api.detail(await api.create())
    assert detail["allowInternetAccess"] is None
    assert detail["lifecycle"] == {"autoResume": False, "onTimeout": "kill"}
    assert not {"network", "pauseMode", "unhealthyReason"} & set(detail)


async def test_a_read_only_key_does_not_see_the_daemons_token(api: Api) -> None:
    made = await api.create()
    detail = await api.get(f"/sandboxes/{made['sandboxID']}", key=READ_ONLY)
    assert "envdAccessToken" not in detail


@pytest.mark.parametrize("template", ["nothing", "base:v9", "NOT A NAME", "other/base/x", "'; --", "x" * 400])
async def test_unknown_templates_are_404(api: Api, template: str) -> None:
    error = await api.post("/v2/sandboxes", {"templateID": template}, status=404)
    assert error["error_code"] == "template_not_found"


@pytest.mark.parametrize("reference", ["base", "BASE", " base ", "base:default", "team/base"])
async def test_forms_of_a_template_name(api: Api, reference: str) -> None:
    assert (await api.create(templateID=reference))["alias"] == "base"


async def test_a_template_by_its_id(api: Api) -> None:
    template_id = (await api.create())["templateID"]
    assert (await api.create(templateID=template_id))["templateID"] == template_id


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"timeout": 0}, "timeout"),
        ({"timeout": 365 * 24 * 3600}, "timeout"),
        ({"autoPauseMemory": False}, "autoPauseMemory"),
        ({"autoPause": True, "autoPauseMemory": False, "autoResume": {"enabled": True}}, "autoPauseMemory"),
        ({"network": {"allowOut": ["example.com"]}}, "network.allowOut[0]"),
        ({"network": {"allowOut": ["1.1.1.1", "*.example.com"]}}, "network.allowOut[1]"),
        ({"network": {"denyOut": ["::/0"]}}, "network.denyOut[0]"),
        ({"network": {"denyOut": ["1.1.1.1/99"]}}, "network.denyOut[0]"),
        ({"network": {"rules": {"a.com": [{}]}}}, "network.rules"),
        ({"network": {"maskRequestHost": "a b"}}, "network.maskRequestHost"),
        ({"envVars": {"": "x"}}, "envVars"),
        ({"metadata": {"a": "\0"}}, "metadata"),
        ({"volumeMounts": [{"name": "v", "path": "/v"}]}, "volumeMounts"),
    ],
)
async def test_requests_that_make_no_sense_are_400_and_start_nothing(
    api: Api, body: dict[str, Any], field: str
) -> None:
    error = await api.post("/v2/sandboxes", {"templateID": "base", **body}, status=400)
    assert error["message"].startswith(field)
    assert await api.get("/v2/sandboxes") == []


async def test_private_traffic_needs_a_secured_sandbox(api: Api) -> None:
    body = {"templateID": "base", "network": {"allowPublicTraffic": False}}
    error = await api.post("/sandboxes", body, status=400)
    assert "network.allowPublicTraffic" in error["message"]


async def test_an_idempotency_key_makes_one_sandbox(api: Api) -> None:
    headers = {"Idempotency-Key": "abc-1"}
    body = {"templateID": "base", "metadata": {"a": "b"}}
    first = await api.post("/v2/sandboxes", body, status=201, headers=headers)
    assert await api.post("/v2/sandboxes", body, status=201, headers=headers) == first
    other = {**body, "metadata": {"a": "c"}}
    error = await api.post("/v2/sandboxes", other, status=422, headers=headers)
    assert error["error_code"] == "idempotency_request_mismatch"
    strangers = await api.post("/v2/sandboxes", body, status=201, headers=headers, key=STRANGER)
    assert strangers["sandboxID"] != first["sandboxID"]


class TestLimits:
    @pytest.fixture
    def server_options(self) -> dict[str, Any]:
        return {"team": Limits(sandboxes=1)}

    async def test_a_reached_limit_is_429_that_is_not_tried_again(self, api: Api) -> None:
        await api.create()
        response = await api.request("POST", "/v2/sandboxes", {"templateID": "base"}, status=429)
        assert response.json()["error_code"] == "sandbox_limit"
        assert int(response.headers["retry-after"]) >= 1
        assert response.headers["should-retry"] == "false"


class TestRates:
    @pytest.fixture
    def server_options(self) -> dict[str, Any]:
        return {"team": Limits(creates_per_second=1)}

    async def test_too_many_creates_a_second_are_429_that_may_be_tried_again(self, api: Api) -> None:
        await api.create()
        response = await api.request("POST", "/v2/sandboxes", {"templateID": "base"}, status=429)
        assert response.headers["retry-after"] == "1"
        assert "should-retry" not in response.headers


class TestFullDisk:
    @pytest.fixture
    def server_options(self) -> dict[str, Any]:
        return {"min_free_disk": 1 << 60}

    async def test_a_full_host_disk_is_507(self, api: Api) -> None:
        error = await api.post("/v2/sandboxes", {"templateID": "base"}, status=507)
        assert error["error_code"] == "disk_full"


async def test_a_failing_driver_is_a_500_without_details(api: Api) -> None:
    api.host.faults.add(fail("driver.restore", RuntimeError("cannot open /var/lib/secret")))
    error = await api.post("/v2/sandboxes", {"templateID": "base"}, status=500)
    assert "/var" not in error["message"]
    assert "request" in error["message"]


# -- look and end ------------------------------------------------------------------------------------


async def test_an_id_with_a_client_behind_it(api: Api) -> None:
    made = await api.create()
    detail = await api.get(f"/sandboxes/{made['sandboxID']}-6532622b")
    assert detail["sandboxID"] == made["sandboxID"]


async def test_a_killed_sandbox_is_gone(api: Api) -> None:
    made = await api.create()
    path = f"/sandboxes/{made['sandboxID']}"
    await api.request("DELETE", path, status=204)
    for method in ("DELETE", "GET"):
        error = (await api.request(method, path, status=404)).json()
        assert (
            error["message"]
            == f"Sandbox \"{made['sandboxID']}\" doesn't exist or you don't have access to it"
        )
    assert await api.get("/v2/sandboxes") == []


async def test_a_paused_sandbox_can_be_killed(api: Api) -> None:
    made = await api.create()
    await api.pause(made)
    await api.request("DELETE", f"/sandboxes/{made['sandboxID']}", status=204)


_ROUTES: list[tuple[str, str, Any]] = [
    ("GET", "/sandboxes/{id}", None),
    ("DELETE", "/sandboxes/{id}", None),
    ("POST", "/v2/sandboxes/{id}/connect", {}),
    ("POST", "/sandboxes/{id}/connect", {"timeout": 10}),
    ("POST", "/sandboxes/{id}/pause", {}),
    ("POST", "/sandboxes/{id}/resume", {}),
    ("POST", "/sandboxes/{id}/resume", {"autoPause": True}),
    ("POST", "/sandboxes/{id}/timeout", {"timeout": 10}),
    ("POST", "/sandboxes/{id}/refreshes", {}),
    ("PUT", "/sandboxes/{id}/network", {}),
    ("POST", "/sandboxes/{id}/fork", {}),
    ("POST", "/sandboxes/{id}/snapshots", {}),
    ("GET", "/sandboxes/{id}/metrics", None),
    ("GET", "/sandboxes/{id}/logs", None),
    ("GET", "/v2/sandboxes/{id}/logs", None),
]


@pytest.mark.parametrize(("method", "path", "body"), _ROUTES)
async def test_another_teams_sandbox_is_404_and_untouched(
    api: Api, method: str, path: str, body: Any
) -> None:
    made = await api.create()
    before = await api.detail(made)
    await api.request(method, path.format(id=made["sandboxID"]), body, status=404, key=STRANGER)
    assert await api.detail(made) == before


@pytest.mark.parametrize(("method", "path", "body"), _ROUTES)
async def test_an_unknown_sandbox_is_404(api: Api, method: str, path: str, body: Any) -> None:
    await api.request(method, path.format(id="i" + "0" * 19), body, status=404)


async def test_another_team_lists_nothing_of_this_one(api: Api) -> None:
    made = await api.create(metadata={"a": "b"})
    for path in ("/v2/sandboxes", "/sandboxes", "/v2/sandboxes?metadata=a%3Db", "/snapshots"):
        assert await api.get(path, key=STRANGER) == []
    metrics = await api.get(f"/sandboxes/metrics?sandbox_ids={made['sandboxID']}", key=STRANGER)
    assert metrics == {"sandboxes": {}}
