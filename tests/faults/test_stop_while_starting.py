"""A server that is told to stop before it is ready stops at once, at whatever stage, and leaves nothing."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest
from e2b import Sandbox

from tests.e2e.server import ServerProcess
from tests.e2e.waiting import until
from tests.faults.inspection import check_nothing_left

STAGES = ("database", "driver", "recovery", "template")


def stop_at(server: ServerProcess, stage: str, number: signal.Signals) -> tuple[int, float]:
    """Start it, and signal it when it says that it begins the stage; exit code and seconds until it had ended."""
    before = len(server.log.read_bytes()) if server.log.exists() else 0
    process = server.launch()
    try:
        until(
            lambda: True if f"  {stage} ..." in server.log.read_text()[before:] else None,
            f"it comes to {stage}",
            timeout_s=60,
        )
        os.kill(process.pid, number)
        began = time.monotonic()
        return process.wait(30), time.monotonic() - began
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


@pytest.mark.parametrize(
    "stage", ["database", "driver", "recovery", pytest.param("template", marks=pytest.mark.quick)]
)
def test_a_first_start_that_is_stopped_leaves_nothing(
    stage: str, make_server: Callable[..., ServerProcess]
) -> None:
    server = make_server()
    code, seconds = stop_at(server, stage, signal.SIGTERM)
    assert code == 0, server.tail()
    assert seconds < 15
    assert "is ready" not in server.tail()
    check_nothing_left(server.data_dir)
    server.start()  # and it can start after that
    assert server.stop() == 0


def test_sandboxes_that_run_survive_a_start_that_is_stopped(
    make_server: Callable[..., ServerProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = make_server()
    server.start()
    for name, value in server.sdk_env().items():
        monkeypatch.setenv(name, value)
    sandbox = Sandbox.create(timeout=300)
    sandbox.commands.run("echo kept > note")
    assert server.stop() == 0
    for stage in STAGES:
        code, _ = stop_at(server, stage, signal.SIGINT)
        assert code == 0, server.tail()
    server.start()
    assert sandbox.commands.run("cat note").stdout == "kept\n"
    sandbox.kill()
    assert server.stop() == 0
