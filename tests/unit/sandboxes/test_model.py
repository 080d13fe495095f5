"""Random calls against a model: a few seeds without anything going wrong, a few with. The long run is in the faults."""

from pathlib import Path

import pytest

from tests.unit.sandboxes.model import play


@pytest.mark.parametrize("seed", range(3))
def test_when_nothing_goes_wrong(sqlite_template: Path, tmp_path: Path, seed: int) -> None:
    play(seed, sqlite_template, tmp_path)


@pytest.mark.parametrize("seed", range(100, 105))
def test_when_things_go_wrong(sqlite_template: Path, tmp_path: Path, seed: int) -> None:
    play(seed, sqlite_template, tmp_path, chaos=0.3)
