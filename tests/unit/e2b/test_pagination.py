from base64 import urlsafe_b64decode, urlsafe_b64encode
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forkyard.base.errors import InvalidInput
from forkyard.e2b.pagination import NEXT_TOKEN, PageRequest, decode_cursor, encode_cursor, next_headers
from forkyard.sandboxes.store import Cursor

CURSOR = Cursor(datetime(2026, 1, 2, 3, 4, 5, 678901, UTC), "i" + "a" * 19)

times = st.datetimes(min_value=datetime(1970, 1, 1), timezones=st.just(UTC))
ids = st.text("abcdefghijklmnopqrstuvwxyz0123456789", min_size=1, max_size=40)


@given(times, ids, st.booleans())
def test_a_cursor_comes_back_to_the_microsecond(at: datetime, item_id: str, ascending: bool) -> None:
    cursor = Cursor(at, item_id)
    assert decode_cursor(encode_cursor(cursor, ascending=ascending), ascending=ascending) == cursor


def test_the_form_is_that_of_e2b() -> None:
    assert (
        urlsafe_b64decode(encode_cursor(CURSOR)) == b"2026-01-02T03:04:05.678901+00:00__" + CURSOR.id.encode()
    )
    assert urlsafe_b64decode(encode_cursor(CURSOR, ascending=True)).endswith(b"__asc")


def test_a_cursor_with_nanoseconds_is_read() -> None:
    token = urlsafe_b64encode(b"2026-01-02T03:04:05.678901999Z__" + CURSOR.id.encode()).decode()
    assert decode_cursor(token) == CURSOR


@pytest.mark.parametrize("ascending", [False, True])
def test_a_cursor_of_the_other_direction_is_refused(ascending: bool) -> None:
    with pytest.raises(InvalidInput) as caught:
        decode_cursor(encode_cursor(CURSOR, ascending=not ascending), ascending=ascending)
    assert caught.value.field == "nextToken"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "__",
        "2026-01-02T03:04:05+00:00",
        "2026-01-02T03:04:05__abc",  # no time zone
        "2026-13-02T03:04:05.000000Z__abc",
        "0001-01-01T00:00:00.000000+14:00__abc",  # before the first moment in UTC
        "2026-01-02T03:04:05.000000Z__",
        "2026-01-02T03:04:05.000000Z__a'b",
        "2026-01-02T03:04:05.000000Z__abc__desc",
        "2026-01-02T03:04:05.000000Z__abc__asc__asc",
        "2026-01-02T03:04:05.000000Z__ab\0c",
    ],
)
def test_a_malformed_cursor_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="nextToken"):
        decode_cursor(urlsafe_b64encode(text.encode()).decode())


@given(st.text(max_size=400))
def test_any_other_text_is_refused_and_never_fails_otherwise(token: str) -> None:
    try:
        decode_cursor(token)
    except InvalidInput:
        return
    raise AssertionError(f"{token!r} was taken for a cursor")


def test_the_last_page_has_no_token() -> None:
    assert next_headers(None) == {}
    following = CURSOR.at + timedelta(seconds=1)
    headers = next_headers(Cursor(following, "b"), ascending=True)
    assert PageRequest(1, headers[NEXT_TOKEN]).after(ascending=True) == Cursor(following, "b")


def test_the_first_page_has_no_cursor() -> None:
    assert PageRequest(100, None).after() is None
