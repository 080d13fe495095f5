"""Log lines: form, context, and what must never be in them."""

import asyncio
import io
import json
import logging
from collections.abc import Generator
from typing import Any

import pytest
import structlog

from forkyard.base.logging import (
    MAX_TEXT,
    REDACTED,
    configure_logging,
    get_logger,
    log_context,
    redact_text,
    redact_values,
)


@pytest.fixture
def stream() -> Generator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    before = structlog.get_config()
    yield io.StringIO()
    structlog.configure(**before)
    root.handlers, root.level = handlers, level


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_json_lines_have_time_level_logger_and_values(stream: io.StringIO) -> None:
    log = get_logger("forkyard.x")  # before configuration, as modules do
    configure_logging("json", "info", stream)
    log.info("sandbox paused", seconds=0.25)
    log.debug("not shown")
    (line,) = lines(stream)
    assert line.pop("time").endswith("Z")
    assert line == {"event": "sandbox paused", "level": "info", "logger": "forkyard.x", "seconds": 0.25}


def test_lines_of_libraries_look_the_same(stream: io.StringIO) -> None:
    configure_logging("json", "debug", stream)
    logging.getLogger("library").warning("password in %s", "postgres://u:secret@h/db")
    logging.getLogger("library").debug("libraries are not asked to debug")
    (line,) = lines(stream)
    assert line["logger"] == "library"
    assert line["event"] == f"password in postgres://{REDACTED}@h/db"


def test_exceptions_are_one_line_without_secrets(stream: io.StringIO) -> None:
    configure_logging("json", "info", stream)
    try:
        raise LookupError("no key e2b_" + "a" * 40)
    except LookupError:
        get_logger("x").exception("failed")
    (line,) = lines(stream)
    assert f"LookupError: no key {REDACTED}" in line["exception"]


async def test_context_follows_into_tasks_and_ends_with_its_block(stream: io.StringIO) -> None:
    configure_logging("json", "info", stream)
    log = get_logger("x")

    async def work() -> None:
        log.info("in a task")

    with log_context(request_id="r1"), log_context(sandbox_id="i1"):
        await asyncio.create_task(work())
    log.info("after")
    inside, after = lines(stream)
    assert (inside["request_id"], inside["sandbox_id"]) == ("r1", "i1")
    assert "request_id" not in after


def test_unknown_level_is_an_error() -> None:
    with pytest.raises(ValueError, match="loud"):
        configure_logging("json", "loud")


def test_pretty_lines_are_for_people(stream: io.StringIO) -> None:
    configure_logging("pretty", "info", stream)
    get_logger("x").info("hello", name="\x1b[31mred")
    assert "hello" in stream.getvalue()
    assert "\x1b" not in stream.getvalue()


@pytest.mark.parametrize(
    "name",
    [
        "token",
        "envd_token",
        "access-token",
        "X-API-KEY",
        "api_key",
        "apikeys",
        "password",
        "Authorization",
        "cookie",
        "db.dsn",
        "client_secret",
        "secrets",
    ],
)
def test_values_with_secret_names_are_hidden(name: str) -> None:
    assert redact_values({name: "visible?"}) == {name: REDACTED}
    assert redact_values({"a": [{name: {"b": "visible?"}}]}) == {"a": [{name: REDACTED}]}


@pytest.mark.parametrize("name", ["key_id", "keyboard", "tokenizer", "secretary", "sandbox_id", "monkey"])
def test_other_names_are_not(name: str) -> None:
    assert redact_values({name: "visible", "input_tokens": 12}) == {name: "visible", "input_tokens": 12}


@pytest.mark.parametrize(
    "secret",
    [
        "e2b_" + "0a" * 20,
        "sk-proj-" + "x" * 30,
        "AKIA" + "A1" * 8,
        "ghp_" + "a1" * 18,
        "eyJhbGciOiJI.eyJzdWIiOiIx.c2lnbmF0dXJl",
        "Bearer abcdefgh12345",
        "https://user:pa%20ss@host/",
        "/files?signature=v1_abc&x=1",
    ],
)
def test_secrets_in_texts_are_hidden(secret: str) -> None:
    hidden = redact_text(f"before {secret} after")
    assert REDACTED in hidden
    assert secret not in hidden
    assert hidden.startswith("before ")
    assert hidden.endswith(" after")


def test_what_sandboxes_say_is_bounded() -> None:
    assert len(redact_text("x" * 10_000_000)) < MAX_TEXT + 10
    deep: Any = "x"
    for _ in range(100):
        deep = [deep]
    values = redact_values(
        {"deep": deep, "wide": list(range(10_000)), "bytes": b"\x00" * 100_000, "odd": object()}
    )
    assert len(json.dumps(values)) < 3 * MAX_TEXT
