"""Finding the base image that is there already."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from forkyard.templates.base_image.build import BaseImage, find

RECIPE = "a" * 64


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "x.erofs").write_bytes(b"image")
    record = BaseImage("base", "x.erofs", "b" * 64, 5, {}, "user", None, RECIPE)
    (tmp_path / "base.json").write_text(json.dumps(asdict(record)))
    return tmp_path


def test_is_found(folder: Path) -> None:
    found = find(folder, RECIPE)
    assert found is not None
    assert found.image == "x.erofs"


def test_another_recipe_is_not_it(folder: Path) -> None:
    assert find(folder, "c" * 64) is None


def test_a_cut_off_image_is_not_it(folder: Path) -> None:
    (folder / "x.erofs").write_bytes(b"ima")
    assert find(folder, RECIPE) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"name": "base"}'])
def test_a_damaged_record_is_not_it(folder: Path, text: str) -> None:
    (folder / "base.json").write_text(text)
    assert find(folder, RECIPE) is None


def test_nothing_there(tmp_path: Path) -> None:
    assert find(tmp_path, RECIPE) is None
