"""Kill, deaths, and the removal of what they leave."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import datetime

from forkyard.base.crashpoints import crash_point, crash_points
from forkyard.base.errors import ForkyardError
from forkyard.base.logging import get_logger
from forkyard.base.retry import retry
from forkyard.sandboxes.core import Core, Settled, claim, insist, machine_name, sandbox_of, settle
from forkyard.sandboxes.driver import DriverError, Handle
from forkyard.sandboxes.errors import SandboxNotFound, WrongState
from forkyard.sandboxes.models import Sandbox, SnapshotState
from forkyard.sandboxes.state import State

crash_points("kill.claimed", "kill.unrouted", "kill.destroyed", "kill.committed")

log = get_logger(__name__)

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
        intent=lambda _row: {"reason": reason},
    )
    if isinstance(claimed, Settled):
        return False
    crash_point("kill.claimed")
    sandbox = claimed.sandbox
    # If this fails nothing is destroyed: what is still routed somewhere must not lose its address to another.
    await asyncio.gather(core.routes.remove(sandbox.id, sandbox.generation), _flush(core))
    crash_point("kill.unrouted")
    core.changes.notify(sandbox.id)
    core.journal.write(sandbox.id, "killed", reason=reason)
    core.operations.start_logged(finish_kill(core, sandbox, claimed.token, reason), f"kill-{sandbox.id}")
    return True


async def _flush(core: Core) -> None:
    """What was killed must not come back after a crash of the host. A disk that fails does not hold a kill up."""
    try:
        await core.store.flush()
    except ForkyardError as error:
        log.warning("a kill is not durable", error=error.message)


async def finish_kill(core: Core, sandbox: Sandbox, token: str, reason: str) -> None:
    """Destroy the machine, drop the snapshot, commit `gone`. Also what recovery does with a half-done kill."""
    core.owners.take(token)
    # The one it runs on, and the source of a pause that has just ended.
    await remove_machine(core, Handle.from_json(sandbox.handle) if sandbox.handle else machine_name(sandbox))
    crash_point("kill.destroyed")
    await insist(
        core,
        lambda: core.store.finish(
            sandbox,
            token=token,
            to=State.GONE,
            values={
                "handle": None,
                "snapshot_id": None,
                "ended_at": core.clock.now(),
                "end_reason": reason[:400],
            },
            snapshot_drop=[sandbox.snapshot_id] if sandbox.snapshot_id else [],
        ),
    )
    crash_point("kill.committed")
    core.changes.notify(sandbox.id)
    if sandbox.snapshot_id:
        await purge_snapshots(core)


async def end_lost(core: Core, sandbox: Sandbox, token: str, reason: str) -> None:
    """Commit `gone` for a transition that `token` owns: its machine died, and there is nothing to go back to."""
    await core.routes.remove(sandbox.id, sandbox.generation)
    await insist(
        core,
        lambda: core.store.finish(
            sandbox,
            token=token,
            to=State.GONE,
            values={"handle": None, "ended_at": core.clock.now(), "end_reason": reason[:400]},
        ),
    )
    _after_death(core, sandbox, reason)


async def machine_died(core: Core, name: str, reason: str) -> None:
    """A machine exited by itself: if it is the one a sandbox runs on, the sandbox is gone.

    In the middle of a transition this waits: the operation sees the death itself and decides what follows. A sandbox
    that is being created has no machine in its record yet, so it is found by the machine's name as well. What fails is
    tried again by `bury_rest`: a death is reported only once.
    """
    core.unburied[name] = reason
    await _bury(core, name, reason)
    core.unburied.pop(name, None)


async def bury_rest(core: Core) -> None:
    """Try once more what `machine_died` could not do."""
    for name, reason in list(core.unburied.items()):
        # One in a transition that takes long must not keep the others, and all else that is left, from their turn.
        with suppress(WrongState):
            await machine_died(core, name, reason)


async def _bury(core: Core, name: str, reason: str) -> None:
    row = await core.store.by_machine(core.node_id, name) or await core.store.get(sandbox_of(name))
    if row is None or row.node_id != core.node_id:
        return
    try:
        row = await settle(core, row.id, team_id=None)
    except SandboxNotFound:
        return
    if row.handle is None or row.handle["name"] != name:
        return
    reason = f"its machine died: {reason}"
    async with core.gates.closed(row.id):
        ended = await core.store.end(row.id, generation=row.generation, reason=reason, now=core.clock.now())
        if ended is None:
            return
        await core.routes.remove(row.id, row.generation)
    _after_death(core, row, reason)


def _after_death(core: Core, sandbox: Sandbox, reason: str) -> None:
    core.telemetry.deaths.inc()
    core.journal.write(sandbox.id, "gone", level="error", reason=reason)
    core.changes.notify(sandbox.id)
    log.warning("sandbox is gone", sandbox_id=sandbox.id, reason=reason)
    remove_behind(core, *machines_of(sandbox))


async def network_back(core: Core, handle: Handle) -> str | None:
    """Give a machine its network back; None when it has it, or why there is no machine any more.

    Tries for a while, then raises DriverError: a sandbox must not be called running with its network cut.
    """

    async def once() -> str | None:
        status = await core.driver.inspect(handle)
        if not status.running:
            return status.reason or "unknown"
        await core.driver.uncut(handle)
        return None

    return await retry(once, on=DriverError, within=core.settings.driver_patience, clock=core.clock)


def machines_of(sandbox: Sandbox) -> list[Handle | str]:
    """What may stand for this generation: the recorded machine (perhaps a warm one), and the one of its name."""
    name = machine_name(sandbox)
    if sandbox.handle is None:
        return [name]
    handle = Handle.from_json(sandbox.handle)
    return [handle] if handle.name == name else [handle, name]


def remove_behind(core: Core, *machines: Handle | str) -> None:
    """Destroy machines that nothing is routed to any more, and purge snapshots, without anybody waiting for it."""

    async def remove() -> None:
        await asyncio.gather(*(remove_machine(core, machine) for machine in machines))
        await purge_snapshots(core)

    core.operations.start_logged(remove(), "remove-machines")


async def remove_machine(core: Core, machine: Handle | str) -> None:
    """Destroy a machine, trying again for a while; what still stands then is tried again by `remove_leftovers`."""
    name = machine if isinstance(machine, str) else machine.name
    for delay in (*_RETRY_S, None):
        try:
            await core.driver.destroy(machine)
            core.leftovers.discard(name)
            return
        except ForkyardError as error:
            log.warning("machine could not be destroyed", machine=name, error=error.message)
        if delay is not None:
            await core.clock.sleep(delay)
    core.leftovers.add(name)


async def remove_leftovers(core: Core) -> None:
    """Try once more to destroy what could not be destroyed."""
    for name in sorted(core.leftovers):
        try:
            await core.driver.destroy(name)
        except ForkyardError as error:
            log.warning("machine still cannot be destroyed", machine=name, error=error.message)
        else:
            core.leftovers.discard(name)
            core.telemetry.swept.labels("machine").inc()


async def purge_snapshots(core: Core) -> None:
    """Remove the files, then the rows, of snapshots that nobody can use any more. Idempotent."""
    doomed = await core.store.snapshots_in(core.node_id, [SnapshotState.DELETING])
    if not doomed:
        return
    # The commits that gave them up may not be on the disk yet, and no record may ever lead to deleted files.
    await core.store.flush()
    removed: list[str] = []
    for snapshot in doomed:
        try:
            await core.files.remove(snapshot.id)
            removed.append(snapshot.id)
        except (OSError, ForkyardError) as error:
            log.warning("snapshot files could not be removed", snapshot_id=snapshot.id, error=repr(error))
    await core.store.forget_snapshots(removed)
