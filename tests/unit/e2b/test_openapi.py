import importlib.util
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

ROOT = Path(__file__).parents[3]
OPEN = {"/health"}
"""Routes without a key."""


@pytest.fixture
def document(bare_app: FastAPI) -> dict[str, Any]:
    return bare_app.openapi()


def operations(document: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [(path, operation) for path, item in document["paths"].items() for operation in item.values()]


def test_the_file_in_specs_is_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("openapi_script", ROOT / "scripts" / "openapi.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert (ROOT / "specs" / "openapi.json").read_text() == script.render(), "run scripts/openapi.py"


def test_every_operation_is_described(document: dict[str, Any]) -> None:
    tags = {tag["name"] for tag in document["tags"]}
    for path, operation in operations(document):
        assert operation.get("description"), path
        assert set(operation["tags"]) <= tags, path
        assert operation["tags"], path


def test_every_operation_has_an_id_of_its_own(document: dict[str, Any]) -> None:
    ids = [operation["operationId"] for _, operation in operations(document)]
    assert len(set(ids)) == len(ids)


def test_every_operation_but_health_needs_a_key(document: dict[str, Any]) -> None:
    for path, operation in operations(document):
        assert ("security" in operation) != (path in OPEN), path
        if path not in OPEN:
            assert {"400", "401", "404", "500"} <= set(operation["responses"]), path
    assert set(document["components"]["securitySchemes"]) == {"ApiKeyAuth", "BearerAuth"}


def test_every_success_but_204_has_a_schema(document: dict[str, Any]) -> None:
    for path, operation in operations(document):
        for status, response in operation["responses"].items():
            if status in ("200", "201"):
                (content,) = response["content"].values()
                assert content["schema"], (path, status)


def test_the_names_of_the_wire(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    assert schemas["Sandbox"]["required"] == ["templateID", "sandboxID", "clientID", "envdVersion"]
    assert set(schemas["Error"]["required"]) == {"code", "message"}
    assert schemas["NewSandboxV2"]["required"] == ["templateID"]
    assert "allow_internet_access" in schemas["NewSandboxV2"]["properties"]
    assert "secure" not in schemas["NewSandboxV2"]["properties"]


async def test_the_document_is_served_without_a_key(
    client: httpx.AsyncClient, document: dict[str, Any]
) -> None:
    client.headers.pop("X-API-KEY")
    assert (await client.get("/openapi.json")).json() == document


async def test_docs_work_without_the_internet(client: httpx.AsyncClient) -> None:
    client.headers.pop("X-API-KEY")
    page = await client.get("/docs")
    assert page.status_code == 200
    assets = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert len(assets) == 3
    for asset in assets:
        assert "//" not in asset, "loaded from another server"
        response = await client.get(f"/{asset}")
        assert response.status_code == 200
        assert response.content
    assert "/openapi.json" in page.text


async def test_docs_serve_no_other_file(client: httpx.AsyncClient) -> None:
    for name in ("core.py", "..%2fcore.py", "redoc.standalone.js"):
        assert (await client.get(f"/docs/assets/{name}")).status_code == 404
