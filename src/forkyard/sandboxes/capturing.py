"""Snapshot and fork: capture a running machine that goes on running."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from forkyard.base.crashpoints import crash_point, crash_points
from forkyard.base.errors import ForkyardError, InvalidInput
from forkyard.base.logging import get_logger
from forkyard.guest.errors import GuestError
from forkyard.sandboxes.core import Claim, Core, Settled, insist, still_owns, visible
from forkyard.sandboxes.creating import NewSandbox, check_timeout, new_row, usage_of
from forkyard.sandboxes.driver import Handle, MachineLost
from forkyard.sandboxes.durability import make_host_safe
from forkyard.sandboxes.endings import end_lost, network_back, purge_snapshots, remove_behind
from forkyard.sandboxes.errors import NotRunning, SandboxNotFound, TransitionFailed
from forkyard.sandboxes.models import Sandbox, Snapshot, SnapshotKind
from forkyard.sandboxes.naming import Reference
from forkyard.sandboxes.pausing import new_snapshot
from forkyard.sandboxes.room import check_copies, claim_capture
from forkyard.sandboxes.snapshots import Manifest
from forkyard.sandboxes.starting import start_new
from forkyard.sandboxes.state import State

crash_points(
    "capture.claimed", "capture.checkpointed", "capture.sealed", "capture.committed", "fork.captured"
)

log = get_logger(__name__)


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
        try:
            await core.store.set_name(
                team_id=team_id,
                name=name.alias,
                tag=name.tag,
                snapshot_id=captured.id,
                now=core.clock.now(),
            )
        except BaseException:
            core.operations.start_logged(_drop(core, captured.id), f"drop-{captured.id}")
            raise
    manifest = Manifest.from_json(captured.manifest or {})
    core.operations.start_logged(make_host_safe(core, captured.id, manifest), f"host-safe-{captured.id}")
    return captured


async def fork(
    core: Core, sandbox_id: str, *, team_id: str, count: int, timeout_s: int | None
) -> Sequence[ForkResult]:
    """`count` children from one capture: the source stops once, the children restore concurrently.

    Each child fails or succeeds by itself. Raises as `snapshot` does, and SandboxLimit: before anything is stopped,
    unless others take the room during the capture.
    """
    if not 1 <= count <= core.settings.max_fork:
        raise InvalidInput(f"count must be between 1 and {core.settings.max_fork}", "count")
    source = await visible(core, sandbox_id, team_id)
    timeout = timeout_s if timeout_s is not None else source.timeout_s
    check_timeout(core, timeout)
    await core.store.check(core.admission.room_for(team_id, usage_of(source, count)))
    await check_copies(core, source, count)
    core.admission.check_rate(team_id, count)
    with core.telemetry.stage("fork", "total"):
        captured = await capture(core, sandbox_id, team_id=team_id, kind=SnapshotKind.FORK)
        crash_point("fork.captured")
        try:
            # Network rules that were set until now hold for the children too.
            source = await core.store.get(sandbox_id)
            if source is None:
                raise SandboxNotFound(sandbox_id)
            children = [_child(core, source, captured, timeout) for _ in range(count)]
            tokens = [child.transition or "" for child in children]
            for token in tokens:
                core.owners.take(token)
            await core.store.insert(children, limits=core.admission.room_for(team_id))
            bound = asyncio.Semaphore(core.settings.fork_parallelism)
            return await asyncio.gather(
                *(
                    _start_child(core, child, token, captured, bound)
                    for child, token in zip(children, tokens, strict=True)
                )
            )
        finally:
            core.operations.start_logged(_drop(core, captured.id), f"drop-{captured.id}")


async def capture(
    core: Core, sandbox_id: str, *, team_id: str, kind: str, keep_memory: bool = True
) -> Snapshot:
    """Checkpoint a running machine, leaving it running."""

    claimed = await claim_capture(
        core,
        sandbox_id,
        team_id=team_id,
        to=State.SNAPSHOTTING,
        snapshot=lambda row: new_snapshot(core, row, kind, keeps_memory=keep_memory),
    )
    if isinstance(claimed, Settled):
        raise NotRunning(f'Sandbox "{sandbox_id}" is paused; connect to it first')
    with core.telemetry.stage("capture", "total"):
        return await _capture(core, claimed)


async def _capture(core: Core, claimed: Claim) -> Snapshot:
    sandbox = claimed.sandbox
    snapshot_id = sandbox.transition_snapshot_id
    if sandbox.handle is None or snapshot_id is None:
        raise AssertionError(f"sandbox {sandbox.id} is snapshotting without a machine or a snapshot")
    handle = Handle.from_json(sandbox.handle)
    core.owners.take(snapshot_id)
    crash_point("capture.claimed")
    try:
        await _quiesce(core, handle)
        with core.telemetry.stage("capture", "checkpoint"):
            result = await core.driver.checkpoint(handle, core.files.directory(snapshot_id))
        crash_point("capture.checkpointed")
        manifest = await core.files.seal(snapshot_id, core.driver.name, result)
        crash_point("capture.sealed")
        running = await core.store.finish(
            sandbox,
            token=claimed.token,
            to=State.RUNNING,
            snapshot_ready={"manifest": manifest.to_json(), "size_bytes": manifest.size_bytes},
        )
        if running is None:
            raise TransitionFailed("the sandbox was taken over by another operation")
    except BaseException as error:
        if not await _release(core, claimed, handle, snapshot_id, error):
            if isinstance(error, ForkyardError) and not isinstance(error, MachineLost):
                raise
            raise TransitionFailed(f"the sandbox could not be captured and runs on: {error}") from error
    crash_point("capture.committed")
    core.changes.notify(sandbox.id)
    core.deadlines.look_again()  # the deadline may have been moved meanwhile
    captured = await insist(core, lambda: core.store.snapshot(snapshot_id))
    if captured is None:
        raise AssertionError(f"snapshot {snapshot_id} vanished")
    core.journal.write(sandbox.id, "captured", bytes=captured.size_bytes)
    return captured


async def _quiesce(core: Core, handle: Handle) -> None:
    try:
        await core.guests.quiesce(handle.address, timeout_s=core.settings.quiesce_timeout)
    except GuestError as error:
        log.warning("guest does not answer before its capture", machine=handle.name, error=error.message)


async def _release(
    core: Core, claimed: Claim, handle: Handle, snapshot_id: str, error: BaseException
) -> bool:
    """Return to `running`. True if the capture was committed after all; raises TransitionFailed if the machine died
    meanwhile, after which the sandbox is gone.
    """
    sandbox, token = claimed.sandbox, claimed.token
    log.warning("capture failed", sandbox_id=sandbox.id, error=repr(error))
    if not await still_owns(core, claimed):
        captured = await core.store.snapshot(snapshot_id)
        return captured is not None and captured.manifest is not None
    death = await network_back(core, handle)
    if death is not None:
        await end_lost(core, sandbox, token, f"died during a capture: {death}")
        raise TransitionFailed(f"the sandbox died during its capture: {death}") from error
    await insist(core, lambda: core.store.finish(sandbox, token=token, to=State.RUNNING))
    core.changes.notify(sandbox.id)
    core.deadlines.look_again()
    remove_behind(core)
    return False


async def _drop(core: Core, snapshot_id: str) -> None:
    """Give a capture up that nothing was or will be made from any more."""
    await insist(core, lambda: core.store.mark_deleting([snapshot_id]))
    await purge_snapshots(core)


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
            return ForkResult(sandbox=await start_new(core, child, token, captured, operation="fork"))
        except ForkyardError as error:
            return ForkResult(error=error)
        except Exception as error:
            log.exception("fork child failed", sandbox_id=child.id)
            return ForkResult(error=TransitionFailed(f"the child could not be started: {error}"))
