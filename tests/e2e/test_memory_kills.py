"""A process that was killed because memory ran out is named in the log of its sandbox, where users look for it."""

import json
import os
import subprocess
from collections.abc import Callable

import pytest
from e2b import CommandExitException, Sandbox

from tests.e2e.server import FORKYARD
from tests.e2e.waiting import until

# A name of its own, and 64 MiB at a time until it is stopped.
EATER = """
import ctypes
ctypes.CDLL(None).prctl(15, b"glutton")
kept = []
while True:
    kept.append(bytearray(b"x") * (64 << 20))
"""


def test_the_log_names_the_process_that_was_killed(make_sandbox: Callable[..., Sandbox]) -> None:
    sandbox = make_sandbox(timeout=300)
    sandbox.files.write("/tmp/eater.py", EATER)
    with pytest.raises(CommandExitException) as killed:
        sandbox.commands.run("python3 /tmp/eater.py; exit $?")
    assert killed.value.exit_code == 137

    def told() -> list[dict[str, str]] | None:
        done = subprocess.run(
            [FORKYARD, "logs", sandbox.sandbox_id],
            env=dict(os.environ),
            capture_output=True,
            text=True,
            check=True,
        )
        entries = [json.loads(line) for line in done.stdout.splitlines()]
        return [e["fields"] for e in entries if e["message"].startswith("out of memory")] or None

    [fields] = until(told, "the log tells of it")
    assert fields["name"] == "glutton"
    assert int(fields["memory_mb"]) > 200
    assert sandbox.commands.run("echo on").stdout == "on\n"
