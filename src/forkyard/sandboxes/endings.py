"""Kill, deaths, and the removal of what they leave."""

from __future__ import annotations

from datetime import datetime

import structlog

from forkyard.base.crashpoints import crash_point, crash_points
from forkyard.base.errors import ForkyardError
from forkyard.sandboxes.core import Core, Settled, claim, machine_name, settle
from forkyard.sandboxes.driver import Handle
from forkyard.sandboxes.errors import SandboxNotFound
from forkyard.sandboxes.models import Sandbox, SnapshotState
from forkyard.sandboxes.state import State

crash_points("kill.claimed", "kill.unrouted", "kill.destroyed", "kill.committed")

log = structlog.stdlib.get_logger(__name__)

_RETRY_S = (0.2, 1.0, 5.0, 15.0)


async def kill(
    core: Core, sandbox_id: str, *, team_id: str | None, reason: str, expired_at: datetime | None = None
) -> bool:
    """End a sandbox for good. Waits for the transition in progress. Answers once nothing can reach the machine;
    the rest follows behind. False when `expired_at` is given and the deadline moved. Raises SandboxNotFound.
    """
    claimed = await claim(
        core,
        sandbox_id,
        team_id=team_id,
        allowed={State.RUNNING} if expired_at else {State.RUNNING, State.PAUSED},
        to=State.KILLING,
        expired_at=expired_at,
    )
    if isinstance(claimed, Settled):
        return False
    crash_point("kill.claimed")
    sandbox = claimed.sandbox
    await core.routes.remove(sandbox.id, sandbox.generation)
    crash_point("kill.unrouted")
    core.changes.notify(sandbox.id)
    core.journal.write(sandbox.id, "killed", reason=reason)
    core.operations.start_logged(finish_kill(core, sandbox, claimed.token, reason), f"kill-{sandbox.id}")
    return True


async def finish_kill(core: Core, sandbox: Sandbox, token: str, reason: str) -> None:
    """Destroy the machine, drop the snapshot, commit `gone`. Also what recovery does with a half-done kill."""
    await remove_machine(core, Handle.from_json(sandbox.handle) if sandbox.handle else machine_name(sandbox))
    crash_point("kill.destroyed")
    await core.store.finish(
        sandbox.id,
        token=token,
        to=State.GONE,
        values={"handle": None, "snapshot_id": None, "ended_at": core.clock.now(), "end_reason": reason},
        snapshot_drop=[sandbox.snapshot_id] if sandbox.snapshot_id else [],
    )
    crash_point("kill.committed")
    core.changes.notify(sandbox.id)
    await purge_snapshots(core)


async def end_lost(core: Core, sandbox: Sandbox, token: str, reason: str) -> None:
    """The machine died in the middle of the transition that `token` owns, and there is nothing to go back to."""
    await core.routes.remove(sandbox.id, sandbox.generation)
    await core.store.finish(
        sandbox.id,
        token=token,
        to=State.GONE,
        values={"handle": None, "ended_at": core.clock.now(), "end_reason": reason[:400]},
    )
    await _after_death(core, sandbox, reason)


async def machine_died(core: Core, name: str, reason: str) -> None:
    """A machine exited by itself: if it is the one a sandbox runs on, the sandbox is gone.

    In the middle of a transition this waits: the operation sees the death itself and decides what follows.
    """
    for row in await core.store.of_node(core.node_id):
        if row.handle is None or row.handle["name"] != name:
            continue
        try:
            row = await settle(core, row.id, team_id=None)
        except SandboxNotFound:
            return
        if row.handle is None or row.handle["name"] != name:
            return
        ended = await core.store.end(
            row.id, generation=row.generation, reason=f"its machine died: {reason}", now=core.clock.now()
        )
        if ended is not None:
            await core.routes.remove(row.id, row.generation)
            await _after_death(core, row, f"its machine died: {reason}")
        return


async def _after_death(core: Core, sandbox: Sandbox, reason: str) -> None:
    core.telemetry.deaths.inc()
    core.journal.write(sandbox.id, "gone", level="error", reason=reason)
    core.changes.notify(sandbox.id)
    log.warning("sandbox is gone", sandbox_id=sandbox.id, reason=reason)
    if sandbox.handle is not None:
        await remove_machine(core, Handle.from_json(sandbox.handle))
    await purge_snapshots(core)


async def remove_machine(core: Core, machine: Handle | str) -> None:
    """Destroy a machine, trying again for a while; what still stands then is swept later."""
    name = machine if isinstance(machine, str) else machine.name
    for delay in (*_RETRY_S, None):
        try:
            await core.driver.destroy(machine)
            return
        except ForkyardError as error:
            log.warning("machine could not be destroyed", machine=name, error=error.message)
        if delay is not None:
            await core.clock.sleep(delay)


async def purge_snapshots(core: Core) -> None:
    """Remove the files, then the rows, of snapshots that nobody can use any more. Idempotent."""
    for snapshot in await core.store.snapshots_in(core.node_id, [SnapshotState.DELETING]):
        try:
            await core.files.remove(snapshot.id)
            await core.store.forget_snapshot(snapshot.id)
        except OSError as error:
            log.warning("snapshot files could not be removed", snapshot_id=snapshot.id, error=repr(error))
