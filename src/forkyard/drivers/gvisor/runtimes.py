"""The runtime versions that machines of this node need, each opened when it is first asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from forkyard.base.clock import Clock
from forkyard.base.tasks import Supervisor
from forkyard.drivers.gvisor.binaries import Binaries, FileHashes
from forkyard.drivers.gvisor.command_line import CommandLine
from forkyard.drivers.gvisor.config import GvisorConfig
from forkyard.drivers.gvisor.keeper import Keeper, keeper_group
from forkyard.drivers.gvisor.runtime import Container, ContainerEvent, Runtime
from forkyard.host.cgroups import remove_group


class Runtimes:
    """Opens runtimes and follows what they tell of their containers."""

    def __init__(
        self,
        config: GvisorConfig,
        binaries: Binaries,
        hashes: FileHashes,
        clock: Clock,
        tell: Callable[[ContainerEvent], None],
    ) -> None:
        self._config = config
        self._binaries = binaries
        self._hashes = hashes
        self._clock = clock
        self._tell = tell
        self._open: dict[str, Runtime] = {}
        self._opening = asyncio.Lock()
        self._loops = Supervisor(clock)

    async def get(self, sha256: str) -> Runtime:
        """That version, opened if it is not. Raises SnapshotUnusable when it is not installed, DriverError."""
        runtime = self._open.get(sha256)
        if runtime is not None:
            return runtime
        async with self._opening:
            if sha256 in self._open:
                return self._open[sha256]
            binary = self._binaries.path("keeper", sha256)
            await self._hashes.check(binary, sha256, "runtime")
            kind = Keeper if self._config.keeper else CommandLine
            runtime = kind(self._config, sha256, binary, self._clock)
            await runtime.open()
            self._open[sha256] = runtime
            self._loops.start(f"events-{sha256[:12]}", self._follower(runtime))
            return runtime

    async def ping(self) -> None:
        """Raises DriverError when one of those that are open does not answer."""
        for runtime in list(self._open.values()):
            await runtime.ping()

    async def containers(self) -> list[tuple[Runtime, Container]]:
        """All containers of the runtimes that are open."""
        return [(runtime, c) for runtime in self._open.values() for c in await runtime.list()]

    async def close(self, *, shutdown: bool) -> None:
        """Let go of all; with `shutdown` their own processes end too. Containers go on."""
        await self._loops.stop()
        for runtime in self._open.values():
            if shutdown:
                await runtime.shutdown()
            await runtime.close()
        self._open.clear()
        if shutdown:
            await remove_group(keeper_group(self._config))

    def _follower(self, runtime: Runtime) -> Callable[[], Awaitable[None]]:
        async def follow() -> None:
            async for event in runtime.events():
                self._tell(event)

        return follow
