"""What happens to a request before it reaches a route: keys, bodies, ids, crashes."""

import json
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import httpx
import pytest
from fastapi import APIRouter, FastAPI

from forkyard.e2b.request import MAX_BODY, ApiRoute
from forkyard.e2b.schemas.sandboxes import NewSandboxV2
from tests.unit.e2b.conftest import ADMIN, KEYS, bare, client_of

OTHER = next(key for key in KEYS if key != ADMIN)
UNKNOWN = "e2b_" + "0" * 40


@pytest.fixture(scope="module")
def echo_app() -> FastAPI:
    """`POST /echo` takes the body of a create and answers it; `/crash` fails."""
    app = bare()
    router = APIRouter(route_class=ApiRoute)

    @router.post("/echo")
    async def echo(body: NewSandboxV2) -> dict[str, Any]:
        return body.model_dump(exclude_none=True)

    @router.post("/maybe")
    async def maybe(body: NewSandboxV2 | None = None) -> bool:
        return body is not None

    @router.get("/crash")
    async def crash() -> None:
        raise RuntimeError("the secret is 42")

    app.include_router(router)
    return app


@pytest.fixture
async def echo(echo_app: FastAPI) -> AsyncGenerator[httpx.AsyncClient]:
    async with client_of(echo_app) as client:
        yield client


def error_of(response: httpx.Response) -> dict[str, Any]:
    """The body of an error, checked for its form."""
    assert response.headers["content-type"] == "application/json"
    body: dict[str, Any] = response.json()
    assert body["code"] == response.status_code
    assert isinstance(body["message"], str)
    assert body["message"]
    return body


# -- keys --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        [("X-API-KEY", ADMIN)],
        [("x-api-key", ADMIN), ("X-API-Key", ADMIN)],
        [("Authorization", f"Bearer {ADMIN}")],
        [("Authorization", f"bearer   {ADMIN}")],
        [("X-API-KEY", ADMIN), ("Authorization", f"Bearer {ADMIN}")],
        # The E2B CLI sends the token of its login beside the key.
        [("X-API-KEY", ADMIN), ("Authorization", "Bearer sk_e2b_0123456789")],
        [("X-API-KEY", ADMIN), ("Authorization", "Basic dXNlcjo=")],
    ],
)
async def test_keys_that_are_accepted(echo: httpx.AsyncClient, headers: list[tuple[str, str]]) -> None:
    echo.headers.pop("X-API-KEY")
    response = await echo.post("/echo", json={"templateID": "base"}, headers=headers)
    assert response.status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("X-API-KEY", "")],
        [("X-API-KEY", UNKNOWN)],
        [("X-API-KEY", ADMIN), ("X-API-KEY", UNKNOWN)],
        [("X-API-KEY", ADMIN), ("X-API-KEY", OTHER)],
        [("X-API-KEY", ADMIN), ("Authorization", f"Bearer {OTHER}")],
        [("X-API-KEY", f"{ADMIN}, {OTHER}")],
        [("Authorization", ADMIN)],
        [("Authorization", f"Basic {ADMIN}")],
        [("Authorization", "Bearer something")],
        [("X-Admin-Token", ADMIN)],
        [("X-Team-ID", "team")],
        [("Cookie", f"X-API-KEY={ADMIN}")],
    ],
)
async def test_keys_that_are_refused(echo: httpx.AsyncClient, headers: list[tuple[str, str]]) -> None:
    echo.headers.pop("X-API-KEY")
    response = await echo.post("/echo", json={"templateID": "base"}, headers=headers)
    assert response.status_code == 401
    assert error_of(response)["error_code"] == "invalid_api_key"


async def test_without_a_key_the_body_is_not_read(echo: httpx.AsyncClient) -> None:
    echo.headers.pop("X-API-KEY")
    read: list[int] = []

    async def body() -> AsyncIterator[bytes]:
        read.append(1)
        yield b"not json"

    response = await echo.post("/echo", content=body(), headers={"X-API-KEY": UNKNOWN})
    assert response.status_code == 401
    assert read == []


# -- bodies ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"not json",
        b'{"templateID": "base",}',
        b'{"templateID": "base", "timeout": NaN}',
        b'{"templateID": "base", "timeout": Infinity}',
        b'{"templateID": "base"} trailing',
        b'{"templateID": "\xff"}',
        b'{"templateID": "\\ud800"}',
        b'{"templateID": "base", "metadata": {"a": "\\udc00"}}',
        b"[" * 5000 + b"]" * 5000,
        b'{"mcp":' * 1000 + b"1" + b"}" * 1000,
        b'{"templateID": "base", "timeout": ' + b"9" * 10_000 + b"}",
        b"[]",
        b'"text"',
        b"null",
        b"",
    ],
    ids=lambda body: body[:30].decode(errors="replace"),
)
async def test_malformed_bodies_are_400(echo: httpx.AsyncClient, body: bytes) -> None:
    response = await echo.post("/echo", content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == 400
    error_of(response)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "templateID"),
        ({"templateID": "base", "timeout": "soon"}, "timeout"),
        ({"templateID": "base", "network": {"allowOut": [1]}}, "network.allowOut.0"),
        ({"templateID": "base", "metadata": {"a": 1}}, "metadata.a"),
    ],
)
async def test_the_wrong_field_is_named(echo: httpx.AsyncClient, body: dict[str, Any], field: str) -> None:
    error = error_of(await echo.post("/echo", json=body))
    assert error["message"].startswith(f"{field}: ")
    assert error["error_code"] == "invalid_input"


async def test_what_was_sent_is_not_repeated(echo: httpx.AsyncClient) -> None:
    body = {"templateID": "base", "envVars": {"TOKEN": ["s3cret"]}}
    assert "s3cret" not in (await echo.post("/echo", json=body)).text


async def test_many_wrong_fields_make_a_short_message(echo: httpx.AsyncClient) -> None:
    body = {"templateID": "base", "metadata": {"k" * 200 + str(n): n for n in range(500)}}
    assert len(error_of(await echo.post("/echo", json=body))["message"]) < 1001


@pytest.mark.parametrize(
    "content_type",
    [None, "application/json; charset=utf-8", "text/plain", "application/x-www-form-urlencoded", "%"],
)
async def test_any_content_type_is_taken_for_json(echo: httpx.AsyncClient, content_type: str | None) -> None:
    headers = {"Content-Type": content_type} if content_type else {}
    response = await echo.post("/echo", content=b'{"templateID": "base"}', headers=headers)
    assert response.json() == {"templateID": "base"}


@pytest.mark.parametrize("body", [b"", b"null"])
async def test_an_optional_body_may_be_left_out(echo: httpx.AsyncClient, body: bytes) -> None:
    assert (await echo.post("/maybe", content=body)).json() is False
    assert (await echo.post("/maybe", json={"templateID": "a"})).json() is True


def _padded(size: int) -> bytes:
    empty = len(json.dumps({"templateID": "base", "padding": ""}))
    return json.dumps({"templateID": "base", "padding": "x" * (size - empty)}).encode()


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_of_the_largest_size(echo: httpx.AsyncClient, chunked: bool) -> None:
    async def chunks(body: bytes) -> AsyncIterator[bytes]:
        for start in range(0, len(body), 100_000):
            yield body[start : start + 100_000]

    for size, status in ((MAX_BODY, 200), (MAX_BODY + 1, 413)):
        body = _padded(size)
        response = await echo.post("/echo", content=chunks(body) if chunked else body)
        assert response.status_code == status
    error_of(response)


async def test_an_endless_body_is_not_kept(echo: httpx.AsyncClient) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while sent < 100 * MAX_BODY:
            sent += 1 << 16
            yield b" " * (1 << 16)

    assert (await echo.post("/echo", content=endless())).status_code == 413
    assert sent < 3 * MAX_BODY


# -- paths -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["/nothing", "/sandboxes/", "/v2", "/sandboxes/a/b/c", "/%00", "/internal/wake"]
)
async def test_unknown_paths_are_404_in_json(client: httpx.AsyncClient, path: str) -> None:
    response = await client.get(path)
    assert response.status_code == 404
    error_of(response)


async def test_unknown_methods_are_405_in_json(client: httpx.AsyncClient) -> None:
    response = await client.patch("/v2/sandboxes")
    assert response.status_code == 405
    assert {"GET", "POST"} & set(response.headers["allow"].split(", "))
    error_of(response)


@pytest.mark.parametrize(
    "sandbox_id",
    ["UPPER", "a_b", "a-b-c", "-abc", "x" * 41, "%00", "%F0%9F%98%80", "..", "a'--", "sbx-test-1"],
)
@pytest.mark.parametrize(
    ("method", "suffix"),
    [("GET", ""), ("DELETE", ""), ("POST", "/pause"), ("GET", "/logs"), ("GET", "/metrics")],
)
async def test_malformed_sandbox_ids_are_404(
    client: httpx.AsyncClient, sandbox_id: str, method: str, suffix: str
) -> None:
    response = await client.request(method, f"/sandboxes/{sandbox_id}{suffix}")
    assert response.status_code == 404
    error_of(response)


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/v2/sandboxes?limit=0", "limit"),
        ("/v2/sandboxes?limit=101", "limit"),
        ("/v2/sandboxes?limit=x", "limit"),
        ("/v2/sandboxes?nextToken=%21", "nextToken"),
        ("/v2/sandboxes?order=up", "order"),
        ("/v2/sandboxes?state=gone", "state"),
        ("/v2/sandboxes?metadata=a", "metadata"),
        ("/v2/sandboxes?startedAfter=yesterday", "startedAfter"),
        ("/v2/sandboxes?startedAfter=2026-01-01T00:00:00", "startedAfter"),
        ("/v2/sandboxes?template=base:v1", "template"),
        ("/sandboxes?metadata=a", "metadata"),
        ("/sandboxes/metrics", "sandbox_ids"),
        ("/sandboxes/metrics?sandbox_ids=UPPER", "sandbox_ids"),
        ("/sandboxes/metrics?sandbox_ids=" + ",".join(["a"] * 101), "sandbox_ids"),
        ("/sandboxes/abc/metrics?start=-1", "start"),
        ("/sandboxes/abc/metrics?start=2&end=1", "start"),
        ("/sandboxes/abc/metrics?end=" + "9" * 30, "end"),
        ("/sandboxes/abc/logs?start=-1", "start"),
        ("/v2/sandboxes/abc/logs?limit=1001", "limit"),
        ("/v2/sandboxes/abc/logs?direction=up", "direction"),
        ("/v2/sandboxes/abc/logs?level=loud", "level"),
        ("/v2/sandboxes/abc/logs?search=" + "x" * 257, "search"),
        ("/snapshots?limit=0", "limit"),
        ("/snapshots?nextToken=x", "nextToken"),
        ("/v2/templates?limit=1000", "limit"),
    ],
)
async def test_malformed_queries_are_400_and_named(client: httpx.AsyncClient, path: str, field: str) -> None:
    response = await client.get(path)
    assert response.status_code == 400
    assert error_of(response)["message"].startswith(field)


@pytest.mark.parametrize("key", ["", "UPPER", "a b", "x" * 256, "a_b"])
@pytest.mark.parametrize("path", ["/sandboxes", "/v2/sandboxes"])
async def test_malformed_idempotency_keys_are_400(client: httpx.AsyncClient, path: str, key: str) -> None:
    response = await client.post(path, json={"templateID": "base"}, headers={"Idempotency-Key": key})
    assert response.status_code == 400
    assert error_of(response)["message"].startswith("Idempotency-Key")


# -- roles -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("role", "method", "path"),
    [
        ("read-only", "POST", "/v2/sandboxes"),
        ("read-only", "POST", "/sandboxes"),
        ("read-only", "DELETE", "/sandboxes/abc"),
        ("read-only", "POST", "/sandboxes/abc/pause"),
        ("read-only", "POST", "/sandboxes/abc/resume"),
        ("read-only", "POST", "/sandboxes/abc/fork"),
        ("read-only", "POST", "/sandboxes/abc/connect"),
        ("read-only", "POST", "/v2/sandboxes/abc/connect"),
        ("read-only", "POST", "/sandboxes/abc/timeout"),
        ("read-only", "POST", "/sandboxes/abc/refreshes"),
        ("read-only", "POST", "/sandboxes/abc/snapshots"),
        ("read-only", "PUT", "/sandboxes/abc/network"),
    ],
)
async def test_roles_that_may_not(client: httpx.AsyncClient, role: str, method: str, path: str) -> None:
    key = next(key for key, of in KEYS.items() if of.value == role)
    body = {"templateID": "base", "timeout": 1}
    response = await client.request(method, path, json=body, headers={"X-API-KEY": key})
    assert response.status_code == 403
    assert error_of(response)["error_code"] == "role_not_allowed"


# -- around it ---------------------------------------------------------------------------------------


async def test_a_crash_is_a_500_that_tells_nothing_but_the_request(echo: httpx.AsyncClient) -> None:
    response = await echo.get("/crash", headers={"X-Request-Id": "abc-1"})
    assert response.status_code == 500
    body = error_of(response)
    assert "abc-1" in body["message"]
    assert "42" not in response.text
    assert response.headers["x-request-id"] == "abc-1"


async def test_every_answer_has_a_request_id(client: httpx.AsyncClient) -> None:
    first, second = [(await client.get("/health")).headers["x-request-id"] for _ in range(2)]
    assert first != second


@pytest.mark.parametrize("sent", ["a b", "x" * 65, 'a"b', "{}"])
async def test_a_strange_request_id_is_replaced(client: httpx.AsyncClient, sent: str) -> None:
    response = await client.get("/health", headers={"X-Request-Id": sent})
    assert response.headers["x-request-id"] != sent


async def test_health_needs_no_key(client: httpx.AsyncClient) -> None:
    client.headers.pop("X-API-KEY")
    response = await client.get("/health")
    assert (response.status_code, response.text) == (200, "Health check successful")


async def test_browsers_may_ask_from_any_page(client: httpx.AsyncClient) -> None:
    client.headers.pop("X-API-KEY")
    asked = {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "x-api-key,content-type",
    }
    response = await client.options("/v2/sandboxes", headers={"Origin": "https://app.example", **asked})
    assert response.status_code == 200
    assert response.headers["access-control-allow-origin"] == "*"
    assert "access-control-allow-credentials" not in response.headers
