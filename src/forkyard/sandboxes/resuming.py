"""Resume and connect: go on from the snapshot of the pause. Any error goes back to `paused`; the snapshot stays."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from forkyard.base.crashpoints import crash_point, crash_points
from forkyard.base.errors import ForkyardError
from forkyard.base.logging import get_logger
from forkyard.sandboxes.alignment import publish
from forkyard.sandboxes.core import Claim, Core, Settled, claim, identity_of, insist, still_owns
from forkyard.sandboxes.creating import check_timeout
from forkyard.sandboxes.driver import Handle
from forkyard.sandboxes.endings import machines_of, remove_behind
from forkyard.sandboxes.errors import AlreadyRunning, TransitionFailed
from forkyard.sandboxes.introducing import introduce
from forkyard.sandboxes.models import Sandbox
from forkyard.sandboxes.routing import RouteState, route_of
from forkyard.sandboxes.starting import (
    announce_running,
    commit_running,
    deadline_after,
    restore_machine,
)
from forkyard.sandboxes.state import State
from forkyard.sandboxes.store import LimitCheck

crash_points("resume.claimed", "resume.restored", "resume.initialised")

log = get_logger(__name__)


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
        claimed = await _claim(core, sandbox_id, team_id, timeout_s, keep_memory)
        if isinstance(claimed, Claim):
            return Connected(await _resume(core, claimed), True)
        row = await core.store.extend(sandbox_id, end_at=deadline_after(core, timeout_s), timeout_s=timeout_s)
        if row is not None:
            return Connected(row, False)
        # It left `running` between the two looks: look again.


async def resume(
    core: Core, sandbox_id: str, *, team_id: str | None, timeout_s: int, keep_memory: bool = True
) -> Sandbox:
    """Resume a paused sandbox. A resume in progress is joined. Raises AlreadyRunning, and as `connect` does."""
    check_timeout(core, timeout_s)
    claimed = await _claim(core, sandbox_id, team_id, timeout_s, keep_memory)
    if isinstance(claimed, Claim):
        return await _resume(core, claimed)
    if State.RESUMING in claimed.joined:
        return claimed.sandbox
    raise AlreadyRunning(f'Sandbox "{sandbox_id}" is already running')


async def _claim(
    core: Core, sandbox_id: str, team_id: str | None, timeout_s: int, keep_memory: bool
) -> Claim | Settled:
    def admit(row: Sandbox) -> LimitCheck:
        core.admission.check_disk()
        core.admission.check_rate(row.team_id, 1)
        return core.admission.room_for(row.team_id)

    def intent(row: Sandbox) -> Mapping[str, Any]:
        reboot = row.paused_without_memory or not keep_memory
        return {
            "timeout_s": timeout_s,
            "boot_id": str(uuid.uuid4()) if reboot else row.boot_id,
            "end_processes": not keep_memory and not row.paused_without_memory,
        }

    return await claim(
        core,
        sandbox_id,
        team_id=team_id,
        allowed={State.PAUSED},
        to=State.RESUMING,
        next_generation=True,
        intent=intent,
        limits=admit,
    )


async def _resume(core: Core, claimed: Claim) -> Sandbox:
    sandbox = claimed.sandbox
    crash_point("resume.claimed")
    snapshot_id = sandbox.snapshot_id or ""
    with core.telemetry.stage("resume", "total"):
        try:
            await core.routes.set(route_of(sandbox, RouteState.HELD))
            handle = await restore_machine(
                core, sandbox, await core.store.snapshot(snapshot_id), snapshot_id, operation="resume"
            )
            crash_point("resume.restored")
            running = await finish_resume(core, claimed, handle, init_timeout_s=core.settings.boot_timeout)
        except BaseException as error:
            committed = await back_to_paused(core, claimed, error)
            if committed is None:
                if isinstance(error, ForkyardError):
                    raise
                raise TransitionFailed(
                    f"the sandbox could not be resumed and stays paused: {error}"
                ) from error
            running = committed
    announce_running(core, running, purge=True)
    core.journal.write(sandbox.id, "resumed")
    return running


async def finish_resume(core: Core, claimed: Claim, handle: Handle, *, init_timeout_s: float) -> Sandbox:
    """From a restored machine to the commit of `running`; also what recovery does with a machine it finds restored.

    The caller announces it.
    """
    sandbox = claimed.sandbox
    wanted = sandbox.transition_intent or {}
    boot_id = wanted.get("boot_id") or sandbox.boot_id
    timeout_s = wanted.get("timeout_s") or sandbox.timeout_s
    with core.telemetry.stage("resume", "init"):
        identity = identity_of(sandbox, boot_id=boot_id)
        reboot = bool(wanted.get("end_processes"))
        await introduce(core, handle, identity, reboot=reboot, timeout_s=init_timeout_s)
    crash_point("resume.initialised")
    values: dict[str, Any] = {
        "boot_id": boot_id,
        "snapshot_id": None,
        "paused_at": None,
        "paused_without_memory": False,
        "end_at": deadline_after(core, timeout_s),
        "timeout_s": timeout_s,
    }
    drop = [sandbox.snapshot_id] if sandbox.snapshot_id else []
    return await commit_running(core, claimed, handle, values, snapshot_drop=drop)


async def back_to_paused(core: Core, claimed: Claim, error: BaseException) -> Sandbox | None:
    """Undo a resume that failed. Answers the record if it was committed after all."""
    sandbox = claimed.sandbox
    log.warning("resume failed", sandbox_id=sandbox.id, error=repr(error))
    if not await still_owns(core, claimed):
        row = await core.store.get(sandbox.id)
        if row is None or row.state not in (State.RUNNING, State.PAUSING, State.SNAPSHOTTING):
            return None
        await publish(core, row)
        return row
    await core.routes.set(route_of(sandbox, RouteState.PAUSED))
    await insist(core, lambda: core.store.finish(sandbox, token=claimed.token, to=State.PAUSED))
    core.journal.write(sandbox.id, "resume failed", level="error", reason=error)
    core.changes.notify(sandbox.id)
    remove_behind(core, *machines_of(sandbox))
    return None
