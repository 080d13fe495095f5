"""Empty machines: created containers, each with a network slot, into which a snapshot of the same shape is restored.

They cost about half of the time of a create. Filled by recent demand and never waited for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from forkyard.base.clock import Clock
from forkyard.base.errors import ForkyardError
from forkyard.base.logging import get_logger
from forkyard.base.precedence import Precedence
from forkyard.host.addresses import Slot
from forkyard.sandboxes.driver import Shape

log = get_logger(__name__)

_DEMAND_S = 300.0
"""A shape that nobody asked for in this time is let go."""

_QUIET_S = 0.2
"""After an operation of the driver the caller has still something to do: 10 to 20 ms, and then a first command."""

_MOST_STOOD_BACK_S = 2.0
"""Under operations without end, and longer than a fork into many takes."""


@dataclass(frozen=True, slots=True)
class Empty:
    container: str
    slot: Slot
    shape: Shape


class Empties:
    """One pool for all shapes. `make` and `end` are the driver's."""

    def __init__(
        self,
        *,
        most: int,
        make: Callable[[Shape], Awaitable[Empty]],
        end: Callable[[Empty], Awaitable[None]],
        clock: Clock,
    ) -> None:
        self._most = most
        self._make = make
        self._end = end
        self._clock = clock
        self._ready: dict[Shape, list[Empty]] = {}
        self._wanted: dict[Shape, int] = {}
        self._asked: dict[Shape, float] = {}
        self._wake = asyncio.Event()
        self._held = False
        self.operations = Precedence()
        """Operations on machines that somebody waits for."""

    def demand(self, shape: Shape, count: int) -> None:
        """Keep `count` ready, for as long as the shape is asked for now and then."""
        self._wanted[shape] = min(count, self._most)
        self._asked[shape] = self._clock.monotonic()
        self._wake.set()

    def take(self, shape: Shape) -> Empty | None:
        """One, at once or not at all; and the shape is in demand from now on."""
        self.demand(shape, max(self._wanted.get(shape, 0), 1) if self._most else 0)
        ready = self._ready.get(shape)
        if not ready:
            # A miss says that the stock is too small for how often it is asked for.
            self.demand(shape, self._wanted[shape] + 1)
            return None
        return ready.pop(0)

    def hold(self, held: bool) -> None:
        """Let all of them go and make no more (memory is low), or go on with what is in demand."""
        self._held = held
        self._wake.set()

    def discard(self, container: str) -> Empty | None:
        """Take out one that died."""
        for ready in self._ready.values():
            for empty in ready:
                if empty.container == container:
                    ready.remove(empty)
                    self._wake.set()
                    return empty
        return None

    def containers(self) -> set[str]:
        return {empty.container for ready in self._ready.values() for empty in ready}

    def counts(self) -> Mapping[Shape, int]:
        return {shape: len(ready) for shape, ready in self._ready.items()}

    async def run(self) -> None:
        """Fill and empty until cancelled, one at a time so that requests go first."""
        while True:
            try:
                worked = await self._step()
            except (ForkyardError, OSError) as error:
                log.warning("an empty machine could not be made", error=str(error))
                await self._clock.sleep(5.0)
                continue
            if not worked:
                self._wake.clear()
                try:
                    async with asyncio.timeout(_DEMAND_S / 5):
                        await self._wake.wait()
                except TimeoutError:
                    pass

    async def drain(self) -> None:
        """End all of them."""
        self._wanted.clear()
        empties = [empty for ready in self._ready.values() for empty in ready]
        self._ready.clear()
        await asyncio.gather(*(self._end(empty) for empty in empties))

    async def _step(self) -> bool:
        now = self._clock.monotonic()
        for shape, wanted in list(self._wanted.items()):
            if now - self._asked[shape] > _DEMAND_S:
                wanted = self._wanted[shape] = 0
            ready = self._ready.setdefault(shape, [])
            if wanted == 0 and not ready:
                del self._wanted[shape], self._asked[shape], self._ready[shape]
                continue
            wanted = 0 if self._held else wanted
            if len(ready) < wanted:
                await self.operations.stand_back(quiet_s=_QUIET_S, at_most_s=_MOST_STOOD_BACK_S)
                ready.append(await self._make(shape))
                return True
            if len(ready) > wanted:
                await self._end(ready.pop())
                return True
        return False
