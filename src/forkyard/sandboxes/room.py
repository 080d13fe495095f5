"""Room on the host's disk for what a capture will write, made sure of before anything is stopped."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from forkyard.base.errors import ForkyardError
from forkyard.base.logging import get_logger
from forkyard.sandboxes.core import Claim, Core, Settled, claim
from forkyard.sandboxes.driver import Handle
from forkyard.sandboxes.footprints import limits_of
from forkyard.sandboxes.models import Sandbox, Snapshot
from forkyard.sandboxes.state import State

log = get_logger(__name__)


class _NotMeasured(Exception):
    """The disk has not room for all that the sandbox may have, and what it has is not known."""

    def __init__(self, sandbox: Sandbox) -> None:
        super().__init__(sandbox.id)
        self.sandbox = sandbox


async def claim_capture(
    core: Core,
    sandbox_id: str,
    *,
    team_id: str | None,
    to: State,
    snapshot: Callable[[Sandbox], Snapshot],
    expired_at: datetime | None = None,
) -> Claim | Settled:
    """`core.claim` for what writes a snapshot. Raises DiskFull too: there is not the room for it."""

    def admit(row: Sandbox) -> Snapshot:
        _check(core, row)
        return snapshot(row)

    while True:
        try:
            return await claim(
                core,
                sandbox_id,
                team_id=team_id,
                allowed={State.RUNNING},
                to=to,
                expired_at=expired_at,
                snapshot=admit,
            )
        except _NotMeasured as unknown:
            await _measure(core, unknown.sandbox)


async def check_copies(core: Core, sandbox: Sandbox, copies: int) -> None:
    """Raises DiskFull when the disk has not room for a capture and the disks of that many machines made from it."""
    try:
        _check(core, sandbox, copies)
    except _NotMeasured:
        await _measure(core, sandbox)
        _check(core, sandbox, copies)


def _check(core: Core, sandbox: Sandbox, copies: int = 0) -> None:
    core.admission.check_disk()
    if sandbox.handle is None:
        return
    known, most = core.footprints.of(sandbox), limits_of(sandbox)
    if known is None:
        if not core.admission.has_room(most.total + copies * most.disk):
            raise _NotMeasured(sandbox)
        return
    core.admission.check_disk(known.total + copies * known.disk)


async def _measure(core: Core, sandbox: Sandbox) -> None:
    """Afterwards its footprint is known: what it has now or, when that cannot be told, all that it may have."""
    if sandbox.handle is None:
        return
    handle = Handle.from_json(sandbox.handle)
    try:
        stats = (await core.driver.stats([handle])).get(handle.name)
    except ForkyardError as error:
        log.warning("a machine cannot be measured", machine=handle.name, error=error.message)
        stats = None
    core.footprints.note(handle.name, sandbox, stats)
