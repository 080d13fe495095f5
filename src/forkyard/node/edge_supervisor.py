"""Keeps one edge running: adopts the one that is there, starts one when it dies, pushes the route table."""

from __future__ import annotations

import asyncio
from pathlib import Path

from forkyard.base.clock import Clock
from forkyard.base.errors import ForkyardError
from forkyard.base.logging import get_logger
from forkyard.host.cgroups import remove_group
from forkyard.host.processes import ProcessHandle, kill, spawn_detached, wait_exit
from forkyard.node.edge_client import EdgeAway, EdgeClient, EdgeInfo
from forkyard.node.edge_process import edge_arguments
from forkyard.node.readiness import Readiness
from forkyard.node.routes import EdgeRoutes
from forkyard.node.settings import Settings

log = get_logger(__name__)

_START_S = 10.0
_LOOK_S = 0.01
_PROBE_S = 5.0
_HUNG_S = 15.0
"""An edge that has not answered for so long (and once more) hangs. To kill it breaks every stream of every sandbox."""


class EdgeFailed(ForkyardError):
    """The edge could not be started."""

    code = "edge_failed"


class EdgeSupervisor:
    def __init__(
        self,
        settings: Settings,
        binary: Path,
        client: EdgeClient,
        routes: EdgeRoutes,
        readiness: Readiness,
        clock: Clock,
        *,
        cgroup: str,
    ) -> None:
        self._settings = settings
        self._binary = binary
        self._client = client
        self._routes = routes
        self._readiness = readiness
        self._clock = clock
        self._cgroup = cgroup
        self._process: ProcessHandle | None = None

    async def attach(self) -> None:
        """Adopt or start an edge and give it the table. Raises EdgeFailed with what its log says."""
        info = await self._adopt() or await self._start()
        process = ProcessHandle.of(info.pid)
        await self._routes.attach()
        # Only now: `run` takes an edge that is known here for one that has the table, and waits for its end.
        self._process = process
        self._readiness.done("edge")

    async def run(self) -> None:
        """Start it again whenever it dies or hangs, until cancelled."""
        while True:
            if self._process is not None:
                await self._until_dead(self._process)
                log.warning("the edge died; starting another")
                self._process = None
                self._readiness.lost("edge")
            await self.attach()

    async def shutdown(self) -> None:
        """End the edge (nothing runs any more), and remove its control group."""
        process, self._process = self._process, None
        try:
            process = process or self._client.process()
            await self._client.shutdown()
            async with asyncio.timeout(_START_S):
                await wait_exit(process)
        except (EdgeAway, TimeoutError) as error:
            log.warning("the edge did not end by itself", error=repr(error))
            if process is not None:
                await kill(process)
        await remove_group(self._cgroup)

    async def _adopt(self) -> EdgeInfo | None:
        """The edge that is there, if it answers. One that hangs is killed: it would keep its ports from the next."""
        deadline = self._clock.monotonic() + _HUNG_S
        while True:
            late = self._clock.monotonic() > deadline
            try:
                info = await self._client.info()
            except EdgeAway as error:
                try:
                    process = self._client.process()
                except EdgeAway:
                    return None
                if late:
                    log.error("the edge hangs and is killed", pid=process.pid, error=error.message)
                    await kill(process)
                    return None
            else:
                log.info("adopted the edge", pid=info.pid, listen=info.listen)
                return info
            await self._clock.sleep(_LOOK_S)

    async def _until_dead(self, process: ProcessHandle) -> None:
        """Wait for its end, and see to that when it does not answer any more."""
        exited = asyncio.create_task(wait_exit(process))
        answered = self._clock.monotonic()
        try:
            while not (await asyncio.wait({exited}, timeout=_PROBE_S))[0]:
                late = self._clock.monotonic() - answered > _HUNG_S
                try:
                    await self._client.info()
                except EdgeAway as error:
                    self._readiness.lost("edge")
                    if late:
                        log.error("the edge hangs and is killed", pid=process.pid, error=error.message)
                        await kill(process)
                else:
                    self._readiness.done("edge")
                    answered = self._clock.monotonic()
        finally:
            exited.cancel()

    async def _start(self) -> EdgeInfo:
        settings = self._settings
        log_file = settings.log_dir / "edge.log"
        arguments = [str(self._binary), *edge_arguments(settings)]
        output = settings.log_dir / "edge.out"
        process = await spawn_detached(arguments, output=output, cgroup=self._cgroup)
        deadline = self._clock.monotonic() + _START_S
        while True:
            try:
                return await self._client.info()
            except EdgeAway as error:
                if not process.alive():
                    raise EdgeFailed(f"the edge did not start: {_last_lines(output)}") from error
                if self._clock.monotonic() > deadline:
                    raise EdgeFailed(f"the edge does not answer; see {log_file}") from error
            await self._clock.sleep(_LOOK_S)


def _last_lines(path: Path) -> str:
    try:
        return path.read_text(errors="replace")[-2000:].strip() or "no output"
    except OSError:
        return "no output"
