"""Memory and descriptors of the server's programs, over time."""

from __future__ import annotations

import os

from tests.e2e.server import ServerProcess
from tests.faults.hostile.conftest import programs, resident_mb

MOST_RSS_MB = {"server": 400.0, "edge": 200.0, "keeper": 200.0}
MOST_GROWTH_MB = 60.0
"""From the second third of a run to its end: what is kept for use is there by then."""
MOST_IDLE_DESCRIPTORS = {"server": 80, "edge": 60, "keeper": 120}


class Gauges:
    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self.seen: dict[str, list[float]] = {}

    def look(self) -> None:
        for pid, name in programs(self._server):
            self.seen.setdefault(name, []).append(resident_mb(pid))

    def __str__(self) -> str:
        return ", ".join(f"{name} {values[-1]:.0f} MB" for name, values in sorted(self.seen.items()))

    def problems(self) -> list[str]:
        found: list[str] = []
        for name, values in self.seen.items():
            if max(values) > MOST_RSS_MB[name]:
                found.append(f"{name} took {max(values):.0f} MB of memory")
            settled = values[len(values) // 3 :]
            if len(values) >= 6 and settled[-1] - min(settled[:2]) > MOST_GROWTH_MB:
                found.append(f"{name} grew from {min(settled[:2]):.0f} to {settled[-1]:.0f} MB")
        return found

    def at_rest(self) -> bool | None:
        """Whether few descriptors are open, so no connection or file of a sandbox that is gone."""
        counts = {name: len(os.listdir(f"/proc/{pid}/fd")) for pid, name in programs(self._server)}
        return all(count <= MOST_IDLE_DESCRIPTORS[name] for name, count in counts.items()) or None
