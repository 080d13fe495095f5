"""Handles that never mean another process."""

import os
from pathlib import Path

import pytest

from forkyard.host.errors import ProcessGone
from forkyard.host.processes import PidFile, ProcessHandle


def test_a_handle_with_another_start_time_is_not_that_process() -> None:
    own = ProcessHandle.of(os.getpid())
    other = ProcessHandle(own.pid, own.start_time - 1)
    assert own.alive()
    assert not other.alive()
    with pytest.raises(ProcessGone):
        other.open()
    assert not other.send(0)  # type: ignore[arg-type]


def test_pid_file_finds_the_process_again(tmp_path: Path) -> None:
    file = PidFile(tmp_path / "pid")
    assert file.read() is None
    own = ProcessHandle.of(os.getpid())
    file.write(own)
    assert file.read() == own
    file.write(ProcessHandle(own.pid, own.start_time + 1))
    assert file.read() is None
    for damaged in ("", "{}", "[1]", '{"pid": "x"}', "\xff"):
        file.path.write_text(damaged)
        assert file.read() is None
    file.remove()
    file.remove()


def test_no_such_process() -> None:
    with pytest.raises(ProcessGone):
        ProcessHandle.of(2**22 + 1)
