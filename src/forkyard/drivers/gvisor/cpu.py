"""Processor features: a machine may go on only where everything is there that its programs may have found."""

from __future__ import annotations

from functools import cache
from pathlib import Path


@cache
def cpu_features() -> list[str]:
    """Feature flags of this host's processor, sorted."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return sorted(value.split())
    return []
