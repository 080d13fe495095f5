"""`/docs`: Swagger UI from files of an installed package, so that it works without the internet."""

from __future__ import annotations

from functools import cache
from importlib import resources

from fastapi import APIRouter, Request
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse, Response

from forkyard.base.errors import NotFound

router = APIRouter(include_in_schema=False)

_ASSETS = {
    "swagger-ui-bundle.js": "text/javascript",
    "swagger-ui.css": "text/css",
    "favicon.png": "image/png",
}


@router.get("/docs")
async def docs(request: Request) -> HTMLResponse:
    return get_swagger_ui_html(
        openapi_url=f"{request.scope.get('root_path', '')}/openapi.json",
        title=f"{request.app.title} API",
        swagger_js_url="docs/assets/swagger-ui-bundle.js",
        swagger_css_url="docs/assets/swagger-ui.css",
        swagger_favicon_url="docs/assets/favicon.png",
        swagger_ui_parameters={"persistAuthorization": True, "validatorUrl": None},
    )


@router.get("/docs/assets/{name}")
async def asset(name: str) -> Response:
    if name not in _ASSETS:
        raise NotFound()
    headers = {"Cache-Control": "public, max-age=86400"}
    return Response(_read(name), media_type=_ASSETS[name], headers=headers)


@cache
def _read(name: str) -> bytes:
    return resources.files("fastapi_offline").joinpath("static", name).read_bytes()
