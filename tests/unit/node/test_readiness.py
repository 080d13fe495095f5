"""Ready is who answers now, not who once came up."""

import asyncio

import pytest

from forkyard.node import readiness as module
from forkyard.node.readiness import Readiness
from forkyard.testing.clock import ManualClock


class Part:
    def __init__(self) -> None:
        self.asked = 0
        self.error: Exception | None = None
        self.go_on = asyncio.Event()
        self.go_on.set()

    async def ask(self) -> None:
        self.asked += 1
        await self.go_on.wait()
        if self.error is not None:
            raise self.error


async def test_a_part_that_goes_away_is_missing_until_it_is_back() -> None:
    clock, part = ManualClock(), Part()
    readiness = Readiness("database", "edge", clock=clock)
    readiness.probe("database", part.ask)
    assert await readiness.look() == ("database", "edge")
    assert part.asked == 0  # it has not come up yet
    readiness.done("database")
    readiness.done("edge")
    await clock.advance(2)
    assert await readiness.look() == ()
    part.error = OSError("lost")
    await clock.advance(2)
    assert await readiness.look() == ("database",)
    readiness.lost("edge")
    assert await readiness.look() == ("edge", "database")
    part.error = None
    readiness.done("edge")
    await clock.advance(2)
    assert await readiness.look() == ()


async def test_many_who_ask_are_one_question() -> None:
    clock, part = ManualClock(), Part()
    readiness = Readiness(clock=clock)
    readiness.probe("driver", part.ask)
    await asyncio.gather(*(readiness.look() for _ in range(50)))
    assert part.asked == 1
    await clock.advance(1.9)
    await readiness.look()
    assert part.asked == 1


async def test_one_that_hangs_is_missing_and_is_not_asked_again_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_PATIENCE_S", 0.01)
    clock, part, other = ManualClock(), Part(), Part()
    readiness = Readiness(clock=clock)
    readiness.probe("database", part.ask)
    readiness.probe("driver", other.ask)
    part.go_on.clear()
    for _ in range(3):
        assert await readiness.look() == ("database",)
        await clock.advance(2)
    assert (part.asked, other.asked) == (1, 3)
    part.go_on.set()
    assert await readiness.look() == ()
