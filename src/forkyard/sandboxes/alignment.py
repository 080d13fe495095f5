"""What belongs to a running sandbox, as its record says: a route, a machine with its egress rules, a watch on that."""

from __future__ import annotations

from forkyard.base.errors import ForkyardError
from forkyard.base.logging import get_logger
from forkyard.base.retry import retry
from forkyard.sandboxes.core import Core, insist
from forkyard.sandboxes.driver import DriverError, Handle, MachineLost
from forkyard.sandboxes.endings import machine_died
from forkyard.sandboxes.models import Sandbox
from forkyard.sandboxes.network import apply_egress
from forkyard.sandboxes.routing import RouteState, route_of
from forkyard.sandboxes.state import State

log = get_logger(__name__)


async def set_running_route(core: Core, row: Sandbox) -> None:
    """Publish the route of a sandbox that runs. Does not raise: it runs, whatever the data plane's table does."""
    try:
        await core.routes.set(route_of(row, RouteState.RUNNING))
    except Exception as error:
        log.error("route could not be published", sandbox_id=row.id, error=repr(error))
        core.unaligned.add(row.id)


async def publish(core: Core, row: Sandbox) -> None:
    """The same for a sandbox that others may have claimed meanwhile: if it still runs in this generation."""
    async with core.gates.closed(row.id):
        now = await insist(core, lambda: core.store.get(row.id))
        if now is None or now.generation != row.generation:
            return
        if now.state in (State.RUNNING, State.SNAPSHOTTING):
            await set_running_route(core, now)


async def watch_machine(core: Core, sandbox_id: str, handle: Handle) -> None:
    """Let the driver watch it; one that died before anybody watched it is noticed here.

    Does not raise: `align_rest` goes on trying.
    """
    try:
        await retry(
            lambda: _watch(core, handle),
            on=DriverError,
            within=core.settings.driver_patience,
            clock=core.clock,
        )
    except Exception as error:
        log.warning("machine cannot be watched", machine=handle.name, error=repr(error))
        core.journal.write(sandbox_id, "watch failed", level="warn", reason=error)
        core.unaligned.add(sandbox_id)


async def _watch(core: Core, handle: Handle) -> None:
    try:
        await core.driver.watch(handle)
    except MachineLost as error:
        await machine_died(core, handle.name, error.message)


async def align(core: Core, row: Sandbox) -> None:
    """Set everything right of a sandbox that was found running. Raises what the database raises; what else fails is
    left to `align_rest`.
    """
    if row.state is not State.RUNNING or row.handle is None:
        return
    await publish(core, row)
    try:
        await apply_egress(core, row)
    except Exception as error:
        log.warning("egress rules could not be applied", sandbox_id=row.id, error=repr(error))
        core.unaligned.add(row.id)
    if row.unhealthy_reason is not None:
        # A watch begins anew: of one that is ill it tells again, of one that has got well meanwhile it does not.
        await core.store.set_values(row.id, states=[State.RUNNING], values={"unhealthy_reason": None})
    await watch_machine(core, row.id, Handle.from_json(row.handle))


async def align_rest(core: Core) -> None:
    """Try once more what has failed."""
    for sandbox_id in sorted(core.unaligned):
        row = await core.store.get(sandbox_id)
        core.unaligned.discard(sandbox_id)
        if row is None:
            continue
        try:
            await align(core, row)
        except ForkyardError:
            core.unaligned.add(sandbox_id)
            raise
