"""Processes, terminals and files inside a sandbox, through the server's data plane."""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from forkyard.client.envelopes import frame, messages
from forkyard.client.errors import StreamBroken
from forkyard.client.http import Http

ENVD_PORT = 49983
_STREAM = {
    "Content-Type": "application/connect+json",
    "Connect-Protocol-Version": "1",
    "Keepalive-Ping-Interval": "30",
}


@dataclass(frozen=True, slots=True)
class Started:
    pid: int


@dataclass(frozen=True, slots=True)
class Output:
    stream: str
    """stdout, stderr or pty."""
    data: bytes


@dataclass(frozen=True, slots=True)
class Ended:
    exit_code: int
    """As a shell would give it: 128 + number for a signal."""
    error: str


ProcessEvent = Started | Output | Ended


@dataclass(frozen=True, slots=True)
class Size:
    cols: int
    rows: int

    def to_json(self) -> dict[str, int]:
        return {"cols": self.cols, "rows": self.rows}


class SandboxClient:
    """Use it as a context manager. Methods raise ApiError, ServerUnreachable, StreamBroken."""

    def __init__(self, url: str, sandbox_id: str, token: str | None) -> None:
        headers = {"E2b-Sandbox-Id": sandbox_id, "E2b-Sandbox-Port": str(ENVD_PORT)}
        if token:
            headers["X-Access-Token"] = token
        self.sandbox_id = sandbox_id
        self._http = Http(url, headers)

    async def __aenter__(self) -> SandboxClient:
        await self._http.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.__aexit__(kind, error, trace)

    @asynccontextmanager
    async def start(
        self,
        command: str,
        arguments: Sequence[str],
        *,
        user: str | None = None,
        cwd: str | None = None,
        envs: Mapping[str, str] | None = None,
        stdin: bool = False,
        pty: Size | None = None,
    ) -> AsyncGenerator[AsyncIterator[ProcessEvent]]:
        """A process and its events. It goes on when the connection ends."""
        process: dict[str, Any] = {"cmd": command, "args": list(arguments), "envs": dict(envs or {})}
        if cwd:
            process["cwd"] = cwd
        body: dict[str, Any] = {"process": process, "stdin": stdin}
        if pty is not None:
            body["pty"] = {"size": pty.to_json()}
        async with self._http.open(
            "POST",
            "/process.Process/Start",
            data=frame(body),
            headers={**_STREAM, **_user(user)},
            stream=True,
        ) as response:
            yield _events(messages(response.content))

    async def send(self, pid: int, data: bytes, *, pty: bool = False) -> None:
        """Input for a process; waits until the process has taken it, however long that is."""
        key = "pty" if pty else "stdin"
        body = {"process": {"pid": pid}, "input": {key: base64.b64encode(data).decode()}}
        await self._unary("SendInput", body, patient=True)

    async def close_stdin(self, pid: int) -> None:
        await self._unary("CloseStdin", {"process": {"pid": pid}})

    async def signal(self, pid: int, *, kill: bool = False) -> None:
        await self._unary(
            "SendSignal", {"process": {"pid": pid}, "signal": "SIGNAL_SIGKILL" if kill else "SIGNAL_SIGTERM"}
        )

    async def resize(self, pid: int, size: Size) -> None:
        await self._unary("Update", {"process": {"pid": pid}, "pty": {"size": size.to_json()}})

    async def upload(self, path: str, data: AsyncIterable[bytes], *, user: str | None = None) -> None:
        """Write a file, streamed; parents are made."""
        query = {"path": path} | ({"username": user} if user else {})
        async with self._http.open(
            "POST",
            "/files",
            data=data,
            query=query,
            headers={"Content-Type": "application/octet-stream"},
            stream=True,
        ) as response:
            await response.read()

    @asynccontextmanager
    async def download(self, path: str, *, user: str | None = None) -> AsyncGenerator[AsyncIterator[bytes]]:
        """A file's content in chunks."""
        query = {"path": path} | ({"username": user} if user else {})
        async with self._http.open("GET", "/files", query=query, stream=True) as response:
            yield response.content.iter_chunked(1 << 18)

    async def _unary(self, method: str, body: dict[str, Any], *, patient: bool = False) -> None:
        headers = {"Connect-Protocol-Version": "1"}
        await self._http.call("POST", f"/process.Process/{method}", body, headers=headers, patient=patient)


def _user(user: str | None) -> dict[str, str]:
    if user is None:
        return {}
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:".encode()).decode()}


async def _events(stream: AsyncIterator[dict[str, Any]]) -> AsyncIterator[ProcessEvent]:
    """Events up to the end of the process. Raises StreamBroken when the stream ends without saying that."""
    last: ProcessEvent | None = None
    async for message in stream:
        try:
            events = list(_parse(message.get("event") or {}))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise StreamBroken("the sandbox sent what is no process event") from error
        for last in events:
            yield last
    if not isinstance(last, Ended):
        raise StreamBroken("the sandbox did not say how the process ended")


def _parse(event: Mapping[str, Any]) -> Iterator[ProcessEvent]:
    if "start" in event:
        yield Started(int(event["start"]["pid"]))
    elif "data" in event:
        for name, data in event["data"].items():
            yield Output(str(name), base64.b64decode(data, validate=True))
    elif "end" in event:
        yield _ended(event["end"])


def _ended(end: Mapping[str, Any]) -> Ended:
    code = int(end.get("exitCode", 0))
    status = str(end.get("status", ""))
    if not end.get("exited", False) and status.startswith("signal: "):
        code = 128 + _signal(status.removeprefix("signal: ").removesuffix(" (core dumped)"))
    return Ended(code, str(end.get("error", "")))


def _signal(name: str) -> int:
    """The number of a signal as Go words it: `killed`, or `signal 34`."""
    number = name.removeprefix("signal ")
    return int(number) if number.isdecimal() else _SIGNALS.get(name, 9)


_SIGNALS = {
    "hangup": 1,
    "interrupt": 2,
    "quit": 3,
    "illegal instruction": 4,
    "trace/breakpoint trap": 5,
    "aborted": 6,
    "bus error": 7,
    "floating point exception": 8,
    "killed": 9,
    "user defined signal 1": 10,
    "segmentation fault": 11,
    "user defined signal 2": 12,
    "broken pipe": 13,
    "alarm clock": 14,
    "terminated": 15,
    "stack fault": 16,
    "CPU time limit exceeded": 24,
    "file size limit exceeded": 25,
    "virtual timer expired": 26,
    "profiling timer expired": 27,
    "I/O possible": 29,
    "power failure": 30,
    "bad system call": 31,
}
