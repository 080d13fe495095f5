"""The route table as the control plane wants it, kept the same at the edge."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from forkyard.base.clock import Clock
from forkyard.host.processes import ProcessHandle, kill
from forkyard.node.edge_client import EdgeAway, EdgeClient, EpochConflict
from forkyard.sandboxes.routing import Route

log = structlog.stdlib.get_logger(__name__)

_SYNC_WAIT_S = 10.0
"""How long an edge may take for a change. Every stream of every sandbox breaks when it is killed."""

_RETRY_S = 0.05


class EdgeRoutes:
    """Implements `RouteTable`. Changes are applied here first and pushed; when the edge is away, the next full push
    carries them. An edge that does not take a change in time is killed: a dead one holds no connection, so nothing can
    use an old route, whose address may be another tenant's next. The supervisor starts another.
    """

    def __init__(
        self,
        client: EdgeClient,
        clock: Clock,
        kill: Callable[[ProcessHandle], Awaitable[bool]] = kill,
    ) -> None:
        self._client = client
        self._clock = clock
        self._table: dict[str, Route] = {}
        self._epoch = 0
        self._attached = False
        self._behind = False
        """Whether the edge may lack a change: then only the whole table brings it up to date."""
        self._kill = kill
        self._holder: ProcessHandle | None = None
        """The edge that may have a table of ours."""
        self._pushing = asyncio.Lock()

    def __len__(self) -> int:
        return len(self._table)

    async def set(self, route: Route) -> None:
        known = self._table.get(route.id)
        if known is not None and known.generation > route.generation:
            return
        self._table[route.id] = route
        await self._push([route], [])

    async def remove(self, sandbox_id: str, generation: int) -> None:
        known = self._table.get(sandbox_id)
        if known is not None and known.generation <= generation:
            del self._table[sandbox_id]
        await self._push([], [(sandbox_id, generation)])

    async def attach(self) -> None:
        """Push the whole table under a new epoch; from then on changes are pushed as they come. Raises EdgeAway."""
        async with self._pushing:
            info = await self._client.info()
            self._holder = self._client.process()
            self._epoch = max(info.epoch + 1, int(self._clock.now().timestamp() * 1000))
            await self._client.replace(self._epoch, list(self._table.values()))
            self._attached = True
            self._behind = False

    async def _push(self, set_: list[Route], remove: list[tuple[str, int]]) -> None:
        if not self._attached:
            return  # Recovery: the first `attach` carries everything.
        # Whichever edge comes after this one gets a table that has the change.
        holder = self._holder
        if self._behind:
            return await self._attach_again(holder)
        try:
            await self._client.update(self._epoch, set_=set_, remove=remove)
        except (EdgeAway, EpochConflict) as error:
            log.warning("route change not taken; pushing the whole table", error=error.message)
            self._behind = True
            await self._attach_again(holder)

    async def _attach_again(self, holder: ProcessHandle | None) -> None:
        deadline = self._clock.monotonic() + _SYNC_WAIT_S
        while True:
            # The last try begins after the deadline: what passed until then may have been a stop of our own.
            late = self._clock.monotonic() > deadline
            try:
                await self.attach()
                return
            except (EdgeAway, EpochConflict) as error:
                if late:
                    log.error("the edge stays away; the route change waits for the next", error=error.message)
                    return await self._end(holder)
            await self._clock.sleep(_RETRY_S)

    async def _end(self, holder: ProcessHandle | None) -> None:
        if holder is None or not holder.alive():
            return
        log.error("the edge did not take a route change in time and is killed", pid=holder.pid)
        if not await self._kill(holder):
            log.error("the edge was killed, but has not ended yet", pid=holder.pid)
