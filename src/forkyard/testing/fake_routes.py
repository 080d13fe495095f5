"""The edge's route table, as the core sees it. It notes every broken rule in the host's `violations`."""

from __future__ import annotations

from forkyard.sandboxes.routing import Route, RouteState
from forkyard.testing.fake_host import FakeHost
from forkyard.testing.faults import Life


class FakeRoutes:
    """Implements `RouteTable` on the host's table. Calls: `routes.set` and `routes.remove`, subject the sandbox.

    Rules: requests are routed only to a living machine that is not cut, that knows itself as this sandbox in this
    generation and carries its token; a generation never comes back once a higher one was seen.
    """

    def __init__(self, host: FakeHost, life: Life | None = None, *, attached: bool = True) -> None:
        self._host = host
        self._life = life or Life(host.faults)
        self._before: dict[str, Route] | None = None if attached else {}

    async def attach(self) -> None:
        """Push the whole table, as a new server does to an edge that outlived the last one."""
        async with self._life.call("routes.attach"):
            if self._before is not None:
                self._host.routes, self._before = self._before, None

    async def set(self, route: Route) -> None:
        async with self._life.call("routes.set", route.id):
            host = self._host
            if route.generation < host.highest.get(route.id, 0):
                return
            host.highest[route.id] = route.generation
            if route.state is RouteState.RUNNING:
                self._check_running(route)
            self._table[route.id] = route

    async def remove(self, sandbox_id: str, generation: int) -> None:
        async with self._life.call("routes.remove", sandbox_id):
            known = self._table.get(sandbox_id)
            if known is not None and known.generation <= generation:
                del self._table[sandbox_id]
            self._host.highest[sandbox_id] = max(generation, self._host.highest.get(sandbox_id, 0))

    @property
    def _table(self) -> dict[str, Route]:
        """The edge's, or what will be pushed to it."""
        return self._host.routes if self._before is None else self._before

    def _check_running(self, route: Route) -> None:
        host, what = self._host, f"running route of {route.id} generation {route.generation}"
        machine = next((m for m in host.machines.values() if m.address == route.address), None)
        if machine is None:
            host.violations.append(f"{what} to {route.address}, where no machine is")
            return
        identity = machine.identity
        if machine.cut:
            host.violations.append(f"{what} to {machine.name}, which is cut")
        if identity is None or (identity.sandbox_id, identity.generation) != (route.id, route.generation):
            host.violations.append(f"{what} to {machine.name}, which knows itself as {identity}")
        elif identity.access_token != route.envd_token:
            host.violations.append(f"{what} to {machine.name}, which has another token")
        for other in self._table.values():
            if other.id != route.id and other.state is RouteState.RUNNING and other.address == route.address:
                host.violations.append(f"{what} to {route.address}, where {other.id} is routed too")
