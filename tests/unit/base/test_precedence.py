"""Work ahead of need stands back while somebody waits."""

import asyncio

from forkyard.base.precedence import Precedence


async def test_nobody_waits() -> None:
    async with asyncio.timeout(1):
        await Precedence().stand_back(quiet_s=60, at_most_s=60)


async def test_stands_back_until_the_last_is_done() -> None:
    precedence = Precedence()
    with precedence.first():
        with precedence.first():
            waiting = asyncio.create_task(precedence.stand_back(quiet_s=0, at_most_s=60))
            await asyncio.sleep(0)
        for _ in range(5):
            await asyncio.sleep(0)
        assert not waiting.done()
    async with asyncio.timeout(5):
        await waiting


async def test_does_not_stand_back_for_ever() -> None:
    precedence = Precedence()
    with precedence.first():
        async with asyncio.timeout(5):
            await precedence.stand_back(quiet_s=0, at_most_s=0.001)


async def test_one_that_failed_is_done_too() -> None:
    precedence = Precedence()
    try:
        with precedence.first():
            raise ValueError
    except ValueError:
        pass
    async with asyncio.timeout(1):
        await precedence.stand_back(quiet_s=60, at_most_s=60)
