"""What a node does now and then: finish what operations could not."""

from __future__ import annotations

from forkyard.sandboxes.alignment import align_rest
from forkyard.sandboxes.core import Core
from forkyard.sandboxes.endings import bury_rest, purge_snapshots, remove_leftovers
from forkyard.sandboxes.models import SnapshotKind, SnapshotState
from forkyard.sandboxes.recovery import resolve_orphans


async def upkeep(core: Core) -> None:
    """One pass: transitions without an owner, deaths that could not be recorded, machines that could not be destroyed
    or set right, captures of forks that nobody needs, files of snapshots given up.

    Raises what the database or the driver raises; the next pass goes on.
    """
    await resolve_orphans(core)
    await bury_rest(core)
    await remove_leftovers(core)
    await align_rest(core)
    await _drop_captures(core)
    await purge_snapshots(core)


async def _drop_captures(core: Core) -> None:
    """A fork gives its capture up in the end; one that could not has left it behind."""
    ready = await core.store.snapshots_in(core.node_id, [SnapshotState.READY])
    await core.store.mark_deleting(
        [s.id for s in ready if s.kind == SnapshotKind.FORK and not core.owners.held(s.id)]
    )
