"""The app with all routes of this layer. The composition root sets its state and adds its own routes."""

from __future__ import annotations

from fastapi import APIRouter, FastAPI
from starlette.middleware.cors import CORSMiddleware

from forkyard import __version__
from forkyard.auth import routes as auth_routes
from forkyard.e2b import docs, forks, health, lifecycle, logs, metrics, network, sandboxes, snapshots, teams
from forkyard.e2b import templates as template_routes
from forkyard.e2b.deps import auth_of, current_principal
from forkyard.e2b.errors import install_errors
from forkyard.e2b.openapi import ERRORS, install_openapi, operation_id
from forkyard.e2b.request import ApiRoute

_EXPOSED = ("x-next-token", "X-Total-Running", "Retry-After", "X-Request-Id")


def routers() -> list[APIRouter]:
    """In an order in which none hides another: `/sandboxes/metrics` before `/sandboxes/{sandbox_id}`, and everything
    under `/templates/` before `/templates/{template_id:path}`."""
    return [
        metrics.router,
        sandboxes.router,
        lifecycle.router,
        network.router,
        forks.router,
        snapshots.router,
        logs.router,
        teams.router,
        auth_routes.router(
            route_class=ApiRoute, principal_of=current_principal, auth_of=auth_of, responses=ERRORS
        ),
        health.router,
        docs.router,
        template_routes.router,
    ]


def create_app() -> FastAPI:
    """The app; before it serves, set `app.state.sandboxes` (Sandboxes), `app.state.auth` (AuthService) and
    `app.state.public_domain` (str or None)."""
    app = FastAPI(
        title="Forkyard",
        version=__version__,
        description="Sandboxes that can be paused, resumed and forked. Speaks the API of E2B's SDKs.",
        openapi_url="/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=operation_id,
    )
    for router in routers():
        app.include_router(router)
    install_openapi(app)
    install_errors(app)
    # Requests are made with a key in a header, never with cookies: a page gains nothing it does not have.
    app.add_middleware(
        CORSMiddleware,
        allow_origins=["*"],
        allow_methods=["*"],
        allow_headers=["*"],
        expose_headers=_EXPOSED,
        max_age=3600,
    )
    return app
