"""A process that was killed because memory ran out is named in the log of its sandbox, where users look for it."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from e2b import CommandExitException, Sandbox

from tests.e2e.server import FORKYARD, ServerProcess
from tests.e2e.waiting import until

# A name of its own, and 64 MiB at a time until it is stopped.
EATER = """
import ctypes
ctypes.CDLL(None).prctl(15, b"glutton")
kept = []
while True:
    kept.append(bytearray(b"x") * (64 << 20))
"""


def run_glutton(sandbox: Sandbox) -> None:
    """It is killed, and nothing else is."""
    boot_id = sandbox.files.read("/proc/sys/kernel/random/boot_id")
    sandbox.files.write("/tmp/eater.py", EATER)
    with pytest.raises(CommandExitException) as killed:
        sandbox.commands.run("python3 /tmp/eater.py; exit $?")
    assert killed.value.exit_code == 137
    assert sandbox.commands.run("echo on").stdout == "on\n"
    assert sandbox.files.read("/proc/sys/kernel/random/boot_id") == boot_id


def told(sandbox: Sandbox) -> list[dict[str, str]] | None:
    """What the sandbox's log has of it."""
    done = subprocess.run(
        [FORKYARD, "logs", sandbox.sandbox_id],
        env=dict(os.environ),
        capture_output=True,
        text=True,
        check=True,
    )
    entries = [json.loads(line) for line in done.stdout.splitlines()]
    return [e["fields"] for e in entries if e["message"].startswith("out of memory")] or None


def test_the_log_names_the_process_that_was_killed(make_sandbox: Callable[..., Sandbox]) -> None:
    sandbox = make_sandbox(timeout=300)
    run_glutton(sandbox)
    [fields] = until(lambda: told(sandbox), "the log tells of it")
    assert fields["name"] == "glutton"
    assert int(fields["memory_mb"]) > 200


def test_much_page_cache_hides_no_shortage(make_sandbox: Callable[..., Sandbox]) -> None:
    sandbox = make_sandbox(timeout=300)
    # More than the memory of the sandbox, so that its control group is above all marks by page cache alone.
    sandbox.commands.run("head -c 900M /dev/zero >/tmp/big && cat /tmp/big >/dev/null")
    run_glutton(sandbox)


def test_memory_is_guarded_while_no_server_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ServerProcess(tmp_path / "data", env={"FORKYARD_WARM_POOL": "0"}) as server:
        for name, value in server.sdk_env().items():
            monkeypatch.setenv(name, value)
        sandbox = Sandbox.create(timeout=300)
        server.kill()
        run_glutton(sandbox)


def test_memory_is_guarded_and_kills_are_told_without_a_keeper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = {"FORKYARD_WARM_POOL": "0", "FORKYARD_NO_KEEPER": "true"}
    with ServerProcess(tmp_path / "data", env=env) as server:
        for name, value in server.sdk_env().items():
            monkeypatch.setenv(name, value)
        sandbox = Sandbox.create(timeout=300)
        run_glutton(sandbox)
        [fields] = until(lambda: told(sandbox), "the log tells of it")
        assert fields["name"] == "glutton"
