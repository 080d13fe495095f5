"""Resource use of running sandboxes: sampled every few seconds in one pass, kept in memory for an hour."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from forkyard.sandboxes.core import Core
from forkyard.sandboxes.driver import Handle, MachineStats
from forkyard.sandboxes.models import Sandbox

INTERVAL_S = 5.0
KEEP = 720


@dataclass(frozen=True, slots=True)
class Sample:
    """Sizes in bytes; `cpu_used_pct` is of one vCPU, so that 200 means two busy ones."""

    at: datetime
    cpu_count: int
    cpu_used_pct: float
    memory_used: int
    memory_total: int
    memory_cache: int
    disk_used: int
    disk_total: int


class Samples:
    """Samples by sandbox id. They do not survive a restart of the server."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._samples: dict[str, deque[Sample]] = {}
        self._before: dict[str, tuple[datetime, int]] = {}

    def of(self, sandbox_id: str) -> Sequence[Sample]:
        return tuple(self._samples.get(sandbox_id, ()))

    async def run(self) -> None:
        """Sample until cancelled."""
        while True:
            await self.sample()
            await self._core.clock.sleep(INTERVAL_S)

    async def sample(self) -> None:
        """One pass over all running sandboxes; what is older than an hour is dropped."""
        core = self._core
        rows = [row for row in await core.store.running(core.node_id) if row.handle is not None]
        handles = [Handle.from_json(row.handle) for row in rows if row.handle is not None]
        now = core.clock.now()
        stats: Mapping[str, MachineStats] = await core.driver.stats(handles) if handles else {}
        for row, handle in zip(rows, handles, strict=True):
            if handle.name in stats:
                self._add(row, handle.name, stats[handle.name], now)
                core.footprints.note(handle.name, row, stats[handle.name])
        # Of a paused one the last hour stays; of ended ones too, which saves asking what each of them is.
        too_old = now - timedelta(seconds=KEEP * INTERVAL_S)
        self._samples = {i: kept for i, kept in self._samples.items() if kept[-1].at > too_old}
        machines = {handle.name for handle in handles}
        core.footprints.keep(machines)
        self._before = {name: value for name, value in self._before.items() if name in machines}

    def _add(self, row: Sandbox, machine: str, stats: MachineStats, now: datetime) -> None:
        before = self._before.get(machine)
        self._before[machine] = (now, stats.cpu_ns)
        used = 0.0
        if before is not None:
            seconds = (now - before[0]).total_seconds()
            used = max(0.0, (stats.cpu_ns - before[1]) / 1e7 / seconds) if seconds > 0 else 0.0
        self._samples.setdefault(row.id, deque(maxlen=KEEP)).append(
            Sample(
                at=now,
                cpu_count=row.vcpus,
                cpu_used_pct=round(used, 2),
                memory_used=stats.memory,
                memory_total=row.memory_mb << 20,
                memory_cache=stats.memory_cache,
                disk_used=stats.disk,
                disk_total=row.disk_mb << 20,
            )
        )
