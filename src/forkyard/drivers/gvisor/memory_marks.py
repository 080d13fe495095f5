"""Tells when a container's memory passes a mark, for the runtime without a keeper; the keeper has its own."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence

from forkyard.host.cgroups import Usage

INTERVAL_S = 0.1
"""A sandbox that fills its memory with 2 GB a second has by then taken 0.2 GB, and has more than that in reserve."""


class MemoryMarks:
    """The marks of each watched container, and how many of them it is above."""

    def __init__(self) -> None:
        self._marks: dict[str, list[int]] = {}
        self._above: dict[str, int] = {}

    def set(self, container_id: str, marks: Sequence[int]) -> None:
        """Watch it, instead of what was watched before; without marks not at all."""
        self._above.pop(container_id, None)
        if marks:
            self._marks[container_id] = sorted(marks)
        else:
            self._marks.pop(container_id, None)

    def look(self, usage: Mapping[str, Usage]) -> list[str]:
        """The containers that have passed a mark upwards since the last look; those that are gone are forgotten."""
        passed: list[str] = []
        for container_id in list(self._marks):
            if container_id not in usage:
                self.set(container_id, ())
                continue
            used = usage[container_id].memory - usage[container_id].cache
            above = bisect_right(self._marks[container_id], used)
            if above > self._above.get(container_id, 0):
                passed.append(container_id)
            self._above[container_id] = above
        return passed
