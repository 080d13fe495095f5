"""At the deadline a sandbox is paused if it was made so, and the next request wakes it if it was made so."""

from collections.abc import Callable

import pytest
from e2b import Sandbox, SandboxException
from e2b.sandbox.sandbox_api import SandboxLifecycle

from tests.e2e.inside import counter_went_on, output, start_counter, state_of, until_paused
from tests.e2e.ports import ask, serve
from tests.e2e.server import ServerProcess

PAUSES: SandboxLifecycle = {"on_timeout": "pause"}
WAKES: SandboxLifecycle = {"on_timeout": "pause", "auto_resume": True}
PORT = 8000

Make = Callable[..., Sandbox]


def test_at_its_deadline_a_sandbox_is_paused_with_all_it_has(make_sandbox: Make) -> None:
    sandbox = make_sandbox(timeout=2, lifecycle=PAUSES)
    before = start_counter(sandbox)
    until_paused(sandbox)
    with pytest.raises(SandboxException):  # nobody asked for it to be woken
        sandbox.commands.run("true")
    assert state_of(sandbox) == "paused"
    # Again: a deadline is that of the connect now.
    Sandbox.connect(sandbox.sandbox_id, timeout=2)
    before = counter_went_on(sandbox, before)
    until_paused(sandbox)
    sandbox.connect(timeout=300)
    counter_went_on(sandbox, before)


def test_at_its_deadline_a_sandbox_is_paused_without_memory(make_sandbox: Make) -> None:
    lifecycle: SandboxLifecycle = {"on_timeout": {"action": "pause", "mode": "filesystem"}}
    sandbox = make_sandbox(timeout=2, lifecycle=lifecycle)
    start_counter(sandbox)
    until_paused(sandbox)
    sandbox.connect(timeout=300)
    assert output(sandbox, "pgrep -f '[c]ounter.py' || true") == ""
    assert sandbox.files.exists("/home/user/counter.py")


def test_a_request_to_a_private_port_wakes_it(server: ServerProcess, make_sandbox: Make) -> None:
    network = {"allow_public_traffic": False}
    sandbox = make_sandbox(timeout=3, lifecycle=WAKES, network=network)
    serve(server, sandbox, PORT)
    before = start_counter(sandbox)
    until_paused(sandbox)
    for wrong in (None, "wrong"):
        assert ask(server, sandbox, PORT, token=wrong).status == 403
    assert state_of(sandbox) == "paused"
    answer = ask(server, sandbox, PORT, "/hello", token=sandbox.traffic_access_token)
    assert (answer.status, answer.text) == (200, "GET /hello None")
    assert state_of(sandbox) == "running"
    counter_went_on(sandbox, before)


def test_a_call_of_the_sdk_wakes_it(make_sandbox: Make) -> None:
    sandbox = make_sandbox(timeout=2, lifecycle=WAKES)
    before = start_counter(sandbox)
    until_paused(sandbox)
    assert output(sandbox, "echo awake") == "awake"
    before = counter_went_on(sandbox, before)
    # By its owner's pause it sleeps the same way, and a file is as good as a command.
    sandbox.pause()
    assert sandbox.files.exists("/home/user/counter.py")
    counter_went_on(sandbox, before)


def test_r22_a_deadline_while_the_disk_is_busy_has_one_outcome(make_sandbox: Make) -> None:
    sandbox = make_sandbox(timeout=3, lifecycle=PAUSES)
    before = start_counter(sandbox)
    step = "head -c 30000000 /dev/urandom | tee big.$((n%3)) | sha256sum > sum.$((n%3)); sync"
    writer = sandbox.commands.run(f"n=0; while :; do n=$((n+1)); {step}; done", background=True, timeout=0)
    until_paused(sandbox)
    with pytest.raises(SandboxException):
        writer.wait()
    sandbox.connect(timeout=300)
    counter_went_on(sandbox, before)
    assert writer.pid in {process.pid for process in sandbox.commands.list()}
    sandbox.commands.kill(writer.pid)
    # What was written before and after the pause is whole, but for the one file that was being written.
    same = (
        "for i in 0 1 2; do test $(sha256sum < big.$i | cut -c-64) = $(cut -c-64 sum.$i) && echo same; done"
    )
    assert output(sandbox, f"{same}; true").count("same") >= 2
