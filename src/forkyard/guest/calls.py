"""Recorded calls: commands that envd starts once, and whose output and exit it keeps until they are acknowledged.

`specs/envd.md` has the contract. What an answer says comes from inside a sandbox: it has the form that is promised
here, or it is refused; that it is true is nobody's promise.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, cast

from forkyard.guest.errors import AnswerInvalid

CALL_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")

MAX_PIECE = 1 << 20
"""Bytes of one output in one answer."""
MAX_WAIT_S = 30.0

MAX_ANSWER = 2 * (MAX_PIECE * 4 // 3 + 4) + 8192
"""Bytes: two pieces in base64, and what is around them."""

_MOST = 2**53
_SIGNAL = re.compile(r"SIG[A-Z0-9+-]{1,16}")

Signal = Literal["SIGTERM", "SIGKILL", "SIGINT"]


@dataclass(frozen=True, slots=True)
class StartCall:
    """What to run. Without a user it is the sandbox's default one, in whose home directory it runs without a `cwd`."""

    cmd: str
    args: Sequence[str] = ()
    envs: Mapping[str, str] = field(default_factory=dict[str, str])
    cwd: str | None = None
    user: str | None = None
    timeout_ms: int | None = None
    """Time that the sandbox is paused does not count."""
    stdin: bytes | None = None
    """All that it reads; at most some 20 MB."""

    def to_body(self) -> dict[str, Any]:
        body: dict[str, Any] = {"cmd": self.cmd, "args": list(self.args), "envs": dict(self.envs)}
        if self.cwd is not None:
            body["cwd"] = self.cwd
        if self.user is not None:
            body["user"] = self.user
        if self.timeout_ms is not None:
            body["timeout_ms"] = self.timeout_ms
        if self.stdin is not None:
            body["stdin"] = base64.b64encode(self.stdin).decode()
        return body


@dataclass(frozen=True, slots=True)
class Call:
    """What is known of a call."""

    call_id: str
    running: bool
    pid: int
    started_at: datetime
    exit_code: int | None = None
    """None while it runs, and when a signal ended it."""
    signal: str | None = None
    timed_out: bool = False
    ended_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class OutputPiece:
    """A part of one output. Offsets count bytes from its begin."""

    offset: int
    """Of `data`: behind the one asked for if that was dropped, the end if it was beyond that."""
    data: bytes
    total: int
    """All that was written so far."""
    cut: tuple[int, int] | None
    """From and to of what was dropped, because it was too much or could not be stored."""

    @property
    def next(self) -> int:
        """The offset to ask for next."""
        return self.offset + len(self.data)


@dataclass(frozen=True, slots=True)
class CallOutput:
    """With a call that does not run any more, the output is complete up to its exit once `next` is `total`."""

    call: Call
    stdout: OutputPiece
    stderr: OutputPiece


def parse_call(data: bytes, call_id: str) -> Call:
    """The answer to a start. Raises AnswerInvalid."""
    return _call(_object(data), call_id)


def parse_output(data: bytes, call_id: str, *, stdout: int, stderr: int) -> CallOutput:
    """The answer to a read from these offsets. Raises AnswerInvalid."""
    answer = _object(data)
    return CallOutput(
        _call(_part(answer, "call"), call_id),
        _piece(_part(answer, "stdout"), stdout),
        _piece(_part(answer, "stderr"), stderr),
    )


def _call(answer: dict[str, Any], call_id: str) -> Call:
    state, signal = answer.get("state"), answer.get("signal")
    if answer.get("call_id") != call_id:
        raise AnswerInvalid("the sandbox's daemon answers about another call")
    if state not in ("running", "exited"):
        raise AnswerInvalid("the sandbox's daemon says of a call neither that it runs nor that it has exited")
    if signal is not None and not (isinstance(signal, str) and _SIGNAL.fullmatch(signal)):
        raise AnswerInvalid("the sandbox's daemon names a signal that is none")
    running = state == "running"
    exit_code = answer.get("exit_code")
    return Call(
        call_id,
        running,
        _number(answer, "pid"),
        _time(answer, "started_at"),
        None if running or exit_code is None else _number(answer, "exit_code", most=255),
        None if running else signal,
        not running and answer.get("timed_out") is True,
        None if running else _time(answer, "ended_at"),
    )


def _piece(answer: dict[str, Any], asked: int) -> OutputPiece:
    offset, total = _number(answer, "offset"), _number(answer, "total")
    text = answer.get("data")
    try:
        data = base64.b64decode(text if isinstance(text, str) else "?", validate=True)
    except (binascii.Error, ValueError):
        raise AnswerInvalid("the sandbox's daemon sends output that is not base64") from None
    if len(data) > MAX_PIECE or offset + len(data) > total or offset < min(asked, total):
        raise AnswerInvalid("the sandbox's daemon sends output that is of another place")
    return OutputPiece(offset, data, total, _cut(answer))


def _cut(answer: dict[str, Any]) -> tuple[int, int] | None:
    if answer.get("cut") is None:
        return None
    cut = _part(answer, "cut")
    start, end = _number(cut, "from"), _number(cut, "to")
    if start > end:
        raise AnswerInvalid("the sandbox's daemon sends a cut that ends before it begins")
    return start, end


def _object(data: bytes) -> dict[str, Any]:
    try:
        return _as_object(json.loads(data))
    except (ValueError, RecursionError):
        raise AnswerInvalid("the sandbox's daemon sends what is not JSON") from None


def _part(answer: dict[str, Any], name: str) -> dict[str, Any]:
    return _as_object(answer.get(name))


def _as_object(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise AnswerInvalid("the sandbox's daemon answers in another form")
    return cast(dict[str, Any], value)


def _number(answer: dict[str, Any], name: str, *, most: int = _MOST) -> int:
    value = answer.get(name)
    if type(value) is not int or not 0 <= value <= most:
        raise AnswerInvalid(f"the sandbox's daemon sends a {name} that is no such number")
    return value


def _time(answer: dict[str, Any], name: str) -> datetime:
    value = answer.get(name)
    try:
        time = datetime.fromisoformat(value if isinstance(value, str) else "")
    except ValueError:
        raise AnswerInvalid(f"the sandbox's daemon sends a {name} that is no time") from None
    if time.tzinfo is None:
        raise AnswerInvalid(f"the sandbox's daemon sends a {name} without a time zone")
    return time
