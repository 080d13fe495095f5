import json
from datetime import UTC, datetime, timedelta

import pytest

from forkyard.e2b.logs import log_entry, log_line, select
from forkyard.sandboxes.journal import JournalEntry

START = datetime(2026, 1, 1, tzinfo=UTC)
START_MS = int(START.timestamp() * 1000)


def entry(number: int, level: str = "info", message: str = "", **fields: str) -> JournalEntry:
    return JournalEntry(
        START + timedelta(milliseconds=number), level, message or f"message {number}", dict(fields)
    )


ENTRIES = [entry(0, "debug"), entry(1), entry(1, "warn", "second"), entry(2, "error"), entry(3)]


def numbers(chosen: list[JournalEntry]) -> list[int]:
    return [int(e.at.timestamp() * 1000) - START_MS for e in chosen]


def test_forward_from_a_cursor_includes_it() -> None:
    assert numbers(select(ENTRIES, cursor=START_MS + 1, limit=10)) == [1, 1, 2, 3]


def test_backward_from_a_cursor_includes_all_of_its_millisecond() -> None:
    assert numbers(select(ENTRIES, cursor=START_MS + 1, limit=10, backward=True)) == [1, 1, 0]


@pytest.mark.parametrize(("limit", "count"), [(0, 0), (2, 2), (100, 5)])
def test_limit(limit: int, count: int) -> None:
    assert len(select(ENTRIES, cursor=None, limit=limit)) == count


def test_level_is_the_least_important_one_shown() -> None:
    assert numbers(select(ENTRIES, cursor=None, limit=10, level="warn")) == [1, 2]


def test_search_is_for_text_as_it_is() -> None:
    assert numbers(select(ENTRIES, cursor=None, limit=10, search="second")) == [1]
    assert select(ENTRIES, cursor=None, limit=10, search="Second") == []


def test_a_line_is_json_with_what_the_cli_reads() -> None:
    line = json.loads(log_line(entry(1, message="paused", memory="True")))
    assert line == {"level": "info", "logger": "sandbox", "message": "paused", "memory": "True"}


def test_fields_cannot_stand_in_for_level_or_logger() -> None:
    line = json.loads(log_line(entry(1, message="died", logger="x", reason="y")))
    assert line["logger"] == "sandbox"


def test_broken_text_from_a_sandbox_can_be_shown() -> None:
    shown = log_entry(entry(1, message="bad \ud800 text", **{"reason\udfff": "\ud83d"}))
    assert shown.message == "bad ? text"
    assert shown.fields == {"reason?": "?"}
    assert json.loads(log_line(entry(1, message="nul \0 \ud800")))["message"] == "nul \0 \ud800"


def test_an_unknown_level_is_info() -> None:
    assert log_entry(entry(1, "loud")).level == "info"
