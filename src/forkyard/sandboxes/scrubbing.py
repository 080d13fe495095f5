"""Reads all snapshots now and then, slowly: one whose contents have changed on the disk is not restored any more."""

from __future__ import annotations

from dataclasses import replace

from forkyard.base.logging import get_logger
from forkyard.sandboxes.core import Core
from forkyard.sandboxes.errors import SnapshotDamaged
from forkyard.sandboxes.models import Snapshot, SnapshotState
from forkyard.sandboxes.snapshots import Manifest

log = get_logger(__name__)

ROUND_S = 24 * 3600.0
"""From the end of a round to the begin of the next."""

FIRST_S = 3600.0
"""From the start of the server to the first round."""

BYTES_PER_S = 8 << 20
"""Half a percent of a core, and nothing that a disk notices."""


class Scrub:
    """One loop a node."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def run(self) -> None:
        """Read until cancelled."""
        await self._core.clock.sleep(FIRST_S)
        while True:
            await self.round()
            await self._core.clock.sleep(ROUND_S)

    async def round(self) -> None:
        """Read every snapshot that has checksums, and end the trust in those that have changed."""
        for snapshot in await self._core.store.snapshots_in(self._core.node_id, [SnapshotState.READY]):
            if snapshot.manifest is None:
                continue
            manifest = Manifest.from_json(snapshot.manifest)
            try:
                await self._core.files.scrub(snapshot.id, manifest, self._breathe)
            except (SnapshotDamaged, OSError) as error:
                await self._damaged(snapshot, manifest, error)

    async def _breathe(self, length: int) -> None:
        await self._core.clock.sleep(length / BYTES_PER_S)

    async def _damaged(self, snapshot: Snapshot, manifest: Manifest, error: Exception) -> None:
        core = self._core
        now = await core.store.snapshot(snapshot.id)
        if now is None or now.state != SnapshotState.READY:
            return  # Given up meanwhile.
        core.telemetry.damaged.inc()
        log.error("snapshot is damaged", snapshot_id=snapshot.id, kind=snapshot.kind, error=str(error))
        if snapshot.sandbox_id is not None:
            core.journal.write(
                snapshot.sandbox_id, "snapshot is damaged", level="error", snapshot=snapshot.id, reason=error
            )
        core.files.distrust(snapshot.id)
        await core.store.update_snapshot(snapshot.id, {"manifest": replace(manifest, boot_id="").to_json()})
