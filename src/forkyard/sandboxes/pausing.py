"""Pause: take the routes away, cut the network, checkpoint leaving it running, verify, commit, then kill.

Any error before the commit gives the network back and returns to `running`. A checkpoint that stops the sandbox
first would lose it on a full disk.
"""

from __future__ import annotations

from datetime import datetime

import structlog

from forkyard.base.crashpoints import crash_point, crash_points
from forkyard.base.errors import ForkyardError
from forkyard.base.ids import random_text
from forkyard.guest.errors import GuestError
from forkyard.sandboxes.core import Claim, Core, Settled, claim
from forkyard.sandboxes.driver import Handle, MachineLost
from forkyard.sandboxes.endings import end_lost, remove_machine
from forkyard.sandboxes.errors import AlreadyPaused, GuestUnresponsive, TransitionFailed
from forkyard.sandboxes.models import Durability, Sandbox, Snapshot, SnapshotKind, SnapshotState
from forkyard.sandboxes.routing import RouteState, route_of
from forkyard.sandboxes.snapshots import Manifest
from forkyard.sandboxes.state import State

crash_points(
    "pause.claimed",
    "pause.held",
    "pause.cut",
    "pause.checkpointed",
    "pause.sealed",
    "pause.committed",
    "pause.host_safe",
    "pause.destroyed",
)

log = structlog.stdlib.get_logger(__name__)


async def pause(
    core: Core,
    sandbox_id: str,
    *,
    team_id: str | None,
    keep_memory: bool = True,
    require_healthy: bool = False,
    expired_at: datetime | None = None,
) -> Sandbox | None:
    """Pause a running sandbox and answer its record; None when `expired_at` is given and the deadline moved.

    A pause in progress is joined. Raises AlreadyPaused, SandboxNotFound, DiskFull (before anything is stopped),
    GuestUnresponsive (only with `require_healthy`), TransitionFailed (it runs on).
    """
    core.admission.check_disk()
    claimed = await claim(
        core,
        sandbox_id,
        team_id=team_id,
        allowed={State.RUNNING},
        to=State.PAUSING,
        expired_at=expired_at,
        snapshot=lambda row: new_snapshot(core, row, SnapshotKind.PAUSE, keeps_memory=keep_memory),
    )
    if isinstance(claimed, Settled):
        if claimed.sandbox.state is State.RUNNING:
            return None
        if State.PAUSING in claimed.joined:
            return claimed.sandbox
        raise AlreadyPaused(f'Sandbox "{sandbox_id}" is already paused')
    with core.telemetry.stage("pause", "total"):
        return await _pause(core, claimed, keep_memory=keep_memory, require_healthy=require_healthy)


def new_snapshot(core: Core, sandbox: Sandbox, kind: str, *, keeps_memory: bool = True) -> Snapshot:
    """The record of a snapshot about to be taken of this sandbox."""
    return Snapshot(
        id=random_text(20),
        team_id=sandbox.team_id,
        node_id=core.node_id,
        kind=kind,
        state=SnapshotState.WRITING,
        durability=Durability.PROCESS,
        sandbox_id=sandbox.id,
        template_id=sandbox.template_id,
        generation=sandbox.generation,
        parent_id=sandbox.source_snapshot_id,
        vcpus=sandbox.vcpus,
        memory_mb=sandbox.memory_mb,
        disk_mb=sandbox.disk_mb,
        size_bytes=0,
        envd_version=sandbox.envd_version,
        keeps_memory=keeps_memory,
        settings=sandbox.settings,
        created_at=core.clock.now(),
    )


async def _pause(core: Core, claimed: Claim, *, keep_memory: bool, require_healthy: bool) -> Sandbox:
    sandbox, token = claimed.sandbox, claimed.token
    snapshot_id = sandbox.transition_snapshot_id
    if sandbox.handle is None or snapshot_id is None:
        raise AssertionError(f"sandbox {sandbox.id} is pausing without a machine or a snapshot")
    handle = Handle.from_json(sandbox.handle)
    crash_point("pause.claimed")
    try:
        with core.telemetry.stage("pause", "unroute"):
            await core.routes.set(route_of(sandbox, RouteState.HELD))
        crash_point("pause.held")
        with core.telemetry.stage("pause", "quiesce"):
            await _quiesce(core, handle, keep_memory=keep_memory, require_healthy=require_healthy)
        with core.telemetry.stage("pause", "cut"):
            await core.driver.cut(handle)
        crash_point("pause.cut")
        with core.telemetry.stage("pause", "checkpoint"):
            result = await core.driver.checkpoint(handle, core.files.directory(snapshot_id))
        crash_point("pause.checkpointed")
        with core.telemetry.stage("pause", "seal"):
            manifest = await core.files.seal(snapshot_id, core.driver.name, result)
        crash_point("pause.sealed")
        with core.telemetry.stage("pause", "commit"):
            paused = await core.store.finish(
                sandbox.id,
                token=token,
                to=State.PAUSED,
                values={
                    "handle": None,
                    "snapshot_id": snapshot_id,
                    "paused_at": core.clock.now(),
                    "paused_without_memory": not keep_memory,
                },
                snapshot_ready={"manifest": manifest.to_json(), "size_bytes": manifest.size_bytes},
            )
    except BaseException as error:
        await _give_back(core, claimed, handle, snapshot_id, error)
        if isinstance(error, ForkyardError) and not isinstance(error, MachineLost):
            raise
        raise TransitionFailed(f"the sandbox could not be paused and runs on: {error}") from error
    if paused is None:
        raise AssertionError(f"sandbox {sandbox.id}: the pause lost its claim")
    crash_point("pause.committed")
    await core.routes.set(route_of(paused, RouteState.PAUSED))
    core.changes.notify(sandbox.id)
    core.journal.write(sandbox.id, "paused", memory=keep_memory, bytes=manifest.size_bytes)
    core.operations.start_logged(
        _after_pause(core, handle, snapshot_id, manifest), f"after-pause-{sandbox.id}"
    )
    return paused


async def _quiesce(core: Core, handle: Handle, *, keep_memory: bool, require_healthy: bool) -> None:
    """Let envd prepare. A daemon that does not answer does not stop an ordinary pause: memory is captured anyway."""
    try:
        if keep_memory:
            await core.guests.quiesce(handle.address, timeout_s=core.settings.quiesce_timeout)
        else:
            grace = core.settings.end_processes_grace
            await core.guests.end_processes(
                handle.address, grace_ms=int(grace * 1000), timeout_s=grace + core.settings.quiesce_timeout
            )
    except GuestError as error:
        if require_healthy or not keep_memory:
            raise GuestUnresponsive(f"{error.message}; the sandbox was not paused") from error
        log.warning("guest does not answer before its pause", machine=handle.name, error=error.message)


async def _give_back(
    core: Core, claimed: Claim, handle: Handle, snapshot_id: str, error: BaseException
) -> None:
    """Return to `running`, or to `gone` if the machine died meanwhile."""
    sandbox, token = claimed.sandbox, claimed.token
    log.warning("pause failed", sandbox_id=sandbox.id, error=repr(error))
    await core.files.remove(snapshot_id)
    status = await core.driver.inspect(handle)
    if not status.running:
        await end_lost(core, sandbox, token, f"died during a pause: {status.reason}")
        return
    await core.driver.uncut(handle)
    running = await core.store.finish(sandbox.id, token=token, to=State.RUNNING)
    if running is not None:
        await core.routes.set(route_of(running, RouteState.RUNNING))
        core.journal.write(sandbox.id, "pause failed", level="error", reason=error)
    core.changes.notify(sandbox.id)


async def _after_pause(core: Core, handle: Handle, snapshot_id: str, manifest: Manifest) -> None:
    """Make the snapshot host-safe, then let the source go. The sandbox may have been resumed or killed meanwhile."""
    try:
        sealed = await core.files.make_host_safe(snapshot_id, manifest)
        await core.store.update_snapshot(
            snapshot_id, {"durability": Durability.HOST, "manifest": sealed.to_json()}
        )
    except OSError as error:
        log.warning("snapshot is not host-safe", snapshot_id=snapshot_id, error=repr(error))
    crash_point("pause.host_safe")
    await remove_machine(core, handle)
    crash_point("pause.destroyed")
