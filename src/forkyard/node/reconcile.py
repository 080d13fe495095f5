"""The net under everything: now and then compare the driver's machines with the records.

What no record owns at two looks in a row is removed. Operations in progress own machines that no record names yet,
so a look counts only machines that are not of a transition.
"""

from __future__ import annotations

from forkyard.base.logging import get_logger
from forkyard.sandboxes.core import Core, machine_name
from forkyard.sandboxes.endings import machine_died, remove_machine
from forkyard.sandboxes.state import State
from forkyard.sandboxes.upkeep import upkeep
from forkyard.sandboxes.warm import WARM_PREFIX, WarmPool

log = get_logger(__name__)

INTERVAL_S = 30.0


class Reconciler:
    def __init__(self, core: Core, pool: WarmPool) -> None:
        self._core = core
        self._pool = pool
        self._suspects: set[str] = set()

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await self._core.clock.sleep(INTERVAL_S)
            await self.look()

    async def look(self) -> None:
        """Remove orphans seen twice, end sandboxes whose machine is gone, refresh the gauges, purge."""
        core = self._core
        # In this order: a sandbox that came up between the two must not be taken for one without a machine. (The other
        # way round a machine counts as an orphan once, but not twice.)
        rows = await core.store.of_node(core.node_id)
        handles = {handle.name: handle for handle in await core.driver.list_handles()}
        owned = {row.handle["name"] for row in rows if row.handle} | {machine_name(row) for row in rows}
        orphans = {
            name
            for name in handles
            if name not in owned
            and not self._pool.holds(name)
            and not name.startswith(("template-", WARM_PREFIX))
        }
        for name in orphans & self._suspects:
            log.warning("removing a machine that nobody owns", machine=name)
            await remove_machine(core, handles[name])
            core.telemetry.swept.labels("machine").inc()
        self._suspects = orphans - self._suspects
        for row in rows:
            if row.state is State.RUNNING and row.handle is not None and row.handle["name"] not in handles:
                await machine_died(core, row.handle["name"], "it is not there any more")
        await upkeep(core)
        await self.refresh_gauges()

    async def refresh_gauges(self) -> None:
        core = self._core
        counts = await core.store.count_by_state(core.node_id)
        for state in State:
            core.telemetry.states.labels(state.value).set(counts.get(state, 0))
