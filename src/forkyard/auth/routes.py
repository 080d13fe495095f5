"""`/v1/api-keys` and `/v1/team`: the native API for teams and keys."""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Request, Response
from fastapi.routing import APIRoute

from forkyard.auth.limits import TeamLimits
from forkyard.auth.models import ApiKey
from forkyard.auth.principal import Principal
from forkyard.auth.schemas import ApiKeyInfo, CreatedApiKey, NewApiKey, TeamInfo
from forkyard.auth.service import AuthService

# No `from __future__ import annotations` here: the annotations below name arguments of `router`.


def router(
    *,
    route_class: type[APIRoute],
    principal_of: Callable[[Request], Awaitable[Principal]],
    auth_of: Callable[[Request], Awaitable[AuthService]],
    responses: dict[int | str, dict[str, Any]],
) -> APIRouter:
    """The routes. `route_class` authenticates, `principal_of` tells as whom; `responses` are the possible errors."""
    routes = APIRouter(prefix="/v1", tags=["team"], route_class=route_class, responses=responses)

    @routes.get("/team")
    async def get_team(
        principal: Annotated[Principal, Depends(principal_of)],
        auth: Annotated[AuthService, Depends(auth_of)],
    ) -> TeamInfo:
        """The team of the key, and what the key may do."""
        team = await auth.get_team(principal)
        return TeamInfo(
            id=team.id,
            name=team.name,
            created_at=team.created_at,
            limits=TeamLimits.from_json(team.limits),
            key_id=principal.key_id,
            role=principal.role,
            scopes=sorted(principal.scopes),
        )

    @routes.get("/api-keys")
    async def list_api_keys(
        principal: Annotated[Principal, Depends(principal_of)],
        auth: Annotated[AuthService, Depends(auth_of)],
    ) -> list[ApiKeyInfo]:
        """The team's keys that are not revoked, newest first."""
        return [ApiKeyInfo.model_validate(key) for key in await auth.list_keys(principal)]

    @routes.post("/api-keys", status_code=201)
    async def create_api_key(
        body: NewApiKey,
        principal: Annotated[Principal, Depends(principal_of)],
        auth: Annotated[AuthService, Depends(auth_of)],
    ) -> CreatedApiKey:
        """Make a key. It is in this answer and nowhere else."""
        issued = await auth.create_key(principal, name=body.name, role=body.role, expires_at=body.expires_at)
        return _created(issued.record, issued.key)

    @routes.delete("/api-keys/{key_id}", status_code=204)
    async def revoke_api_key(
        principal: Annotated[Principal, Depends(principal_of)],
        auth: Annotated[AuthService, Depends(auth_of)],
        key_id: Annotated[str, Path(description="Id of the key")],
    ) -> Response:
        """End a key. 409: it is the team's last valid admin key."""
        await auth.revoke_key(principal, key_id)
        return Response(status_code=204)

    return routes


def _created(record: ApiKey, key: str) -> CreatedApiKey:
    return CreatedApiKey(**ApiKeyInfo.model_validate(record).model_dump(), key=key)
