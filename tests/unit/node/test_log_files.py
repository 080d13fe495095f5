"""Log files of processes that go on writing stay bounded."""

import errno
import os
import shutil
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from forkyard.node import log_files
from forkyard.node.log_files import LogFiles
from forkyard.testing.clock import ManualClock


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_files, "MAX_BYTES", 1000)


@pytest.fixture
def files(tmp_path: Path) -> LogFiles:
    return LogFiles(tmp_path, tmp_path, ManualClock())


@contextmanager
def appending(path: Path) -> Generator[int]:
    """As the edge and the keepers have their logs open."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640)
    try:
        yield fd
    finally:
        os.close(fd)


@pytest.mark.parametrize(
    "name", ["edge.log", "edge.out", "keeper-0123456789ab.log", "keeper-0123456789ab.out"]
)
def test_a_file_is_cut_under_its_writer_and_kept_once(files: LogFiles, tmp_path: Path, name: str) -> None:
    path, kept = tmp_path / name, tmp_path / f"{name}.1"
    with appending(path) as fd:
        for letter in "abc":
            os.write(fd, letter.encode() * 900)
            files.look()
            os.write(fd, letter.encode() * 200)
            files.look()
            assert path.read_bytes() == b""
            assert kept.read_bytes() == letter.encode() * 1100
        os.write(fd, b"d")
    files.look()
    assert path.read_bytes() == b"d"
    assert kept.stat().st_mode & 0o777 == 0o600
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([name, kept.name])


def test_on_a_full_disk_it_is_cut_all_the_same(
    files: LogFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "edge.log"
    path.write_bytes(b"x" * 2000)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(shutil, "copyfileobj", full)
    files.look()
    assert path.read_bytes() == b""
    assert [p.name for p in tmp_path.iterdir()] == ["edge.log"]


def test_files_of_keepers_of_the_past_go(files: LogFiles, tmp_path: Path) -> None:
    old = time.time() - log_files.KEEP_S - 10
    for name in ("keeper-old.log", "keeper-old.log.1", "keeper-old.out", "edge.log", "keeper-new.log"):
        (tmp_path / name).write_text("x")
        if name != "keeper-new.log":
            os.utime(tmp_path / name, (old, old))
    files.look()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["edge.log", "keeper-new.log"]
