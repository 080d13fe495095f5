"""The server's API, as the command line uses it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import Any
from urllib.parse import quote, urlencode

from forkyard.client.http import Http
from forkyard.client.sandbox import SandboxClient

Json = dict[str, Any]


class Api:
    """Use it as a context manager. Every method raises ApiError (with the server's words) and ServerUnreachable."""

    def __init__(self, url: str, key: str) -> None:
        self.url = url
        self._http = Http(url, {"X-API-Key": key})

    async def __aenter__(self) -> Api:
        await self._http.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.__aexit__(kind, error, trace)

    # -- sandboxes -----------------------------------------------------------------------------------

    async def create(self, body: Json, *, secure: bool = True) -> Json:
        """`secure=False` makes a sandbox whose daemon asks for no token (first API version)."""
        if secure:
            return await self._json("POST", "/v2/sandboxes", body)
        return await self._json("POST", "/sandboxes", {**body, "secure": False})

    async def sandbox(self, sandbox_id: str) -> Json:
        return await self._json("GET", f"/sandboxes/{_part(sandbox_id)}")

    async def sandboxes(
        self, *, states: str | None = None, metadata: Mapping[str, str] | None = None
    ) -> AsyncIterator[Json]:
        """All of them, page by page, newest first."""
        query: dict[str, str] = {"limit": "100"}
        if states:
            query["state"] = states
        if metadata:
            query["metadata"] = urlencode({quote(k): quote(v) for k, v in metadata.items()})
        async for item in self._pages("/v2/sandboxes", query):
            yield item

    async def kill(self, sandbox_id: str) -> None:
        await self._json("DELETE", f"/sandboxes/{_part(sandbox_id)}")

    async def pause(self, sandbox_id: str, *, memory: bool = True) -> None:
        await self._json("POST", f"/sandboxes/{_part(sandbox_id)}/pause", {"memory": memory})

    async def connect(self, sandbox_id: str, *, timeout: int, memory: bool = True) -> Json:
        """Resumes a paused one; never shortens the life of a running one."""
        body: Json = {"timeout": timeout}
        if not memory:
            body["memory"] = False
        return await self._json("POST", f"/v2/sandboxes/{_part(sandbox_id)}/connect", body)

    async def fork(self, sandbox_id: str, *, count: int, timeout: int | None) -> list[Json]:
        body: Json = {"count": count}
        if timeout is not None:
            body["timeout"] = timeout
        return await self._json("POST", f"/sandboxes/{_part(sandbox_id)}/fork", body)

    async def set_timeout(self, sandbox_id: str, seconds: int) -> None:
        await self._json("POST", f"/sandboxes/{_part(sandbox_id)}/timeout", {"timeout": seconds})

    async def logs(self, sandbox_id: str, *, after_ms: int = 0) -> list[Json]:
        query = {"cursor": str(after_ms), "limit": "1000", "direction": "forward"}
        return (await self._json("GET", f"/v2/sandboxes/{_part(sandbox_id)}/logs", query=query))["logs"]

    async def metrics(self, sandbox_id: str) -> list[Json]:
        return await self._json("GET", f"/sandboxes/{_part(sandbox_id)}/metrics")

    async def set_network(self, sandbox_id: str, body: Json) -> None:
        await self._json("PUT", f"/sandboxes/{_part(sandbox_id)}/network", body)

    async def inside(self, sandbox_id: str, *, resume_for: int) -> SandboxClient:
        """The processes and files of a sandbox. A paused one is resumed for that many seconds; the life of a running
        one is not touched.
        """
        found = await self.sandbox(sandbox_id)
        if found["state"] == "paused":
            found = await self.connect(sandbox_id, timeout=resume_for)
        return SandboxClient(self.url, found["sandboxID"], found.get("envdAccessToken"))

    # -- snapshots, templates, keys ------------------------------------------------------------------

    async def snapshot(self, sandbox_id: str, *, name: str | None) -> Json:
        body = {"name": name} if name else {}
        return await self._json("POST", f"/sandboxes/{_part(sandbox_id)}/snapshots", body)

    async def snapshots(self, *, sandbox_id: str | None = None) -> AsyncIterator[Json]:
        query = {"limit": "100"}
        if sandbox_id:
            query["sandboxID"] = sandbox_id
        async for item in self._pages("/snapshots", query):
            yield item

    async def delete_snapshot(self, reference: str) -> None:
        await self._json("DELETE", f"/templates/{_part(reference)}")

    async def templates(self) -> list[Json]:
        return await self._json("GET", "/templates")

    async def keys(self) -> list[Json]:
        return await self._json("GET", "/v1/api-keys")

    async def create_key(self, *, name: str, role: str) -> Json:
        return await self._json("POST", "/v1/api-keys", {"name": name, "role": role})

    async def revoke_key(self, key_id: str) -> None:
        await self._json("DELETE", f"/v1/api-keys/{_part(key_id)}")

    # ------------------------------------------------------------------------------------------------

    async def _json(
        self, method: str, path: str, body: Any = None, *, query: Mapping[str, str] | None = None
    ) -> Any:
        return (await self._http.call(method, path, body, query=query))[0]

    async def _pages(self, path: str, query: Mapping[str, str]) -> AsyncIterator[Json]:
        token: str | None = None
        while True:
            page, headers, _ = await self._http.call(
                "GET", path, query={**query, "nextToken": token} if token else query
            )
            for item in page:
                yield item
            token = headers.get("x-next-token")
            if not token:
                return


def _part(text: str) -> str:
    return quote(text, safe="")
