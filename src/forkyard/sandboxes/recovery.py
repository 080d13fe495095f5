"""At the start of a node: compare store, driver and disk, and leave every sandbox running, paused or gone.

Running machines are adopted, half-done transitions finished or rolled back, orphans of this instance removed. While
the node runs, the same is done with transitions whose operation ended without a commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from forkyard.base.errors import ForkyardError
from forkyard.base.ids import new_short_id
from forkyard.base.logging import get_logger
from forkyard.sandboxes.alignment import align
from forkyard.sandboxes.core import Claim, Core, insist, machine_name
from forkyard.sandboxes.driver import Handle
from forkyard.sandboxes.durability import make_rest_host_safe
from forkyard.sandboxes.endings import (
    end_lost,
    finish_kill,
    network_back,
    purge_snapshots,
    remove_machine,
)
from forkyard.sandboxes.introducing import introduce_again
from forkyard.sandboxes.models import Sandbox, SnapshotKind, SnapshotState
from forkyard.sandboxes.resuming import back_to_paused, finish_resume
from forkyard.sandboxes.routing import RouteState, route_of
from forkyard.sandboxes.starting import abandon, announce_running
from forkyard.sandboxes.state import MOVING, State

log = get_logger(__name__)

PARALLEL = 8

ORPHAN_AFTER_S = 5.0
"""A transition without an owner is taken over when it is this old."""


@dataclass(slots=True)
class Recovered:
    """What was found, for the log and for tests: sandbox ids by outcome."""

    adopted: list[str] = field(default_factory=list[str])
    paused: list[str] = field(default_factory=list[str])
    gone: list[str] = field(default_factory=list[str])
    unsettled: list[str] = field(default_factory=list[str])
    """Those whose driver or database failed; `resolve_orphans` tries again."""
    swept_machines: list[str] = field(default_factory=list[str])
    swept_snapshots: list[str] = field(default_factory=list[str])


@dataclass(frozen=True, slots=True)
class _Found:
    """A machine as it was found."""

    handle: Handle | None
    """None when there is none, dead or alive."""
    death: str | None
    """Why it does not live; None when it lives."""


async def recover(core: Core, attach: Callable[[], Awaitable[None]] | None = None) -> Recovered:
    """Run before anything else acts on this node's sandboxes, with the driver open.

    First the routes of what certainly stays are set, and `attach` is awaited, which pushes them to a data plane that
    outlived the last server as the whole table: what it still routed to machines that are about to be destroyed must
    be forgotten before their addresses are used again, and what runs is reachable all the time.
    """
    recovered = Recovered()
    handles = {handle.name: handle for handle in await core.driver.list_handles()}
    rows = await core.store.of_node(core.node_id)
    bound = asyncio.Semaphore(PARALLEL)
    machines = dict(zip((r.id for r in rows), await _look_at(core, rows, handles, bound), strict=True))
    for row in rows:
        await _set_standing_route(core, row, machines[row.id])
    if attach is not None:
        await attach()

    async def one(row: Sandbox) -> None:
        async with bound:
            await _resolve(core, row, machines[row.id], recovered)

    await asyncio.gather(*(one(row) for row in rows))
    await _sweep_machines(core, handles, recovered, bound)
    await _sweep_snapshots(core, recovered)
    core.operations.start_logged(make_rest_host_safe(core), "make-host-safe")
    core.deadlines.look_again()
    log.info(
        "recovered",
        adopted=len(recovered.adopted),
        paused=len(recovered.paused),
        gone=len(recovered.gone),
        unsettled=len(recovered.unsettled),
        swept_machines=len(recovered.swept_machines),
        swept_snapshots=len(recovered.swept_snapshots),
    )
    return recovered


async def resolve_orphans(core: Core) -> Recovered:
    """Finish or roll back transitions that no task carries out any more. To be called now and then."""
    recovered = Recovered()
    since = core.clock.now() - timedelta(seconds=ORPHAN_AFTER_S)
    orphans = [
        row
        for row in await core.store.moving(core.node_id, since=since)
        if not core.owners.held(row.transition or "")
    ]
    if not orphans:
        return recovered
    handles = {handle.name: handle for handle in await core.driver.list_handles()}
    bound = asyncio.Semaphore(PARALLEL)
    found = await _look_at(core, orphans, handles, bound)
    await asyncio.gather(
        *(
            core.operations.run_detached(_resolve(core, row, machine, recovered), f"resolve-{row.id}")
            for row, machine in zip(orphans, found, strict=True)
        )
    )
    log.warning("transitions without an owner were resolved", sandboxes=[row.id for row in orphans])
    return recovered


async def _look_at(
    core: Core, rows: Sequence[Sandbox], handles: Mapping[str, Handle], bound: asyncio.Semaphore
) -> list[_Found]:
    async def one(row: Sandbox) -> _Found:
        handle = handles.get(row.handle["name"] if row.handle else machine_name(row))
        if handle is None:
            return _Found(None, "unknown")
        async with bound:
            status = await core.driver.inspect(handle)
        return _Found(handle, None if status.running else status.reason or "unknown")

    return await asyncio.gather(*(one(row) for row in rows))


async def _set_standing_route(core: Core, row: Sandbox, machine: _Found) -> None:
    match row.state:
        case State.RUNNING | State.SNAPSHOTTING if machine.death is None and row.handle is not None:
            await core.routes.set(route_of(row, RouteState.RUNNING))
        case State.PAUSED:
            await core.routes.set(route_of(row, RouteState.PAUSED))
        case State.PAUSING | State.RESUMING:
            await core.routes.set(route_of(row, RouteState.HELD))
        case _:
            pass


async def _resolve(core: Core, row: Sandbox, machine: _Found, recovered: Recovered) -> None:
    """Bring one sandbox to rest. One that cannot be must not keep the others from it."""
    try:
        if row.state in MOVING:
            await _resolve_moving(core, row, machine, recovered)
        elif row.state is State.PAUSED:
            recovered.paused.append(row.id)
        elif row.state is State.RUNNING:
            await _resolve_running(core, row, machine, recovered)
    except Exception as error:
        log.exception("sandbox could not be recovered", sandbox_id=row.id, state=row.state.value)
        core.journal.write(row.id, "recovery failed", level="error", reason=error)
        recovered.unsettled.append(row.id)


async def _resolve_moving(core: Core, row: Sandbox, machine: _Found, recovered: Recovered) -> None:
    # The record may have been read before its operation ended: only who still finds it so may act on it.
    token = new_short_id()
    core.owners.take(token)
    owned = await core.store.take_over(row.id, token=row.transition or "", new_token=token)
    if owned is None:
        return
    match owned.state:
        case State.CREATING:
            stopped = ForkyardError("the server stopped")
            await abandon(core, Claim(owned, token), stopped)
            recovered.gone.append(row.id)
        case State.KILLING:
            await core.routes.remove(row.id, row.generation)
            reason = (owned.transition_intent or {}).get("reason") or "killed"
            await finish_kill(core, owned, token, reason)
            recovered.gone.append(row.id)
        case State.RESUMING:
            await _resolve_resuming(core, Claim(owned, token), machine, recovered)
        case _:
            await _roll_back(core, owned, token, machine, recovered)


async def _roll_back(core: Core, row: Sandbox, token: str, machine: _Found, recovered: Recovered) -> None:
    """From `pausing` or `snapshotting` back to `running`."""
    death = machine.death
    if machine.handle is not None and death is None:
        death = await network_back(core, machine.handle)
    if machine.handle is None or death is not None:
        await end_lost(core, row, token, f"its machine died while it was {row.state.value}: {death}")
        recovered.gone.append(row.id)
        return
    if row.state is State.PAUSING and row.transition_snapshot_id is not None:
        snapshot = await core.store.snapshot(row.transition_snapshot_id)
        if snapshot is not None and not snapshot.keeps_memory:
            await introduce_again(core, row, machine.handle)
    await core.routes.set(route_of(row, RouteState.RUNNING))
    running = await insist(core, lambda: core.store.finish(row, token=token, to=State.RUNNING))
    core.changes.notify(row.id)
    core.deadlines.moved(row.end_at)
    if running is not None:
        await align(core, running)
    core.journal.write(row.id, f"{row.state.value} was rolled back")
    recovered.adopted.append(row.id)


async def _resolve_running(core: Core, row: Sandbox, machine: _Found, recovered: Recovered) -> None:
    if machine.handle is not None and machine.death is None:
        await align(core, row)
        recovered.adopted.append(row.id)
        return
    reason = f"its machine died while the server was down: {machine.death}"
    ended = await core.store.end(row.id, generation=row.generation, reason=reason, now=core.clock.now())
    if ended is not None:
        core.telemetry.deaths.inc()
        core.journal.write(row.id, "gone", level="error", reason=reason)
    recovered.gone.append(row.id)


async def _resolve_resuming(core: Core, claimed: Claim, machine: _Found, recovered: Recovered) -> None:
    """Adopt the machine if its daemon answers, else go back to the snapshot, which is kept until `running`."""
    row = claimed.sandbox
    error: Exception = ForkyardError("the server stopped while it was resumed")
    if machine.handle is not None and machine.death is None:
        try:
            timeout = core.settings.adopt_timeout
            running = await finish_resume(core, claimed, machine.handle, init_timeout_s=timeout)
            announce_running(core, running, purge=True)
            recovered.adopted.append(row.id)
            return
        except ForkyardError as failure:
            error = failure
    committed = await back_to_paused(core, claimed, error)
    if committed is None:
        recovered.paused.append(row.id)
    else:
        announce_running(core, committed, purge=True)
        recovered.adopted.append(row.id)


async def _sweep_machines(
    core: Core, handles: Mapping[str, Handle], recovered: Recovered, bound: asyncio.Semaphore
) -> None:
    """Machines that no record owns: warm ones of the last process, sources of finished pauses."""
    rows = await core.store.of_node(core.node_id)
    owned = {row.handle["name"] for row in rows if row.handle}
    # What could not be recovered is still somebody's.
    owned |= {machine_name(row) for row in rows if row.state in MOVING}

    async def sweep(handle: Handle) -> None:
        async with bound:
            await remove_machine(core, handle)
        core.telemetry.swept.labels("machine").inc()
        recovered.swept_machines.append(handle.name)

    await asyncio.gather(*(sweep(handle) for name, handle in handles.items() if name not in owned))


async def _sweep_snapshots(core: Core, recovered: Recovered) -> None:
    """Half-written snapshots, captures of forks that ended, and directories without a record."""
    rows = await core.store.of_node(core.node_id)
    half = await core.store.snapshots_in(core.node_id, [SnapshotState.WRITING])
    ready = await core.store.snapshots_in(core.node_id, [SnapshotState.READY])
    in_use = {row.snapshot_id for row in rows} | {row.transition_snapshot_id for row in rows}
    drop = [s.id for s in half if s.id not in in_use]
    drop += [s.id for s in ready if s.kind == SnapshotKind.FORK]
    drop += [s.id for s in ready if s.kind == SnapshotKind.PAUSE and s.id not in in_use]
    await core.store.mark_deleting(drop)
    await purge_snapshots(core)
    known = ({s.id for s in ready} | {s.id for s in half}) - set(drop)
    for name in await asyncio.to_thread(core.files.present):
        if name in known:
            continue
        try:
            await core.files.remove(name)
        except (OSError, ForkyardError) as error:
            log.warning("leftover snapshot files could not be removed", name=name, error=repr(error))
        drop.append(name)
    recovered.swept_snapshots.extend(sorted(set(drop)))
    for _ in recovered.swept_snapshots:
        core.telemetry.swept.labels("snapshot").inc()
