"""Warm pool: restored, idle machines of a template that a create claims by telling them who they are.

A warm machine has no record in the store; what is left of a pool after a crash is an orphan and is swept. A create
never waits on a pool.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from forkyard.base.backoff import Backoff
from forkyard.base.errors import ForkyardError
from forkyard.base.ids import new_short_id
from forkyard.base.logging import get_logger
from forkyard.base.precedence import Precedence
from forkyard.sandboxes.core import Core
from forkyard.sandboxes.driver import EgressPolicy, Handle
from forkyard.sandboxes.endings import remove_behind, remove_machine
from forkyard.sandboxes.introducing import until_healthy
from forkyard.sandboxes.models import Snapshot
from forkyard.sandboxes.snapshots import Manifest

log = get_logger(__name__)

WARM_PREFIX = "warm-"
_QUIET_S = 0.2
"""Who has just got a sandbox runs something in it: a restore beside that would take a core from it."""
_MOST_STOOD_BACK_S = 0.5
"""Under creates without end the pool is filled all the same, if slowly."""
DEFAULT_EGRESS = EgressPolicy(allow=(), deny=(), allow_internet=True)


class WarmPool:
    """Machines by the snapshot that they were restored from."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._targets: dict[str, int] = {}
        self._snapshots: dict[str, Snapshot] = {}
        self._ready: dict[str, list[Handle]] = {}
        self._failing: dict[str, _Failing] = {}
        self._wake = asyncio.Event()
        self._held = False
        core.telemetry.show_pool("warm", lambda: sum(self.ready().values()))
        core.telemetry.show_pool("empty", lambda: sum(core.driver.prepared().values()))
        self.creates = Precedence()
        """Creates that somebody waits for: a restore beside them would take the cores that they need."""

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

    def hold(self, held: bool) -> None:
        """Let all of them go and fill no more (memory is low), or go on."""
        self._held = held
        self._wake.set()

    def claim(self, snapshot_id: str) -> Handle | None:
        """Take a machine out, at once or not at all."""
        handles = self._ready.get(snapshot_id)
        handle = handles.pop() if handles else None
        if snapshot_id in self._targets:
            self._core.telemetry.warm_claims.labels("hit" if handle else "miss").inc()
            self._wake.set()
        return handle

    def give_back(self, snapshot_id: str, handle: Handle) -> None:
        """A machine that was claimed and not used."""
        self._ready.setdefault(snapshot_id, []).append(handle)
        self._wake.set()

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
        while True:
            self._wake.clear()
            if not await self._step():
                await self._wait()

    async def drain(self) -> None:
        """End all warm machines (the server stops)."""
        handles = [h for ready in self._ready.values() for h in ready]
        self._ready.clear()
        self._targets.clear()
        await asyncio.gather(*(remove_machine(self._core, h) for h in handles))

    async def _step(self) -> bool:
        """Make or end one machine; False when there is nothing to do now."""
        for snapshot_id, wanted in list(self._targets.items()):
            ready = self._ready.setdefault(snapshot_id, [])
            wanted = 0 if self._held else wanted
            if len(ready) > wanted:
                await remove_machine(self._core, ready.pop(0))
                return True
            if len(ready) < wanted and self._may_try(snapshot_id):
                await self.creates.stand_back(quiet_s=_QUIET_S, at_most_s=_MOST_STOOD_BACK_S)
                await self._fill(self._snapshots[snapshot_id])
                return True
        return False

    async def _fill(self, snapshot: Snapshot) -> None:
        try:
            handle = await self._restore(snapshot)
        except (ForkyardError, OSError) as error:
            # The others go on: one template that cannot be restored must not empty all pools.
            failing = self._failing.setdefault(snapshot.id, _Failing())
            delay = failing.backoff.next_delay()
            failing.until = self._core.clock.monotonic() + delay
            log.warning(
                "warm pool could not be filled", snapshot_id=snapshot.id, error=str(error), retry_s=delay
            )
            return
        self._failing.pop(snapshot.id, None)
        self._ready.setdefault(snapshot.id, []).append(handle)

    def _may_try(self, snapshot_id: str) -> bool:
        failing = self._failing.get(snapshot_id)
        return failing is None or failing.until <= self._core.clock.monotonic()

    async def _wait(self) -> None:
        """Until something changes, or one that failed may be tried again."""
        now = self._core.clock.monotonic()
        waits = [f.until - now for i, f in self._failing.items() if self._targets.get(i) and f.until > now]
        tasks: set[asyncio.Task[Any]] = {asyncio.create_task(self._wake.wait())}
        if waits and not self._held:
            tasks.add(asyncio.create_task(self._core.clock.sleep(min(waits))))
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()

    async def _restore(self, snapshot: Snapshot) -> Handle:
        """A machine that has run a shell once, so that its first command finds in memory what it touches.

        Only shipped templates are kept warm: a shell runs the profile of its image before the machine is anybody's.
        """
        core = self._core
        core.admission.check_disk()
        manifest = Manifest.from_json(snapshot.manifest or {})
        directory = core.files.directory(snapshot.id)
        await core.files.check(snapshot.id, manifest)
        await core.driver.check(directory, manifest.requires, manifest.files)
        spec = core.driver.spec_of(
            manifest.requires, name=f"{WARM_PREFIX}{new_short_id()}", egress=DEFAULT_EGRESS
        )
        handle = await core.driver.restore(spec, directory)
        try:
            await until_healthy(core, handle, core.settings.boot_timeout)
            await core.guests.rehearse(handle.address, timeout_s=core.settings.boot_timeout)
        except BaseException:
            remove_behind(core, handle)
            raise
        return handle


@dataclass(slots=True)
class _Failing:
    """A snapshot that could not be restored, and when to try again (monotonic seconds)."""

    backoff: Backoff = field(default_factory=lambda: Backoff(first=0.5, most=30.0))
    until: float = 0.0
