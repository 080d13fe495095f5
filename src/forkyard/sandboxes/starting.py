"""Bring up the machine of a claimed sandbox from a snapshot: what create, fork and resume have in common."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from forkyard.base.crashpoints import crash_point, crash_points
from forkyard.base.logging import get_logger
from forkyard.guest.errors import GuestError
from forkyard.sandboxes.alignment import publish, set_running_route, watch_machine
from forkyard.sandboxes.core import Claim, Core, identity_of, insist, machine_name, still_owns
from forkyard.sandboxes.driver import DriverError, Handle
from forkyard.sandboxes.egress import policy_of
from forkyard.sandboxes.endings import (
    machines_of,
    purge_snapshots,
    remove_behind,
    remove_machine,
)
from forkyard.sandboxes.errors import SnapshotDamaged, TransitionFailed
from forkyard.sandboxes.introducing import introduce
from forkyard.sandboxes.models import Sandbox, Snapshot, SnapshotState
from forkyard.sandboxes.snapshots import Manifest
from forkyard.sandboxes.state import State
from forkyard.sandboxes.warm import DEFAULT_EGRESS

crash_points("start.claimed", "start.restored", "start.initialised", "start.committed", "start.routed")

log = get_logger(__name__)


async def start_new(
    core: Core, sandbox: Sandbox, token: str, snapshot: Snapshot, *, operation: str
) -> Sandbox:
    """Start a sandbox in state `creating`, on its warm machine if its record names one.

    On any error it is gone, nothing of it stays, and the error is raised.
    """
    core.owners.take(token)
    claimed = Claim(sandbox, token)
    crash_point("start.claimed")
    try:
        handle = await _machine(core, sandbox, snapshot, operation)
        crash_point("start.initialised")
        now = core.clock.now()
        values = {"started_at": now, "end_at": now + timedelta(seconds=sandbox.timeout_s)}
        running = await commit_running(core, claimed, handle, values)
    except BaseException as error:
        committed = await abandon(core, claimed, error)
        if committed is None:
            raise
        running = committed
    announce_running(core, running)
    core.journal.write(sandbox.id, "created", template=sandbox.template_name or sandbox.template_id)
    return running


async def abandon(core: Core, claimed: Claim, error: BaseException) -> Sandbox | None:
    """Let a sandbox that could not be started be gone. Answers its record if its start was committed after all."""
    sandbox = claimed.sandbox
    log.warning("sandbox could not be started", sandbox_id=sandbox.id, error=repr(error))
    if not await still_owns(core, claimed):
        row = await core.store.get(sandbox.id)
        if row is None or row.state in (State.CREATING, State.GONE):
            return None
        await publish(core, row)
        return row
    await core.routes.remove(sandbox.id, sandbox.generation)
    await insist(
        core,
        lambda: core.store.finish(
            sandbox,
            token=claimed.token,
            to=State.GONE,
            values={
                "handle": None,
                "ended_at": core.clock.now(),
                "end_reason": f"could not be started: {error}"[:400],
            },
            forget_key=True,
        ),
    )
    core.changes.notify(sandbox.id)
    remove_behind(core, *machines_of(sandbox))
    return None


async def restore_machine(
    core: Core, sandbox: Sandbox, snapshot: Snapshot | None, snapshot_id: str, *, operation: str
) -> Handle:
    """A machine of this sandbox's generation from a snapshot. Everything that can be wrong with the snapshot is found
    before anything is started. Raises SnapshotDamaged and what the driver raises.
    """
    if snapshot is None or snapshot.manifest is None or snapshot.state != SnapshotState.READY:
        raise SnapshotDamaged(f"snapshot {snapshot_id} is not there any more")
    manifest = Manifest.from_json(snapshot.manifest)
    directory = core.files.directory(snapshot.id)
    with core.telemetry.stage(operation, "check"):
        await core.files.check(snapshot.id, manifest)
        await core.driver.check(directory, manifest.requires, manifest.files)
    with core.telemetry.stage(operation, "restore"):
        spec = core.driver.spec_of(
            manifest.requires,
            name=machine_name(sandbox),
            egress=policy_of(sandbox),
            hostname=sandbox.hostname,
        )
        return await core.driver.restore(spec, directory)


async def commit_running(
    core: Core,
    claimed: Claim,
    handle: Handle,
    values: dict[str, Any],
    *,
    snapshot_drop: list[str] | None = None,
) -> Sandbox:
    """Commit `running` on this machine, then publish its route. Raises TransitionFailed if it was taken over.

    In this order: what a request does to the machine must not be lost with a commit that fails.
    """
    sandbox = claimed.sandbox
    async with core.gates.closed(sandbox.id):
        with core.telemetry.stage("start", "commit"):
            running = await core.store.finish(
                sandbox,
                token=claimed.token,
                to=State.RUNNING,
                values={"handle": handle.to_json(), "unhealthy_reason": None, **values},
                snapshot_drop=snapshot_drop or [],
            )
        if running is None:
            raise TransitionFailed("the sandbox was taken over by another operation")
        crash_point("start.committed")
        with core.telemetry.stage("start", "route"):
            await set_running_route(core, running)
        crash_point("start.routed")
    return running


def announce_running(core: Core, running: Sandbox, *, purge: bool = False) -> None:
    """After the commit: wake those who wait, mind the deadline, and behind that watch the machine; `purge` the snapshot
    that it came from.
    """
    core.changes.notify(running.id)
    core.deadlines.moved(running.end_at)

    async def behind() -> None:
        if running.handle is not None:
            await watch_machine(core, running.id, Handle.from_json(running.handle))
        if purge:
            await purge_snapshots(core)

    core.operations.start_logged(behind(), f"after-start-{running.id}")


async def _machine(core: Core, sandbox: Sandbox, snapshot: Snapshot, operation: str) -> Handle:
    """A machine that knows who it is: the warm one, or one restored now if there is none or it is of no use."""
    if sandbox.handle is not None:
        warm = Handle.from_json(sandbox.handle)
        try:
            if policy_of(sandbox) != DEFAULT_EGRESS:
                await core.driver.set_egress(warm, policy_of(sandbox))
            await _introduce(core, sandbox, snapshot, warm, operation, core.settings.warm_timeout)
            return warm
        except (DriverError, GuestError) as error:
            log.warning("warm machine is of no use", machine=warm.name, error=error.message)
            await remove_machine(core, warm)
    handle = await restore_machine(core, sandbox, snapshot, snapshot.id, operation=operation)
    crash_point("start.restored")
    await _introduce(core, sandbox, snapshot, handle, operation, core.settings.boot_timeout)
    return handle


async def _introduce(
    core: Core, sandbox: Sandbox, snapshot: Snapshot, handle: Handle, operation: str, timeout_s: float
) -> None:
    with core.telemetry.stage(operation, "init"):
        reboot = not snapshot.keeps_memory
        await introduce(core, handle, identity_of(sandbox), reboot=reboot, timeout_s=timeout_s)


def deadline_after(core: Core, seconds: int) -> datetime:
    return core.clock.now() + timedelta(seconds=seconds)
