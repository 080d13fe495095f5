"""What the driver is told by whoever puts the server together."""

from __future__ import annotations

from dataclasses import dataclass, field
from ipaddress import IPv4Network
from pathlib import Path

NODE = Path("/run/forkyard/node")
"""Where the keeper sees `node_dir`: the same on every node, because a checkpoint remembers paths."""


@dataclass(frozen=True, slots=True)
class GvisorConfig:
    instance: str
    """Instance id: six characters of a-z and 0-9."""
    data_dir: Path
    node_dir: Path
    """Images, binaries by hash, disks, logs and machine records."""
    run_dir: Path
    log_dir: Path
    binaries: Path
    """Where the newest `keeper` and `envd` lie."""
    subnets: IPv4Network
    internal_allowed: tuple[IPv4Network, ...] = field(default=())
    empty_machines: int = 4
    """Most empty machines kept ready for one shape."""
    keeper: bool = True


def seen_by_keeper(config: GvisorConfig, path: Path) -> str:
    """A path under `node_dir` as the keeper, and so a checkpoint, names it."""
    return str(NODE / path.relative_to(config.node_dir))
