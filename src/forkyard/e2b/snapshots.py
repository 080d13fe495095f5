"""Snapshots: take, list, delete. They are used like templates, by id or name."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import Response

from forkyard.e2b.deps import Reader, SandboxId, Service, Writer, parse_sandbox_id
from forkyard.e2b.openapi import ERRORS
from forkyard.e2b.pagination import Page, next_headers
from forkyard.e2b.request import ApiRoute
from forkyard.e2b.responses import answer
from forkyard.e2b.schemas.snapshots import SandboxSnapshotRequest, SnapshotInfo
from forkyard.e2b.views import snapshot_info
from forkyard.sandboxes.errors import SandboxNotFound

router = APIRouter(tags=["snapshots"], route_class=ApiRoute, responses=ERRORS)


@router.post("/sandboxes/{sandbox_id}/snapshots", status_code=201, response_model=SnapshotInfo)
async def create_snapshot(
    sandbox_id: SandboxId, principal: Writer, sandboxes: Service, body: SandboxSnapshotRequest | None = None
) -> Response:
    """Take a snapshot of a running sandbox, which goes on. The snapshot outlives it."""
    body = body or SandboxSnapshotRequest()
    snapshot, names = await sandboxes.snapshot(
        principal.team_id, sandbox_id, name=body.name or None, keep_memory=body.memory is not False
    )
    return answer(snapshot_info(snapshot, names), status=201)


@router.get("/snapshots", response_model=list[SnapshotInfo])
async def list_snapshots(
    principal: Reader,
    sandboxes: Service,
    page: Page,
    source: Annotated[str, Query(alias="sandboxID", description="Only those taken of this sandbox")] = "",
    name: Annotated[str, Query(description="Only those of this name or id, optionally `:tag`")] = "",
) -> Response:
    """List the team's snapshots, newest first."""
    after = page.after()
    try:
        sandbox_id = parse_sandbox_id(source) if source else None
    except SandboxNotFound:
        return answer([])
    found, following = await sandboxes.snapshots(
        principal.team_id, sandbox_id=sandbox_id, name=name or None, after=after, limit=page.limit
    )
    return answer([snapshot_info(row, names) for row, names in found], headers=next_headers(following))
