"""Bring up the machine of a claimed sandbox from a snapshot: what create, fork and resume have in common."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from forkyard.base.crashpoints import crash_point, crash_points
from forkyard.base.errors import ForkyardError
from forkyard.sandboxes.core import Core, identity_of, machine_name
from forkyard.sandboxes.driver import Handle
from forkyard.sandboxes.egress import policy_of
from forkyard.sandboxes.endings import purge_snapshots, remove_machine
from forkyard.sandboxes.errors import SnapshotDamaged, TransitionFailed
from forkyard.sandboxes.models import Sandbox, Snapshot, SnapshotState
from forkyard.sandboxes.routing import RouteState, route_of
from forkyard.sandboxes.snapshots import Manifest
from forkyard.sandboxes.state import State
from forkyard.sandboxes.warm import DEFAULT_EGRESS, WarmPool

crash_points("start.claimed", "start.restored", "start.initialised", "start.committed", "start.routed")


async def start_new(
    core: Core, pool: WarmPool | None, sandbox: Sandbox, token: str, snapshot: Snapshot, *, operation: str
) -> Sandbox:
    """Start a sandbox in state `creating`. On any error it is gone, nothing of it stays, and the error is raised."""
    crash_point("start.claimed")
    handle: Handle | None = None
    try:
        handle = await _machine(core, pool, sandbox, snapshot, operation)
        crash_point("start.restored")
        with core.telemetry.stage(operation, "init"):
            await core.guests.init(handle.address, identity_of(sandbox), timeout_s=core.settings.boot_timeout)
        crash_point("start.initialised")
        now = core.clock.now()
        running = await commit_running(
            core,
            sandbox,
            token,
            handle,
            {"started_at": now, "end_at": now + timedelta(seconds=sandbox.timeout_s)},
        )
    except BaseException as error:
        await remove_machine(core, handle or machine_name(sandbox))
        await core.store.finish(
            sandbox.id,
            token=token,
            to=State.GONE,
            values={"ended_at": core.clock.now(), "end_reason": f"could not be started: {error}"[:400]},
        )
        core.changes.notify(sandbox.id)
        raise
    core.journal.write(sandbox.id, "created", template=sandbox.template_name or sandbox.template_id)
    return running


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
    sandbox: Sandbox,
    token: str,
    handle: Handle,
    values: dict[str, Any],
    *,
    snapshot_drop: list[str] | None = None,
) -> Sandbox:
    """Commit `running` with this machine, publish the route, watch it."""
    with core.telemetry.stage("start", "commit"):
        running = await core.store.finish(
            sandbox.id,
            token=token,
            to=State.RUNNING,
            values={"handle": handle.to_json(), "unhealthy_reason": None, **values},
            snapshot_drop=snapshot_drop or [],
        )
    if running is None:
        raise TransitionFailed("the sandbox was taken over by another operation")
    crash_point("start.committed")
    with core.telemetry.stage("start", "route"):
        await core.routes.set(route_of(running, RouteState.RUNNING))
    crash_point("start.routed")
    core.changes.notify(sandbox.id)
    core.operations.start_logged(_after_start(core, handle), f"after-start-{sandbox.id}")
    return running


async def _after_start(core: Core, handle: Handle) -> None:
    try:
        await core.driver.watch(handle)
    except ForkyardError as error:
        core.journal.write(handle.name.partition("-")[0], "watch failed", level="warn", reason=error.message)
    await purge_snapshots(core)


async def _machine(
    core: Core, pool: WarmPool | None, sandbox: Sandbox, snapshot: Snapshot, operation: str
) -> Handle:
    handle = pool.claim(snapshot.id) if pool is not None else None
    if handle is None:
        return await restore_machine(core, sandbox, snapshot, snapshot.id, operation=operation)
    policy = policy_of(sandbox)
    if policy != DEFAULT_EGRESS:
        try:
            await core.driver.set_egress(handle, policy)
        except BaseException:
            await remove_machine(core, handle)
            raise
    return handle


def deadline_after(core: Core, seconds: int) -> datetime:
    return core.clock.now() + timedelta(seconds=seconds)
