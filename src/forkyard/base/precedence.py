"""Work that somebody waits for goes before work done ahead of need."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager


class Precedence:
    """Counts what somebody waits for, so that what is done ahead can stand back meanwhile, though not for ever."""

    def __init__(self) -> None:
        self._going_on = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @contextmanager
    def first(self) -> Generator[None]:
        """Somebody waits for what the block does."""
        self._going_on += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._going_on -= 1
            if not self._going_on:
                self._idle.set()

    async def stand_back(self, *, quiet_s: float, at_most_s: float) -> None:
        """Return when nobody waits, `quiet_s` after the last one that did; at the latest after `at_most_s`."""
        try:
            async with asyncio.timeout(at_most_s):
                while self._going_on:
                    await self._idle.wait()
                    await asyncio.sleep(quiet_s)
        except TimeoutError:
            return
