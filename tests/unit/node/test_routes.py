"""The table at the edge follows ours, also after the edge has not answered for a while."""

import asyncio
from collections.abc import Sequence

from forkyard.node.edge_client import EdgeAway, EdgeInfo
from forkyard.node.routes import EdgeRoutes
from forkyard.sandboxes.routing import Route, RouteState
from forkyard.testing.clock import ManualClock


class Edge:
    """An edge that can be hung: its calls fail, and have no effect."""

    def __init__(self) -> None:
        self.hangs = False
        self.epoch = 0
        self.table: dict[str, Route] = {}

    def _check(self) -> None:
        if self.hangs:
            raise EdgeAway("it hangs")

    async def info(self) -> EdgeInfo:
        self._check()
        return EdgeInfo("1", 1, self.epoch, "127.0.0.1:80")

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


async def test_a_change_that_a_hung_edge_did_not_take_is_in_the_next_push() -> None:
    edge, clock = Edge(), ManualClock()
    routes = EdgeRoutes(edge, clock)  # type: ignore[arg-type]
    await routes.set(route("a"))
    await routes.attach()
    edge.hangs = True
    removal = asyncio.create_task(routes.remove("a", 1))
    async with asyncio.timeout(5):
        while not removal.done():
            await clock.advance(0.05)
    edge.hangs = False
    assert set(edge.table) == {"a"}
    await routes.set(route("b"))
    assert set(edge.table) == {"b"}
    await routes.set(route("c"))
    assert set(edge.table) == {"b", "c"}
