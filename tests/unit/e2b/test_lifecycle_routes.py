"""Pause, resume, connect, times to live, network, forks: over HTTP on a real core with a fake host."""

import asyncio
from datetime import datetime, timedelta
from typing import Any

import pytest

from forkyard.testing.faults import fail, hold
from tests.unit.e2b.conftest import Api


def path_of(sandbox: dict[str, Any], rest: str = "") -> str:
    return f"/sandboxes/{sandbox['sandboxID']}{rest}"


async def left(api: Api, sandbox: dict[str, Any]) -> float:
    """Seconds that it has to live."""
    end = datetime.fromisoformat((await api.detail(sandbox))["endAt"])
    return (end - api.clock.now()).total_seconds()


async def test_pause_and_connect(api: Api) -> None:
    made = await api.create(timeout=60)
    await api.pause(made)
    detail = await api.detail(made)
    assert (detail["state"], detail["pauseMode"]) == ("paused", "full")

    resumed = await api.post(f"/v2{path_of(made)}/connect", {}, status=201)
    assert resumed == made, "same id, same tokens: old handles go on working"
    assert await left(api, made) == 300
    detail = await api.detail(made)
    assert detail["state"] == "running"
    assert "pauseMode" not in detail


async def test_pausing_twice_is_409_with_the_code_in_the_body(api: Api) -> None:
    made = await api.create()
    await api.pause(made)
    error = await api.post(path_of(made, "/pause"), status=409)
    assert (error["code"], error["error_code"]) == (409, "already_paused")


async def test_pause_without_memory(api: Api) -> None:
    made = await api.create()
    await api.pause(made, memory=False)
    assert (await api.detail(made))["pauseMode"] == "filesystem"
    await api.post(f"/v2{path_of(made)}/connect", status=201)


async def test_a_deaf_daemon_refuses_only_a_pause_that_asks_for_its_health(api: Api) -> None:
    made = await api.create()
    api.host.machine(made["sandboxID"]).silent = True
    error = await api.post(path_of(made, "/pause"), {"requireHealthyGuest": True}, status=503)
    assert error["error_code"] == "guest_unresponsive"
    assert (await api.detail(made))["state"] == "running"
    await api.pause(made)


async def test_two_pauses_at_once_both_succeed(api: Api) -> None:
    made = await api.create()
    gate = api.host.faults.add(hold("driver.checkpoint"))
    pauses = [asyncio.create_task(api.pause(made)) for _ in range(2)]
    await asyncio.wait_for(gate.reached.wait(), 5)
    gate.release()
    await asyncio.gather(*pauses)


@pytest.mark.parametrize("version", ["", "/v2"])
async def test_connect_extends_and_never_shortens(api: Api, version: str) -> None:
    made = await api.create(timeout=100)
    for timeout, expected in ((10, 100), (600, 600), (599, 600)):
        again = await api.post(f"{version}{path_of(made)}/connect", {"timeout": timeout}, status=200)
        assert again == made
        assert await left(api, made) == expected


async def test_connect_of_version_1_needs_a_timeout(api: Api) -> None:
    made = await api.create()
    error = await api.post(path_of(made, "/connect"), {}, status=400)
    assert error["message"].startswith("timeout")


@pytest.mark.parametrize("timeout", [0, -1, 10**8, 2**40])
async def test_connect_with_a_timeout_out_of_range(api: Api, timeout: int) -> None:
    made = await api.create()
    error = await api.post(f"/v2{path_of(made)}/connect", {"timeout": timeout}, status=400)
    assert error["message"].startswith("timeout")


async def test_connect_can_reboot(api: Api) -> None:
    made = await api.create()
    boot = api.host.machine(made["sandboxID"]).identity
    await api.pause(made)
    await api.post(f"/v2{path_of(made)}/connect", {"memory": False}, status=201)
    rebooted = api.host.machine(made["sandboxID"]).identity
    assert boot is not None
    assert rebooted is not None
    assert rebooted.boot_id != boot.boot_id


async def test_resume(api: Api) -> None:
    made = await api.create()
    error = await api.post(path_of(made, "/resume"), {}, status=409)
    assert error["error_code"] == "already_running"
    await api.pause(made)
    assert await api.post(path_of(made, "/resume"), status=201) == made
    assert await left(api, made) == 15


async def test_resume_does_not_change_what_happens_at_the_end(api: Api) -> None:
    made = await api.create(autoPause=True)
    await api.pause(made)
    error = await api.post(path_of(made, "/resume"), {"autoPause": False}, status=400)
    assert error["message"].startswith("autoPause")
    await api.post(path_of(made, "/resume"), {"autoPause": True}, status=201)


async def test_a_resume_that_fails_says_that_it_stays_paused(api: Api) -> None:
    made = await api.create()
    await api.pause(made)
    api.host.faults.add(fail("driver.restore", RuntimeError("no /dev/secret")))
    error = await api.post(path_of(made, "/resume"), status=500)
    assert "stays paused" in error["message"]
    assert "/dev" not in error["message"]
    assert (await api.detail(made))["state"] == "paused"


async def test_timeouts_move_the_end_both_ways(api: Api) -> None:
    made = await api.create(timeout=100)
    for timeout in (200, 5, 60):
        await api.post(path_of(made, "/timeout"), {"timeout": timeout}, status=204)
        assert await left(api, made) == timeout


async def test_a_timeout_of_0_expires_now(api: Api) -> None:
    made = await api.create(autoPause=True)
    await api.post(path_of(made, "/timeout"), {"timeout": 0}, status=204)
    assert await left(api, made) == 0


@pytest.mark.parametrize("body", [{}, {"timeout": -1}, {"timeout": "5"}, {"timeout": 10**9}, None])
async def test_wrong_timeouts(api: Api, body: Any) -> None:
    made = await api.create()
    error = await api.post(path_of(made, "/timeout"), body, status=400)
    assert error["message"].startswith("timeout" if body is not None else "body")


async def test_a_timeout_of_a_paused_sandbox_is_409(api: Api) -> None:
    made = await api.create()
    await api.pause(made)
    await api.post(path_of(made, "/timeout"), {"timeout": 10}, status=409)


async def test_refreshes_only_extend_and_by_15_seconds_at_least(api: Api) -> None:
    made = await api.create(timeout=20)
    for body, expected in (({"duration": 5}, 20), ({"duration": 3600}, 3600), (None, 3600)):
        await api.post(path_of(made, "/refreshes"), body, status=204)
        assert await left(api, made) == expected
    for duration in (-1, 3601):
        await api.post(path_of(made, "/refreshes"), {"duration": duration}, status=400)


# -- network -----------------------------------------------------------------------------------------


async def test_an_update_replaces_all_rules(api: Api) -> None:
    made = await api.create(network={"denyOut": ["0.0.0.0/0"], "allowOut": ["1.1.1.1"]})
    body = {"denyOut": ["8.8.8.8"], "allow_internet_access": False}
    await api.request("PUT", path_of(made, "/network"), body, status=204)
    detail = await api.detail(made)
    assert detail["network"] == {"allowPublicTraffic": True, "denyOut": ["8.8.8.8"]}
    assert detail["allowInternetAccess"] is False
    egress = api.host.machine(made["sandboxID"]).egress
    assert [str(network) for network in egress.deny] == ["8.8.8.8/32"]
    assert egress.allow == ()

    await api.request("PUT", path_of(made, "/network"), {}, status=204)
    detail = await api.detail(made)
    assert "network" not in detail
    assert detail["allowInternetAccess"] is None


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"rules": {"a.com": [{"transform": {"headers": {"A": "b"}}}]}}, "rules"),
        ({"egressProxy": {"address": "a:1"}}, "egressProxy"),
        ({"dnsServers": ["1.1.1.1"]}, "dnsServers"),
        ({"allowOut": ["example.com"]}, "network.allowOut[0]"),
        ({"denyOut": ["x"]}, "network.denyOut[0]"),
        ({"allowOut": [7]}, "allowOut.0"),
    ],
)
async def test_updates_that_are_not_supported_change_nothing(api: Api, body: Any, field: str) -> None:
    made = await api.create(network={"denyOut": ["9.9.9.9"]})
    error = (await api.request("PUT", path_of(made, "/network"), body, status=400)).json()
    assert error["message"].startswith(field)
    assert (await api.detail(made))["network"]["denyOut"] == ["9.9.9.9"]


async def test_the_network_of_a_paused_sandbox_is_409(api: Api) -> None:
    made = await api.create()
    await api.pause(made)
    await api.request("PUT", path_of(made, "/network"), {}, status=409)


# -- forks -------------------------------------------------------------------------------------------


async def test_a_fork_makes_one_child_of_15_seconds(api: Api) -> None:
    made = await api.create(metadata={"a": "b"})
    (result,) = await api.post(path_of(made, "/fork"), status=201)
    child = result["sandbox"]
    assert set(result) == {"sandbox"}
    assert child["sandboxID"] != made["sandboxID"]
    assert child["envdAccessToken"] != made["envdAccessToken"]
    assert child["templateID"] == made["templateID"]
    assert child["domain"] == made["domain"]
    detail = await api.detail(child)
    assert detail["metadata"] == {"a": "b"}
    assert datetime.fromisoformat(detail["endAt"]) - api.clock.now() == timedelta(seconds=15)
    assert await left(api, made) == 300


async def test_many_children(api: Api) -> None:
    made = await api.create()
    results = await api.post(path_of(made, "/fork"), {"count": 5, "timeout": 77}, status=201)
    ids = {result["sandbox"]["sandboxID"] for result in results}
    assert len(ids) == 5
    assert await left(api, results[0]["sandbox"]) == 77


async def test_each_child_fails_by_itself(api: Api) -> None:
    made = await api.create()
    api.host.faults.add(fail("driver.restore", RuntimeError("/secret"), nth=2))
    results = await api.post(path_of(made, "/fork"), {"count": 3}, status=201)
    failed = [result["error"] for result in results if "error" in result]
    assert sum("sandbox" in result for result in results) == 2
    (error,) = failed
    assert error["code"] == 500
    assert "/secret" not in error["message"]


@pytest.mark.parametrize("body", [{"count": 0}, {"count": 101}, {"count": "2"}, {"timeout": 0}])
async def test_forks_that_make_no_sense(api: Api, body: Any) -> None:
    made = await api.create()
    error = await api.post(path_of(made, "/fork"), body, status=400)
    assert error["message"].startswith(next(iter(body)))
    assert len(await api.get("/v2/sandboxes")) == 1


async def test_a_paused_sandbox_is_not_forked(api: Api) -> None:
    made = await api.create()
    await api.pause(made)
    await api.post(path_of(made, "/fork"), status=409)
