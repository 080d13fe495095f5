"""Lets what is prepared ahead go when the host runs out of memory: what somebody uses comes first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from forkyard.base.clock import Clock
from forkyard.base.logging import get_logger
from forkyard.host.memory import HostMemory, host_memory

log = get_logger(__name__)

INTERVAL_S = 2.0

_LOW_SHARE = 0.05
_LOW_BYTES = 512 << 20
_ENOUGH = 1.5
"""Pools are filled again only when this many times the low mark is free, so that they do not swing."""


class MemoryPressure:
    def __init__(
        self,
        hold: Sequence[Callable[[bool], None]],
        clock: Clock,
        look: Callable[[], HostMemory] = host_memory,
    ) -> None:
        """`hold`: of each pool, what makes it let go (True) or go on (False)."""
        self._hold = hold
        self._clock = clock
        self._look = look
        self._low = False

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            self.decide(await asyncio.to_thread(self._look))
            await self._clock.sleep(INTERVAL_S)

    def decide(self, memory: HostMemory) -> None:
        """Hold the pools back, or let them go on, by what is free."""
        mark = max(_LOW_BYTES, int(memory.total * _LOW_SHARE))
        low = memory.available < (mark * _ENOUGH if self._low else mark)
        if low == self._low:
            return
        self._low = low
        log.warning(
            "memory is low; pools are let go" if low else "memory is free again",
            available=memory.available,
        )
        for hold in self._hold:
            hold(low)
