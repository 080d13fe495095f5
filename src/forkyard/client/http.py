"""One connection pool, one way to turn answers into values or errors."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any

import aiohttp

from forkyard.client.errors import ApiError, ServerUnreachable

_CALL = aiohttp.ClientTimeout(total=180.0, sock_connect=5.0)
_STREAM = aiohttp.ClientTimeout(total=None, sock_connect=5.0)


class Http:
    """An aiohttp session with the server's address and headers."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self.url = url.rstrip("/")
        self._headers = dict(headers)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Http:
        self._session = aiohttp.ClientSession(headers=self._headers, auto_decompress=True)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[Any, Mapping[str, str], int]:
        """Answers (JSON or None, headers, status). Raises ApiError, ServerUnreachable."""
        async with self.open(method, path, json_body=body, query=query, headers=headers) as response:
            data = await response.read()
            return (json.loads(data) if data else None), response.headers, response.status

    @asynccontextmanager
    async def open(
        self,
        method: str,
        path: str,
        *,
        json_body: Any = None,
        data: Any = None,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        stream: bool = False,
    ) -> AsyncGenerator[aiohttp.ClientResponse]:
        """The response, its body unread. Raises ApiError for 400 and above, ServerUnreachable."""
        if self._session is None:
            raise RuntimeError("the client is not open")
        try:
            async with self._session.request(
                method,
                self.url + path,
                json=json_body,
                data=data,
                params=query,
                headers=headers,
                timeout=_STREAM if stream else _CALL,
            ) as response:
                if response.status >= 400:
                    raise ApiError(response.status, _message(await response.read(), response.reason))
                yield response
        except aiohttp.ClientConnectorError as error:
            raise ServerUnreachable(f"no server answers at {self.url} ({error.os_error.strerror})") from error
        except TimeoutError as error:
            raise ServerUnreachable(f"the server at {self.url} did not answer in time") from error


def _message(data: bytes, reason: str | None) -> str:
    try:
        return str(json.loads(data)["message"])
    except (ValueError, KeyError, TypeError):
        return data[:500].decode("utf-8", "replace") or reason or "no message"
