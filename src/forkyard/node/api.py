"""The control plane's HTTP app, and its server on a Unix socket."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Generator
from pathlib import Path

import uvicorn
from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from forkyard.auth.service import AuthService
from forkyard.base.errors import InvalidInput
from forkyard.e2b.app import create_app
from forkyard.e2b.errors import error_response
from forkyard.node import internal
from forkyard.node.edge_client import EdgeClient
from forkyard.node.readiness import Readiness
from forkyard.sandboxes.service import Sandboxes


def make_app(
    *,
    sandboxes: Sandboxes,
    auth: AuthService,
    registry: CollectorRegistry,
    edge: EdgeClient,
    readiness: Readiness,
    public_domain: str | None,
) -> FastAPI:
    """The whole HTTP surface of the control plane."""
    app = create_app()
    app.state.sandboxes = sandboxes
    app.state.auth = auth
    app.state.public_domain = public_domain
    app.include_router(internal.router(sandboxes, registry, edge, readiness))
    return app


class ApiServer:
    """uvicorn on a Unix socket that only this user can reach. Signals are the caller's."""

    def __init__(self, app: FastAPI, socket: Path) -> None:
        self._socket = socket
        self._server = _Quiet(
            uvicorn.Config(
                app,
                uds=str(socket),
                loop="uvloop",
                http=_Protocol,
                lifespan="off",
                access_log=False,
                log_config=None,
                timeout_keep_alive=75,
                timeout_graceful_shutdown=20,
                server_header=False,
            )
        )
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen; returns once connections are accepted."""
        self._socket.unlink(missing_ok=True)
        self._task = asyncio.create_task(self._server.serve(), name="api")
        while not self._server.started:
            if self._task.done():
                await self._task
                raise RuntimeError("the API server ended while it was starting")
            await asyncio.sleep(0.005)
        self._socket.chmod(0o600)

    async def stop(self) -> None:
        """Finish requests in progress and stop listening. Idempotent."""
        task, self._task = self._task, None
        if task is None:
            return
        self._server.should_exit = True
        await task
        self._socket.unlink(missing_ok=True)


class _Protocol(HttpToolsProtocol):
    """Answers what its parser refuses, which no app ever sees, in the form that every error has."""

    def send_400_response(self, msg: str) -> None:
        response = error_response(
            400, msg.rstrip("."), error_code=InvalidInput.code, headers={"Connection": "close"}
        )
        headers = b"".join(name + b": " + value + b"\r\n" for name, value in response.raw_headers)
        self.transport.write(b"HTTP/1.1 400 Bad Request\r\n" + headers + b"\r\n" + bytes(response.body))
        self.transport.close()


class _Quiet(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield
