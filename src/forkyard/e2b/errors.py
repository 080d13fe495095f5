"""From errors to HTTP answers: one table, from the decision an error stands for to a status.

Every answer that is not a success has the body `{"code": <status>, "message": str, "error_code"?: str}`: the SDKs
read `code` from the body, and `error_code` is the stable `code` of the error's class.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from forkyard.base import errors as base
from forkyard.base.logging import get_logger
from forkyard.e2b.middleware import RequestContext, request_id_of
from forkyard.e2b.responses import answer
from forkyard.e2b.schemas.errors import Error
from forkyard.sandboxes import errors as sandboxes
from forkyard.storage import errors as storage

log = get_logger(__name__)

MAX_MESSAGE = 1000
"""Characters of a message; some of them echo what the client sent."""

MAX_PROBLEMS = 5
"""Wrong fields named in one answer."""


class Told(Enum):
    """What of an error's message goes out; all of it is logged."""

    MESSAGE = "message"
    OUTCOME = "outcome"
    """What comes before the first colon: how things stand now. The cause behind it may name hosts, paths, or what a
    driver said."""
    NOTHING = "nothing"
    """The default message of its class instead."""


class Rule(NamedTuple):
    status: int
    told: Told = Told.MESSAGE
    retry_after: float | None = None
    """Seconds, when the error itself does not know."""


RULES: Mapping[type[base.ForkyardError], Rule] = {
    base.ForkyardError: Rule(500, told=Told.NOTHING),
    base.InvalidInput: Rule(400),
    base.TooLarge: Rule(413),
    base.NotAuthenticated: Rule(401),
    base.NotAllowed: Rule(403),
    base.NotFound: Rule(404),
    base.Conflict: Rule(409),
    base.LimitExceeded: Rule(429),
    base.StorageFull: Rule(507),
    base.Unavailable: Rule(503, told=Told.NOTHING),
    base.DeadlineExceeded: Rule(504, told=Told.NOTHING),
    sandboxes.IdempotencyMismatch: Rule(422),
    # Still in a transition after a long wait. Not 409: on a pause the SDKs take that for "paused already".
    sandboxes.WrongState: Rule(503),
    sandboxes.AlreadyPaused: Rule(409),
    sandboxes.AlreadyRunning: Rule(409),
    sandboxes.NotRunning: Rule(409),
    sandboxes.TransitionFailed: Rule(500, told=Told.OUTCOME),
    sandboxes.GuestUnresponsive: Rule(503, told=Told.NOTHING),
    # Nothing was written. Not 409, for the same reason.
    storage.DatabaseConflict: Rule(503, told=Told.NOTHING, retry_after=1),
    storage.DatabaseFull: Rule(507, told=Told.NOTHING),
}

# There "not found" and "conflict" speak of processes and addresses, never of what the client asked for.
_BELOW = ("forkyard.host.", "forkyard.guest.", "forkyard.drivers.")
_CLIENTS_FAULT = frozenset({400, 401, 403, 404, 409, 413})

_WAIT_IN_VAIN = 5.0
"""From this many seconds on a client's automatic retries would only delay the answer to its user."""


def rule_of(error: base.ForkyardError) -> Rule:
    """How an error is answered: by the nearest class of it that the table knows."""
    kind = type(error)
    rule = next(RULES[cls] for cls in kind.__mro__ if cls in RULES)
    if rule.status in _CLIENTS_FAULT and kind.__module__.startswith(_BELOW):
        return RULES[base.ForkyardError]
    return rule


def describe(error: base.ForkyardError, request_id: str | None) -> Error:
    """The body for an error; also for one that is part of a successful answer (a fork's child)."""
    rule = rule_of(error)
    message = _told_of(error, rule.told)
    if rule.status == 500 and request_id is not None:
        message = f"{message} (request {request_id})"
    return Error(code=rule.status, message=message[:MAX_MESSAGE], error_code=error.code)


def _told_of(error: base.ForkyardError, told: Told) -> str:
    if told is Told.MESSAGE:
        return error.message
    return error.message.partition(": ")[0] if told is Told.OUTCOME else default_message(error)


def default_message(error: base.ForkyardError) -> str:
    """What the error's class says of itself: written for users, without details of the case."""
    return inspect.cleandoc(type(error).__doc__ or "").partition("\n")[0]


def retry_headers(status: int, retry_after: float | None) -> dict[str, str]:
    """What tells the SDKs whether to try again by themselves.

    Without `Should-Retry` the Python SDK repeats 429, 503 and 504 three times, whatever the reason was.
    """
    headers: dict[str, str] = {}
    if retry_after is not None:
        headers["Retry-After"] = str(max(1, math.ceil(retry_after)))
    if status in (429, 503, 504) and (retry_after is None or retry_after >= _WAIT_IN_VAIN):
        headers["Should-Retry"] = "false"
    return headers


def error_response(
    status: int, message: str, *, error_code: str | None = None, headers: Mapping[str, str] | None = None
) -> Response:
    """An answer in the one form that errors have."""
    body = Error(code=status, message=message[:MAX_MESSAGE], error_code=error_code)
    return answer(body, status=status, headers=headers)


def install_errors(app: FastAPI) -> None:
    """Let every error of the app be answered in the form of this contract, with a request id."""
    app.add_exception_handler(base.ForkyardError, _on_forkyard_error)
    app.add_exception_handler(RequestValidationError, _on_invalid_request)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_middleware(RequestContext, on_crash=crash_response)


def crash_response(request_id: str) -> Response:
    """For what nobody expected. Tells nothing but where to look."""
    message = f"Something went wrong inside Forkyard (request {request_id})"
    return error_response(500, message, error_code=base.ForkyardError.code)


async def _on_forkyard_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, base.ForkyardError)
    rule = rule_of(error)
    body = describe(error, request_id_of(request.scope))
    if rule.status == 500:
        log.error("request failed", error=error.message, code=error.code, exc_info=error)
    elif rule.told is not Told.MESSAGE:
        log.warning("request failed", error=error.message, code=error.code)
    retry_after = getattr(error, "retry_after", None) or rule.retry_after
    return answer(body, status=rule.status, headers=retry_headers(rule.status, retry_after))


async def _on_invalid_request(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    message = "; ".join(_problem(problem) for problem in error.errors()[:MAX_PROBLEMS])
    return error_response(400, message, error_code=base.InvalidInput.code)


async def _on_http_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return error_response(error.status_code, str(error.detail), headers=error.headers)


def _problem(problem: Mapping[str, Any]) -> str:
    """`network.allowOut.0: Input should be a valid string`. Never the value itself: it may be a secret."""
    place: Sequence[str | int] = problem["loc"]
    # The first part says body, query, path or header; what follows is the name that the client used.
    names = [str(part)[:100] for part in place[1:]]
    field = ".".join(names) or str(place[0])
    return f"{field}: {problem['msg']}"
