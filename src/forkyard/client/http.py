"""One connection pool, one way to turn answers into values or errors."""

from __future__ import annotations

import json
import os
import ssl
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any

import aiohttp

from forkyard.client.errors import ApiError, ServerUnreachable, StreamBroken

_CALL = aiohttp.ClientTimeout(total=180.0, sock_connect=5.0)
_STREAM = aiohttp.ClientTimeout(total=None, sock_connect=5.0)
_MAX_ERROR = 1 << 16
_STOPPED = (503, "server_stopped")
"""How the edge, which outlives the server, says that there is none behind it; it has waited 10 s for one."""


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
        patient: bool = False,
    ) -> tuple[Any, Mapping[str, str], int]:
        """Answers (JSON or None, headers, status). Raises ApiError, ServerUnreachable, StreamBroken.

        `patient` waits for ever: for calls that take as long as a program in a sandbox likes.
        """
        async with self.open(
            method, path, json_body=body, query=query, headers=headers, stream=patient
        ) as response:
            data = await response.read()
            try:
                return (json.loads(data) if data else None), response.headers, response.status
            except ValueError as error:
                raise ServerUnreachable(f"what answers at {self.url} is no Forkyard server") from error

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
        """The response, its body unread. Raises ApiError for 400 and above, ServerUnreachable (also when only the
        edge of a stopped server answers), StreamBroken.
        """
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
                    raise _refusal(response.status, await response.content.read(_MAX_ERROR), response.reason)
                yield response
        except aiohttp.ClientConnectorError as error:
            raise ServerUnreachable(f"no server answers at {self.url} ({_reason(error)})") from error
        except TimeoutError as error:
            raise ServerUnreachable(f"the server at {self.url} did not answer in time") from error
        except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError) as error:
            raise ServerUnreachable(
                f"{self.url} is not the address of a server: http://HOST:PORT is expected"
            ) from error
        except aiohttp.ClientError as error:
            raise StreamBroken(
                f"the connection to {self.url} ended before the answer did; "
                "the sandbox was paused or killed, the server restarted, or the network failed"
            ) from error


def _reason(error: aiohttp.ClientConnectorError) -> str:
    cause = error.os_error
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {cause.verify_message}; SSL_CERT_FILE names the authority"
    if isinstance(cause, ssl.SSLError):  # Their numbers are those of OpenSSL.
        return f"it speaks no TLS there, which https:// asks for: {cause.reason or cause}"
    number = cause.errno
    return os.strerror(number) if number and number > 0 else str(error.os_error)


def _refusal(status: int, data: bytes, reason: str | None) -> ApiError | ServerUnreachable:
    try:
        body = json.loads(data)
        message, code = str(body["message"]), body.get("error_code")
    except (ValueError, KeyError, TypeError, AttributeError):
        message, code = data[:500].decode("utf-8", "replace") or reason or "no message", None
    return ServerUnreachable(message) if (status, code) == _STOPPED else ApiError(status, message)
