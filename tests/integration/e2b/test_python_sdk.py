"""The published Python SDK against the control plane. What goes on inside sandboxes is for the end-to-end tests."""

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from e2b import Sandbox, SandboxQuery, SandboxState, Template
from e2b.exceptions import (
    AuthenticationException,
    NotFoundException,
    SandboxException,
    SandboxNotFoundException,
)

from tests.integration.e2b.conftest import LiveApi


@pytest.fixture
def options(live_api: LiveApi) -> dict[str, Any]:
    return {"api_key": live_api.key, "api_url": live_api.url, "sandbox_url": live_api.url}


@pytest.fixture
def new(options: dict[str, Any]) -> Callable[..., Sandbox]:
    def create(template: str = "base", **more: Any) -> Sandbox:
        return Sandbox.create(template, **options, **more)

    return create


def wait_until(condition: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        threading.Event().wait(0.05)


def test_create_look_and_kill(new: Callable[..., Sandbox], options: dict[str, Any]) -> None:
    metadata = {"purpose": f"ä & b = {uuid4()}"}
    sandbox = new(timeout=60, metadata=metadata, envs={"A": "b"})
    info = sandbox.get_info()
    assert info.sandbox_id == sandbox.sandbox_id
    assert info.name == "base"
    assert info.metadata == metadata
    assert info.state == SandboxState.RUNNING
    assert info.end_at - info.started_at == timedelta(seconds=60)
    assert sandbox.traffic_access_token is None

    found = Sandbox.list(SandboxQuery(metadata=metadata), **options).next_items()
    assert [item.sandbox_id for item in found] == [sandbox.sandbox_id]

    assert sandbox.kill() is True
    assert sandbox.kill() is False
    with pytest.raises(NotFoundException):
        Sandbox.get_info(sandbox.sandbox_id, **options)


def test_pause_and_connect(new: Callable[..., Sandbox], options: dict[str, Any]) -> None:
    sandbox = new()
    assert sandbox.pause() is not False
    assert sandbox.get_info().state == SandboxState.PAUSED
    assert Sandbox.pause(sandbox.sandbox_id, **options) is False
    again = Sandbox.connect(sandbox.sandbox_id, timeout=500, **options)
    assert again.sandbox_id == sandbox.sandbox_id
    assert again._envd_access_token == sandbox._envd_access_token
    assert sandbox.get_info().state == SandboxState.RUNNING
    sandbox.kill()


def test_pages_and_filters(new: Callable[..., Sandbox], options: dict[str, Any]) -> None:
    metadata = {"test": str(uuid4())}
    first, second = new(metadata=metadata), new(metadata=metadata)
    second.pause()
    pages = Sandbox.list(SandboxQuery(metadata=metadata), limit=1, **options)
    found = pages.next_items()
    assert pages.has_next
    found += pages.next_items()
    assert not pages.has_next
    assert [item.sandbox_id for item in found] == [second.sandbox_id, first.sandbox_id]

    def listed(order: str | None = None, **query: Any) -> list[str]:
        paginator = Sandbox.list(SandboxQuery(metadata=metadata, **query), order=order, **options)  # type: ignore[arg-type]
        return [item.sandbox_id for item in paginator.next_items()]

    assert listed(order="asc") == [first.sandbox_id, second.sandbox_id]
    assert listed(state=[SandboxState.RUNNING]) == [first.sandbox_id]
    assert listed(state=[SandboxState.RUNNING, SandboxState.PAUSED]) == [second.sandbox_id, first.sandbox_id]
    started = second.get_info().started_at
    assert listed(started_after=started) == [second.sandbox_id]
    assert listed(template=first.get_info().template_id) == [second.sandbox_id, first.sandbox_id]
    assert listed(template="unknown-template") == []
    first.kill()
    second.kill()


def test_timeouts(new: Callable[..., Sandbox]) -> None:
    sandbox = new(timeout=300, lifecycle={"on_timeout": "pause", "auto_resume": False})
    sandbox.set_timeout(100)
    left = sandbox.get_info().end_at - datetime.now(UTC)
    assert timedelta(seconds=90) < left <= timedelta(seconds=100)
    sandbox.set_timeout(0)
    wait_until(lambda: sandbox.get_info().state == SandboxState.PAUSED)
    info = sandbox.get_info()
    assert info.lifecycle is not None
    assert info.lifecycle["on_timeout"] == "pause"
    sandbox.kill()


def test_network(new: Callable[..., Sandbox]) -> None:
    sandbox = new(
        network={"deny_out": ["8.8.8.8"], "allow_public_traffic": False}, allow_internet_access=True
    )
    assert sandbox.traffic_access_token
    sandbox.update_network({"deny_out": ["0.0.0.0/0"], "allow_out": ["1.1.1.1"]})
    sandbox.update_network({})
    with pytest.raises(SandboxException, match="rules is not supported"):
        sandbox.update_network({"rules": {"a.com": [{"transform": {"headers": {"A": "b"}}}]}})
    with pytest.raises(SandboxException, match="domain name"):
        new(network={"allow_out": ["example.com"]})
    sandbox.kill()


def test_forks(new: Callable[..., Sandbox]) -> None:
    sandbox = new()
    forks = [fork for fork in sandbox.fork(count=2, timeout=60) if isinstance(fork, Sandbox)]
    assert len({sandbox.sandbox_id, *(fork.sandbox_id for fork in forks)}) == 3
    for fork in forks:
        fork.kill()
    sandbox.kill()
    with pytest.raises(SandboxNotFoundException):
        sandbox.fork()


@pytest.mark.parametrize("name", [None, "snap", "snap:v1", "team/snap"])
def test_snapshots(new: Callable[..., Sandbox], options: dict[str, Any], name: str | None) -> None:
    unique = name and name.replace("snap", f"snap-{uuid4().hex}")
    sandbox = new()
    snapshot = sandbox.create_snapshot(name=unique) if unique else sandbox.create_snapshot()
    if unique:
        assert any(item in unique for item in snapshot.names)
    listed = Sandbox.list_snapshots(sandbox_id=sandbox.sandbox_id, **options).next_items()
    assert [item.snapshot_id for item in listed] == [snapshot.snapshot_id]
    if unique:
        named = Sandbox.list_snapshots(name=unique, **options).next_items()
        assert [item.snapshot_id for item in named] == [snapshot.snapshot_id]
    sandbox.kill()
    new(snapshot.snapshot_id).kill()
    assert Sandbox.delete_snapshot(snapshot.snapshot_id, **options) is True
    assert Sandbox.delete_snapshot(snapshot.snapshot_id, **options) is False


def test_metrics(new: Callable[..., Sandbox]) -> None:
    sandbox = new()
    wait_until(lambda: len(sandbox.get_metrics()) > 0)
    (first, *_) = sandbox.get_metrics()
    assert first.mem_total > 0
    long_ago = datetime.now(UTC) - timedelta(hours=1)
    assert sandbox.get_metrics(start=long_ago, end=long_ago + timedelta(minutes=1)) == []
    sandbox.kill()


def test_templates(options: dict[str, Any]) -> None:
    options = {name: value for name, value in options.items() if name != "sandbox_url"}
    assert Template.exists("base", **options) is True
    assert Template.exists(f"nothing-{uuid4().hex}", **options) is False


def test_an_idempotency_key_makes_one_sandbox(new: Callable[..., Sandbox]) -> None:
    key = uuid4().hex
    first = new(idempotency_key=key)
    assert new(idempotency_key=key).sandbox_id == first.sandbox_id
    first.kill()


def test_errors_become_the_right_exceptions(new: Callable[..., Sandbox], live_api: LiveApi) -> None:
    with pytest.raises(SandboxException, match="doesn't exist"):
        new("unknown-template")
    with pytest.raises(SandboxException, match="timeout"):
        new(timeout=10**8)
    wrong = {"api_key": "e2b_" + "0" * 40, "api_url": live_api.url}
    with pytest.raises(AuthenticationException):
        Sandbox.create("base", **wrong)
    sandbox = new()
    others = {"api_key": live_api.other_key, "api_url": live_api.url}
    with pytest.raises(NotFoundException):
        Sandbox.get_info(sandbox.sandbox_id, **others)
    assert Sandbox.kill(sandbox.sandbox_id, **others) is False
    sandbox.kill()
