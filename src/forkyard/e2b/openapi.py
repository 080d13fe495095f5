"""What the OpenAPI document says of all routes."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

from forkyard.e2b.schemas.errors import Error

ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": Error, "description": "The request is not valid, or asks for what is not supported"},
    401: {"model": Error, "description": "No API key, or not a valid one"},
    403: {"model": Error, "description": "The role of the key does not permit this"},
    404: {"model": Error, "description": "Not there, or of another team"},
    409: {"model": Error, "description": "The present state does not allow this"},
    413: {"model": Error, "description": "The body is too large"},
    422: {"model": Error, "description": "The idempotency key was used with another request"},
    429: {"model": Error, "description": "A limit is reached"},
    500: {"model": Error, "description": "Something went wrong; the message has the request's id"},
    503: {"model": Error, "description": "Not possible now"},
    504: {"model": Error, "description": "It took too long"},
    507: {"model": Error, "description": "The host's disk is too full"},
}
"""Possible answers of every route that needs a key."""

SECURITY: dict[str, Any] = {"security": [{"ApiKeyAuth": []}, {"BearerAuth": []}]}
"""Of every route that needs a key."""

_SCHEMES = {
    "ApiKeyAuth": {
        "type": "apiKey",
        "in": "header",
        "name": "X-API-KEY",
        "description": "`e2b_` and 40 hexadecimal digits",
    },
    "BearerAuth": {"type": "http", "scheme": "bearer", "description": "The same key"},
}

_TAGS = [
    {"name": "sandboxes", "description": "Create, use and end sandboxes"},
    {"name": "snapshots", "description": "Captured sandboxes that others start from"},
    {"name": "templates", "description": "What sandboxes start from"},
    {"name": "metrics", "description": "What sandboxes use"},
    {"name": "logs", "description": "What happened to sandboxes"},
    {"name": "team", "description": "The team and its API keys"},
    {"name": "health", "description": "Whether the server answers"},
]


def operation_id(route: APIRoute) -> str:
    """The name of the route's function: short and stable. They are all different."""
    return route.name


def install_openapi(app: FastAPI) -> None:
    """Serve a document that has the security schemes and tags of this API too. It is made once, when asked for."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            made = get_openapi(
                title=app.title,
                version=app.version,
                description=app.description,
                routes=app.routes,
                tags=_TAGS,
                separate_input_output_schemas=app.separate_input_output_schemas,
            )
            made.setdefault("components", {})["securitySchemes"] = _SCHEMES
            app.openapi_schema = made
        return app.openapi_schema

    app.openapi = document
