"""Steady requests to a server inside a sandbox, of which none may fail."""

from __future__ import annotations

import http.client
import threading
import time
from types import TracebackType

from e2b import Sandbox

from tests.e2e.server import ServerProcess
from tests.e2e.waiting import until

PORT = 8123


class Traffic:
    """Clients that ask again and again for as long as the block lasts, half of them on a kept-alive connection."""

    def __init__(
        self, server: ServerProcess, sandbox: Sandbox, *, clients: int = 2, port: int = PORT
    ) -> None:
        self._server = server
        self._sandbox = sandbox
        self._port = port
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._run, args=(i % 2 == 0,), daemon=True) for i in range(clients)
        ]
        self.done = 0
        self.slowest_s = 0.0
        self.failures: list[str] = []

    def __enter__(self) -> Traffic:
        self._sandbox.commands.run(
            f"mkdir -p /tmp/www && cd /tmp/www && echo well > index.html && "
            f"(setsid python3 -m http.server {self._port} </dev/null >/dev/null 2>&1 &)"
        )
        until(lambda: self._ask(None) is None or None, "the server inside answers")
        for thread in self._threads:
            thread.start()
        self.wait_for(1)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)

    def wait_for(self, requests: int) -> None:
        """Until that many more have been answered."""
        goal = self.done + requests
        until(lambda: self.done >= goal or bool(self.failures) or None, "requests are answered", timeout_s=60)

    def check(self) -> None:
        assert not self.failures, f"{len(self.failures)} of {self.done} failed: {self.failures[:3]}"
        assert self.done > 0

    def _run(self, keep: bool) -> None:
        connection: http.client.HTTPConnection | None = None
        while not self._stop.is_set():
            if keep and connection is None:
                connection = http.client.HTTPConnection("127.0.0.1", self._server.port, timeout=30)
            began = time.monotonic()
            failure = self._ask(connection)
            with self._lock:
                self.done += 1
                self.slowest_s = max(self.slowest_s, time.monotonic() - began)
                if failure is not None:
                    self.failures.append(failure)
            if failure is not None and connection is not None:
                connection.close()
                connection = None
            self._stop.wait(0.01)
        if connection is not None:
            connection.close()

    def _ask(self, kept: http.client.HTTPConnection | None) -> str | None:
        """None, or what went wrong."""
        connection = kept or http.client.HTTPConnection("127.0.0.1", self._server.port, timeout=30)
        try:
            headers = {"E2b-Sandbox-Id": self._sandbox.sandbox_id, "E2b-Sandbox-Port": str(self._port)}
            connection.request("GET", "/index.html", headers=headers)
            answer = connection.getresponse()
            body = answer.read()
            return None if (answer.status, body) == (200, b"well\n") else f"{answer.status} {body[:200]!r}"
        except (OSError, http.client.HTTPException) as error:
            return repr(error)
        finally:
            if kept is None:
                connection.close()
