"""Routes for the edge, and for operators on this machine. The edge never lets a client reach `/internal/`."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated

from fastapi import APIRouter, Header, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from pydantic import BaseModel, Field

from forkyard.base.errors import ForkyardError, LimitExceeded, StorageFull
from forkyard.e2b.deps import Reader
from forkyard.e2b.request import ApiRoute
from forkyard.node.edge_client import EdgeAway, EdgeClient
from forkyard.node.readiness import Readiness
from forkyard.sandboxes.service import Sandboxes


class Wake(BaseModel):
    id: str = Field(pattern=r"^[a-z0-9]{8,40}$")
    reason: str = Field(max_length=20)


def router(
    sandboxes: Sandboxes, registry: CollectorRegistry, edge: EdgeClient, readiness: Readiness
) -> APIRouter:
    """`/internal/wake`, `/metrics`, `/ready`."""
    routes = APIRouter(include_in_schema=False)
    # The numbers are of the whole server, so any team's key would do, but nobody without one gets them.
    guarded = APIRouter(include_in_schema=False, route_class=ApiRoute)

    @routes.post("/internal/wake")
    async def wake(body: Wake, x_forkyard_internal: Annotated[str, Header()] = "") -> Response:
        if x_forkyard_internal != "edge":
            return _error(404, "not found")
        try:
            route = await sandboxes.wake(body.id)
        except LimitExceeded as error:
            return _error(429, error.message, retry_after=error.retry_after)
        except StorageFull as error:
            return _error(507, error.message)
        except ForkyardError as error:
            return _error(503, error.message)
        if route is None:
            return _error(404, "The sandbox was not found")
        return JSONResponse({"route": route.to_json()})

    @guarded.get("/metrics")
    async def metrics(_: Reader) -> Response:
        text = generate_latest(registry)
        with suppress(EdgeAway):  # Scrapes go on while the edge is being started again.
            text += await edge.metrics()
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    @routes.get("/ready")
    async def ready(_: Request) -> Response:
        missing = await readiness.look()
        if missing:
            return PlainTextResponse("not ready: " + ", ".join(missing) + "\n", status_code=503)
        return PlainTextResponse("ready\n")

    routes.include_router(guarded)
    return routes


def _error(status: int, message: str, *, retry_after: float | None = None) -> JSONResponse:
    headers = {"Retry-After": str(max(1, round(retry_after)))} if retry_after is not None else None
    return JSONResponse({"code": status, "message": message}, status_code=status, headers=headers)
