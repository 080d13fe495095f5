"""What routes ask for: the services of the app, who makes the request, the ids in the path."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import Depends, Header, Path, Request
from pydantic import AfterValidator

from forkyard.auth.principal import Principal
from forkyard.auth.roles import Scope
from forkyard.auth.service import AuthService
from forkyard.base.errors import InvalidInput
from forkyard.sandboxes.errors import SandboxNotFound
from forkyard.sandboxes.service import Sandboxes

_SANDBOX_ID = re.compile(r"[a-z0-9]{1,40}")
_IDEMPOTENCY_KEY = re.compile(r"[a-z0-9-]{1,255}")


async def sandboxes_of(request: Request) -> Sandboxes:
    return request.app.state.sandboxes


async def auth_of(request: Request) -> AuthService:
    return request.app.state.auth


async def public_domain_of(request: Request) -> str | None:
    """The domain under which sandboxes are reached by host name, if there is one."""
    return request.app.state.public_domain


async def current_principal(request: Request) -> Principal:
    """Who makes the request; the route must be an `ApiRoute`, which has authenticated it."""
    return request.state.principal


def allowed(scope: Scope) -> Callable[[Request], Awaitable[Principal]]:
    """A dependency: the principal, if its key has that scope. Raises RoleNotAllowed."""

    async def check(request: Request) -> Principal:
        principal: Principal = request.state.principal
        principal.require(scope)
        return principal

    return check


Service = Annotated[Sandboxes, Depends(sandboxes_of)]
Auth = Annotated[AuthService, Depends(auth_of)]
PublicDomain = Annotated[str | None, Depends(public_domain_of)]

Anyone = Annotated[Principal, Depends(current_principal)]
Reader = Annotated[Principal, Depends(allowed(Scope.SANDBOXES_READ))]
Writer = Annotated[Principal, Depends(allowed(Scope.SANDBOXES_WRITE))]
TemplateReader = Annotated[Principal, Depends(allowed(Scope.TEMPLATES_READ))]


def parse_sandbox_id(text: str) -> str:
    """The id without the client's that old SDKs put behind it: `<id>-<client>`. Raises SandboxNotFound."""
    sandbox_id, _, client = text.partition("-")
    if not _SANDBOX_ID.fullmatch(sandbox_id) or "-" in client:
        raise SandboxNotFound(text[:100])
    return sandbox_id


def parse_idempotency_key(text: str) -> str:
    """Raises InvalidInput."""
    if not _IDEMPOTENCY_KEY.fullmatch(text):
        raise InvalidInput("Idempotency-Key: 1 to 255 of a-z, 0-9 and -", "Idempotency-Key")
    return text


SandboxId = Annotated[str, Path(description="Id of the sandbox"), AfterValidator(parse_sandbox_id)]

IdempotencyKey = Annotated[
    Annotated[str, AfterValidator(parse_idempotency_key)] | None,
    Header(
        alias="Idempotency-Key", description="Requests of a team with the same key and body make one sandbox"
    ),
]
