"""Calls to the edge over its control socket. The contract is `specs/edge.md`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from forkyard.base.errors import Conflict, Unavailable
from forkyard.host.processes import ProcessHandle, listener_of
from forkyard.sandboxes.routing import Route

_TIMEOUT = aiohttp.ClientTimeout(total=5.0, sock_connect=1.0)


class EdgeAway(Unavailable):
    """The edge does not answer."""

    code = "edge_away"


class EpochConflict(Conflict):
    """The edge follows another epoch."""

    code = "edge_epoch"


@dataclass(frozen=True, slots=True)
class EdgeInfo:
    version: str
    pid: int
    epoch: int
    listen: str


class EdgeClient:
    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        self._session = aiohttp.ClientSession(connector=aiohttp.UnixConnector(path=str(self._socket)))

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def info(self) -> EdgeInfo:
        """Raises EdgeAway."""
        raw = await self._call("GET", "/v1/info", None)
        return EdgeInfo(str(raw["version"]), int(raw["pid"]), int(raw["epoch"]), str(raw["listen"]))

    def process(self) -> ProcessHandle:
        """The process behind the socket, which may hang. Raises EdgeAway when there is none."""
        process = listener_of(self._socket)
        if process is None:
            raise EdgeAway("no edge listens")
        return process

    async def replace(self, epoch: int, routes: Sequence[Route]) -> None:
        """The whole table. Raises EdgeAway, EpochConflict."""
        await self._call("PUT", "/v1/routes", {"epoch": epoch, "routes": [r.to_json() for r in routes]})

    async def update(self, epoch: int, *, set_: Sequence[Route], remove: Sequence[tuple[str, int]]) -> None:
        """A change; returns after it holds. Raises EdgeAway, EpochConflict."""
        body: dict[str, Any] = {"epoch": epoch}
        if set_:
            body["set"] = [r.to_json() for r in set_]
        if remove:
            body["remove"] = [{"id": i, "generation": g} for i, g in remove]
        await self._call("POST", "/v1/routes", body)

    async def metrics(self) -> bytes:
        """Prometheus text. Raises EdgeAway."""
        if self._session is None:
            raise RuntimeError("the edge client is not open")
        try:
            async with self._session.get("http://edge/metrics", timeout=_TIMEOUT) as response:
                return await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise EdgeAway(f"the edge does not answer: {error}") from error

    async def shutdown(self) -> None:
        """Raises EdgeAway."""
        await self._call("POST", "/v1/shutdown", {})

    async def _call(self, method: str, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        if self._session is None:
            raise RuntimeError("the edge client is not open")
        try:
            async with self._session.request(
                method, f"http://edge{path}", json=body, timeout=_TIMEOUT
            ) as response:
                if response.status == 409:
                    raise EpochConflict(await response.text())
                if response.status >= 300:
                    raise EdgeAway(f"the edge answered {response.status}: {await response.text()}")
                return await response.json() if response.status == 200 else {}
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise EdgeAway(f"the edge does not answer: {error}") from error
