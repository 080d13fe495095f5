"""Forms and distribution of identifiers."""

import re
import uuid
from collections import Counter

import pytest

from forkyard.base import ids


@pytest.mark.parametrize(
    ("make", "form"),
    [
        (ids.new_sandbox_id, r"i[a-z0-9]{19}"),
        (ids.new_template_id, r"[a-z0-9]{20}"),
        (ids.new_instance_id, r"[a-z0-9]{6}"),
        (ids.new_short_id, r"[a-z0-9]{12}"),
    ],
)
def test_forms(make: object, form: str) -> None:
    made = [make() for _ in range(500)]  # type: ignore[operator]
    assert all(re.fullmatch(form, text) for text in made)
    assert len(set(made)) == len(made)


def test_build_ids_are_uuids() -> None:
    assert str(uuid.UUID(ids.new_build_id())) != ids.new_build_id()
    assert ids.is_uuid(ids.new_build_id())


def test_every_character_can_be_at_every_place() -> None:
    places = [Counter(column) for column in zip(*(ids.random_text(3) for _ in range(4000)), strict=True)]
    for counts in places:
        assert set(counts) == set(ids.ALPHABET)
        # 111 expected of each; a fair draw is outside these bounds once in 10^10.
        assert all(40 < count < 200 for count in counts.values())


@pytest.mark.parametrize(
    "text", ["", "i", "x" + "a" * 19, "i" + "A" * 19, "i" + "a" * 20, "i" + "a" * 19 + "\n", "i-" + "a" * 18]
)
def test_what_is_no_sandbox_id(text: str) -> None:
    assert ids.is_sandbox_id(ids.new_sandbox_id())
    assert not ids.is_sandbox_id(text)


def test_what_is_no_template_id_or_uuid() -> None:
    assert ids.is_template_id(ids.new_template_id())
    assert not ids.is_template_id("a" * 19)
    assert not ids.is_template_id("base")
    assert not ids.is_uuid(ids.new_uuid().upper())
    assert not ids.is_uuid(ids.new_uuid() + "\n")
