"""Files that survive, on real temporary directories."""

import errno
import os
from pathlib import Path

import pytest

from forkyard.base.errors import StorageFull
from forkyard.host import disk
from forkyard.host.errors import NoSpace


def test_free_bytes_of_a_path_that_is_not_there_yet_is_that_of_its_parent(tmp_path: Path) -> None:
    assert disk.free_bytes(tmp_path / "a" / "b") > 0
    assert disk.disk_space(tmp_path / "a").total == disk.disk_space(tmp_path).total


def test_watermark_refuses_when_too_little_would_be_left(tmp_path: Path) -> None:
    free = disk.free_bytes(tmp_path)
    disk.Watermark(min_free_bytes=1, min_free_inodes=0).check(tmp_path)
    with pytest.raises(NoSpace, match="are needed"):
        disk.Watermark(min_free_bytes=free * 2).check(tmp_path)
    with pytest.raises(StorageFull):
        disk.Watermark(min_free_bytes=1).check(tmp_path, need=free * 2)
    with pytest.raises(NoSpace, match="inodes"):
        disk.Watermark(min_free_bytes=1, min_free_inodes=1 << 63).check(tmp_path)


def test_write_atomically_replaces_content_and_sets_the_mode(tmp_path: Path) -> None:
    path = tmp_path / "f"
    disk.write_atomically(path, b"one")
    disk.write_atomically(path, b"two", mode=0o640, durable=False)
    assert path.read_bytes() == b"two"
    assert path.stat().st_mode & 0o777 == 0o640
    assert os.listdir(tmp_path) == ["f"]


def test_write_atomically_on_a_full_disk_keeps_the_old_content_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "f"
    disk.write_atomically(path, b"old")

    def full(_fd: int, _data: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(disk, "write_all", full)
    with pytest.raises(NoSpace, match="No space left"):
        disk.write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["f"]


def test_other_errors_are_not_taken_for_a_full_disk() -> None:
    with pytest.raises(PermissionError), disk.full_disk_as_no_space("x"):
        raise PermissionError(errno.EPERM, "no")


def test_fsync_tree_takes_links_sockets_and_empty_directories(tmp_path: Path) -> None:
    tree = tmp_path / "t"
    (tree / "a" / "empty").mkdir(parents=True)
    (tree / "a" / "f").write_bytes(b"x")
    (tree / "link").symlink_to("/nowhere")
    os.mkfifo(tree / "fifo")
    disk.fsync_tree(tree)
    with pytest.raises(FileNotFoundError):
        disk.fsync_tree(tmp_path / "missing")


def test_remove_tree_removes_all_and_may_be_called_again(tmp_path: Path) -> None:
    tree = tmp_path / "t"
    for index in range(5):
        (tree / str(index) / "x" / "y").mkdir(parents=True)
        (tree / str(index) / "x" / "f").write_bytes(b"1")
    disk.remove_tree(tree)
    disk.remove_tree(tree)
    assert os.listdir(tmp_path) == []


def test_remove_tree_does_not_follow_links(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "f").write_bytes(b"precious")
    tree = tmp_path / "t"
    tree.mkdir()
    (tree / "link").symlink_to(kept)
    disk.remove_tree(tree)
    link = tmp_path / "link"
    link.symlink_to(kept)
    disk.remove_tree(link)
    assert (kept / "f").read_bytes() == b"precious"
    assert not link.is_symlink()


def test_remove_tree_goes_deeper_than_a_path_can_be_long(tmp_path: Path) -> None:
    depth = 1200  # beyond PATH_MAX, and beyond what a recursive function could do
    (tmp_path / "t").mkdir()
    fd = os.open(tmp_path / "t", os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d" * 10, dir_fd=fd)
        below = os.open("d" * 10, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)
    disk.remove_tree(tmp_path / "t")
    assert os.listdir(tmp_path) == []


def test_reading_from_the_disk_gives_every_byte_and_refuses_links(tmp_path: Path) -> None:
    path = tmp_path / "file"
    data = os.urandom(300_000)
    path.write_bytes(data)
    for forget in (False, True):
        if forget:
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        pieces: list[bytes] = []
        while piece := disk.read_from_disk(path, sum(map(len, pieces)), 65536):
            pieces.append(piece)
        assert b"".join(pieces) == data
    assert disk.read_from_disk(path, 400_000, 10) == b""
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(OSError, match="symbolic"):
        disk.read_from_disk(tmp_path / "link", 0, 10)
