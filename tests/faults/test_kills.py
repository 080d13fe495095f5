"""kill -9 of edge, keeper, sandbox, daemon, server, or all of them, while they work."""

from __future__ import annotations

import http.client
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import pytest
from e2b import NotFoundException, Sandbox, SandboxException

from forkyard.sandboxes.state import State
from tests.e2e.server import ServerProcess
from tests.e2e.waiting import until
from tests.faults.inspection import (
    check_agreement,
    command_line,
    instance_of,
    pid_of_program,
    process_of_sandbox,
    processes,
    records,
)
from tests.faults.traffic import Traffic
from tests.faults.witness import Witness, call, sdk


@pytest.fixture
def witness(server: ServerProcess) -> Witness:
    if not server.alive():
        server.start()
    return Witness.create(server)


def kill_and_wait(pid: int) -> None:
    handle = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        until(lambda: command_line(pid) == "" or None, f"process {pid} is gone")
    finally:
        os.close(handle)


def in_journal(server: ServerProcess, sandbox_id: str, text: str) -> bool:
    answer = call(server, "GET", f"/v2/sandboxes/{sandbox_id}/logs")
    return answer.status == 200 and text in str(answer.body)


@pytest.mark.quick
def test_after_a_kill_of_the_edge_requests_work_within_a_second_and_commands_live_on(
    server: ServerProcess, witness: Witness
) -> None:
    for _ in range(3):
        killed = pid_of_program(server.data_dir, "edge")
        os.kill(killed, signal.SIGKILL)
        began = time.monotonic()
        until(
            lambda: _healthy(server, witness) or None, "the data plane answers", timeout_s=5, interval_s=0.01
        )
        took = time.monotonic() - began
        assert took < 1.0, f"the data plane was away for {took:.2f} s"
        assert pid_of_program(server.data_dir, "edge") != killed
        witness.check()
    witness.kill()


@pytest.mark.quick
def test_after_a_kill_of_the_keeper_sandboxes_live_and_the_next_one_adopts_them(
    server: ServerProcess, witness: Witness
) -> None:
    for _ in range(2):
        killed = pid_of_program(server.data_dir, "keeper")
        with Traffic(server, witness.sandbox) as traffic:
            kill_and_wait(killed)
            until(partial(_other_keeper, server, killed), "another keeper runs")
        traffic.check()
        witness.check()
        witness.pause()
        witness.check()
    # The next keeper notices deaths too.
    os.kill(process_of_sandbox(server.data_dir, witness.id), signal.SIGKILL)
    until(lambda: _gone(server, witness.id), "its death is noticed", timeout_s=5)
    check_agreement(server.data_dir)


def _other_keeper(server: ServerProcess, before: int) -> int | None:
    with suppress(ValueError):
        pid = pid_of_program(server.data_dir, "keeper")
        return pid if pid != before else None
    return None


def _healthy(server: ServerProcess, witness: Witness) -> bool:
    headers = {"E2b-Sandbox-Id": witness.id, "E2b-Sandbox-Port": "49983"}
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=1)
    try:
        connection.request("GET", "/health", headers=headers)
        return connection.getresponse().status == 204
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _gone(server: ServerProcess, sandbox_id: str) -> bool | None:
    return call(server, "GET", f"/sandboxes/{sandbox_id}").status == 404 or None


@pytest.mark.quick
@pytest.mark.parametrize("how", ["the sandbox process", "pid 1 inside"])
def test_a_death_is_seen_within_a_second_with_its_reason(
    server: ServerProcess, witness: Witness, how: str
) -> None:
    stream = witness.sandbox.commands.run("sleep 1000", background=True)
    other = Witness.create(server)
    if how == "pid 1 inside":
        with suppress(Exception):
            witness.sandbox.commands.run("kill -9 1", user="root", timeout=5)
    else:
        os.kill(process_of_sandbox(server.data_dir, witness.id), signal.SIGKILL)
    began = time.monotonic()
    until(lambda: _gone(server, witness.id), "its death is noticed", timeout_s=10, interval_s=0.01)
    took = time.monotonic() - began
    assert took < 1.0, f"noticed after {took:.2f} s"
    with pytest.raises(Exception):  # noqa: B017, PT011 - the SDK has several
        stream.wait()
    row = next(r for r in records(server.data_dir).sandboxes if r.id == witness.id)
    assert row.state is State.GONE
    assert row.end_reason is not None
    assert "its machine died" in row.end_reason
    assert in_journal(server, witness.id, "its machine died")
    with pytest.raises(NotFoundException):
        Sandbox.connect(witness.id, **sdk(server))
    other.check()
    other.kill()
    check_agreement(server.data_dir)


@pytest.mark.quick
def test_a_daemon_that_hangs_is_noticed_within_ten_seconds(server: ServerProcess, witness: Witness) -> None:
    """The whole sandbox process stands still, which is how a hung daemon looks from outside."""
    pid = process_of_sandbox(server.data_dir, witness.id)
    os.kill(pid, signal.SIGSTOP)
    began = time.monotonic()
    try:
        reason = until(lambda: _unhealthy(server, witness.id), "it is noticed", timeout_s=20, interval_s=0.1)
        assert time.monotonic() - began < 10.0
        assert reason
        assert in_journal(server, witness.id, "unhealthy")
    finally:
        os.kill(pid, signal.SIGCONT)
    until(
        lambda: _unhealthy(server, witness.id) is None or None,
        "it is well again",
        timeout_s=20,
        interval_s=0.1,
    )
    witness.check()
    witness.kill()


def _unhealthy(server: ServerProcess, sandbox_id: str) -> str | None:
    return next(r for r in records(server.data_dir).sandboxes if r.id == sandbox_id).unhealthy_reason


@pytest.mark.quick
def test_no_data_plane_request_fails_while_the_server_is_restarted(
    server: ServerProcess, witness: Witness
) -> None:
    with Traffic(server, witness.sandbox, clients=4) as traffic:
        for how in (server.kill, server.stop):
            traffic.wait_for(20)
            how()
            traffic.wait_for(20)
            server.start()
        traffic.wait_for(20)
    traffic.check()
    witness.check()
    witness.kill()


@pytest.mark.slow
def test_two_servers_on_one_host_one_killed_with_all_that_is_its(
    server: ServerProcess, witness: Witness, make_server: Callable[..., ServerProcess]
) -> None:
    other = make_server()
    other.start()
    doomed = Witness.create(other)
    with Traffic(server, witness.sandbox) as traffic:
        other.kill()
        for pid in processes(instance_of(other.data_dir)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        other.start()
        check_agreement(other.data_dir)
        assert records(other.data_dir).state(doomed.id) is State.GONE
        other.stop()
        other.down()
    traffic.check()
    witness.check()
    created = Witness.create(server)
    created.kill()
    witness.kill()
    check_agreement(server.data_dir)


@pytest.mark.slow
@pytest.mark.parametrize("operation", ["create", "pause", "resume", "fork", "snapshot", "kill"])
@pytest.mark.parametrize("victims", ["keeper", "edge", "sandboxes", "all"])
@pytest.mark.timeout(180)
def test_killed_in_the_middle(server: ServerProcess, witness: Witness, operation: str, victims: str) -> None:
    """At three moments each, spread over the time that the operation takes."""
    if operation == "resume":
        witness.pause()
    durable = operation == "resume"
    for moment in (0.02, 0.08, 0.2):
        if records(server.data_dir).state(witness.id) is State.GONE:
            witness = Witness.create(server)
            if durable:
                witness.pause()
        done = threading.Event()
        thread = threading.Thread(target=_attempt, args=(server, operation, witness.id, done), daemon=True)
        thread.start()
        thread.join(moment)
        _kill_all_of(server, victims)
        if not server.alive():
            if records(server.data_dir).state(witness.id) is State.RUNNING:
                done.set()
            server.start()
        thread.join(100)
        assert not thread.is_alive(), "the request never ended"
        until(lambda: server.answers("/ready") or None, "it is ready", timeout_s=30)
        check_agreement(server.data_dir, timeout_s=60)
        state = records(server.data_dir).state(witness.id)
        if operation == "kill":
            assert state in (State.GONE, State.RUNNING)
        elif durable and done.is_set() and victims in ("sandboxes", "all"):
            assert state in (State.RUNNING, State.GONE)  # it died when it had been resumed already
        elif durable or victims in ("keeper", "edge"):
            assert state in (State.RUNNING, State.PAUSED)
        if state is not State.GONE:
            witness.check()
            if durable:
                witness.pause()
    for row in records(server.data_dir).of(State.RUNNING, State.PAUSED):
        Sandbox.kill(row.id, **sdk(server))
    for snapshot in records(server.data_dir).snapshots:
        if snapshot.kind == "snapshot":
            call(server, "DELETE", f"/templates/{snapshot.id}")
    check_agreement(server.data_dir)


def _attempt(server: ServerProcess, operation: str, sandbox_id: str, done: threading.Event) -> None:
    requests: dict[str, tuple[str, str, object]] = {
        "create": ("POST", "/sandboxes", {"templateID": "base", "timeout": 3600}),
        "pause": ("POST", f"/sandboxes/{sandbox_id}/pause", None),
        "resume": ("POST", f"/sandboxes/{sandbox_id}/connect", {"timeout": 3600}),
        "fork": ("POST", f"/sandboxes/{sandbox_id}/fork", {"count": 3, "timeout": 3600}),
        "snapshot": ("POST", f"/sandboxes/{sandbox_id}/snapshots", {}),
        "kill": ("DELETE", f"/sandboxes/{sandbox_id}", None),
    }
    with suppress(OSError, http.client.HTTPException, SandboxException):
        if call(server, *requests[operation]).status < 300:
            done.set()


def _kill_all_of(server: ServerProcess, victims: str) -> None:
    names = {
        "keeper": ("/keeper keep ",),
        "edge": ("/edge --listen",),
        "sandboxes": ("runsc-sandbox",),
        "all": ("/keeper keep ", "/edge --listen", "runsc-"),
    }[victims]
    if victims == "all":
        server.kill()
    for pid in processes(instance_of(server.data_dir)):
        if any(name in command_line(pid) for name in names):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.quick
@pytest.mark.parametrize("operation", ["pause", "fork", "create"])
def test_a_client_that_is_cut_off_does_not_cut_the_operation_off(
    server: ServerProcess, witness: Witness, operation: str
) -> None:
    before = {row.id for row in records(server.data_dir).sandboxes}
    path, body = {
        "pause": (f"/sandboxes/{witness.id}/pause", None),
        "fork": (f"/sandboxes/{witness.id}/fork", {"count": 2, "timeout": 3600}),
        "create": ("/sandboxes", {"templateID": "base", "timeout": 3600}),
    }[operation]
    left = False
    patience = 0.04
    while not left:
        try:
            call(server, "POST", path, body, timeout_s=patience)
        except TimeoutError:
            left = True
        else:  # it was quicker
            patience /= 2
            before |= {row.id for row in records(server.data_dir).sandboxes}
            witness.check()

    def arrived() -> bool | None:
        rows = records(server.data_dir)
        if operation == "pause":
            return rows.state(witness.id) is State.PAUSED or None
        return (
            len({r.id for r in rows.of(State.RUNNING)} - before) == (2 if operation == "fork" else 1) or None
        )

    until(arrived, f"the {operation} is done", timeout_s=30)
    witness.check()
    for row in records(server.data_dir).of(State.RUNNING, State.PAUSED):
        if row.id not in before or row.id == witness.id:
            Sandbox.kill(row.id, **sdk(server))
    check_agreement(server.data_dir)
