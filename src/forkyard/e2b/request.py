"""Requests of the API: who makes them is known before anything of the body is read, and bodies have bounds."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any

from fastapi import HTTPException, Request, Response
from fastapi.routing import APIRoute
from pydantic_core import from_json

from forkyard.base.logging import log_context
from forkyard.e2b.authentication import authenticate
from forkyard.e2b.openapi import SECURITY

MAX_BODY = 1 << 20
"""Bytes. Bodies are settings, names and metadata; files never come this way."""

_JSON = b"application/json"


class ApiRequest(Request):
    """A request whose body is JSON, of at most MAX_BODY bytes, nested at most 200 levels deep."""

    async def stream(self) -> AsyncGenerator[bytes, None]:
        declared = self.headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > MAX_BODY:
            raise _too_large()
        size = 0
        async for chunk in super().stream():
            size += len(chunk)
            if size > MAX_BODY:
                raise _too_large()
            yield chunk

    async def json(self) -> Any:
        """Numbers that are not finite and text that is not Unicode are refused, as the JSON standard says."""
        body = await self.body()
        try:
            return from_json(body, allow_inf_nan=False)
        except ValueError as error:
            # An HTTPException, because FastAPI hides every other error here.
            raise HTTPException(400, f"body: not valid JSON: {error}"[:300]) from None


class ApiRoute(APIRoute):
    """A route for clients with an API key.

    The check comes before the body is read: for whom there is no key, nothing is parsed. `request.state.principal`
    is who it is.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        options["openapi_extra"] = {**SECURITY, **(options.get("openapi_extra") or {})}
        super().__init__(*args, **options)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_authenticated(request: Request) -> Response:
            api_request = ApiRequest(_with_json_type(request.scope), request.receive)
            principal = api_request.state.principal = await authenticate(api_request)
            with log_context(actor=principal.key_id):
                return await handle(api_request)

        return handle_authenticated


def _with_json_type(scope: Any) -> Any:
    """E2B's server takes every body for JSON, whatever its content type says; FastAPI does if it says so."""
    headers: list[tuple[bytes, bytes]] = scope["headers"]
    for name, value in headers:
        if name == b"content-type" and value.startswith(_JSON):
            return scope
    others = [(name, value) for name, value in headers if name != b"content-type"]
    return {**scope, "headers": [*others, (b"content-type", _JSON)]}


def _too_large() -> HTTPException:
    return HTTPException(413, f"body: larger than {MAX_BODY} bytes")
