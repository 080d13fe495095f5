"""The rows of the table of bars, a module for each kind. `ROWS` says which function measures which."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmarks.context import Context
from benchmarks.measuring import Row
from benchmarks.rows import burst, capture, control_plane, create, echo, edge, fork, kill, memory

Measure = Callable[[Context], Sequence[Row]]

ROWS: dict[str, Measure] = {
    "create-warm": create.warm,
    "echo": echo.running,
    "kill": kill.kill,
    "restart": control_plane.restart,
    "burst": burst.burst,
    "crowd": control_plane.crowd,
    "create-known": create.known,
    "resume": create.resume,
    "pause": capture.pause,
    "snapshot": capture.snapshot,
    "snapshot-1g": capture.snapshot_after_writes,
    "memory": memory.idle,
    "create-unknown": create.unknown,
    "fork-16": fork.fork_16,
    "edge-small": edge.small,
    "edge-1g": edge.bulk,
}
"""In the order in which they run: those that need the same server stand together."""
