"""Pause: take the routes away, cut the network, checkpoint leaving it running, verify, commit, then kill.

Any error before the commit gives the network back and returns to `running`. A checkpoint that stops the sandbox
first would lose it on a full disk.
"""

from __future__ import annotations

from datetime import datetime

from forkyard.base.crashpoints import crash_point, crash_points
from forkyard.base.errors import ForkyardError
from forkyard.base.ids import random_text
from forkyard.base.logging import get_logger
from forkyard.guest.errors import GuestError
from forkyard.sandboxes.core import Claim, Core, Settled, insist, still_owns
from forkyard.sandboxes.driver import Handle, MachineLost
from forkyard.sandboxes.durability import make_host_safe
from forkyard.sandboxes.endings import end_lost, network_back, remove_behind, remove_machine
from forkyard.sandboxes.errors import AlreadyPaused, GuestUnresponsive, TransitionFailed
from forkyard.sandboxes.introducing import introduce_again
from forkyard.sandboxes.models import Durability, Sandbox, Snapshot, SnapshotKind, SnapshotState
from forkyard.sandboxes.room import claim_capture
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

log = get_logger(__name__)


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
    GuestUnresponsive (only with `require_healthy`), TransitionFailed (it runs on, or the message says that it died).
    """

    claimed = await claim_capture(
        core,
        sandbox_id,
        team_id=team_id,
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
    sandbox = claimed.sandbox
    snapshot_id = sandbox.transition_snapshot_id
    if sandbox.handle is None or snapshot_id is None:
        raise AssertionError(f"sandbox {sandbox.id} is pausing without a machine or a snapshot")
    handle = Handle.from_json(sandbox.handle)
    crash_point("pause.claimed")
    try:
        manifest = await _stop_and_save(
            core, sandbox, handle, snapshot_id, keep_memory=keep_memory, require_healthy=require_healthy
        )
        paused = await _commit(core, claimed, snapshot_id, manifest, keep_memory=keep_memory)
    except BaseException as error:
        committed = await _give_back(core, claimed, handle, snapshot_id, error, keep_memory=keep_memory)
        if committed is None:
            if isinstance(error, ForkyardError) and not isinstance(error, MachineLost):
                raise
            raise TransitionFailed(f"the sandbox could not be paused and runs on: {error}") from error
        paused, manifest = committed
    crash_point("pause.committed")
    core.changes.notify(sandbox.id)
    core.journal.write(sandbox.id, "paused", memory=keep_memory, bytes=manifest.size_bytes)
    core.operations.start_logged(
        _after_pause(core, handle, snapshot_id, manifest), f"after-pause-{sandbox.id}"
    )
    return paused


async def _stop_and_save(
    core: Core,
    sandbox: Sandbox,
    handle: Handle,
    snapshot_id: str,
    *,
    keep_memory: bool,
    require_healthy: bool,
) -> Manifest:
    """Everything before the commit."""
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
    return manifest


async def _commit(
    core: Core, claimed: Claim, snapshot_id: str, manifest: Manifest, *, keep_memory: bool
) -> Sandbox:
    await core.routes.set(route_of(claimed.sandbox, RouteState.PAUSED))
    with core.telemetry.stage("pause", "commit"):
        paused = await core.store.finish(
            claimed.sandbox,
            token=claimed.token,
            to=State.PAUSED,
            values={
                "handle": None,
                "snapshot_id": snapshot_id,
                "paused_at": core.clock.now(),
                "paused_without_memory": not keep_memory,
                "unhealthy_reason": None,
            },
            snapshot_ready={"manifest": manifest.to_json(), "size_bytes": manifest.size_bytes},
        )
    if paused is None:
        raise TransitionFailed("the sandbox was taken over by another operation")
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
    core: Core, claimed: Claim, handle: Handle, snapshot_id: str, error: BaseException, *, keep_memory: bool
) -> tuple[Sandbox, Manifest] | None:
    """Return to `running`. Answers the record and the manifest if the pause was committed after all; raises
    TransitionFailed if the machine died meanwhile, after which the sandbox is gone.
    """
    sandbox, token = claimed.sandbox, claimed.token
    log.warning("pause failed", sandbox_id=sandbox.id, error=repr(error))
    if not await still_owns(core, claimed):
        return await _committed_pause(core, sandbox, snapshot_id)
    death = await network_back(core, handle)
    if death is not None:
        await end_lost(core, sandbox, token, f"died during a pause: {death}")
        raise TransitionFailed(f"the sandbox died during its pause: {death}") from error
    if not keep_memory:
        await introduce_again(core, sandbox, handle)
    await core.routes.set(route_of(sandbox, RouteState.RUNNING))
    await insist(core, lambda: core.store.finish(sandbox, token=token, to=State.RUNNING))
    core.journal.write(sandbox.id, "pause failed", level="error", reason=error)
    core.changes.notify(sandbox.id)
    core.deadlines.moved(sandbox.end_at)
    remove_behind(core)
    return None


async def _committed_pause(core: Core, sandbox: Sandbox, snapshot_id: str) -> tuple[Sandbox, Manifest] | None:
    row = await core.store.get(sandbox.id)
    snapshot = await core.store.snapshot(snapshot_id)
    if row is None or snapshot is None or snapshot.manifest is None:
        return None
    return row, Manifest.from_json(snapshot.manifest)


async def _after_pause(core: Core, handle: Handle, snapshot_id: str, manifest: Manifest) -> None:
    """Make the snapshot host-safe, then let the source go. The sandbox may have been resumed or killed meanwhile."""
    try:
        await make_host_safe(core, snapshot_id, manifest)
        crash_point("pause.host_safe")
    finally:
        await remove_machine(core, handle)
    crash_point("pause.destroyed")
