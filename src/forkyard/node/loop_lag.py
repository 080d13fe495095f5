"""How late the event loop is: the measure of everything that is slow in it by mistake."""

from __future__ import annotations

import asyncio

from prometheus_client import CollectorRegistry, Histogram

_INTERVAL_S = 0.1


class LoopLag:
    def __init__(self, registry: CollectorRegistry) -> None:
        self._lag = Histogram(
            "forkyard_event_loop_lag_seconds",
            "How much later than asked a timer of the event loop fires",
            registry=registry,
            buckets=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0, 5.0),
        )

    async def run(self) -> None:
        """Measure until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + _INTERVAL_S
            await asyncio.sleep(_INTERVAL_S)
            self._lag.observe(max(0.0, loop.time() - due))
