"""Bodies about the resources that sandboxes use."""

from __future__ import annotations

from datetime import datetime

from forkyard.e2b.schemas.base import ResponseBody


class SandboxMetric(ResponseBody):
    """Sizes in bytes; `cpuUsedPct` is of one vCPU."""

    timestamp: datetime
    timestampUnix: int
    cpuCount: int
    cpuUsedPct: float
    memUsed: int
    memTotal: int
    memCache: int
    diskUsed: int
    diskTotal: int


class SandboxesWithMetrics(ResponseBody):
    sandboxes: dict[str, SandboxMetric]
    """The newest sample of each sandbox that has one."""
