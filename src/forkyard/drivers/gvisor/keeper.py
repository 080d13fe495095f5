"""Client of one keeper, and its process: started when it is not there, adopted when it is (`specs/keeper.md`)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp

from forkyard.base.clock import Clock
from forkyard.base.logging import get_logger
from forkyard.drivers.gvisor.config import NODE, GvisorConfig
from forkyard.drivers.gvisor.runtime import Container, ContainerEvent, ContainerRequest, ContainerUnusable
from forkyard.host.addresses import Slot
from forkyard.host.errors import ProcessGone
from forkyard.host.processes import ProcessHandle, kill, listener_of, spawn_detached, wait_exit
from forkyard.sandboxes.driver import CheckpointFile, DriverError, HostFull, MachineLost

log = get_logger(__name__)

_CALL = aiohttp.ClientTimeout(total=120.0, sock_connect=2.0)
_WITH_MEMORY = aiohttp.ClientTimeout(total=3600.0, sock_connect=2.0)
"""For what takes as long as the machine's memory does: the keeper gives that up itself, after 30 s and a second for
each 50 MiB. Who hangs up before that leaves a machine that is frozen though it is said to run on."""
_INFO = aiohttp.ClientTimeout(total=10.0, sock_connect=2.0)
"""What only looks into its memory: a keeper that takes longer for that hangs."""

_SILENCE_S = 15.0
"""Of the event stream, on which a line comes every 5 s."""

_START_S = 10.0
_ENDING_S = 12.0
"""A keeper that was asked to end gives calls in progress 10 s."""

_LOOK_S = 0.01
_MAX_LINE = 1 << 16


def keeper_group(config: GvisorConfig) -> str:
    """The control group that all keepers of an instance are in."""
    return f"forkyard-{config.instance}-keeper"


class KeeperAway(DriverError):
    """The keeper does not answer."""

    code = "keeper_away"

    def __init__(self, message: str, *, asked: bool = True, silent: bool = False) -> None:
        super().__init__(message)
        self.silent = silent
        """Whether there is one, which has said nothing in time."""
        self.asked = asked
        """Whether it may have heard the question."""


async def _ask_once(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Hides a broken connection from aiohttp, which would send a PUT again by itself: to the next keeper, which has
    just told of the end of the container that the last one was making, and would make another one of the same name.
    """
    try:
        return await handler(request)
    except aiohttp.ClientConnectorError as error:
        raise KeeperAway(f"no keeper answers: {error!r}", asked=False) from error
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise KeeperAway(f"the keeper does not answer: {error!r}") from error


class Keeper:
    """Implements `Runtime` over the keeper's socket."""

    def __init__(self, config: GvisorConfig, runtime: str, binary: Path, clock: Clock) -> None:
        """`runtime`: sha256 of the binary."""
        self._config = config
        self._binary = binary
        self._clock = clock
        self._tag = runtime[:12]
        self._socket = config.run_dir / f"keeper-{self._tag}.sock"
        self._root = config.node_dir / "keeper" / self._tag
        self._group = keeper_group(config)
        self._session: aiohttp.ClientSession | None = None
        self._process: ProcessHandle | None = None
        self._starting = asyncio.Lock()

    async def open(self) -> None:
        """Raises KeeperAway with what the keeper's output says."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(path=str(self._socket), limit=0),
            read_bufsize=_MAX_LINE,
            middlewares=(_ask_once,),
        )
        try:
            await self._ensure()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def shutdown(self) -> None:
        process, self._process = self._process, None
        try:
            await self._once("POST", "/v1/shutdown", {}, timeout=_INFO)
        except KeeperAway as error:
            log.warning("the keeper does not end by itself", error=error.message)
            process = await asyncio.to_thread(listener_of, self._socket)
        if process is not None:
            await self._end(process)

    async def ping(self) -> None:
        await self._once("GET", "/v1/info", None, timeout=_INFO)

    async def list(self) -> Sequence[Container]:
        return [_container(raw) for raw in await self._call("GET", "/v1/containers", None)]

    async def get(self, container_id: str) -> Container | None:
        try:
            return _container(await self._call("GET", f"/v1/containers/{container_id}", None))
        except MachineLost:
            return None

    async def create(self, container_id: str, request: ContainerRequest) -> Container:
        body = {
            "spec": request.spec,
            "stdio": {"stdout": request.log, "stderr": request.log},
            "cgroup_memory_limit_bytes": request.cgroup_memory_limit,
            "oom_score_adj": 500,
            "net": _net(request.slot),
        }
        return _container(await self._call("PUT", f"/v1/containers/{container_id}", body))

    async def start(self, container_id: str, slot: Slot) -> Container:
        return _container(
            await self._call("POST", f"/v1/containers/{container_id}/start", {"net": _net(slot)})
        )

    async def restore(self, container_id: str, directory: Path, slot: Slot) -> Container:
        body = {"dir": str(directory), "net": _net(slot)}
        path = f"/v1/containers/{container_id}/restore"
        return _container(await self._call("POST", path, body, timeout=_WITH_MEMORY))

    async def checkpoint(
        self, container_id: str, directory: Path, *, leave_running: bool
    ) -> Sequence[CheckpointFile]:
        body = {"dir": str(directory), "leave_running": leave_running}
        path = f"/v1/containers/{container_id}/checkpoint"
        answer = await self._call("POST", path, body, timeout=_WITH_MEMORY)
        return [CheckpointFile(str(f["name"]), int(f["size"])) for f in answer["files"]]

    async def delete(self, container_id: str) -> None:
        try:
            await self._call("DELETE", f"/v1/containers/{container_id}", None)
        except MachineLost:
            return

    async def watch(self, container_id: str, *, guest_url: str, memory_marks: Sequence[int]) -> None:
        body = {
            "health_url": f"{guest_url}/health",
            "interval_ms": 3000,
            "timeout_ms": 2500,
            "strikes": 2,
            "memory_event_bytes": list(memory_marks),
            "memory_alert_url": f"{guest_url}/internal/memory",
        }
        await self._call("POST", f"/v1/containers/{container_id}/watch", body)

    async def events(self) -> AsyncIterator[ContainerEvent]:
        """Goes on with the next keeper when this one dies; its sandboxes' deaths meanwhile are told from the list."""
        # Sequence numbers go on rising over restarts of the keeper. What happened before now is in the list.
        after: int | None = None
        while self._session is not None:
            try:
                await self._ensure()
                if after is None:
                    after = int((await self._call("GET", "/v1/info", None))["last_event_seq"])
                for container in await self.list():
                    if container.status == "stopped":
                        yield ContainerEvent("exit", container.id, container.reason or "unknown")
                async for seq, event in self._stream(after):
                    after = seq
                    yield event
            except (DriverError, aiohttp.ClientError, OSError, ValueError, KeyError) as error:
                log.warning("the keeper's event stream broke", error=str(error))
            await self._clock.sleep(_LOOK_S * 5)

    # ------------------------------------------------------------------------------------------------

    async def _stream(self, after: int) -> AsyncIterator[tuple[int, ContainerEvent]]:
        if self._session is None:
            return
        # A line comes every 5 s, so that a keeper that hangs is noticed.
        timeout = aiohttp.ClientTimeout(total=None, sock_read=_SILENCE_S)
        url = f"http://keeper/v1/events?after={after}"
        async with self._session.get(url, timeout=timeout) as response:
            async for line in response.content:
                raw = json.loads(line)
                if raw.get("type") in ("exit", "unhealthy", "healthy", "memory"):
                    yield int(raw["seq"]), ContainerEvent(raw["type"], str(raw["id"]), _reason(raw))

    async def _call(
        self, method: str, path: str, body: dict[str, Any] | None, *, timeout: aiohttp.ClientTimeout = _CALL
    ) -> Any:
        """Once more after a keeper that died, unless that could do something twice; whether a try that failed had an
        effect is for the caller's clean-up.
        """
        try:
            return await self._once(method, path, body, timeout=timeout)
        except KeeperAway as error:
            await self._ensure()
            if error.asked and method not in ("GET", "DELETE"):
                raise
            return await self._once(method, path, body, timeout=timeout)

    async def _once(
        self, method: str, path: str, body: dict[str, Any] | None, *, timeout: aiohttp.ClientTimeout = _CALL
    ) -> Any:
        if self._session is None:
            raise KeeperAway("the driver is closed")
        try:
            async with self._session.request(
                method, f"http://keeper{path}", json=body, timeout=timeout
            ) as response:
                if response.status == 204:
                    return None
                answer: Any = await response.json(content_type=None)
                if response.status >= 300:
                    raise _error(response.status, answer)
                return answer
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            silent = isinstance(error, TimeoutError)
            raise KeeperAway(f"the keeper does not answer: {error!r}", silent=silent) from error

    async def _ensure(self) -> None:
        """Adopt the process, or start one. One that hangs is killed first, which is no worse for what it was doing than
        any other end of a keeper: no sandbox ends with it, and the next one takes up or takes away what was half done.
        """
        async with self._starting:
            try:
                await self._adopt_patiently()
                return
            except KeeperAway as error:
                if self._session is None:
                    raise
                await self._end_hung(error)
            self._root.mkdir(parents=True, exist_ok=True, mode=0o700)
            output = self._config.log_dir / f"keeper-{self._tag}.out"
            process = await spawn_detached(self._arguments(), output=output, cgroup=self._group)
            deadline = self._clock.monotonic() + _START_S
            while True:
                try:
                    await self._adopt()
                    return
                except KeeperAway as error:
                    if not process.alive() or self._clock.monotonic() > deadline:
                        raise KeeperAway(f"the keeper did not start: {_tail(output)}") from error
                await self._clock.sleep(_LOOK_S)

    async def _adopt_patiently(self) -> None:
        """Ask again once: a connection may have been closed as idle, and a long silence may be a stop of ours."""
        try:
            await self._adopt()
        except KeeperAway as error:
            if not error.asked:
                raise
            await self._adopt()

    async def _end_hung(self, error: KeeperAway) -> None:
        """See to it that no keeper is there that did not answer: it holds the lock that the next one needs."""
        process = await asyncio.to_thread(listener_of, self._socket) if error.silent else None
        if process is not None:
            log.error("the keeper hangs and is killed", pid=process.pid, error=error.message)
            await kill(process)
        elif self._process is not None:
            # It has closed its socket: it is ending, and may finish what it is doing.
            await self._end(self._process)

    async def _end(self, process: ProcessHandle) -> None:
        try:
            async with asyncio.timeout(_ENDING_S):
                await wait_exit(process)
        except TimeoutError:
            log.error("the keeper does not end and is killed", pid=process.pid)
            await kill(process)

    async def _adopt(self) -> None:
        info = await self._once("GET", "/v1/info", None, timeout=_INFO)
        try:
            self._process = ProcessHandle.of(int(info["pid"]))
        except ProcessGone as error:
            raise KeeperAway(error.message) from error

    def _arguments(self) -> list[str]:
        config = self._config
        return [
            str(self._binary),
            "keep",
            "--socket",
            str(self._socket),
            "--root",
            str(self._root),
            "--instance",
            config.instance,
            "--bind",
            f"{config.node_dir}={NODE}",
            "--log",
            str(config.log_dir / f"keeper-{self._tag}.log"),
        ]


def _net(slot: Slot) -> dict[str, str]:
    return {
        "netns": slot.netns_path,
        "interface": "eth0",
        "address": slot.address_with_prefix,
        "gateway": str(slot.gateway),
    }


def _container(raw: Any) -> Container:
    return Container(
        str(raw["id"]), str(raw["status"]), int(raw["pid"]), int(raw["pid_start_time"]), _reason(raw)
    )


def _reason(raw: Any) -> str:
    if raw.get("reason"):
        return str(raw["reason"])[:300]
    if raw.get("signal"):
        return f"signal {raw['signal']}"
    if raw.get("exit_code") is not None:
        return f"exited {raw['exit_code']}"
    return ""


def _error(status: int, answer: Any) -> DriverError | HostFull:
    code, message = str(answer.get("code", status)), str(answer.get("message", "no message"))[:1000]
    if code == "no_space":
        return HostFull(message)
    if code == "not_found":
        return MachineLost(message)
    if code == "conflict":
        return ContainerUnusable(message)
    if code == "timeout":
        return MachineLost(f"the sandbox does not answer: {message}")
    return DriverError(message)


def _tail(path: Path) -> str:
    try:
        return path.read_text(errors="replace")[-2000:].strip() or "no output"
    except OSError:
        return "no output"
