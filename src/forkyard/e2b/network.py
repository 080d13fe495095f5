"""What a running sandbox may reach."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import Response

from forkyard.e2b.deps import SandboxId, Service, Writer
from forkyard.e2b.openapi import ERRORS
from forkyard.e2b.request import ApiRoute
from forkyard.e2b.responses import no_content
from forkyard.e2b.schemas.network import SandboxNetworkUpdateConfig

router = APIRouter(tags=["sandboxes"], route_class=ApiRoute, responses=ERRORS)


@router.put("/sandboxes/{sandbox_id}/network", status_code=204)
async def update_network(
    sandbox_id: SandboxId, principal: Writer, sandboxes: Service, body: SandboxNetworkUpdateConfig
) -> Response:
    """Replace all egress rules; what is left out is cleared. It holds for open connections too."""
    body.refuse_unsupported("")
    await sandboxes.set_network(
        principal.team_id,
        sandbox_id,
        allow_out=body.allowOut,
        deny_out=body.denyOut,
        allow_internet=body.allow_internet_access,
    )
    return no_content()
