"""Answers about recorded calls: nothing from inside is believed beyond its form."""

import base64
import json
from datetime import UTC, datetime
from typing import Any

import pytest

from forkyard.guest.calls import MAX_PIECE, OutputPiece, StartCall, parse_call, parse_output
from forkyard.guest.errors import AnswerInvalid

RUNNING = {"call_id": "c", "state": "running", "pid": 7, "started_at": "2026-03-04T05:06:07.123456789Z"}
EXITED = {**RUNNING, "state": "exited", "exit_code": 3, "ended_at": "2026-03-04T05:06:08Z"}


def piece(data: bytes = b"", *, offset: int = 0, total: int | None = None, **more: Any) -> dict[str, Any]:
    end = offset + len(data)
    encoded = base64.b64encode(data).decode()
    return {"offset": offset, "data": encoded, "next": end, "total": end if total is None else total, **more}


def answer(call: Any = RUNNING, stdout: Any = None, stderr: Any = None) -> bytes:
    parts = {"call": call, "stdout": stdout or piece(), "stderr": stderr or piece()}
    return json.dumps(parts).encode()


def test_a_call() -> None:
    call = parse_call(json.dumps(RUNNING).encode(), "c")
    assert (call.running, call.pid, call.exit_code, call.signal, call.ended_at) == (True, 7, None, None, None)
    assert call.started_at == datetime(2026, 3, 4, 5, 6, 7, 123456, tzinfo=UTC)
    ended = parse_call(json.dumps(EXITED).encode(), "c")
    assert (ended.running, ended.exit_code, ended.timed_out) == (False, 3, False)
    killed = {**EXITED, "exit_code": None, "signal": "SIGKILL", "timed_out": True}
    call = parse_call(json.dumps(killed).encode(), "c")
    assert (call.exit_code, call.signal, call.timed_out) == (None, "SIGKILL", True)


def test_output() -> None:
    stderr = piece(b"\0\xff", offset=10, total=20, cut={"from": 2, "to": 10})
    found = parse_output(answer(EXITED, piece(b"out"), stderr), "c", stdout=0, stderr=5)
    assert found.stdout == OutputPiece(0, b"out", 3, None)
    assert (found.stderr.data, found.stderr.next, found.stderr.cut) == (b"\0\xff", 12, (2, 10))
    # What was asked for is beyond the end.
    assert parse_output(answer(), "c", stdout=9, stderr=9).stdout.next == 0


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"[]",
        b"[" * 100_000,
        answer(call=None),
        answer(call={**RUNNING, "call_id": "other"}),
        answer(call={**RUNNING, "state": "asleep"}),
        answer(call={**RUNNING, "pid": "7"}),
        answer(call={**RUNNING, "pid": True}),
        answer(call={**RUNNING, "pid": 2**64}),
        answer(call={**RUNNING, "started_at": "yesterday"}),
        answer(call={**RUNNING, "started_at": "2026-03-04T05:06:07"}),
        answer(call={**EXITED, "exit_code": -1}),
        answer(call={**EXITED, "exit_code": 256}),
        answer(call={**EXITED, "ended_at": None}),
        answer(call={**EXITED, "signal": "SIG KILL\n"}),
        answer(stdout={**piece(b"a"), "data": "!"}),
        answer(stdout={**piece(b"a"), "data": None}),
        answer(stdout=piece(b"a", total=0)),
        answer(stdout=piece(b"a", offset=-1)),
        answer(stdout=piece(b"a" * (MAX_PIECE + 1))),
        answer(stdout=piece(cut={"from": 2, "to": 1})),
        answer(stdout=piece(cut=[1, 2])),
    ],
)
def test_an_answer_of_another_form_is_refused(data: bytes) -> None:
    with pytest.raises(AnswerInvalid):
        parse_output(data, "c", stdout=0, stderr=0)


def test_a_reader_is_not_sent_back() -> None:
    with pytest.raises(AnswerInvalid):
        parse_output(answer(stdout=piece(b"again", total=50)), "c", stdout=10, stderr=0)


def test_only_what_is_said_is_sent() -> None:
    assert StartCall("true").to_body() == {"cmd": "true", "args": [], "envs": {}}
    full = StartCall("sh", ("-c", "x"), {"A": "b"}, "/", "root", 1000, b"in")
    assert full.to_body() == {
        "cmd": "sh",
        "args": ["-c", "x"],
        "envs": {"A": "b"},
        "cwd": "/",
        "user": "root",
        "timeout_ms": 1000,
        "stdin": "aW4=",
    }
