"""At the start of a node: compare store, driver and disk, and leave every sandbox running, paused or gone.

Running machines are adopted, half-done transitions finished or rolled back, orphans of this instance removed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

import structlog

from forkyard.base.errors import ForkyardError
from forkyard.sandboxes.core import Claim, Core, machine_name
from forkyard.sandboxes.driver import Handle
from forkyard.sandboxes.endings import end_lost, finish_kill, purge_snapshots, remove_machine
from forkyard.sandboxes.models import Sandbox, SnapshotKind, SnapshotState
from forkyard.sandboxes.resuming import finish_resume
from forkyard.sandboxes.state import State

log = structlog.stdlib.get_logger(__name__)

PARALLEL = 8


@dataclass(slots=True)
class Recovered:
    """What was found, for the log and for tests: sandbox ids by outcome."""

    adopted: list[str] = field(default_factory=list[str])
    paused: list[str] = field(default_factory=list[str])
    gone: list[str] = field(default_factory=list[str])
    swept_machines: list[str] = field(default_factory=list[str])
    swept_snapshots: list[str] = field(default_factory=list[str])


async def recover(core: Core) -> Recovered:
    """Run before anything else acts on this node's sandboxes, with the driver open and no route published."""
    found = Recovered()
    machines = {handle.name: handle for handle in await core.driver.list_handles()}
    rows = await core.store.of_node(core.node_id)
    bound = asyncio.Semaphore(PARALLEL)

    async def one(row: Sandbox) -> None:
        async with bound:
            await _recover(core, row, machines, found)

    await asyncio.gather(*(one(row) for row in rows))
    await _sweep_machines(core, machines, found)
    await _sweep_snapshots(core, found)
    log.info(
        "recovered",
        adopted=len(found.adopted),
        paused=len(found.paused),
        gone=len(found.gone),
        swept_machines=len(found.swept_machines),
        swept_snapshots=len(found.swept_snapshots),
    )
    return found


async def _recover(core: Core, row: Sandbox, machines: Mapping[str, Handle], found: Recovered) -> None:
    handle = machines.get(row.handle["name"] if row.handle else machine_name(row))
    alive = handle is not None and (await core.driver.inspect(handle)).running
    token = row.transition or ""
    match row.state:
        case State.PAUSED:
            found.paused.append(row.id)
        case State.RUNNING:
            await _running(core, row, handle if alive else None, found)
        case State.CREATING:
            await _gone(core, row, handle, "the server stopped while it was created", found)
        case State.KILLING:
            await finish_kill(core, row, token, row.end_reason or "killed")
            found.gone.append(row.id)
        case State.PAUSING | State.SNAPSHOTTING:
            if alive and handle is not None:
                await core.driver.uncut(handle)
                await core.store.finish(row.id, token=token, to=State.RUNNING)
                await _watch(core, handle)
                core.journal.write(row.id, f"{row.state} was rolled back after a restart of the server")
                found.adopted.append(row.id)
            else:
                await _gone(core, row, handle, f"its machine died while it was {row.state}", found)
        case State.RESUMING:
            await _resuming(core, row, handle if alive else None, found)
        case State.GONE:
            pass


async def _running(core: Core, row: Sandbox, handle: Handle | None, found: Recovered) -> None:
    if handle is not None:
        # A pause that failed just before the crash may have left the network cut.
        await core.driver.uncut(handle)
        await _watch(core, handle)
        found.adopted.append(row.id)
        return
    reason = "its machine died while the server was down"
    ended = await core.store.end(row.id, generation=row.generation, reason=reason, now=core.clock.now())
    if ended is not None:
        core.telemetry.deaths.inc()
        core.journal.write(row.id, "gone", level="error", reason=reason)
    found.gone.append(row.id)


async def _resuming(core: Core, row: Sandbox, handle: Handle | None, found: Recovered) -> None:
    """Adopt the machine if its daemon answers, else go back to the snapshot, which is kept until `running`."""
    token = row.transition or ""
    if handle is not None:
        try:
            await core.driver.uncut(handle)
            await finish_resume(core, Claim(row, token), handle, timeout_s=row.timeout_s)
            found.adopted.append(row.id)
            return
        except ForkyardError as error:
            log.warning("restored machine does not answer", sandbox_id=row.id, error=error.message)
    await remove_machine(core, handle or machine_name(row))
    await core.store.finish(row.id, token=token, to=State.PAUSED)
    found.paused.append(row.id)


async def _gone(core: Core, row: Sandbox, handle: Handle | None, reason: str, found: Recovered) -> None:
    await remove_machine(core, handle or machine_name(row))
    await end_lost(core, row, row.transition or "", reason)
    found.gone.append(row.id)


async def _watch(core: Core, handle: Handle) -> None:
    try:
        await core.driver.watch(handle)
    except ForkyardError as error:
        log.warning("machine cannot be watched", machine=handle.name, error=error.message)


async def _sweep_machines(core: Core, machines: Mapping[str, Handle], found: Recovered) -> None:
    """Machines that no record owns: warm ones of the last process, sources of finished pauses."""
    owned = {row.handle["name"] for row in await core.store.of_node(core.node_id) if row.handle}
    for name, handle in machines.items():
        if name not in owned:
            await remove_machine(core, handle)
            core.telemetry.swept.labels("machine").inc()
            found.swept_machines.append(name)


async def _sweep_snapshots(core: Core, found: Recovered) -> None:
    """Half-written snapshots, captures of forks that ended, and directories without a record."""
    half = await core.store.snapshots_in(core.node_id, [SnapshotState.WRITING])
    ready = await core.store.snapshots_in(core.node_id, [SnapshotState.READY])
    in_use = {row.snapshot_id for row in await core.store.of_node(core.node_id)}
    drop = [s.id for s in half]
    drop += [s.id for s in ready if s.kind == SnapshotKind.FORK]
    drop += [s.id for s in ready if s.kind == SnapshotKind.PAUSE and s.id not in in_use]
    await core.store.mark_deleting(drop)
    await purge_snapshots(core)
    known = {s.id for s in ready} - set(drop)
    for name in core.files.present():
        if name not in known:
            await core.files.remove(name)
            drop.append(name)
    found.swept_snapshots.extend(sorted(set(drop)))
    for _ in found.swept_snapshots:
        core.telemetry.swept.labels("snapshot").inc()
