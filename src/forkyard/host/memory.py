"""How much memory the host has left for more machines."""

from dataclasses import dataclass
from pathlib import Path

from forkyard.host.cgroups import Hierarchies, hierarchies

_UNLIMITED = 1 << 60


@dataclass(frozen=True, slots=True)
class HostMemory:
    """In bytes. `available` is what can be used without swapping, page cache that can go included."""

    total: int
    available: int


def host_memory() -> HostMemory:
    """Of the machine, or of the container's limit where that is less. Blocks for about 0.1 ms."""
    found = _meminfo(Path("/proc/meminfo").read_text())
    for limit, used in _limits(hierarchies(), Path("/proc/self/cgroup").read_text()):
        found = HostMemory(min(found.total, limit), min(found.available, max(0, limit - used)))
    return found


def _meminfo(text: str) -> HostMemory:
    values = {
        key: int(rest.split()[0]) << 10
        for key, _, rest in (line.partition(":") for line in text.splitlines())
    }
    return HostMemory(values["MemTotal"], values["MemAvailable"])


def _limits(where: Hierarchies, own: str) -> list[tuple[int, int]]:
    """Limit and use of our own control group and of those above it, as far as they are limited."""
    root = where.by_controller["memory"]
    names = (
        ("memory.max", "memory.current")
        if where.version == 2
        else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    )
    path = ""
    for line in own.splitlines():
        _number, controllers, group = line.split(":", 2)
        if "memory" in controllers.split(",") or (where.version == 2 and not controllers):
            path = group.strip("/")
    found: list[tuple[int, int]] = []
    parts = path.split("/") if path else []
    for depth in range(len(parts), -1, -1):
        directory = root.joinpath(*parts[:depth])
        try:
            limit, used = ((directory / name).read_text().strip() for name in names)
        except OSError:
            continue  # the root of version 2 has no limit; in a container, groups above ours are not there
        if limit != "max" and int(limit) < _UNLIMITED:
            found.append((int(limit), int(used)))
    return found
