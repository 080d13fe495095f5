"""Making snapshots safe against a crash of the host, behind the answer."""

from __future__ import annotations

from forkyard.base.errors import ForkyardError
from forkyard.base.logging import get_logger
from forkyard.sandboxes.core import Core
from forkyard.sandboxes.models import Durability, Snapshot, SnapshotState
from forkyard.sandboxes.snapshots import Manifest

log = get_logger(__name__)


async def make_host_safe(core: Core, snapshot_id: str, manifest: Manifest) -> bool:
    """Sync the files with their checksums, then record that. False when the disk or the database refused.

    The snapshot may be given up or deleted meanwhile; then this has no effect.
    """
    try:
        sealed = await core.files.make_host_safe(snapshot_id, manifest)
        return await core.store.update_snapshot(
            snapshot_id, {"durability": Durability.HOST, "manifest": sealed.to_json()}
        )
    except (OSError, ForkyardError) as error:
        if not await _deleted(core, snapshot_id):
            log.warning("snapshot is not host-safe", snapshot_id=snapshot_id, error=repr(error))
        return False


async def _deleted(core: Core, snapshot_id: str) -> bool:
    """False too when the database cannot tell."""
    try:
        return await core.store.is_deleted(snapshot_id)
    except ForkyardError:
        return False


async def make_rest_host_safe(core: Core) -> None:
    """What the last server did not come to: after its restart. What does not look whole is left as it is."""
    for snapshot in await core.store.snapshots_in(core.node_id, [SnapshotState.READY]):
        if snapshot.durability != Durability.PROCESS or snapshot.manifest is None:
            continue
        manifest = Manifest.from_json(snapshot.manifest)
        if await _looks_whole(core, snapshot, manifest):
            await make_host_safe(core, snapshot.id, manifest)


async def _looks_whole(core: Core, snapshot: Snapshot, manifest: Manifest) -> bool:
    try:
        await core.files.check(snapshot.id, manifest)
        await core.driver.check(core.files.directory(snapshot.id), manifest.requires, manifest.files)
    except (OSError, ForkyardError) as error:
        log.error("snapshot is damaged", snapshot_id=snapshot.id, error=repr(error))
        return False
    return True
