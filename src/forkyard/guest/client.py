"""HTTP calls to envd at the host's end of a sandbox's network. The contract is `specs/envd.md`."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import aiohttp

from forkyard.base.clock import Clock
from forkyard.base.logging import get_logger
from forkyard.guest.calls import (
    CALL_ID,
    MAX_ANSWER,
    MAX_WAIT_S,
    Call,
    CallOutput,
    Signal,
    StartCall,
    parse_call,
    parse_output,
)
from forkyard.guest.errors import AnswerInvalid, CallNotFound, GuestRefused, GuestUnreachable
from forkyard.guest.memory_kills import MemoryKills, parse_memory_kills

log = get_logger(__name__)

ENVD_PORT = 49983

_MAX_ANSWER = 1 << 20
_CONNECT_S = 0.1
"""For a machine that has just been started. A SYN that arrives before its network stack is up is dropped, and the
kernel would send it again only after a second: give up early and dial afresh instead."""
_CONNECT_GROWTH = 1.5
_CONNECT_MOST_S = 1.0
"""On a busy host a connection takes longer than that, so the patience grows."""
_RETRY_S = 0.003


@dataclass(frozen=True, slots=True)
class GuestIdentity:
    """What a machine is told about itself after it was made, restored or forked; replaces all it knew before."""

    sandbox_id: str
    template_id: str
    generation: int
    hostname: str
    boot_id: str
    machine_id: str
    access_token: str | None
    env_vars: dict[str, str] = field(default_factory=dict[str, str])
    default_user: str = "user"
    default_workdir: str | None = None

    def to_body(self, now: datetime) -> dict[str, Any]:
        body: dict[str, Any] = {
            "sandboxId": self.sandbox_id,
            "templateId": self.template_id,
            "generation": self.generation,
            "hostname": self.hostname,
            "bootId": self.boot_id,
            "machineId": self.machine_id,
            "envVars": self.env_vars,
            "defaultUser": self.default_user,
            "timestamp": now.isoformat(),
        }
        if self.access_token is not None:
            body["accessToken"] = self.access_token
        if self.default_workdir:
            body["defaultWorkdir"] = self.default_workdir
        return body


class GuestClient:
    """Calls envd by address. Connections are never reused: an address may belong to another machine a moment later."""

    def __init__(self, clock: Clock, *, port: int = ENVD_PORT) -> None:
        self._clock = clock
        self._port = port
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(force_close=True, limit=0),
            auto_decompress=False,
            read_bufsize=65536,
        )

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def init(self, address: str, identity: GuestIdentity, *, timeout_s: float) -> str:
        """Tell the machine who it is, trying again until it answers or `timeout_s` is over. Answers envd's version.

        Raises GuestUnreachable when it never answered, GuestRefused when it said no.
        """
        deadline = self._clock.monotonic() + timeout_s
        last: Exception | None = None
        connect_s = _CONNECT_S
        while (left := deadline - self._clock.monotonic()) > 0:
            try:
                headers = await self._call(
                    "POST",
                    address,
                    "/init",
                    identity.to_body(self._clock.now()),
                    timeout_s=min(left, 5.0),
                    connect_s=connect_s,
                )
                return headers.get("X-Envd-Version", "")[:40]
            except GuestUnreachable as error:
                last = error
                connect_s = min(connect_s * _CONNECT_GROWTH, _CONNECT_MOST_S)
                await asyncio.sleep(_RETRY_S)
        message = f"the sandbox's daemon did not answer within {timeout_s:g} s"
        if last is not None:
            log.warning(message, address=address, last=f"{last!r} from {last.__cause__!r}")
        raise GuestUnreachable(message) from last

    async def health(self, address: str, *, timeout_s: float) -> bool:
        """Whether envd answers its health check in time."""
        try:
            await self._call("GET", address, "/health", None, timeout_s=timeout_s, connect_s=_CONNECT_S)
        except (GuestUnreachable, GuestRefused):
            return False
        return True

    async def quiesce(self, address: str, *, timeout_s: float) -> None:
        """Let envd flush what it holds, before a checkpoint."""
        await self._call("POST", address, "/internal/quiesce", {}, timeout_s=timeout_s)

    async def rehearse(self, address: str, *, timeout_s: float) -> None:
        """Let envd run a login shell that does nothing: the first command after a restore takes some milliseconds more
        than later ones."""
        await self._call("POST", address, "/internal/rehearse", {}, timeout_s=timeout_s)

    async def end_processes(self, address: str, *, grace_ms: int, timeout_s: float) -> None:
        """End every process but envd (for a pause without memory)."""
        await self._call(
            "POST", address, "/internal/end-processes", {"grace_ms": grace_ms}, timeout_s=timeout_s
        )

    async def memory_pressure(self, address: str, *, timeout_s: float) -> None:
        """The host sees memory running out: let envd look now."""
        await self._call("POST", address, "/internal/memory", {}, timeout_s=timeout_s)

    async def take_memory_kills(self, address: str, *, timeout_s: float) -> MemoryKills:
        """What the out-of-memory killer inside did since this was last asked. Older daemons refuse (GuestRefused)."""
        data, _headers = await self._exchange(
            "POST", address, "/internal/memory-kills", {}, timeout_s=timeout_s
        )
        return parse_memory_kills(data)

    async def start_call(self, address: str, call_id: str, start: StartCall, *, timeout_s: float) -> Call:
        """Run a command that depends on nobody's connection. A call id that is known starts nothing and answers how
        that call stands, so who got no answer asks again.

        Raises GuestUnreachable, GuestRefused (no such user or directory, say), AnswerInvalid.
        """
        data, _headers = await self._exchange(
            "POST", address, _path_of(call_id), start.to_body(), timeout_s=timeout_s
        )
        return parse_call(data, call_id)

    async def read_call(
        self,
        address: str,
        call_id: str,
        *,
        stdout: int = 0,
        stderr: int = 0,
        wait_s: float = 0.0,
        timeout_s: float,
    ) -> CallOutput:
        """How a call stands, with what it printed from these offsets on: at most 1 MiB of each, so who wants all goes
        on at `next`. Waits up to `wait_s` (30 at most) for more or for the exit; `timeout_s` is for the rest.

        Raises GuestUnreachable, CallNotFound, AnswerInvalid.
        """
        wait_s = min(max(wait_s, 0.0), MAX_WAIT_S)
        query = f"?stdout={stdout}&stderr={stderr}&wait_ms={int(wait_s * 1000)}"
        data, _headers = await self._exchange(
            "GET",
            address,
            _path_of(call_id) + query,
            None,
            timeout_s=wait_s + timeout_s,
            most=MAX_ANSWER,
            missing=CallNotFound,
        )
        return parse_output(data, call_id, stdout=stdout, stderr=stderr)

    async def signal_call(self, address: str, call_id: str, signal: Signal, *, timeout_s: float) -> None:
        """Send a signal to all processes of a call. Raises GuestUnreachable, CallNotFound."""
        path = f"{_path_of(call_id)}/signal"
        await self._exchange(
            "POST", address, path, {"signal": signal}, timeout_s=timeout_s, missing=CallNotFound
        )

    async def acknowledge_call(self, address: str, call_id: str, *, timeout_s: float) -> None:
        """Let go of a call and of its output; one that runs is killed first, which may take 5 s. One that is unknown is
        fine. Raises GuestUnreachable."""
        await self._call("DELETE", address, _path_of(call_id), None, timeout_s=timeout_s)

    async def _call(
        self,
        method: str,
        address: str,
        path: str,
        body: dict[str, Any] | None,
        *,
        timeout_s: float,
        connect_s: float | None = None,
    ) -> dict[str, str]:
        _data, headers = await self._exchange(
            method, address, path, body, timeout_s=timeout_s, connect_s=connect_s
        )
        return headers

    async def _exchange(
        self,
        method: str,
        address: str,
        path: str,
        body: dict[str, Any] | None,
        *,
        timeout_s: float,
        connect_s: float | None = None,
        most: int = _MAX_ANSWER,
        missing: type[GuestRefused] = GuestRefused,
    ) -> tuple[bytes, dict[str, str]]:
        """Body, of up to `most` bytes, and headers. Raises `missing` for a 404."""
        if self._session is None:
            raise RuntimeError("the guest client is not open")
        timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=connect_s)
        route = path.partition("?")[0]
        try:
            async with self._session.request(
                method,
                f"http://{address}:{self._port}{path}",
                json=body,
                timeout=timeout,
                allow_redirects=False,
            ) as response:
                data = await _read(response.content, most)
                if response.status >= 300:
                    text = data[:300].decode("utf-8", "replace")
                    refusal = missing if response.status == 404 else GuestRefused
                    raise refusal(f"the sandbox's daemon answered {response.status} to {route}: {text}")
                if len(data) > most:
                    raise AnswerInvalid(f"the sandbox's daemon answers {route} with more than {most} bytes")
                return data, {k: v for k, v in response.headers.items() if len(v) < 1000}
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise GuestUnreachable(f"no answer from the sandbox's daemon to {route}: {error}") from error


_CALLS = "/internal/calls/"


def _path_of(call_id: str) -> str:
    """Raises ValueError: ids are our own."""
    if not CALL_ID.fullmatch(call_id):
        raise ValueError(f"{call_id!r} is not a call id")
    return _CALLS + call_id


async def _read(content: aiohttp.StreamReader, most: int) -> bytes:
    """The whole body, or one byte more than `most` of it."""
    body = bytearray()
    while len(body) <= most and (piece := await content.read(most + 1 - len(body))):
        body += piece
    return bytes(body)
