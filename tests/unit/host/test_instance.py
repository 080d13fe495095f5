"""Data directories: identity and locks."""

import os
import shutil
from pathlib import Path

import pytest

from forkyard.host.errors import DataDirectoryInUse, DataDirectoryUnusable
from forkyard.host.instance import Instance, read_instance_id


def test_a_new_directory_gets_an_id_that_stays(tmp_path: Path) -> None:
    with Instance.open(tmp_path / "a" / "d", tmp_path / "claims") as first:
        assert len(first.id) == 6
        assert first.directory.stat().st_mode & 0o777 == 0o700
    with Instance.open(tmp_path / "a" / "d", tmp_path / "claims") as second:
        assert second.id == first.id
    assert read_instance_id(tmp_path / "a" / "d") == first.id
    assert read_instance_id(tmp_path / "missing") is None


def test_only_one_server_uses_a_directory_and_the_other_is_told_who(tmp_path: Path) -> None:
    in_use = pytest.raises(DataDirectoryInUse, match=f"process {os.getpid()}")
    with Instance.open(tmp_path / "d", tmp_path / "claims"), in_use:
        Instance.open(tmp_path / "d", tmp_path / "claims")
    Instance.open(tmp_path / "d", tmp_path / "claims").close()


def test_a_copy_of_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    with Instance.open(tmp_path / "d", tmp_path / "claims"):
        shutil.copytree(tmp_path / "d", tmp_path / "copy")
        with pytest.raises(DataDirectoryInUse, match="is a copy of"):
            Instance.open(tmp_path / "copy", tmp_path / "claims")
        (tmp_path / "copy" / "instance").unlink()
        Instance.open(tmp_path / "copy", tmp_path / "claims").close()


def test_a_damaged_id_is_not_replaced(tmp_path: Path) -> None:
    Instance.open(tmp_path / "d", tmp_path / "claims").close()
    (tmp_path / "d" / "instance").write_text("../../etc\n")
    with pytest.raises(DataDirectoryUnusable, match="does not hold an instance id"):
        Instance.open(tmp_path / "d", tmp_path / "claims")
    # and the lock was released
    (tmp_path / "d" / "instance").unlink()
    Instance.open(tmp_path / "d", tmp_path / "claims").close()


def test_a_directory_shared_with_others_is_left_as_it_is(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    (shared / "somebody's").write_text("x")
    with pytest.raises(DataDirectoryUnusable, match="directory of its own"):
        Instance.open(shared, tmp_path / "claims")
    assert shared.stat().st_mode & 0o7777 == 0o1777


def test_a_file_in_place_of_the_directory_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "d").write_text("x")
    with pytest.raises(DataDirectoryUnusable, match="cannot be used"):
        Instance.open(tmp_path / "d", tmp_path / "claims")
