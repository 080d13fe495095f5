"""What has to be there before a server is ready, and whether it still is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from forkyard.base.clock import Clock, SystemClock
from forkyard.base.logging import get_logger

log = get_logger(__name__)

_FRESH_S = 2.0
"""An answer counts for so long: whoever asks often costs nothing."""

_PATIENCE_S = 3.0


class Readiness:
    """Parts report themselves (`done`, `lost`), or are asked (`probe`)."""

    def __init__(self, *parts: str, clock: Clock | None = None) -> None:
        self._missing = list(parts)
        self._clock = clock or SystemClock()
        self._probes: dict[str, Callable[[], Awaitable[object]]] = {}
        self._looked_at = float("-inf")
        self._failing: tuple[str, ...] = ()
        self._looking = asyncio.Lock()
        self._asking: dict[str, asyncio.Future[object]] = {}

    def done(self, part: str) -> None:
        if part in self._missing:
            self._missing.remove(part)

    def lost(self, part: str) -> None:
        if part not in self._missing:
            self._missing.append(part)

    def missing(self) -> tuple[str, ...]:
        """What has not come up yet, or has reported that it went away."""
        return tuple(self._missing)

    def probe(self, part: str, ask: Callable[[], Awaitable[object]]) -> None:
        """From now on this part is asked: it is away while `ask` raises or takes longer than 3 s."""
        self._probes[part] = ask

    async def look(self) -> tuple[str, ...]:
        """What is missing now. Takes at most 3 s; an answer may be 2 s old."""
        async with self._looking:
            if self._clock.monotonic() - self._looked_at >= _FRESH_S:
                parts = [part for part in self._probes if part not in self._missing]
                well = await asyncio.gather(*(self._ask(part) for part in parts))
                self._failing = tuple(part for part, ok in zip(parts, well, strict=True) if not ok)
                self._looked_at = self._clock.monotonic()
        return (*self._missing, *(part for part in self._failing if part not in self._missing))

    async def _ask(self, part: str) -> bool:
        asking = self._asking.get(part)
        if asking is None:
            asking = self._asking[part] = asyncio.ensure_future(self._probes[part]())
        # Not awaited when it is cut off: what hangs may take that badly too. There is never more than one of it.
        done, _ = await asyncio.wait({asking}, timeout=_PATIENCE_S)
        if not done:
            log.warning("part of the server does not answer", part=part)
            return False
        del self._asking[part]
        error = None if asking.cancelled() else asking.exception()
        if error is not None:
            log.warning("part of the server is away", part=part, error=repr(error))
        return error is None and not asking.cancelled()
