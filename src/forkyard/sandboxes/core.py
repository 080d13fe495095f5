"""What every operation on sandboxes works with, and how an operation claims a sandbox."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from forkyard.base.clock import Clock
from forkyard.base.ids import new_short_id
from forkyard.base.tasks import Operations
from forkyard.guest.client import GuestClient, GuestIdentity
from forkyard.sandboxes.admission import Admission
from forkyard.sandboxes.changes import Changes
from forkyard.sandboxes.driver import Checkpoint, Driver, Network, Prewarm, Restore, Stats
from forkyard.sandboxes.errors import SandboxNotFound, WrongState
from forkyard.sandboxes.journal import Journal
from forkyard.sandboxes.models import Sandbox, Snapshot
from forkyard.sandboxes.routing import RouteTable
from forkyard.sandboxes.snapshots import SnapshotFiles
from forkyard.sandboxes.state import STEADY, State
from forkyard.sandboxes.store import LimitCheck, SandboxStore
from forkyard.sandboxes.telemetry import Telemetry


class MachineDriver(Driver, Checkpoint, Restore, Network, Stats, Prewarm, Protocol):
    """A driver with everything that pausing, forking and pooling need."""


@dataclass(frozen=True, slots=True)
class CoreSettings:
    """Times in seconds."""

    join_timeout: float = 60.0
    """How long a call waits for the transition in progress."""
    boot_timeout: float = 30.0
    """From a machine's start to the first answer of its daemon."""
    quiesce_timeout: float = 2.0
    end_processes_grace: float = 2.0
    max_timeout: int = 30 * 24 * 3600
    """The longest time to live that can be asked for."""
    wake_timeout: int = 300
    """Time to live that a wake by a request gives, at least."""
    fork_parallelism: int = 2
    max_fork: int = 100
    purge_after: float = 7 * 24 * 3600.0
    """How long the record of an ended sandbox is kept."""


@dataclass(slots=True)
class Core:
    """The parts that operations share. Made once by the composition root."""

    node_id: str
    store: SandboxStore
    driver: MachineDriver
    routes: RouteTable
    guests: GuestClient
    files: SnapshotFiles
    admission: Admission
    journal: Journal
    telemetry: Telemetry
    clock: Clock
    changes: Changes
    operations: Operations
    settings: CoreSettings


@dataclass(frozen=True, slots=True)
class Claim:
    """This operation owns the transition."""

    sandbox: Sandbox
    token: str


@dataclass(frozen=True, slots=True)
class Settled:
    """The sandbox came to rest in a state that the operation cannot start from."""

    sandbox: Sandbox
    joined: frozenset[State]
    """Transitions of others that were waited for on the way."""


async def claim(
    core: Core,
    sandbox_id: str,
    *,
    team_id: str | None,
    allowed: Collection[State],
    to: State,
    expired_at: datetime | None = None,
    next_generation: bool = False,
    snapshot: Callable[[Sandbox], Snapshot] | None = None,
    limits: Callable[[Sandbox], LimitCheck] | None = None,
) -> Claim | Settled:
    """Wait for the transition in progress, if any, then own the next one.

    Must run in a task that a cut-off client does not cancel: a claim without its operation would only be undone by
    recovery. Raises SandboxNotFound (also for another team's and for one being killed), WrongState after the join
    timeout, and what `limits` raises.
    """
    joined: set[State] = set()
    deadline = core.clock.monotonic() + core.settings.join_timeout
    while True:
        with core.changes.watch(sandbox_id) as watch:
            row = await visible(core, sandbox_id, team_id)
            if row.state in allowed:
                token = new_short_id()
                moved = await core.store.begin(
                    sandbox_id,
                    allowed=allowed,
                    to=to,
                    token=token,
                    now=core.clock.now(),
                    expired_at=expired_at,
                    next_generation=next_generation,
                    snapshot=snapshot(row) if snapshot else None,
                    limits=limits(row) if limits else None,
                )
                if moved is not None:
                    core.changes.notify(sandbox_id)
                    return Claim(moved, token)
                if expired_at is not None:
                    return Settled(row, frozenset(joined))
                continue
            if row.state in STEADY:
                return Settled(row, frozenset(joined))
            joined.add(row.state)
            left = deadline - core.clock.monotonic()
            if left <= 0:
                raise WrongState(f"the sandbox is still {row.state.value}; try again")
            await watch.wait(left)


async def settle(core: Core, sandbox_id: str, *, team_id: str | None) -> Sandbox:
    """Wait until the sandbox is in no transition. Raises as `claim` does."""
    settled = await claim(core, sandbox_id, team_id=team_id, allowed=(), to=State.GONE)
    return settled.sandbox


async def visible(core: Core, sandbox_id: str, team_id: str | None) -> Sandbox:
    """The record, if that team may see it and it is not gone or being killed. Raises SandboxNotFound."""
    row = await core.store.get(sandbox_id)
    if (
        row is None
        or row.state in (State.GONE, State.KILLING)
        or (team_id is not None and row.team_id != team_id)
    ):
        raise SandboxNotFound(sandbox_id)
    return row


def machine_name(sandbox: Sandbox) -> str:
    """The machine of this generation; found by it after a crash."""
    return f"{sandbox.id}-{sandbox.generation}"


def identity_of(sandbox: Sandbox) -> GuestIdentity:
    """What the machine of this record is told about itself."""
    return GuestIdentity(
        sandbox_id=sandbox.id,
        template_id=sandbox.template_id,
        generation=sandbox.generation,
        hostname=sandbox.hostname,
        boot_id=sandbox.boot_id,
        machine_id=sandbox.machine_id,
        access_token=sandbox.envd_token,
        env_vars={**sandbox.settings.get("env", {}), **sandbox.env_vars},
        default_user=sandbox.settings.get("user") or "user",
        default_workdir=sandbox.settings.get("workdir"),
    )
