"""The table at the edge follows ours, also after the edge has not answered for a while."""

import asyncio
import os
from collections.abc import Coroutine, Sequence
from typing import Any

from forkyard.host.processes import ProcessHandle
from forkyard.node.edge_client import EdgeAway, EdgeInfo
from forkyard.node.routes import EdgeRoutes
from forkyard.sandboxes.routing import Route, RouteState
from forkyard.testing.clock import ManualClock

OWN = ProcessHandle.of(os.getpid())
"""Stands for an edge: it lives, and nothing here ends it."""


class Edge:
    """An edge that can be hung: its calls fail, and have no effect."""

    def __init__(self) -> None:
        self.hangs = False
        self.epoch = 0
        self.table: dict[str, Route] = {}
        self.as_process = OWN
        self.killed: list[ProcessHandle] = []

    def _check(self) -> None:
        if self.hangs:
            raise EdgeAway("it hangs")

    async def info(self) -> EdgeInfo:
        self._check()
        return EdgeInfo("1", 1, self.epoch, "127.0.0.1:80")

    def process(self) -> ProcessHandle:
        return self.as_process

    async def kill(self, process: ProcessHandle) -> bool:
        """Another starts at once, if this was the one: with no table."""
        self.killed.append(process)
        if process == self.as_process:
            self.epoch, self.table, self.hangs = 0, {}, False
        return True

    async def replace(self, epoch: int, routes: Sequence[Route]) -> None:
        self._check()
        self.epoch, self.table = epoch, {route.id: route for route in routes}

    async def update(self, epoch: int, *, set_: Sequence[Route], remove: Sequence[tuple[str, int]]) -> None:
        self._check()
        assert epoch == self.epoch
        self.table |= {route.id: route for route in set_}
        for sandbox_id, _generation in remove:
            self.table.pop(sandbox_id, None)


def route(name: str) -> Route:
    return Route(name, 1, RouteState.RUNNING, "10.0.0.2", None, None, True, False, None)


async def pushed(clock: ManualClock, change: Coroutine[Any, Any, None]) -> None:
    task = asyncio.create_task(change)
    async with asyncio.timeout(5):
        while not task.done():
            await clock.advance(0.05)
    await task


async def test_an_edge_that_does_not_take_a_removal_is_dead_when_that_returns() -> None:
    edge, clock = Edge(), ManualClock()
    routes = EdgeRoutes(edge, clock, edge.kill)  # type: ignore[arg-type]
    await routes.set(route("a"))
    await routes.attach()
    edge.hangs = True
    await pushed(clock, routes.remove("a", 1))
    assert edge.killed == [OWN]
    assert edge.table == {}
    await routes.set(route("b"))
    assert set(edge.table) == {"b"}
    await routes.set(route("c"))
    assert set(edge.table) == {"b", "c"}
    assert edge.killed == [OWN]


async def test_a_short_hang_kills_nobody() -> None:
    edge, clock = Edge(), ManualClock()
    routes = EdgeRoutes(edge, clock, edge.kill)  # type: ignore[arg-type]
    await routes.set(route("a"))
    await routes.attach()
    edge.hangs = True
    removal = asyncio.create_task(routes.remove("a", 1))
    for _ in range(100):
        await clock.advance(0.05)
    assert not removal.done()
    edge.hangs = False
    await pushed(clock, routes.set(route("b")))
    await pushed(clock, _wait(removal))
    assert set(edge.table) == {"b"}
    assert edge.killed == []


async def _wait(task: asyncio.Task[None]) -> None:
    await task
