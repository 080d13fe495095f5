"""Small blocking HTTP clients: what a measurement adds to what it measures must be next to nothing."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Mapping
from typing import Any

ENVD_PORT = 49983
_CONNECT_S = 0.004
"""While an interface changes hands its packets are lost, and TCP tries again only after a second: try anew before."""


class _Connection(http.client.HTTPConnection):
    def connect(self) -> None:
        super().connect()
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


class Client:
    """One kept-alive connection to the public port, for calls of the API and of sandboxes."""

    def __init__(self, port: int, api_key: str) -> None:
        self._connection = _Connection("127.0.0.1", port, timeout=120)
        self._key = api_key

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """The answer's JSON, None if there is none. Raises RuntimeError for any status but 2xx."""
        sent = None if body is None else json.dumps(body).encode()
        headers = {"X-API-Key": self._key, "Content-Type": "application/json"}
        status, answer = self._request(method, path, headers, sent)
        if not 200 <= status < 300:
            raise RuntimeError(f"{method} {path}: {status} {answer[:500]!r}")
        return json.loads(answer) if answer else None

    def text(self, path: str) -> str:
        """A plain page. Raises RuntimeError for any status but 200."""
        status, answer = self._request("GET", path, {"X-API-Key": self._key}, None)
        if status != 200:
            raise RuntimeError(f"GET {path}: {status}")
        return answer.decode()

    def status_of(self, sandbox_id: str, port: int = ENVD_PORT, path: str = "/health") -> int:
        """What a server inside a sandbox answers, through the edge."""
        headers = {"E2b-Sandbox-Id": sandbox_id, "E2b-Sandbox-Port": str(port)}
        return self._request("GET", path, headers, None)[0]

    def reach(self, sandbox_id: str, port: int = ENVD_PORT, path: str = "/health") -> None:
        """Wait for a good answer of a server inside, through the edge. Raises TimeoutError after 30 s."""
        deadline = time.monotonic() + 30
        while not 200 <= (status := self.status_of(sandbox_id, port, path)) < 300:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{sandbox_id}:{port}{path} answers {status}")
            time.sleep(0.0005)

    def close(self) -> None:
        self._connection.close()

    def _request(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes | None
    ) -> tuple[int, bytes]:
        try:
            self._connection.request(method, path, body, dict(headers))
            response = self._connection.getresponse()
            return response.status, response.read()
        except BaseException:
            self._connection.close()
            raise


def reach_directly(address: str, port: int = ENVD_PORT, path: str = "/health") -> None:
    """Wait for a good answer of a server in a namespace, without any proxy. Raises TimeoutError after 30 s."""
    request = f"GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n".encode()
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            with socket.create_connection((address, port), timeout=_CONNECT_S) as connection:
                connection.settimeout(5)
                connection.sendall(request)
                if connection.recv(4096).startswith((b"HTTP/1.1 2", b"HTTP/1.0 2")):
                    return
        except OSError:
            pass
        time.sleep(0.0005)
    raise TimeoutError(f"{address}:{port}{path} does not answer")
