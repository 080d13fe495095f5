"""The published E2B SDK, pointed at a server."""

from __future__ import annotations

import time
from typing import Any

from e2b import Sandbox

from benchmarks.server import TEMPLATE, Server


class Sdk:
    def __init__(self, server: Server) -> None:
        environment = server.process.sdk_env()
        self._options: dict[str, Any] = {
            "api_key": environment["E2B_API_KEY"],
            "api_url": environment["E2B_API_URL"],
            "sandbox_url": environment["E2B_SANDBOX_URL"],
        }

    def connected(self, sandbox_id: str) -> Sandbox:
        return Sandbox.connect(sandbox_id, timeout=3600, **self._options)

    def create_and_echo(self) -> float:
        """Milliseconds from the call to the end of the first command. The sandbox is killed afterwards."""
        started = time.perf_counter()
        sandbox = Sandbox.create(TEMPLATE, timeout=3600, **self._options)
        sandbox.commands.run("echo hi")
        took = (time.perf_counter() - started) * 1000
        sandbox.kill()
        return took

    def connect_and_echo(self, sandbox_id: str) -> float:
        started = time.perf_counter()
        self.connected(sandbox_id).commands.run("echo hi")
        return (time.perf_counter() - started) * 1000
