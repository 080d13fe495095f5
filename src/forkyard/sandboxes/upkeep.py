"""What a node does now and then: finish what operations could not."""

from __future__ import annotations

from datetime import timedelta

from forkyard.sandboxes.alignment import align_rest
from forkyard.sandboxes.core import Core
from forkyard.sandboxes.endings import bury_rest, purge_snapshots, remove_leftovers
from forkyard.sandboxes.models import SnapshotKind, SnapshotState
from forkyard.sandboxes.recovery import resolve_orphans

PURGE_BATCH = 200
"""Records a transaction: nobody who writes waits long for it."""

PURGE_BATCHES = 50
"""Most batches a pass: more than can have ended since the last one, at 300 a second."""


async def upkeep(core: Core) -> None:
    """One pass: transitions without an owner, deaths that could not be recorded, machines that could not be destroyed
    or set right, captures of forks that nobody needs, files of snapshots given up, records of what ended long ago.

    Raises what the database or the driver raises; the next pass goes on.
    """
    await resolve_orphans(core)
    await bury_rest(core)
    await remove_leftovers(core)
    await align_rest(core)
    await _drop_captures(core)
    await purge_snapshots(core)
    await purge_ended(core)


async def purge_ended(core: Core) -> None:
    """Forget sandboxes that ended long ago: journal, tags, idempotency key and record.

    The files go first: a record whose journal is gone is purged by the next pass, a journal without a record by none.
    """
    before = core.clock.now() - timedelta(seconds=core.settings.purge_after)
    for _ in range(PURGE_BATCHES):
        ids = await core.store.ended(core.node_id, before=before, limit=PURGE_BATCH)
        if not ids:
            return
        await core.journal.remove(ids)
        await core.store.purge(ids)
        core.telemetry.swept.labels("record").inc(len(ids))


async def _drop_captures(core: Core) -> None:
    """A fork gives its capture up in the end; one that could not has left it behind."""
    ready = await core.store.snapshots_in(core.node_id, [SnapshotState.READY])
    await core.store.mark_deleting(
        [s.id for s in ready if s.kind == SnapshotKind.FORK and not core.owners.held(s.id)]
    )
