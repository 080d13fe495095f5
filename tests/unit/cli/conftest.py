"""The command line in this process, against an API and a sandbox that are in this process too (a Unix socket)."""

import asyncio
import json
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from typer.testing import CliRunner, Result

from forkyard.cli.main import app, load
from forkyard.client import http

KEY = "e2b_" + "0" * 40


@dataclass
class FakeServer:
    """Answers by `METHOD /path`; keeps what was asked."""

    answers: dict[str, tuple[int, Any]] = field(default_factory=dict)
    asked: list[tuple[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    next_tokens: list[str] = field(default_factory=list)

    def on(self, route: str, answer: Any, status: int = 200) -> None:
        self.answers[route] = (status, answer)

    async def handle(self, request: web.Request) -> web.Response:
        route = f"{request.method} {request.path}"
        body = await request.read()
        is_json = request.content_type == "application/json" and body
        self.asked.append((route, json.loads(body) if is_json else body))
        self.keys.append(request.headers.get("X-API-Key"))
        status, answer = self.answers.get(route, (404, {"code": 404, "message": f"no {route}"}))
        headers = {"x-next-token": self.next_tokens.pop(0)} if self.next_tokens else {}
        if isinstance(answer, bytes):
            return web.Response(status=status, body=answer)
        if answer is None:
            return web.Response(status=status)
        return web.json_response(answer, status=status, headers=headers)

    def body(self, route: str) -> Any:
        """What the last request of this route carried."""
        return next(body for asked, body in reversed(self.asked) if asked == route)


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[FakeServer]:
    fake = FakeServer()
    socket = str(tmp_path / "s")
    loop = asyncio.new_event_loop()
    started = threading.Event()

    async def serve() -> web.AppRunner:
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", fake.handle)
        runner = web.AppRunner(application)
        await runner.setup()
        await web.UnixSite(runner, socket).start()
        return runner

    def run() -> None:
        asyncio.set_event_loop(loop)
        runner = loop.run_until_complete(serve())
        started.set()
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())
        loop.close()

    session = aiohttp.ClientSession

    def over_socket(**options: Any) -> aiohttp.ClientSession:
        return session(connector=aiohttp.UnixConnector(path=socket), **options)

    monkeypatch.setattr(http.aiohttp, "ClientSession", over_socket)
    thread = threading.Thread(target=run)
    thread.start()
    started.wait()
    yield fake
    loop.call_soon_threadsafe(loop.stop)
    thread.join()


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("E2B_API_URL", "http://server.test")
    monkeypatch.setenv("E2B_API_KEY", KEY)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("FORKYARD_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setattr("sys.argv", ["forkyard"])


@pytest.fixture(scope="session", autouse=True)
def commands() -> None:
    """`main` adds what a call needs."""
    load("")


Run = Callable[..., Result]


@pytest.fixture
def run() -> Run:
    def invoke(*words: str, stdin: str | bytes | None = None) -> Result:
        return CliRunner().invoke(app, list(words), input=stdin)

    return invoke
