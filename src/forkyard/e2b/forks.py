"""Fork a running sandbox."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from forkyard.e2b.deps import PublicDomain, SandboxId, Service, Writer
from forkyard.e2b.errors import describe
from forkyard.e2b.middleware import request_id_of
from forkyard.e2b.openapi import ERRORS
from forkyard.e2b.request import ApiRoute
from forkyard.e2b.responses import answer
from forkyard.e2b.sandboxes import DEFAULT_TIMEOUT_V1
from forkyard.e2b.schemas.sandboxes import SandboxForkRequest, SandboxForkResult
from forkyard.e2b.views import sandbox_answer
from forkyard.sandboxes.capturing import ForkResult

DEFAULT_FORK_TIMEOUT = DEFAULT_TIMEOUT_V1

router = APIRouter(tags=["sandboxes"], route_class=ApiRoute, responses=ERRORS)


@router.post("/sandboxes/{sandbox_id}/fork", status_code=201, response_model=list[SandboxForkResult])
async def fork_sandbox(
    request: Request,
    sandbox_id: SandboxId,
    principal: Writer,
    sandboxes: Service,
    domain: PublicDomain,
    body: SandboxForkRequest | None = None,
) -> Response:
    """Make children of a running sandbox, with its memory and files. It goes on, and each child succeeds or fails by
    itself; any other answer than 201 means that none was tried."""
    body = body or SandboxForkRequest()
    results = await sandboxes.fork(
        principal.team_id,
        sandbox_id,
        count=1 if body.count is None else body.count,
        timeout_s=DEFAULT_FORK_TIMEOUT if body.timeout is None else body.timeout,
    )
    request_id = request_id_of(request.scope)
    return answer([fork_result(result, domain, request_id) for result in results], status=201)


def fork_result(result: ForkResult, domain: str | None, request_id: str | None) -> SandboxForkResult:
    """One child's outcome as the client sees it."""
    if result.sandbox is not None:
        return SandboxForkResult(sandbox=sandbox_answer(result.sandbox, domain))
    if result.error is None:
        raise ValueError("a fork result has neither a sandbox nor an error")
    return SandboxForkResult(error=describe(result.error, request_id))
