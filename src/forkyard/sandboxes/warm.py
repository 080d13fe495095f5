"""Warm pool: restored, idle machines of a template that a create claims by telling them who they are.

A warm machine has no record in the store; what is left of a pool after a crash is an orphan and is swept. A create
never waits on a pool.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import structlog

from forkyard.base.errors import ForkyardError
from forkyard.base.ids import new_short_id
from forkyard.sandboxes.core import Core
from forkyard.sandboxes.driver import EgressPolicy, Handle
from forkyard.sandboxes.endings import remove_machine
from forkyard.sandboxes.models import Snapshot
from forkyard.sandboxes.snapshots import Manifest

log = structlog.stdlib.get_logger(__name__)

WARM_PREFIX = "warm-"
DEFAULT_EGRESS = EgressPolicy(allow=(), deny=(), allow_internet=True)


class WarmPool:
    """Machines by the snapshot that they were restored from."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._targets: dict[str, int] = {}
        self._snapshots: dict[str, Snapshot] = {}
        self._ready: dict[str, list[Handle]] = {}
        self._wake = asyncio.Event()
        self._paused = False

    def target(self, snapshot: Snapshot, count: int) -> None:
        """Keep `count` machines of this snapshot ready; 0 lets them go."""
        self._targets[snapshot.id] = count
        self._snapshots[snapshot.id] = snapshot
        self._wake.set()

    def targets(self) -> Mapping[str, int]:
        return dict(self._targets)

    def ready(self) -> Mapping[str, int]:
        """How many wait, by snapshot id."""
        return {snapshot_id: len(handles) for snapshot_id, handles in self._ready.items()}

    def hold(self, paused: bool) -> None:
        """Stop filling (under memory pressure), or go on."""
        self._paused = paused
        self._wake.set()

    def claim(self, snapshot_id: str) -> Handle | None:
        """Take a machine out, at once or not at all."""
        handles = self._ready.get(snapshot_id)
        handle = handles.pop() if handles else None
        if snapshot_id in self._targets:
            self._core.telemetry.warm_claims.labels("hit" if handle else "miss").inc()
            self._wake.set()
        return handle

    def discard(self, machine_name: str) -> bool:
        """Forget a machine that died; whether it was one of ours."""
        for handles in self._ready.values():
            for handle in handles:
                if handle.name == machine_name:
                    handles.remove(handle)
                    self._wake.set()
                    return True
        return False

    def holds(self, machine_name: str) -> bool:
        return any(h.name == machine_name for handles in self._ready.values() for h in handles)

    async def run(self) -> None:
        """Fill and empty until cancelled, one machine at a time so that creates go first."""
        backoff = 0.5
        while True:
            try:
                worked = await self._step()
                backoff = 0.5
            except (ForkyardError, OSError) as error:
                log.warning("warm pool could not be filled", error=str(error), retry_s=backoff)
                await self._core.clock.sleep(backoff)
                backoff = min(backoff * 2, 30.0)
                continue
            if not worked:
                self._wake.clear()
                await self._wake.wait()

    async def drain(self) -> None:
        """End all warm machines (the server stops)."""
        handles = [h for ready in self._ready.values() for h in ready]
        self._ready.clear()
        self._targets.clear()
        await asyncio.gather(*(remove_machine(self._core, h) for h in handles))

    async def _step(self) -> bool:
        for snapshot_id, wanted in list(self._targets.items()):
            ready = self._ready.setdefault(snapshot_id, [])
            if len(ready) > wanted:
                await remove_machine(self._core, ready.pop(0))
                return True
            if len(ready) < wanted and not self._paused:
                ready.append(await self._restore(self._snapshots[snapshot_id]))
                return True
        return False

    async def _restore(self, snapshot: Snapshot) -> Handle:
        core = self._core
        core.admission.check_disk()
        manifest = Manifest.from_json(snapshot.manifest or {})
        directory = core.files.directory(snapshot.id)
        await core.driver.check(directory, manifest.requires, manifest.files)
        spec = core.driver.spec_of(
            manifest.requires, name=f"{WARM_PREFIX}{new_short_id()}", egress=DEFAULT_EGRESS
        )
        return await core.driver.restore(spec, directory)
