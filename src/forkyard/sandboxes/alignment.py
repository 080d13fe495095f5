"""The machine of a running sandbox as its record says: with its egress rules, and watched."""

from __future__ import annotations

from forkyard.base.errors import ForkyardError
from forkyard.base.logging import get_logger
from forkyard.base.retry import retry
from forkyard.sandboxes.core import Core
from forkyard.sandboxes.driver import DriverError, Handle, MachineLost
from forkyard.sandboxes.endings import machine_died
from forkyard.sandboxes.models import Sandbox
from forkyard.sandboxes.network import apply_egress
from forkyard.sandboxes.state import State

log = get_logger(__name__)


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
    """Apply the record of a running sandbox to the machine it was found with. Does not raise, as `watch_machine`."""
    if row.state is not State.RUNNING or row.handle is None:
        return
    try:
        await apply_egress(core, row)
    except Exception as error:
        log.warning("egress rules could not be applied", sandbox_id=row.id, error=repr(error))
        core.unaligned.add(row.id)
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
