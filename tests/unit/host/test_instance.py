"""Data directories: identity and locks."""

import os
import shutil
from pathlib import Path

import pytest

from forkyard.host.errors import DataDirectoryInUse, DataDirectoryUnusable
from forkyard.host.instance import Instance, read_instance_id


def test_a_new_directory_gets_an_id_that_stays(tmp_path: Path) -> None:
    with Instance.open(tmp_path / "a" / "d", tmp_path / "run") as first:
        assert len(first.id) == 6
        assert first.directory.stat().st_mode & 0o777 == 0o700
    with Instance.open(tmp_path / "a" / "d", tmp_path / "run") as second:
        assert second.id == first.id
    assert read_instance_id(tmp_path / "a" / "d") == first.id
    assert read_instance_id(tmp_path / "missing") is None


def test_only_one_server_uses_a_directory_and_the_other_is_told_who(tmp_path: Path) -> None:
    in_use = pytest.raises(DataDirectoryInUse, match=f"process {os.getpid()}")
    with Instance.open(tmp_path / "d", tmp_path / "run"), in_use:
        Instance.open(tmp_path / "d", tmp_path / "run")
    Instance.open(tmp_path / "d", tmp_path / "run").close()


def test_a_copy_of_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    with Instance.open(tmp_path / "d", tmp_path / "run"):
        shutil.copytree(tmp_path / "d", tmp_path / "copy")
        with pytest.raises(DataDirectoryInUse, match="is a copy of"):
            Instance.open(tmp_path / "copy", tmp_path / "run")
        (tmp_path / "copy" / "instance").unlink()
        Instance.open(tmp_path / "copy", tmp_path / "run").close()


def test_a_damaged_id_is_not_replaced(tmp_path: Path) -> None:
    Instance.open(tmp_path / "d", tmp_path / "run").close()
    (tmp_path / "d" / "instance").write_text("../../etc\n")
    with pytest.raises(DataDirectoryUnusable, match="does not hold an instance id"):
        Instance.open(tmp_path / "d", tmp_path / "run")
    # and the lock was released
    (tmp_path / "d" / "instance").unlink()
    Instance.open(tmp_path / "d", tmp_path / "run").close()


def test_a_directory_shared_with_others_is_left_as_it_is(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    (shared / "somebody's").write_text("x")
    with pytest.raises(DataDirectoryUnusable, match="directory of its own"):
        Instance.open(shared, tmp_path / "run")
    assert shared.stat().st_mode & 0o7777 == 0o1777


def test_a_file_in_place_of_the_directory_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "d").write_text("x")
    with pytest.raises(DataDirectoryUnusable, match="cannot be used"):
        Instance.open(tmp_path / "d", tmp_path / "run")


def test_the_last_instance_that_is_forgotten_takes_the_shared_directory_along(tmp_path: Path) -> None:
    shared = tmp_path / "run"
    first = Instance.open(tmp_path / "a", shared)
    (shared / "slots").mkdir()
    stopped = Instance.open(tmp_path / "b", shared)
    stopped.close()
    assert (shared / "instances" / stopped.id).exists()
    first.forget()
    first.close()
    first.close()
    assert os.listdir(shared / "instances") == [stopped.id]
    last = Instance.open(tmp_path / "b", shared)
    last.forget()
    last.close()
    assert not shared.exists()
    Instance.open(tmp_path / "b", shared).close()


def test_files_of_others_in_the_shared_directory_stay(tmp_path: Path) -> None:
    shared = tmp_path / "run"
    (shared / "slots").mkdir(parents=True)
    (shared / "slots" / "10.200.0.0-30").write_text("{}")
    opened = Instance.open(tmp_path / "a", shared)
    opened.forget()
    opened.close()
    assert (shared / "slots" / "10.200.0.0-30").exists()
