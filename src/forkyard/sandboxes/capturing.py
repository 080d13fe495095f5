"""Snapshot and fork: capture a running machine that goes on running."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from forkyard.base.crashpoints import crash_point, crash_points
from forkyard.base.errors import ForkyardError, InvalidInput
from forkyard.guest.errors import GuestError
from forkyard.sandboxes.core import Claim, Core, Settled, claim, visible
from forkyard.sandboxes.creating import NewSandbox, check_timeout, new_row, usage_of
from forkyard.sandboxes.driver import Handle, MachineLost
from forkyard.sandboxes.endings import end_lost, purge_snapshots
from forkyard.sandboxes.errors import NotRunning, TransitionFailed
from forkyard.sandboxes.models import Durability, Sandbox, Snapshot, SnapshotKind
from forkyard.sandboxes.naming import Reference
from forkyard.sandboxes.pausing import new_snapshot
from forkyard.sandboxes.snapshots import Manifest
from forkyard.sandboxes.starting import start_new
from forkyard.sandboxes.state import State

crash_points(
    "capture.claimed", "capture.checkpointed", "capture.sealed", "capture.committed", "fork.captured"
)

log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ForkResult:
    """One child: exactly one of the two is set."""

    sandbox: Sandbox | None = None
    error: ForkyardError | None = None


async def snapshot(
    core: Core, sandbox_id: str, *, team_id: str, name: Reference | None, keep_memory: bool = True
) -> Snapshot:
    """Take a snapshot of a running sandbox that outlives it. A given name leads to it from then on.

    Raises SandboxNotFound, NotRunning, DiskFull, TransitionFailed (the sandbox runs on).
    """
    captured = await capture(
        core, sandbox_id, team_id=team_id, kind=SnapshotKind.SNAPSHOT, keep_memory=keep_memory
    )
    if name is not None:
        await core.store.set_name(
            team_id=team_id,
            name=name.alias,
            tag=name.tag,
            snapshot_id=captured.id,
            now=core.clock.now(),
        )
    core.operations.start_logged(_make_host_safe(core, captured), f"host-safe-{captured.id}")
    return captured


async def fork(
    core: Core, sandbox_id: str, *, team_id: str, count: int, timeout_s: int | None
) -> Sequence[ForkResult]:
    """`count` children from one capture: the source stops once, the children restore concurrently.

    Each child fails or succeeds by itself. Raises as `snapshot` does, and SandboxLimit before anything is stopped.
    """
    if not 1 <= count <= core.settings.max_fork:
        raise InvalidInput(f"count must be between 1 and {core.settings.max_fork}", "count")
    source = await visible(core, sandbox_id, team_id)
    timeout = timeout_s if timeout_s is not None else source.timeout_s
    check_timeout(core, timeout)
    core.admission.check_rate(team_id, count)
    with core.telemetry.stage("fork", "total"):
        captured = await capture(core, sandbox_id, team_id=team_id, kind=SnapshotKind.FORK)
        crash_point("fork.captured")
        try:
            children = [_child(core, source, captured, timeout) for _ in range(count)]
            tokens = [child.transition or "" for child in children]
            await core.store.insert(
                children, limits=core.admission.room_for(team_id, usage_of(source, count))
            )
            bound = asyncio.Semaphore(core.settings.fork_parallelism)
            return await asyncio.gather(
                *(
                    _start_child(core, child, token, captured, bound)
                    for child, token in zip(children, tokens, strict=True)
                )
            )
        finally:
            await core.store.mark_deleting([captured.id])
            core.operations.start_logged(purge_snapshots(core), "purge-snapshots")


async def capture(
    core: Core, sandbox_id: str, *, team_id: str, kind: str, keep_memory: bool = True
) -> Snapshot:
    """Checkpoint a running machine, leaving it running."""
    core.admission.check_disk()
    claimed = await claim(
        core,
        sandbox_id,
        team_id=team_id,
        allowed={State.RUNNING},
        to=State.SNAPSHOTTING,
        snapshot=lambda row: new_snapshot(core, row, kind, keeps_memory=keep_memory),
    )
    if isinstance(claimed, Settled):
        raise NotRunning(f'Sandbox "{sandbox_id}" is paused; connect to it first')
    with core.telemetry.stage("capture", "total"):
        return await _capture(core, claimed)


async def _capture(core: Core, claimed: Claim) -> Snapshot:
    sandbox, token = claimed.sandbox, claimed.token
    snapshot_id = sandbox.transition_snapshot_id
    if sandbox.handle is None or snapshot_id is None:
        raise AssertionError(f"sandbox {sandbox.id} is snapshotting without a machine or a snapshot")
    handle = Handle.from_json(sandbox.handle)
    crash_point("capture.claimed")
    try:
        await _quiesce(core, handle)
        with core.telemetry.stage("capture", "checkpoint"):
            result = await core.driver.checkpoint(handle, core.files.directory(snapshot_id))
        crash_point("capture.checkpointed")
        manifest = await core.files.seal(snapshot_id, core.driver.name, result)
        crash_point("capture.sealed")
        await core.store.finish(
            sandbox.id,
            token=token,
            to=State.RUNNING,
            snapshot_ready={"manifest": manifest.to_json(), "size_bytes": manifest.size_bytes},
        )
    except BaseException as error:
        await _release(core, claimed, handle, snapshot_id, error)
        if isinstance(error, ForkyardError) and not isinstance(error, MachineLost):
            raise
        raise TransitionFailed(f"the sandbox could not be captured: {error}") from error
    crash_point("capture.committed")
    core.changes.notify(sandbox.id)
    core.journal.write(sandbox.id, "captured", bytes=manifest.size_bytes)
    captured = await core.store.snapshot(snapshot_id)
    if captured is None:
        raise AssertionError(f"snapshot {snapshot_id} vanished")
    return captured


async def _quiesce(core: Core, handle: Handle) -> None:
    try:
        await core.guests.quiesce(handle.address, timeout_s=core.settings.quiesce_timeout)
    except GuestError as error:
        log.warning("guest does not answer before its capture", machine=handle.name, error=error.message)


async def _release(
    core: Core, claimed: Claim, handle: Handle, snapshot_id: str, error: BaseException
) -> None:
    sandbox, token = claimed.sandbox, claimed.token
    log.warning("capture failed", sandbox_id=sandbox.id, error=repr(error))
    await core.files.remove(snapshot_id)
    status = await core.driver.inspect(handle)
    if not status.running:
        await end_lost(core, sandbox, token, f"died during a capture: {status.reason}")
        return
    await core.store.finish(sandbox.id, token=token, to=State.RUNNING)
    core.changes.notify(sandbox.id)


def _child(core: Core, source: Sandbox, captured: Snapshot, timeout_s: int) -> Sandbox:
    """A child inherits what its source was asked for, and gets id, tokens, network and boot id of its own."""
    request = NewSandbox(
        template=source.template_id,
        timeout_s=timeout_s,
        pause_on_timeout=source.pause_on_timeout,
        pause_keeps_memory=source.pause_keeps_memory,
        auto_resume=source.auto_resume,
        secure=source.envd_token is not None,
        public_traffic=source.public_traffic,
        allow_internet=source.allow_internet,
        allow_out=source.allow_out,
        deny_out=source.deny_out,
        mask_host=source.mask_host,
        metadata=source.user_metadata,
        env_vars=source.env_vars,
    )
    return new_row(
        core, source.team_id, captured, request, template_name=source.template_name, parent_id=source.id
    )


async def _start_child(
    core: Core, child: Sandbox, token: str, captured: Snapshot, bound: asyncio.Semaphore
) -> ForkResult:
    async with bound:
        try:
            return ForkResult(sandbox=await start_new(core, None, child, token, captured, operation="fork"))
        except ForkyardError as error:
            return ForkResult(error=error)
        except Exception as error:
            log.exception("fork child failed", sandbox_id=child.id)
            return ForkResult(error=TransitionFailed(f"the child could not be started: {error}"))


async def _make_host_safe(core: Core, captured: Snapshot) -> None:
    try:
        sealed = await core.files.make_host_safe(captured.id, Manifest.from_json(captured.manifest or {}))
    except OSError as error:
        log.warning("snapshot is not host-safe", snapshot_id=captured.id, error=repr(error))
        return
    await core.store.update_snapshot(
        captured.id, {"durability": Durability.HOST, "manifest": sealed.to_json()}
    )
