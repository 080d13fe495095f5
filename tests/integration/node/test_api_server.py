"""The control plane's HTTP server: what its parser refuses has the form of every other error."""

import asyncio
import json
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from forkyard.e2b.app import create_app
from forkyard.node.api import ApiServer

TIMEOUT = 20.0


@pytest.fixture
async def api_socket() -> AsyncIterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="fya-"))  # the path of a socket must be short
    server = ApiServer(create_app(), folder / "api.sock")
    await server.start()
    yield folder / "api.sock"
    await server.stop()
    await asyncio.to_thread(shutil.rmtree, folder)


@pytest.mark.parametrize(
    "line",
    [
        b"FOO /sandboxes HTTP/1.1",
        b"GET /sandboxes?x=" + b"x" * 70_000 + b" HTTP/1.1",
        b"GET /sandboxes/\xc3\xa9 HTTP/1.1",
        b"nonsense",
    ],
    ids=["method", "length", "bytes", "nonsense"],
)
async def test_what_the_parser_refuses_is_answered_as_an_error(api_socket: Path, line: bytes) -> None:
    async with asyncio.timeout(TIMEOUT):
        reader, writer = await asyncio.open_unix_connection(api_socket)
        writer.write(line + b"\r\nHost: control-plane\r\n\r\n")
        answer = await reader.read()
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    lines = head.decode().lower().split("\r\n")
    assert lines[0] == "http/1.1 400 bad request"
    assert {"content-type: application/json", f"content-length: {len(body)}", "connection: close"} <= set(
        lines
    )
    assert json.loads(body) == {
        "code": 400,
        "message": "Invalid HTTP request received",
        "error_code": "invalid_input",
    }
