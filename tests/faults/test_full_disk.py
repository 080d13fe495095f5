"""A full disk of the host: what needs room is refused or fails with 507, and every sandbox runs on."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from forkyard.base.ids import new_instance_id
from forkyard.sandboxes.state import State
from tests.e2e.server import ServerProcess
from tests.faults.inspection import check_agreement, records
from tests.faults.witness import Answer, Witness, call

SMALL_MB = 16
"""Enough for the template, not for a sandbox with some memory."""


@pytest.fixture(scope="module")
def small(
    make_server: Callable[..., ServerProcess], tmp_path_factory: pytest.TempPathFactory
) -> Generator[ServerProcess]:
    """A server whose snapshots lie on a disk of 16 MiB, which the check of free space does not see."""
    data_dir = tmp_path_factory.mktemp("small") / "d"
    snapshots = data_dir / "snapshots"
    snapshots.mkdir(parents=True, mode=0o700)
    data_dir.chmod(0o700)
    (data_dir / "node").mkdir(mode=0o755)
    # A directory that holds other files is taken only with an id, as a restored one has.
    (data_dir / "instance").write_text(f"{new_instance_id()}\n")
    _mount(snapshots, f"size={SMALL_MB}m,mode=0700")
    server = make_server(data_dir)
    try:
        server.start()
        yield server
        assert server.stop() == 0
    finally:
        if server.alive():
            server.stop()
        server.down()
        subprocess.run(["umount", str(snapshots)], check=True)


def _mount(folder: Path, options: str) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "forkyard-test", str(folder)], check=True)


@pytest.mark.quick
def test_a_disk_that_fills_up_during_a_capture_costs_nothing(small: ServerProcess) -> None:
    witness = Witness.create(small)
    hold = "import os,time; x = os.urandom(64 << 20); open('/tmp/held','w').close(); time.sleep(9999)"
    witness.sandbox.commands.run(
        f'setsid python3 -c "{hold}" </dev/null >/dev/null 2>&1 & while [ ! -e /tmp/held ]; do sleep 0.05; done'
    )
    requests = (
        ("pause", None),
        ("snapshots", {}),
        ("fork", {"count": 2}),
    )
    for path, body in requests:
        answer = call(small, "POST", f"/sandboxes/{witness.id}/{path}", body)
        _check_507(answer)
        assert records(small.data_dir).state(witness.id) is State.RUNNING
        witness.check()
    check_agreement(small.data_dir)
    subprocess.run(["mount", "-o", "remount,size=1g", str(small.data_dir / "snapshots")], check=True)
    witness.pause()
    witness.check()
    witness.kill()
    check_agreement(small.data_dir)


@pytest.mark.quick
def test_below_the_watermark_nothing_is_begun(small: ServerProcess) -> None:
    running, paused = Witness.create(small), Witness.create(small)
    paused.pause()
    small.stop()
    small.start(env={"FORKYARD_MIN_FREE_DISK_MB": str(1 << 40)})
    try:
        for path, body in (
            (f"/sandboxes/{running.id}/pause", None),
            (f"/sandboxes/{running.id}/snapshots", {}),
            (f"/sandboxes/{running.id}/fork", {}),
            ("/sandboxes", {"templateID": "base"}),
            (f"/sandboxes/{paused.id}/connect", {"timeout": 100}),
        ):
            _check_507(call(small, "POST", path, body))
        running.check()
        assert records(small.data_dir).state(paused.id) is State.PAUSED
    finally:
        small.stop()
        small.start()
    paused.check()
    for witness in (running, paused):
        witness.kill()
    check_agreement(small.data_dir)


def _check_507(answer: Answer) -> None:
    assert answer.status == 507, answer
    assert answer.body["code"] == 507
    assert answer.body["message"]
