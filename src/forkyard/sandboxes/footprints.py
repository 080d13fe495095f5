"""How much a capture of each running machine would write, as it was last sampled."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from forkyard.sandboxes.driver import MachineStats
from forkyard.sandboxes.models import Sandbox


@dataclass(frozen=True, slots=True)
class Footprint:
    """Upper bounds in bytes, but for what the machine has written since."""

    memory: int
    disk: int

    @property
    def total(self) -> int:
        return self.memory + self.disk


class Footprints:
    """By machine name: another generation has another footprint."""

    def __init__(self) -> None:
        self._known: dict[str, Footprint] = {}

    def note(self, machine: str, sandbox: Sandbox, stats: MachineStats | None) -> None:
        """The host's caches for the machine count as its memory, which is never more than its limit. Without stats it
        is taken to have all that it may have.
        """
        known = limits_of(sandbox)
        if stats is not None:
            known = Footprint(min(stats.memory, known.memory), min(stats.disk, known.disk))
        self._known[machine] = known

    def keep(self, machines: Collection[str]) -> None:
        """Forget all others."""
        self._known = {name: known for name, known in self._known.items() if name in machines}

    def of(self, sandbox: Sandbox) -> Footprint | None:
        """None when its machine was not sampled yet."""
        return self._known.get(sandbox.handle["name"]) if sandbox.handle else None


def limits_of(sandbox: Sandbox) -> Footprint:
    """More than this no machine of it can have."""
    return Footprint(sandbox.memory_mb << 20, sandbox.disk_mb << 20)
