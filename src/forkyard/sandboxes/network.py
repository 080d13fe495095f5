"""The egress rules of a running sandbox: the record is what counts, and the machine follows it."""

from __future__ import annotations

from forkyard.sandboxes.core import Core, settle
from forkyard.sandboxes.driver import DriverError, Handle
from forkyard.sandboxes.egress import policy_of
from forkyard.sandboxes.errors import NotRunning
from forkyard.sandboxes.models import Sandbox
from forkyard.sandboxes.state import State


async def set_network(
    core: Core,
    sandbox_id: str,
    *,
    team_id: str,
    allow_out: list[str] | None,
    deny_out: list[str] | None,
    allow_internet: bool | None,
) -> None:
    """Replace all rules. They hold when this returns, in established flows too.

    If the driver fails the record has the new rules already, and they are applied as soon as the driver works again.
    Raises SandboxNotFound, NotRunning and what the driver raises.
    """
    values = {"allow_out": allow_out, "deny_out": deny_out, "allow_internet": allow_internet}
    while True:
        row = await settle(core, sandbox_id, team_id=team_id)
        if row.state is not State.RUNNING:
            raise NotRunning(f'Sandbox "{sandbox_id}" is paused; connect to it first')
        try:
            changed = await core.store.set_values(
                sandbox_id, states=[State.RUNNING], values=values, durable=True
            )
            if changed is not None:
                return await apply_egress(core, changed)
        except BaseException:
            # The record may be new, although an error was reported, and the machine as before.
            core.unaligned.add(sandbox_id)
            raise


async def apply_egress(core: Core, row: Sandbox) -> None:
    """Let the machine of a running sandbox have the rules of its record. Raises what the driver raises."""
    while row.handle is not None:
        machine, policy = Handle.from_json(row.handle), policy_of(row)
        try:
            await core.driver.set_egress(machine, policy)
        except DriverError:
            now = await core.store.get(row.id)
            if now is None or now.state is State.GONE or now.generation != row.generation:
                return  # Ended, or restored from the record, meanwhile.
            if now.handle is None:
                return  # Paused: the next machine is made from the record.
            raise
        # Of two calls at once the later record counts, whoever reaches the machine first.
        latest = await core.store.get(row.id)
        if latest is None or policy_of(latest) == policy:
            return
        row = latest
