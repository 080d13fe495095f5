"""Processes that were killed for want of memory, in the log of their sandbox; what tells of them is not trusted."""

import json
from collections.abc import AsyncGenerator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from forkyard.guest.errors import GuestRefused, GuestUnreachable
from forkyard.guest.memory_kills import MAX_KILLS, MemoryKill, MemoryKills, parse_memory_kills
from forkyard.node.events import MachineEvents
from forkyard.node.memory_kills import WATCH_S, MemoryKillLog
from forkyard.sandboxes.driver import MachineEvent, MachineEventKind
from forkyard.storage.engine import DatabaseUrl
from forkyard.testing.core import TEAM
from forkyard.testing.database import emptied_database
from forkyard.testing.inline import without_threads
from forkyard.testing.world import World, make_world


class Guests:
    """Answers what was put there, by address; an error is raised."""

    def __init__(self) -> None:
        self.answers: dict[str, list[MemoryKills | Exception]] = {}
        self.asked: list[str] = []

    async def take_memory_kills(self, address: str, *, timeout_s: float) -> MemoryKills:
        self.asked.append(address)
        answers = self.answers.get(address)
        answer = answers.pop(0) if answers else MemoryKills((), 0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest_asyncio.fixture
async def world(sqlite_copy: DatabaseUrl, tmp_path: Path) -> AsyncGenerator[World]:
    with without_threads() if sqlite_copy.path else nullcontext():
        async with emptied_database(sqlite_copy) as database, make_world(database, tmp_path) as world:
            yield world


async def lines(world: World, sandbox_id: str) -> list[dict[str, Any]]:
    entries = await world.server.sandboxes.logs(TEAM, sandbox_id)
    return [entry.fields for entry in entries if entry.message.startswith("out of memory")]


async def test_a_kill_is_in_the_log_of_its_sandbox_and_no_other_is_asked(world: World) -> None:
    guests = Guests()
    log = MemoryKillLog(world.core, guests, world.server.samples)
    sandbox, other = await world.create(), await world.create()
    machine = world.machine(sandbox.id)
    events = MachineEvents(world.core, world.server.pool, log.watch)
    await events.handle(MachineEvent(MachineEventKind.MEMORY, machine.name))
    guests.answers[machine.address] = [
        GuestUnreachable("busy"),
        MemoryKills((MemoryKill(7, "eater", 900 << 20),), 0),
    ]
    await log.look()
    await log.look()
    assert await lines(world, sandbox.id) == [{"pid": "7", "name": "eater", "memory_mb": "900"}]
    assert await lines(world, other.id) == []
    assert set(guests.asked) == {machine.address}


async def test_it_is_asked_for_as_long_as_its_memory_is_short(world: World) -> None:
    guests = Guests()
    log = MemoryKillLog(world.core, guests, world.server.samples)
    sandbox = await world.create(timeout_s=10**6)
    log.watch(sandbox.id)
    world.machine(sandbox.id).inside.memory["x"] = "x" * (400 << 20)
    await world.server.samples.sample()
    await world.clock.advance(2 * WATCH_S)
    await log.look()
    del world.machine(sandbox.id).inside.memory["x"]
    await world.server.samples.sample()
    await log.look()
    assert len(guests.asked) == 2
    await world.clock.advance(WATCH_S + 1)
    await log.look()  # the last time
    await log.look()
    assert len(guests.asked) == 3


@pytest.mark.parametrize("end", ["refused", "killed"])
async def test_who_keeps_no_list_or_is_gone_is_not_asked_again(world: World, end: str) -> None:
    guests = Guests()
    log = MemoryKillLog(world.core, guests, world.server.samples)
    sandbox = await world.create()
    guests.answers[world.machine(sandbox.id).address] = [GuestRefused("404")]
    log.watch(sandbox.id)
    if end == "killed":
        await world.server.sandboxes.kill(TEAM, sandbox.id)
    for _ in range(3):
        await log.look()
    assert len(guests.asked) == (1 if end == "refused" else 0)


async def test_many_kills_are_a_few_lines(world: World) -> None:
    guests = Guests()
    log = MemoryKillLog(world.core, guests, world.server.samples)
    sandbox = await world.create()
    kills = tuple(MemoryKill(pid, "x", 0) for pid in range(MAX_KILLS))
    guests.answers[world.machine(sandbox.id).address] = [MemoryKills(kills, 1000)]
    log.watch(sandbox.id)
    await log.look()
    told = await lines(world, sandbox.id)
    assert len(told) == 21
    assert told[-1] == {"count": str(MAX_KILLS - 20 + 1000)}


@pytest.mark.parametrize(
    "answer",
    [b"", b"[]", b"null", b'{"kills": 5}', b'{"kills": [1, null, []]}', b"\xff", b"[" * 100_000],
)
def test_an_answer_of_another_form_is_nothing(answer: bytes) -> None:
    assert parse_memory_kills(answer) == MemoryKills((), 0)


def test_a_hostile_answer_is_bounded() -> None:
    item = {"pid": -1, "name": "\x1b[2J" + "n" * 10_000, "rss_bytes": 10**40}
    found = parse_memory_kills(json.dumps({"kills": [item] * 1000, "dropped": "many"}).encode())
    assert (len(found.kills), found.dropped) == (MAX_KILLS, 1000 - MAX_KILLS)
    kill = found.kills[0]
    assert (kill.pid, kill.rss_bytes, len(kill.name)) == (0, 0, 64)
    assert kill.name.startswith("?[2Jn")
    assert parse_memory_kills(b'{"kills": [{"pid": 1.5, "name": 7}]}').kills == (MemoryKill(0, "", 0),)
