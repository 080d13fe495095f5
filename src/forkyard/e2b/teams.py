"""The team of a key, as the E2B CLI asks for it."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import Response

from forkyard.e2b.deps import Anyone, Auth
from forkyard.e2b.openapi import ERRORS
from forkyard.e2b.request import ApiRoute
from forkyard.e2b.responses import answer
from forkyard.e2b.schemas.teams import Team

router = APIRouter(tags=["team"], route_class=ApiRoute, responses=ERRORS)


@router.get("/teams", response_model=list[Team])
async def list_teams(principal: Anyone, auth: Auth) -> Response:
    """List the teams of the key: the one it belongs to. Its keys are not shown."""
    team = await auth.get_team(principal)
    return answer([Team(teamID=team.id, name=team.name, apiKey="", isDefault=True)])
