"""Sandboxes: create, list, look at, end."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from fastapi.responses import Response
from pydantic import AwareDatetime

from forkyard.auth.roles import Scope
from forkyard.base.errors import InvalidInput, NotSupported
from forkyard.e2b.deps import IdempotencyKey, PublicDomain, Reader, SandboxId, Service, Writer
from forkyard.e2b.metadata_filter import parse_metadata_filter
from forkyard.e2b.openapi import ERRORS
from forkyard.e2b.pagination import Page, next_headers
from forkyard.e2b.request import ApiRoute
from forkyard.e2b.responses import answer, no_content
from forkyard.e2b.schemas.network import SandboxNetworkConfig, is_empty
from forkyard.e2b.schemas.sandboxes import (
    ListedSandbox,
    NewSandbox,
    NewSandboxV2,
    Sandbox,
    SandboxDetail,
)
from forkyard.e2b.views import listed_sandbox, sandbox_answer, sandbox_detail
from forkyard.sandboxes import models
from forkyard.sandboxes.creating import NewSandbox as CreateRequest
from forkyard.sandboxes.naming import parse_reference
from forkyard.sandboxes.service import Sandboxes
from forkyard.sandboxes.state import VISIBLE, State, public_state
from forkyard.sandboxes.store import Cursor, SandboxFilter

TOTAL_RUNNING = "X-Total-Running"

DEFAULT_TIMEOUT = 300
DEFAULT_TIMEOUT_V1 = 15

router = APIRouter(tags=["sandboxes"], route_class=ApiRoute, responses=ERRORS)

MetadataQuery = Annotated[
    str | None, Query(description="`key=value&key=value`, keys and values percent-encoded; all must match")
]


@router.post("/v2/sandboxes", status_code=201, response_model=Sandbox)
async def create_sandbox(
    body: NewSandboxV2,
    principal: Writer,
    sandboxes: Service,
    domain: PublicDomain,
    key: IdempotencyKey = None,
) -> Response:
    """Create a sandbox from a template or snapshot. It is always secured."""
    request = create_request(body, default_timeout=DEFAULT_TIMEOUT, secure=True, idempotency_key=key)
    row = await sandboxes.create(principal.team_id, request)
    return answer(sandbox_answer(row, domain), status=201)


@router.post("/sandboxes", status_code=201, response_model=Sandbox)
async def create_sandbox_v1(
    body: NewSandbox, principal: Writer, sandboxes: Service, domain: PublicDomain, key: IdempotencyKey = None
) -> Response:
    """Create a sandbox from a template or snapshot. Its daemon asks for a token only with `secure`."""
    request = create_request(
        body, default_timeout=DEFAULT_TIMEOUT_V1, secure=bool(body.secure), idempotency_key=key
    )
    row = await sandboxes.create(principal.team_id, request)
    return answer(sandbox_answer(row, domain), status=201)


@router.get("/v2/sandboxes", response_model=list[ListedSandbox])
async def list_sandboxes(
    principal: Reader,
    sandboxes: Service,
    page: Page,
    metadata: MetadataQuery = None,
    state: Annotated[
        list[str] | None, Query(description="`running`, `paused` or both, separated by commas")
    ] = None,
    order: Annotated[Literal["asc", "desc"], Query(description="By start")] = "desc",
    started_after: Annotated[
        AwareDatetime | None, Query(alias="startedAfter", description="Started then or later")
    ] = None,
    template: Annotated[str, Query(description="Template id or name, without tag")] = "",
) -> Response:
    """List running and paused sandboxes, newest first."""
    states = parse_states(state or ())
    ascending = order == "asc"
    wanted = SandboxFilter(
        team_id=principal.team_id,
        states=[s for s in VISIBLE if public_state(s) in states],
        metadata=parse_metadata_filter(metadata),
        template=parse_template_filter(template),
        started_after=to_utc(started_after),
        ascending=ascending,
    )
    after = page.after(ascending=ascending)
    rows, following = await sandboxes.list(wanted, after=after, limit=page.limit)
    headers = next_headers(following, ascending=ascending)
    if State.RUNNING in states:
        everything = after is None and following is None
        total = _count_running(rows) if everything else await _total_running(sandboxes, wanted)
        headers[TOTAL_RUNNING] = str(total)
    return answer([listed_sandbox(row) for row in rows], headers=headers)


@router.get("/sandboxes", response_model=list[ListedSandbox], deprecated=True)
async def list_running_sandboxes(
    principal: Reader, sandboxes: Service, metadata: MetadataQuery = None
) -> Response:
    """List all running sandboxes, newest first. Use version 2, which has pages."""
    wanted = SandboxFilter(
        team_id=principal.team_id,
        states=[s for s in VISIBLE if public_state(s) is State.RUNNING],
        metadata=parse_metadata_filter(metadata),
    )
    listed: list[ListedSandbox] = []
    after: Cursor | None = None
    while True:
        rows, after = await sandboxes.list(wanted, after=after)
        listed.extend(listed_sandbox(row) for row in rows)
        if after is None:
            return answer(listed)


@router.get("/sandboxes/{sandbox_id}", response_model=SandboxDetail)
async def get_sandbox(
    sandbox_id: SandboxId, principal: Reader, sandboxes: Service, domain: PublicDomain
) -> Response:
    """Look at a sandbox. Keys that may only read are not shown the token of its daemon."""
    row = await sandboxes.get(principal.team_id, sandbox_id)
    with_token = Scope.SANDBOXES_WRITE in principal.scopes
    return answer(sandbox_detail(row, domain, with_token=with_token))


@router.delete("/sandboxes/{sandbox_id}", status_code=204)
async def kill_sandbox(sandbox_id: SandboxId, principal: Writer, sandboxes: Service) -> Response:
    """End a sandbox for good, running or paused. Its snapshots stay."""
    await sandboxes.kill(principal.team_id, sandbox_id)
    return no_content()


def create_request(
    body: NewSandboxV2, *, default_timeout: int, secure: bool, idempotency_key: str | None
) -> CreateRequest:
    """What the core is asked for. Raises NotSupported, InvalidInput."""
    for field, value in (("iam", _tokens(body.iam)), ("volumeMounts", body.volumeMounts)):
        if not is_empty(value):
            raise NotSupported(f"{field} is not supported", field)
    network = body.network or SandboxNetworkConfig()
    network.refuse_unsupported("network.")
    return CreateRequest(
        template=body.templateID,
        timeout_s=default_timeout if body.timeout is None else body.timeout,
        pause_on_timeout=bool(body.autoPause),
        pause_keeps_memory=body.autoPauseMemory is not False,
        auto_resume=body.autoResume is not None and body.autoResume.enabled,
        secure=secure,
        public_traffic=network.allowPublicTraffic is not False,
        allow_internet=body.allow_internet_access,
        allow_out=network.allowOut,
        deny_out=network.denyOut,
        mask_host=network.checked_mask(),
        metadata=body.metadata or {},
        env_vars=body.envVars or {},
        idempotency_key=idempotency_key,
    )


def parse_states(values: Sequence[str]) -> frozenset[State]:
    """Of `running` and `paused`, those asked for; both when none is. Raises InvalidInput."""
    names = {name.strip() for value in values for name in value.split(",")} - {""}
    if not names <= {"running", "paused"}:
        raise InvalidInput("state: only running and paused are known", "state")
    return frozenset(State(name) for name in names or ("running", "paused"))


def parse_template_filter(text: str) -> str | None:
    """The id or name to look for. Raises InvalidInput."""
    if not text:
        return None
    if ":" in text:
        raise InvalidInput("template: a sandbox does not know the tag it was made from", "template")
    return parse_reference(text, "template").alias


def to_utc(time: datetime | None) -> datetime | None:
    """Raises InvalidInput for a time that is out of range in UTC."""
    try:
        return time and time.astimezone(UTC)
    except OverflowError:
        raise InvalidInput("startedAfter: out of range", "startedAfter") from None


async def _total_running(sandboxes: Sandboxes, wanted: SandboxFilter) -> int:
    running = [state for state in wanted.states if public_state(state) is State.RUNNING]
    return await sandboxes.count(
        SandboxFilter(
            team_id=wanted.team_id,
            states=running,
            metadata=wanted.metadata,
            template=wanted.template,
            started_after=wanted.started_after,
        )
    )


def _count_running(rows: Sequence[models.Sandbox]) -> int:
    return sum(public_state(row.state) is State.RUNNING for row in rows)


def _tokens(iam: dict[str, object] | None) -> object:
    """`{tokens: {}}` asks for nothing either."""
    if iam is not None and set(iam) == {"tokens"}:
        return iam["tokens"]
    return iam
