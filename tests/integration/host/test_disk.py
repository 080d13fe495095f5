"""Files on real file systems: full ones, and mounts inside of what is to be removed."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from forkyard.host import disk
from forkyard.host.errors import HostError, NoSpace

pytestmark = [pytest.mark.root]


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,nr_inodes=100", "none", str(place)], check=True)
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_keeps_the_old_content_and_leaves_no_part_of_the_new(small: Path) -> None:
    disk.write_atomically(small / "f", b"old")
    with pytest.raises(NoSpace, match="No space left"):
        disk.write_atomically(small / "f", bytes(2 << 20))
    assert (small / "f").read_bytes() == b"old"
    assert os.listdir(small) == ["f"]


def test_running_out_of_inodes_counts_as_full(small: Path) -> None:
    disk.Watermark(min_free_bytes=1, min_free_inodes=50).check(small)
    for number in range(60):
        (small / str(number)).touch()
    with pytest.raises(NoSpace, match="inodes"):
        disk.Watermark(min_free_bytes=1, min_free_inodes=50).check(small)


@pytest.mark.parametrize("where", [".", "mnt", "a/b/mnt"])
def test_remove_tree_never_goes_into_a_mount(tmp_path: Path, where: str) -> None:
    """A volume that is still bound into a sandbox's directory holds somebody's data."""
    volume, tree = tmp_path / "volume", tmp_path / "tree"
    volume.mkdir()
    (volume / "data").write_text("precious")
    (tree / where).mkdir(parents=True)
    subprocess.run(["mount", "--bind", str(volume), str(tree / where)], check=True)
    try:
        with pytest.raises(HostError, match="mounted"):
            disk.remove_tree(tree)
        assert (volume / "data").read_text() == "precious"
    finally:
        subprocess.run(["umount", str(tree / where)], check=True)
    disk.remove_tree(tree)
    assert not tree.exists()
    assert (volume / "data").read_text() == "precious"
