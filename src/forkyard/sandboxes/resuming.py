"""Resume and connect: go on from the snapshot of the pause. Any error goes back to `paused`; the snapshot stays."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

import structlog

from forkyard.base.crashpoints import crash_point, crash_points
from forkyard.base.errors import ForkyardError
from forkyard.sandboxes.core import Claim, Core, Settled, claim, identity_of, machine_name
from forkyard.sandboxes.creating import check_timeout, usage_of
from forkyard.sandboxes.driver import Handle
from forkyard.sandboxes.endings import remove_machine
from forkyard.sandboxes.errors import AlreadyRunning, TransitionFailed
from forkyard.sandboxes.models import Sandbox
from forkyard.sandboxes.routing import RouteState, route_of
from forkyard.sandboxes.starting import commit_running, deadline_after, restore_machine
from forkyard.sandboxes.state import State

crash_points("resume.claimed", "resume.restored", "resume.initialised")

log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Connected:
    sandbox: Sandbox
    resumed: bool
    """Whether this call brought it back, or found it running."""


async def connect(
    core: Core, sandbox_id: str, *, team_id: str | None, timeout_s: int, keep_memory: bool = True
) -> Connected:
    """Make sure that it runs, at least `timeout_s` longer. A running sandbox's life is never shortened.

    `keep_memory=False` reboots a paused one: its files stay, its processes do not. Raises SandboxNotFound,
    SandboxLimit, DiskFull, SnapshotDamaged (it stays paused), TransitionFailed.
    """
    check_timeout(core, timeout_s)
    while True:
        claimed = await _claim(core, sandbox_id, team_id)
        if isinstance(claimed, Claim):
            return Connected(await _resume(core, claimed, timeout_s, keep_memory), True)
        row = await core.store.extend(sandbox_id, end_at=deadline_after(core, timeout_s), timeout_s=timeout_s)
        if row is not None:
            return Connected(row, False)
        # It left `running` between the two looks: look again.


async def resume(
    core: Core, sandbox_id: str, *, team_id: str | None, timeout_s: int, keep_memory: bool = True
) -> Sandbox:
    """Resume a paused sandbox. A resume in progress is joined. Raises AlreadyRunning, and as `connect` does."""
    check_timeout(core, timeout_s)
    claimed = await _claim(core, sandbox_id, team_id)
    if isinstance(claimed, Claim):
        return await _resume(core, claimed, timeout_s, keep_memory)
    if State.RESUMING in claimed.joined:
        return claimed.sandbox
    raise AlreadyRunning(f'Sandbox "{sandbox_id}" is already running')


async def _claim(core: Core, sandbox_id: str, team_id: str | None) -> Claim | Settled:
    return await claim(
        core,
        sandbox_id,
        team_id=team_id,
        allowed={State.PAUSED},
        to=State.RESUMING,
        next_generation=True,
        limits=lambda row: core.admission.room_for(row.team_id, usage_of(row)),
    )


async def _resume(core: Core, claimed: Claim, timeout_s: int, keep_memory: bool) -> Sandbox:
    sandbox, token = claimed.sandbox, claimed.token
    crash_point("resume.claimed")
    reboot = sandbox.paused_without_memory or not keep_memory
    if reboot:
        sandbox.boot_id = str(uuid.uuid4())
    snapshot_id = sandbox.snapshot_id or ""
    handle: Handle | None = None
    with core.telemetry.stage("resume", "total"):
        try:
            core.admission.check_disk()
            await core.routes.set(route_of(sandbox, RouteState.HELD))
            handle = await restore_machine(
                core, sandbox, await core.store.snapshot(snapshot_id), snapshot_id, operation="resume"
            )
            crash_point("resume.restored")
            running = await finish_resume(
                core,
                claimed,
                handle,
                timeout_s=timeout_s,
                end_processes=reboot and not sandbox.paused_without_memory,
            )
        except BaseException as error:
            await _back_to_paused(core, sandbox, token, handle, error)
            if isinstance(error, ForkyardError):
                raise
            raise TransitionFailed(f"the sandbox could not be resumed and stays paused: {error}") from error
    core.journal.write(sandbox.id, "resumed", memory=not reboot)
    return running


async def finish_resume(
    core: Core, claimed: Claim, handle: Handle, *, timeout_s: int, end_processes: bool = False
) -> Sandbox:
    """From a restored machine to a running sandbox; also what recovery does with a machine it finds restored."""
    sandbox = claimed.sandbox
    if end_processes:
        grace = core.settings.end_processes_grace
        await core.guests.end_processes(
            handle.address, grace_ms=int(grace * 1000), timeout_s=core.settings.boot_timeout
        )
    with core.telemetry.stage("resume", "init"):
        await core.guests.init(handle.address, identity_of(sandbox), timeout_s=core.settings.boot_timeout)
    crash_point("resume.initialised")
    values: dict[str, Any] = {
        "boot_id": sandbox.boot_id,
        "snapshot_id": None,
        "paused_at": None,
        "paused_without_memory": False,
        "end_at": deadline_after(core, timeout_s),
        "timeout_s": timeout_s,
    }
    drop = [sandbox.snapshot_id] if sandbox.snapshot_id else []
    return await commit_running(core, sandbox, claimed.token, handle, values, snapshot_drop=drop)


async def _back_to_paused(
    core: Core, sandbox: Sandbox, token: str, handle: Handle | None, error: BaseException
) -> None:
    log.warning("resume failed", sandbox_id=sandbox.id, error=repr(error))
    await remove_machine(core, handle or machine_name(sandbox))
    paused = await core.store.finish(sandbox.id, token=token, to=State.PAUSED)
    if paused is not None:
        await core.routes.set(route_of(paused, RouteState.PAUSED))
        core.journal.write(sandbox.id, "resume failed", level="error", reason=error)
    core.changes.notify(sandbox.id)
