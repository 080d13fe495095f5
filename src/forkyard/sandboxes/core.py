"""What every operation on sandboxes works with, and how an operation claims a sandbox."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol, TypeVar

from forkyard.auth.trail import AuditTrail
from forkyard.base.backoff import Backoff
from forkyard.base.clock import Clock
from forkyard.base.errors import StorageFull, Unavailable
from forkyard.base.ids import new_short_id
from forkyard.base.retry import retry
from forkyard.base.tasks import Operations
from forkyard.guest.client import GuestIdentity
from forkyard.sandboxes.admission import Admission
from forkyard.sandboxes.changes import Changes, Deadlines, Gates
from forkyard.sandboxes.driver import Checkpoint, Driver, Network, Prewarm, Restore, Stats
from forkyard.sandboxes.errors import SandboxNotFound, WrongState
from forkyard.sandboxes.footprints import Footprints
from forkyard.sandboxes.journal import Journal
from forkyard.sandboxes.models import Sandbox, Snapshot
from forkyard.sandboxes.owners import Owners
from forkyard.sandboxes.routing import RouteTable
from forkyard.sandboxes.snapshots import SnapshotFiles
from forkyard.sandboxes.state import STEADY, State
from forkyard.sandboxes.store import LimitCheck, SandboxStore
from forkyard.sandboxes.telemetry import Telemetry

T = TypeVar("T")


class MachineDriver(Driver, Checkpoint, Restore, Network, Stats, Prewarm, Protocol):
    """A driver with everything that pausing, forking and pooling need."""


class Guests(Protocol):
    """Calls to the daemons inside machines: `guest.client.GuestClient`, whose docstrings are the contract."""

    async def init(self, address: str, identity: GuestIdentity, *, timeout_s: float) -> str: ...

    async def health(self, address: str, *, timeout_s: float) -> bool: ...

    async def quiesce(self, address: str, *, timeout_s: float) -> None: ...
    async def rehearse(self, address: str, *, timeout_s: float) -> None: ...

    async def end_processes(self, address: str, *, grace_ms: int, timeout_s: float) -> None: ...

    async def memory_pressure(self, address: str, *, timeout_s: float) -> None: ...


@dataclass(frozen=True, slots=True)
class CoreSettings:
    """Times in seconds."""

    join_timeout: float = 60.0
    """How long a call waits for the transition in progress."""
    boot_timeout: float = 30.0
    """From a machine's start to the first answer of its daemon."""
    adopt_timeout: float = 5.0
    """The same for a machine found half resumed after a restart: it had its time already."""
    warm_timeout: float = 2.0
    """The same for a warm machine, which has answered before; then another is made."""
    driver_patience: float = 10.0
    """How long the end of an operation waits for a driver that fails."""
    commit_patience: float = 30.0
    """How long the end of an operation waits for a database that is away."""
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
    guests: Guests
    files: SnapshotFiles
    admission: Admission
    journal: Journal
    audit: AuditTrail
    telemetry: Telemetry
    clock: Clock
    changes: Changes
    operations: Operations
    settings: CoreSettings
    deadlines: Deadlines = field(default_factory=Deadlines)
    gates: Gates = field(default_factory=Gates)
    owners: Owners = field(default_factory=Owners)
    footprints: Footprints = field(default_factory=Footprints)
    leftovers: set[str] = field(default_factory=set[str])
    """Names of machines that could not be destroyed; tried again by `endings.remove_leftovers`."""
    unburied: dict[str, str] = field(default_factory=dict[str, str])
    """Machines that died, and why, whose sandboxes are not known to have ended yet; see `endings.bury_rest`."""
    unaligned: set[str] = field(default_factory=set[str])
    """Ids of sandboxes whose machine may not be as the record says; tried again by `alignment.align_rest`."""


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
    """Transitions of others that were met on the way: waited for, or lost to."""


async def claim(
    core: Core,
    sandbox_id: str,
    *,
    team_id: str | None,
    allowed: Collection[State],
    to: State,
    expired_at: datetime | None = None,
    next_generation: bool = False,
    intent: Callable[[Sandbox], Mapping[str, Any]] | None = None,
    snapshot: Callable[[Sandbox], Snapshot] | None = None,
    limits: Callable[[Sandbox], LimitCheck] | None = None,
) -> Claim | Settled:
    """Wait for the transition in progress, if any, then own the next one.

    Must run in a task that a cut-off client does not cancel: a claim without its operation would only be undone by
    recovery. `intent`, `snapshot` and `limits` are asked when the claim is about to be tried, and may refuse it.
    Raises SandboxNotFound (also for another team's and for one being killed), WrongState after the join timeout, and
    what they raise.
    """
    joined: set[State] = set()
    deadline = core.clock.monotonic() + core.settings.join_timeout
    while True:
        with core.changes.watch(sandbox_id) as watch:
            row = await visible(core, sandbox_id, team_id)
            if row.state in allowed:
                token = new_short_id()
                core.owners.take(token)
                async with core.gates.closed(sandbox_id):
                    moved = await core.store.begin(
                        sandbox_id,
                        allowed=allowed,
                        to=to,
                        token=token,
                        now=core.clock.now(),
                        intent=intent(row) if intent else None,
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
                # Another call was faster, and may be done with it before we look again: we met it all the same.
                joined.add(to)
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


async def still_owns(core: Core, claimed: Claim) -> bool:
    """Whether the transition is this operation's yet. Asked after a commit that failed: False means that it did happen
    although an error was reported, or that somebody took the transition over; True, that it never will.
    """
    owned = await insist(
        core,
        lambda: core.store.take_over(claimed.sandbox.id, token=claimed.token, new_token=claimed.token),
    )
    return owned is not None


async def insist(core: Core, work: Callable[[], Awaitable[T]]) -> T:
    """Repeat a store call for a while if the database is away or full: for the end of an operation, which has nobody
    else to leave it to. Raises the last error.
    """
    return await retry(
        work,
        on=(Unavailable, StorageFull),
        within=core.settings.commit_patience,
        backoff=Backoff(first=0.05, most=2.0),
        clock=core.clock,
    )


def machine_name(sandbox: Sandbox) -> str:
    """The machine of this generation; found by it after a crash."""
    return f"{sandbox.id}-{sandbox.generation}"


def sandbox_of(machine: str) -> str:
    """The id of the sandbox that `machine_name` made this name for; of another name nothing that is an id."""
    return machine.rpartition("-")[0]


def identity_of(sandbox: Sandbox, *, boot_id: str | None = None) -> GuestIdentity:
    """What the machine of this record is told about itself; another boot id when its processes begin afresh."""
    return GuestIdentity(
        sandbox_id=sandbox.id,
        template_id=sandbox.template_id,
        generation=sandbox.generation,
        hostname=sandbox.hostname,
        boot_id=boot_id or sandbox.boot_id,
        machine_id=sandbox.machine_id,
        access_token=sandbox.envd_token,
        env_vars={**sandbox.settings.get("env", {}), **sandbox.env_vars},
        default_user=sandbox.settings.get("user") or "user",
        default_workdir=sandbox.settings.get("workdir"),
    )
