"""Metrics and logs over HTTP."""

import json
from datetime import datetime
from typing import Any

from tests.unit.e2b.conftest import Api


async def sampled(api: Api, *seconds: float) -> tuple[dict[str, Any], list[int]]:
    """A sandbox with a sample after each of these waits, and the samples' times."""
    made = await api.create(timeout=3600)
    times: list[int] = []
    for wait in seconds:
        await api.clock.advance(wait)
        await api.server.samples.sample()
        times.append(int(api.clock.now().timestamp()))
    return made, times


async def test_samples(api: Api) -> None:
    made, times = await sampled(api, 5, 5)
    path = f"/sandboxes/{made['sandboxID']}/metrics"
    first, second = await api.get(path)
    assert [first["timestampUnix"], second["timestampUnix"]] == times
    assert datetime.fromisoformat(first["timestamp"]).timestamp() == times[0]
    assert set(first) == {
        "timestamp",
        "timestampUnix",
        "cpuCount",
        "cpuUsedPct",
        "memUsed",
        "memTotal",
        "memCache",
        "diskUsed",
        "diskTotal",
    }
    assert first["cpuCount"] == 2
    assert first["memTotal"] == 512 << 20
    assert first["diskTotal"] == 1024 << 20


async def test_samples_of_a_time(api: Api) -> None:
    made, (first, second, third) = await sampled(api, 5, 5, 5)

    async def between(**query: int) -> list[int]:
        samples = await api.get(f"/sandboxes/{made['sandboxID']}/metrics", params=query)
        return [sample["timestampUnix"] for sample in samples]

    assert await between(start=second) == [second, third]
    assert await between(end=second) == [first, second]
    assert await between(start=second, end=second) == [second]
    assert await between(start=third + 1) == []
    assert await between(start=first - 3600, end=first - 1800) == []
    assert await between(start=0, end=2**40) == [first, second, third]


async def test_the_newest_sample_of_several(api: Api) -> None:
    made, (_, newest) = await sampled(api, 5, 5)
    unsampled = await api.create()
    query = f"{made['sandboxID']},{unsampled['sandboxID']},i{'0' * 19}"
    for encoded in (f"sandbox_ids={query}", f"sandbox_ids={made['sandboxID']}&sandbox_ids=i{'0' * 19}"):
        sandboxes = (await api.get(f"/sandboxes/metrics?{encoded}"))["sandboxes"]
        assert list(sandboxes) == [made["sandboxID"]]
        assert sandboxes[made["sandboxID"]]["timestampUnix"] == newest


async def test_logs_of_both_versions(api: Api) -> None:
    made = await api.create()
    await api.clock.advance(10)
    await api.pause(made, memory=False)
    v1 = await api.get(f"/sandboxes/{made['sandboxID']}/logs")
    messages = [entry["message"] for entry in v1["logEntries"]]
    assert messages == ["created", "paused"]
    assert [json.loads(log["line"])["message"] for log in v1["logs"]] == messages
    assert v1["logs"][0]["timestamp"] == v1["logEntries"][0]["timestamp"]
    assert v1["logEntries"][1]["fields"]["memory"] == "False"

    v2 = await api.get(f"/v2/sandboxes/{made['sandboxID']}/logs")
    assert v2["logs"] == v1["logEntries"][::-1]
    forward = await api.get(f"/v2/sandboxes/{made['sandboxID']}/logs?direction=forward&limit=1")
    assert forward["logs"] == v1["logEntries"][:1]

    after = int(datetime.fromisoformat(v1["logs"][0]["timestamp"]).timestamp() * 1000) + 1
    later = await api.get(f"/sandboxes/{made['sandboxID']}/logs?start={after}")
    assert later["logEntries"] == v1["logEntries"][1:]


async def test_logs_outlive_the_sandbox(api: Api) -> None:
    made = await api.create()
    await api.request("DELETE", f"/sandboxes/{made['sandboxID']}", status=204)
    await api.server.quiet()
    logs = await api.get(f"/v2/sandboxes/{made['sandboxID']}/logs?search=killed")
    assert len(logs["logs"]) == 1
    assert (await api.get(f"/v2/sandboxes/{made['sandboxID']}/logs?level=error"))["logs"] == []
