"""Who makes a request: an API key in `X-API-KEY`, or as `Authorization: Bearer`."""

from __future__ import annotations

from fastapi import Request

from forkyard.auth.errors import InvalidApiKey
from forkyard.auth.principal import Principal
from forkyard.auth.service import AuthService

KEY_PREFIX = "e2b_"


async def authenticate(request: Request) -> Principal:
    """Raises InvalidApiKey.

    Several different keys are refused: what stands before us in the network may have looked at another one of them
    than we would.
    """
    given = set(request.headers.getlist("x-api-key"))
    for authorization in request.headers.getlist("authorization"):
        scheme, _, token = authorization.partition(" ")
        token = token.strip()
        # Other tokens (the E2B CLI sends the one of its login beside the key) say nothing to us.
        if scheme.lower() == "bearer" and token.startswith(KEY_PREFIX):
            given.add(token)
    if len(given) != 1:
        raise InvalidApiKey("several different API keys were sent") if given else InvalidApiKey()
    auth: AuthService = request.app.state.auth
    return await auth.authenticate(given.pop())
