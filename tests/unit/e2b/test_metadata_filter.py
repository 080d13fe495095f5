from urllib.parse import parse_qs, quote, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forkyard.base.errors import InvalidInput
from forkyard.e2b.metadata_filter import MAX_PAIRS, parse_metadata_filter

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
keys = texts.filter(bool)


def test_the_encoding_seen_on_the_wire() -> None:
    value = parse_qs("metadata=a%3Db%252520c%252526d")["metadata"][0]
    assert parse_metadata_filter(value) == {"a": "b c&d"}


@given(st.dictionaries(keys, texts, min_size=1, max_size=5))
def test_what_the_python_sdk_sends_is_understood(pairs: dict[str, str]) -> None:
    value = urlencode({quote(key): quote(text) for key, text in pairs.items()})
    on_the_wire = urlencode({"metadata": value})
    assert parse_metadata_filter(parse_qs(on_the_wire)["metadata"][0]) == pairs


@pytest.mark.parametrize(
    ("value", "pairs"),
    [
        ("team=alpha", {"team": "alpha"}),
        ("user=abc&app=prod", {"user": "abc", "app": "prod"}),
        ("a=", {"a": ""}),
        ("a=b=c", {"a": "b=c"}),
        ("a+b=c+d", {"a b": "c d"}),
        ("a=1&a=2", {"a": "2"}),
    ],
)
def test_what_people_type_is_understood(value: str, pairs: dict[str, str]) -> None:
    assert parse_metadata_filter(value) == pairs


@pytest.mark.parametrize("value", [None, ""])
def test_nothing_asked_for(value: str | None) -> None:
    assert parse_metadata_filter(value) is None


@pytest.mark.parametrize(
    "value", ["a", "a&b=c", "=b", "a=b&", "a=%zz", "a=%2", "100%=a", "%ff=a", "a=%25ff", "a=%00", "a=%2500"]
)
def test_malformed_filters_are_refused(value: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_metadata_filter(value)
    assert caught.value.field == "metadata"


def test_the_number_of_pairs_is_bounded() -> None:
    def pairs(count: int) -> str:
        return "&".join(f"k{n}=v" for n in range(count))

    assert len(parse_metadata_filter(pairs(MAX_PAIRS)) or {}) == MAX_PAIRS
    with pytest.raises(InvalidInput):
        parse_metadata_filter(pairs(MAX_PAIRS + 1))


@given(st.text())
def test_any_text_is_understood_or_refused(value: str) -> None:
    try:
        pairs = parse_metadata_filter(value)
    except InvalidInput:
        return
    assert bool(pairs) == bool(value)
