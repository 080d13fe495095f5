"""`forkyard teams` on a database of its own, as a server left it."""

import json
import shutil
from pathlib import Path

import pytest

from forkyard.storage.engine import DatabaseUrl
from tests.unit.cli.conftest import Run


@pytest.fixture
def data_dir(tmp_path: Path, sqlite_copy: DatabaseUrl) -> Path:
    """The data directory of the commands here."""
    assert sqlite_copy.path is not None
    folder = tmp_path / "data"
    folder.mkdir()
    shutil.move(sqlite_copy.path, folder / "forkyard.db")
    return folder


def test_a_team_is_made_with_a_key_and_limits_and_is_listed(data_dir: Path, run: Run) -> None:
    made = json.loads(run("teams", "create", "crew", "--max-sandboxes", "3").stdout)
    assert made["key"].startswith("e2b_")
    changed = run("teams", "limit", "crew", "--max-vcpus", "4", "--max-creates-per-second", "0.5")
    assert changed.exit_code == 0, changed.output
    (listed,) = json.loads(run("teams", "list").stdout)
    assert (listed["id"], listed["name"]) == (made["team_id"], "crew")
    assert {name: value for name, value in listed["limits"].items() if value is not None} == {
        "vcpus": 4,
        "creates_per_second": 0.5,
    }
    assert made["key"] not in run("teams", "list").stdout


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("create", "crew"), 5, "a team of that name"),
        (("create", " "), 2, "name must have"),
        (("limit", "nobody"), 3, "no such team"),
        (("create", "x", "--max-sandboxes", "-1"), 2, "--max-sandboxes"),
        (("create", "x", "--max-vcpus", "99999999999"), 2, "vcpus: Input should be less"),
    ],
)
def test_what_cannot_be_done_is_said(
    data_dir: Path, run: Run, words: tuple[str, ...], code: int, said: str
) -> None:
    run("teams", "create", "crew")
    result = run("teams", *words)
    assert (result.exit_code, said in result.output) == (code, True), result.output


def test_without_a_database_nothing_is_made(tmp_path: Path, run: Run) -> None:
    result = run("teams", "list")
    assert result.exit_code == 1
    assert "start the server once" in result.output
    assert not (tmp_path / "data").exists()
