"""Connect, pause, resume, and how long a sandbox lives."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from fastapi.responses import Response

from forkyard.base.errors import NotSupported
from forkyard.e2b.deps import PublicDomain, SandboxId, Service, Writer
from forkyard.e2b.openapi import ERRORS
from forkyard.e2b.request import ApiRoute
from forkyard.e2b.responses import answer, no_content
from forkyard.e2b.sandboxes import DEFAULT_TIMEOUT, DEFAULT_TIMEOUT_V1
from forkyard.e2b.schemas.sandboxes import (
    ConnectSandbox,
    ConnectSandboxV2,
    ResumedSandbox,
    Sandbox,
    SandboxPauseRequest,
    SandboxRefreshRequest,
    SandboxTimeoutRequest,
)
from forkyard.e2b.views import sandbox_answer
from forkyard.sandboxes.service import Sandboxes

MIN_REFRESH = 15
"""Seconds; E2B's server does not refresh by less."""

router = APIRouter(tags=["sandboxes"], route_class=ApiRoute, responses=ERRORS)

_CONNECTED: dict[int | str, dict[str, Any]] = {
    201: {"model": Sandbox, "description": "It was paused and has been resumed"}
}


@router.post("/v2/sandboxes/{sandbox_id}/connect", response_model=Sandbox, responses=_CONNECTED)
async def connect_sandbox(
    sandbox_id: SandboxId,
    principal: Writer,
    sandboxes: Service,
    domain: PublicDomain,
    body: ConnectSandboxV2 | None = None,
) -> Response:
    """Make sure that a sandbox runs: resume it if it is paused. Its time to live is only ever extended."""
    body = body or ConnectSandboxV2()
    timeout = DEFAULT_TIMEOUT if body.timeout is None else body.timeout
    return await _connect(sandboxes, principal.team_id, sandbox_id, timeout, body.memory, domain)


@router.post("/sandboxes/{sandbox_id}/connect", response_model=Sandbox, responses=_CONNECTED)
async def connect_sandbox_v1(
    sandbox_id: SandboxId, principal: Writer, sandboxes: Service, domain: PublicDomain, body: ConnectSandbox
) -> Response:
    """Make sure that a sandbox runs: resume it if it is paused. Its time to live is only ever extended."""
    return await _connect(sandboxes, principal.team_id, sandbox_id, body.timeout, body.memory, domain)


@router.post("/sandboxes/{sandbox_id}/pause", status_code=204)
async def pause_sandbox(
    sandbox_id: SandboxId, principal: Writer, sandboxes: Service, body: SandboxPauseRequest | None = None
) -> Response:
    """Pause a sandbox with its memory (or its files only). 409: it is paused already."""
    body = body or SandboxPauseRequest()
    await sandboxes.pause(
        principal.team_id,
        sandbox_id,
        keep_memory=body.memory is not False,
        require_healthy=bool(body.requireHealthyGuest),
    )
    return no_content()


@router.post("/sandboxes/{sandbox_id}/resume", status_code=201, response_model=Sandbox, deprecated=True)
async def resume_sandbox(
    sandbox_id: SandboxId,
    principal: Writer,
    sandboxes: Service,
    domain: PublicDomain,
    body: ResumedSandbox | None = None,
) -> Response:
    """Resume a paused sandbox. 409: it runs already. Use connect."""
    body = body or ResumedSandbox()
    if body.autoPause is not None:
        row = await sandboxes.get(principal.team_id, sandbox_id)
        if row.pause_on_timeout != body.autoPause:
            raise NotSupported("autoPause: cannot be changed by a resume", "autoPause")
    row = await sandboxes.resume(
        principal.team_id,
        sandbox_id,
        timeout_s=DEFAULT_TIMEOUT_V1 if body.timeout is None else body.timeout,
        keep_memory=body.memory is not False,
    )
    return answer(sandbox_answer(row, domain), status=201)


@router.post("/sandboxes/{sandbox_id}/timeout", status_code=204)
async def set_timeout(
    sandbox_id: SandboxId, principal: Writer, sandboxes: Service, body: SandboxTimeoutRequest
) -> Response:
    """Let a running sandbox end that many seconds from now, be it earlier or later than before."""
    await sandboxes.set_timeout(principal.team_id, sandbox_id, body.timeout)
    return no_content()


@router.post("/sandboxes/{sandbox_id}/refreshes", status_code=204)
async def refresh_sandbox(
    sandbox_id: SandboxId, principal: Writer, sandboxes: Service, body: SandboxRefreshRequest | None = None
) -> Response:
    """Let a running sandbox live at least that many seconds longer, never shorter than before."""
    duration = (body or SandboxRefreshRequest()).duration
    await sandboxes.refresh(principal.team_id, sandbox_id, max(MIN_REFRESH, duration or 0))
    return no_content()


async def _connect(
    sandboxes: Sandboxes,
    team_id: str,
    sandbox_id: str,
    timeout: int,
    memory: bool | None,
    domain: str | None,
) -> Response:
    connected = await sandboxes.connect(
        team_id, sandbox_id, timeout_s=timeout, keep_memory=memory is not False
    )
    return answer(sandbox_answer(connected.sandbox, domain), status=201 if connected.resumed else 200)
