"""Telling a machine who it is, with or without the processes that it was captured with."""

from __future__ import annotations

from forkyard.base.logging import get_logger
from forkyard.guest.client import GuestIdentity
from forkyard.guest.errors import GuestError
from forkyard.sandboxes.core import Core, identity_of
from forkyard.sandboxes.driver import Handle, MachineLost
from forkyard.sandboxes.models import Sandbox

log = get_logger(__name__)

_HEALTH_RETRY_S = 0.02


async def introduce(
    core: Core, handle: Handle, identity: GuestIdentity, *, reboot: bool, timeout_s: float
) -> None:
    """Tell a machine who it is; with `reboot` every process but the daemon ends before.

    In this order: a daemon that has ended the processes starts no other one until it is told who it is. Raises
    MachineLost and GuestError.
    """
    if reboot:
        await until_healthy(core, handle, timeout_s)
        grace = core.settings.end_processes_grace
        await core.guests.end_processes(
            handle.address, grace_ms=int(grace * 1000), timeout_s=grace + core.settings.quiesce_timeout
        )
    await core.guests.init(handle.address, identity, timeout_s=timeout_s)


async def introduce_again(core: Core, sandbox: Sandbox, handle: Handle) -> None:
    """After a pause without memory that failed, which may have ended the processes: let the daemon start others.

    Does not raise: the sandbox runs on either way.
    """
    try:
        await core.guests.init(handle.address, identity_of(sandbox), timeout_s=core.settings.warm_timeout)
    except GuestError as error:
        log.warning("guest may not start processes", sandbox_id=sandbox.id, error=error.message)
        core.journal.write(sandbox.id, "its daemon may not start processes", level="error", reason=error)


async def until_healthy(core: Core, handle: Handle, timeout_s: float) -> None:
    """Wait for the first answer of a machine's daemon. Raises MachineLost."""
    deadline = core.clock.monotonic() + timeout_s
    while not await core.guests.health(handle.address, timeout_s=1.0):
        if core.clock.monotonic() >= deadline:
            raise MachineLost(f"{handle.name} does not answer")
        await core.clock.sleep(_HEALTH_RETRY_S)
