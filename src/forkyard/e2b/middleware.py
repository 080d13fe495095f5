"""What surrounds every request: an id, a log line, and an answer even when the code fails."""

from __future__ import annotations

import re
from collections.abc import Callable
from time import monotonic
from typing import cast

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forkyard.base.ids import new_short_id
from forkyard.base.logging import get_logger, log_context

log = get_logger(__name__)

HEADER = b"x-request-id"

_CLIENT_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_QUIET = frozenset({"GET", "HEAD", "OPTIONS"})


class RequestContext:
    """ASGI middleware. The id is the client's `X-Request-Id` if that has a plain form, and is sent back."""

    def __init__(self, app: ASGIApp, on_crash: Callable[[str], Response]) -> None:
        """`on_crash(request_id)` makes the answer when an exception gets here."""
        self._app = app
        self._on_crash = on_crash

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _id_of_client(scope) or new_short_id()
        scope.setdefault("state", {})["request_id"] = request_id
        started = monotonic()
        status: int | None = None

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (HEADER, request_id.encode())]
            await send(message)

        with log_context(request_id=request_id):
            try:
                await self._app(scope, receive, send_with_id)
            except Exception:
                log.exception("request crashed", method=scope["method"], path=scope["path"])
                if status is not None:
                    raise  # The answer has begun: only closing the connection can tell the client.
                await self._on_crash(request_id)(scope, receive, send_with_id)
            finally:
                _log_request(scope, status, monotonic() - started)


def request_id_of(scope: Scope) -> str | None:
    """The id of the request with this scope; None outside of RequestContext."""
    return cast("dict[str, str]", scope.get("state", {})).get("request_id")


def _id_of_client(scope: Scope) -> str | None:
    for name, value in scope["headers"]:
        if name == HEADER:
            return value.decode() if _CLIENT_ID.fullmatch(value) else None
    return None


def _log_request(scope: Scope, status: int | None, seconds: float) -> None:
    """Reads are frequent and change nothing: they are told only at debug level, unless they failed."""
    quiet = scope["method"] in _QUIET and status is not None and status < 500
    (log.debug if quiet else log.info)(
        "request", method=scope["method"], path=scope["path"], status=status, ms=round(seconds * 1000, 1)
    )
