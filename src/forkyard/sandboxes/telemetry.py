"""Prometheus metrics of the core."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

# From a claimed warm machine (5 ms) to a cold boot under load (30 s).
_BUCKETS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Telemetry:
    """One set per registry; the composition root makes one, tests make their own."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self._stages = Histogram(
            "forkyard_sandbox_stage_duration_seconds",
            "Duration of a stage of a transition",
            ["operation", "stage", "outcome"],
            registry=registry,
            buckets=_BUCKETS,
        )
        self.states = Gauge(
            "forkyard_sandboxes", "Sandboxes of this node by state", ["state"], registry=registry
        )
        self.deaths = Counter(
            "forkyard_sandbox_deaths_total", "Machines that died by themselves", registry=registry
        )
        self.unhealthy = Counter(
            "forkyard_sandbox_unhealthy_total", "Machines whose daemon stopped answering", registry=registry
        )
        self.warm_claims = Counter(
            "forkyard_warm_pool_claims_total",
            "Creates by whether the warm pool had a machine",
            ["outcome"],
            registry=registry,
        )
        self.refused = Counter(
            "forkyard_admission_refused_total",
            "Operations refused because a limit was reached or a disk is full",
            ["reason"],
            registry=registry,
        )
        self._pools = Gauge(
            "forkyard_pool_ready",
            "Machines that are ready: `warm` ones of templates, `empty` ones of recent shapes",
            ["pool"],
            registry=registry,
        )
        self.damaged = Counter(
            "forkyard_snapshots_damaged_total", "Snapshots found changed on the disk", registry=registry
        )
        self.swept = Counter("forkyard_swept_total", "Leftovers removed", ["kind"], registry=registry)

    def show_pool(self, pool: str, ready: Callable[[], int]) -> None:
        """Ask `ready` at every scrape."""
        self._pools.labels(pool).set_function(ready)

    @contextmanager
    def stage(self, operation: str, stage: str) -> Generator[None]:
        """Time a stage; its outcome is `ok` or `error`."""
        started = time.perf_counter()
        outcome = "error"
        try:
            yield
            outcome = "ok"
        finally:
            self._stages.labels(operation, stage, outcome).observe(time.perf_counter() - started)
