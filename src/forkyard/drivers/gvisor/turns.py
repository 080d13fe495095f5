"""One operation at a time for each machine, in the order in which they came."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Turn:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0


class Turns:
    """Locks by machine name that are there only while somebody uses them."""

    def __init__(self) -> None:
        self._turns: dict[str, _Turn] = {}

    def busy(self, name: str) -> bool:
        """Whether an operation on that machine is going on or waits."""
        return name in self._turns

    @asynccontextmanager
    async def of(self, name: str) -> AsyncGenerator[None, None]:
        turn = self._turns.setdefault(name, _Turn())
        turn.users += 1
        try:
            async with turn.lock:
                yield
        finally:
            turn.users -= 1
            if not turn.users:
                del self._turns[name]
