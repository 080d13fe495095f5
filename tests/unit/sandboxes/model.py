"""Random calls of several clients at once against a model: what a sandbox must hold, how long, and how many may run.

Everything is drawn from one seed: the calls, how tasks take turns, what fails, which machine dies, when the server is
killed. A failure names the seed; `play(seed, ...)` plays it again.
"""

import asyncio
import random
import shutil
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from forkyard.base import ids
from forkyard.base.errors import ForkyardError
from forkyard.guest.errors import GuestUnreachable
from forkyard.sandboxes.admission import Limits
from forkyard.sandboxes.driver import DriverError, HostFull
from forkyard.sandboxes.errors import (
    AlreadyPaused,
    AlreadyRunning,
    IdempotencyMismatch,
    NotRunning,
    SandboxLimit,
    SandboxNotFound,
    SnapshotNotFound,
    TemplateNotFound,
    WrongState,
)
from forkyard.sandboxes.models import Sandbox
from forkyard.sandboxes.state import State
from forkyard.sandboxes.store import SandboxFilter
from forkyard.sandboxes.upkeep import upkeep
from forkyard.storage.engine import sqlite_url
from forkyard.storage.errors import DatabaseUnavailable
from forkyard.storage.session import Database
from forkyard.testing.core import TEAM
from forkyard.testing.faults import Crashed, Fault
from forkyard.testing.inline import VirtualTimeLoop, without_threads
from forkyard.testing.world import World, check_consistent, make_world

LIMIT = 7
"""Sandboxes that may run at once."""

ORDINARY = (
    AlreadyPaused,
    AlreadyRunning,
    IdempotencyMismatch,
    NotRunning,
    SandboxLimit,
    SandboxNotFound,
    SnapshotNotFound,
    TemplateNotFound,
    WrongState,
)
"""What a call may come to although nothing went wrong: others were faster."""


CUT_OFF = (Crashed, asyncio.CancelledError)
"""What a call comes to whose server is killed."""


@dataclass
class Known:
    """A sandbox as its clients know it."""

    id: str
    value: str | None
    """Last written into its memory and onto its disk."""
    lossy: bool = False
    """Whether a reboot was asked for since, so that memory may have lost it."""
    reboots: int = 0
    """Reboots in progress."""
    windows: list[set[str | None]] = field(default_factory=list[set[str | None]])
    """Of each capture in progress: the values it may have seen."""
    shortened: int = 0
    """How often a shorter life was asked for."""

    def write(self, value: str) -> None:
        self.value = value
        self.lossy = self.reboots > 0
        for window in self.windows:
            window.add(value)


class Scenario:
    def __init__(
        self, world: World, seed: int, log: list[str], *, clients: int, steps: int, chaos: float
    ) -> None:
        self.world = world
        self.seed = seed
        self.random = random.Random(seed)
        self.clients = clients
        self.steps = steps
        self.chaos = chaos
        """Chance that something goes wrong at a tick."""
        self.known: dict[str, Known] = {}
        self.snapshots: dict[str, set[str | None]] = {}
        self.log = log
        self.written = 0
        self.broken = False
        """Whether anything was made to go wrong yet: from then on more errors are to be expected."""

    # -- running it ----------------------------------------------------------------------------------

    async def run(self) -> None:
        self.world.host.faults.scheduler = random.Random(self.seed + 1)
        self._start_loops()
        ticker = asyncio.create_task(self._tick())
        clients = [asyncio.create_task(self._client(n)) for n in range(self.clients)]
        try:
            async with asyncio.timeout(10_000):  # of the loop's own time, which is not spent
                done, _ = await asyncio.wait({ticker, *clients}, return_when=asyncio.FIRST_EXCEPTION)
                for task in done:
                    task.result()
        finally:
            ticker.cancel()
            for task in clients:
                task.cancel()
            await asyncio.gather(ticker, *clients, return_exceptions=True)
        await self._end()

    def _start_loops(self) -> None:
        server = self.world.server
        server.start(server.expiry.run)
        server.start(server.pool.run)
        server.start_events()
        if self.world.template is not None:
            server.pool.target(self.world.template, 1)

    async def _client(self, number: int) -> None:
        chooser = random.Random(self.seed * 1000 + number)
        for step in range(self.steps):
            calls, weights = zip(*self._calls(), strict=True)
            [call] = chooser.choices(calls, weights)
            await self._one(f"{number}.{step}", call, chooser)
        self.clients -= 1

    async def _one(
        self, who: str, call: Callable[[random.Random], Awaitable[object]], chooser: random.Random
    ) -> None:
        while not self.world.alive:
            await asyncio.sleep(0)
        life = self.world.server.life
        task = asyncio.ensure_future(call(chooser))
        await asyncio.wait({task})
        if task.cancelled():
            error: BaseException | None = asyncio.CancelledError()
        else:
            error = task.exception()
        self.log.append(
            f"{who} {call.__name__}: {error!r}" if error else f"{who} {call.__name__}: {task.result()}"
        )
        if error is None or (life.dead and (not self.world.alive or isinstance(error, CUT_OFF))):
            return
        if isinstance(error, ORDINARY) or (self.broken and isinstance(error, ForkyardError | OSError)):
            return
        raise error

    async def _tick(self) -> None:
        """Time goes on, and now and then something goes wrong; ends when the clients are done."""
        while self.clients:
            for _ in range(self.random.randrange(40)):
                await asyncio.sleep(0)
            await self.world.clock.advance(self.random.choice([0.05, 0.3, 1.0, 3.0]))
            if self.random.random() < self.chaos:
                await self._go_wrong()
            await self._check_now()

    async def _go_wrong(self) -> None:
        self.broken = True
        host, what = self.world.host, self.random.random()
        if what < 0.55:
            call, error = self.random.choice(
                [
                    ("driver.restore", DriverError("chaos")),
                    ("driver.checkpoint", HostFull("chaos")),
                    ("driver.destroy", DriverError("chaos")),
                    ("driver.cut", DriverError("chaos")),
                    ("driver.uncut", DriverError("chaos")),
                    ("driver.set_egress", DriverError("chaos")),
                    ("driver.watch", DriverError("chaos")),
                    ("guest.init", GuestUnreachable("chaos")),
                    ("guest.quiesce", GuestUnreachable("chaos")),
                    ("files.seal", OSError("chaos")),
                    ("files.remove", OSError("chaos")),
                    ("store.write", DatabaseUnavailable("chaos")),
                    ("store.read", DatabaseUnavailable("chaos")),
                ]
            )
            after = self.random.random() < 0.4
            times = self.random.choice([1, 1, 2, 5])
            nth = self.random.randrange(1, 4)
            self.log.append(f"chaos: {call} #{nth} x{times} {'after' if after else 'before'}")
            host.faults.add(Fault(call, nth, times=times, after=after, error=error))
        elif what < 0.75 and host.machines:
            name = self.random.choice(sorted(host.machines))
            self.log.append(f"chaos: {name} dies")
            host.kill(name, "chaos")
        elif what < 0.85:
            self.log.append("chaos: upkeep")
            with suppress(ForkyardError, OSError):
                await self.world.server.do(upkeep(self.world.core))
        elif what < 0.95:
            self.log.append("chaos: the server is killed")
            await self.world.restart()
            self._start_loops()

    # -- what must hold ------------------------------------------------------------------------------

    async def _check_now(self) -> None:
        usage = await self.world.database_usage(TEAM)
        assert usage <= LIMIT, f"{usage} sandboxes run"
        for known in list(self.known.values()):
            self._look(known)
        assert not self.world.host.violations, self.world.host.violations

    def _look(self, known: Known) -> None:
        """What requests find in it, if they reach it."""
        machine = self.world.reached(known.id)
        if machine is None:
            return
        self._check_value(known, machine.inside.memory.get("v"), machine.inside.files.get("/v"))

    def _check_value(self, known: Known, memory: str | None, file: str | None) -> None:
        assert file == known.value, f"{known.id} has {file} on its disk, not {known.value}"
        assert memory == known.value or (memory is None and known.lossy), (
            f"{known.id} has {memory} in its memory, not {known.value}"
        )

    async def _end(self) -> None:
        world = self.world
        self.log.append("the end")
        world.host.faults.scheduler = None
        world.host.faults.clear()
        await world.server.tidy()
        world.server.pool.target(world.template, 0)  # type: ignore[arg-type]
        await world.server.stop_loops()
        await world.server.pool.drain()
        await world.server.tidy()
        await check_consistent(world.server)
        rows = await world.all_rows()
        for row in sorted(rows, key=lambda row: row.state is State.PAUSED):
            self._check_row(row)
            if row.state is State.GONE:
                continue
            if row.state is State.PAUSED:
                await world.server.sandboxes.connect(TEAM, row.id, timeout_s=10_000)
            machine, known = world.machine(row.id), self.known.get(row.id)
            if known is not None:
                self._check_value(known, machine.inside.memory.get("v"), machine.inside.files.get("/v"))
            await world.server.sandboxes.kill(TEAM, row.id)

    def _check_row(self, row: Sandbox) -> None:
        assert row.state in (State.RUNNING, State.PAUSED, State.GONE)
        if row.end_reason == "its time to live was over":
            assert row.ended_at is not None
            assert row.ended_at >= row.end_at

    # -- calls ---------------------------------------------------------------------------------------

    def _calls(self) -> list[tuple[Callable[[random.Random], Awaitable[object]], int]]:
        return [
            (self.create, 6),
            (self.repeat_create, 1),
            (self.write, 12),
            (self.pause, 5),
            (self.pause_files, 1),
            (self.connect, 6),
            (self.resume, 2),
            (self.reboot, 1),
            (self.wake, 3),
            (self.kill, 3),
            (self.set_timeout, 3),
            (self.refresh, 1),
            (self.set_network, 2),
            (self.snapshot, 2),
            (self.start_snapshot, 2),
            (self.delete_snapshot, 1),
            (self.fork, 2),
            (self.list_all, 1),
        ]

    def _any(self, chooser: random.Random) -> Known:
        if not self.known:
            raise SandboxNotFound("none")
        return self.known[chooser.choice(sorted(self.known))]

    def _meet(self, row: Sandbox, values: set[str | None], *, lossy: bool = False) -> str:
        """A sandbox seen for the first time: it holds one of these values."""
        assert row.id not in self.known, f"{row.id} was given out twice"
        machine = self.world.reached(row.id)
        if machine is None:
            return f"{row.id} was gone at once"
        value = machine.inside.files.get("/v")
        assert value in values, f"{row.id} begins with {value}, not one of {values}"
        known = self.known[row.id] = Known(row.id, value, lossy=lossy)
        self._check_value(known, machine.inside.memory.get("v"), value)
        return row.id

    def _request(self, chooser: random.Random) -> dict[str, Any]:
        return {
            "timeout_s": chooser.choice([5, 30, 300, 3000]),
            "pause_on_timeout": chooser.random() < 0.5,
            "auto_resume": chooser.random() < 0.5,
            "deny_out": chooser.choice([None, ["8.8.8.8"]]),
        }

    async def create(self, chooser: random.Random) -> object:
        return self._meet(await self.world.create(**self._request(chooser)), {None})

    async def repeat_create(self, chooser: random.Random) -> object:
        key = chooser.choice(["a", "b"])
        row = await self.world.create(timeout_s=300, idempotency_key=key)
        if row.id in self.known:
            return f"{row.id} again"
        return self._meet(row, {None})

    async def write(self, chooser: random.Random) -> object:
        known = self._any(chooser)
        machine = self.world.reached(known.id)
        if machine is None:
            return "not reached"
        self.written += 1
        machine.inside.memory["v"] = machine.inside.files["/v"] = str(self.written)
        known.write(str(self.written))
        return f"{known.id} = {self.written}"

    async def pause(self, chooser: random.Random) -> object:
        known = self._any(chooser)
        row = await self.world.server.sandboxes.pause(TEAM, known.id)
        return f"{known.id} {row.state}"

    async def _rebooting(self, known: Known, work: Awaitable[object]) -> object:
        known.reboots += 1
        known.lossy = True
        try:
            await work
        finally:
            known.reboots -= 1
        return known.id

    async def pause_files(self, chooser: random.Random) -> object:
        known = self._any(chooser)
        work = self.world.server.sandboxes.pause(TEAM, known.id, keep_memory=False)
        return await self._rebooting(known, work)

    async def reboot(self, chooser: random.Random) -> object:
        known = self._any(chooser)
        work = self.world.server.sandboxes.connect(TEAM, known.id, timeout_s=300, keep_memory=False)
        return await self._rebooting(known, work)

    async def connect(self, chooser: random.Random) -> object:
        known = self._any(chooser)
        before, shortened = await self.world.core.store.get(known.id), known.shortened
        timeout = chooser.choice([1, 60, 1000])
        connected = await self.world.server.sandboxes.connect(TEAM, known.id, timeout_s=timeout)
        row = connected.sandbox
        assert row.id == known.id
        ran = before is not None and before.state in (State.RUNNING, State.SNAPSHOTTING)
        if (
            before is not None
            and ran
            and before.generation == row.generation
            and known.shortened == shortened
        ):
            assert row.end_at >= before.end_at, f"connect shortened the life of {row.id}"
        return f"{known.id} for {timeout}, resumed: {connected.resumed}"

    async def resume(self, chooser: random.Random) -> object:
        known = self._any(chooser)
        await self.world.server.sandboxes.resume(TEAM, known.id, timeout_s=100)
        return known.id

    async def wake(self, chooser: random.Random) -> object:
        known = self._any(chooser)
        return f"{known.id}: {await self.world.server.sandboxes.wake(known.id)}"

    async def kill(self, chooser: random.Random) -> object:
        known = self._any(chooser)
        await self.world.server.sandboxes.kill(TEAM, known.id)
        assert self.world.reached(known.id) is None, f"{known.id} is reached after its end"
        return known.id

    async def set_timeout(self, chooser: random.Random) -> object:
        known = self._any(chooser)
        timeout = chooser.choice([0, 3, 100, 1000])
        known.shortened += 1
        try:
            await self.world.server.sandboxes.set_timeout(TEAM, known.id, timeout)
        finally:
            known.shortened += 1
        return f"{known.id} {timeout}"

    async def refresh(self, chooser: random.Random) -> object:
        known = self._any(chooser)
        await self.world.server.sandboxes.refresh(TEAM, known.id, chooser.choice([0, 500]))
        return known.id

    async def set_network(self, chooser: random.Random) -> object:
        known = self._any(chooser)
        deny = chooser.choice([None, ["1.1.1.1"], ["8.8.8.0/24"]])
        await self.world.server.sandboxes.set_network(
            TEAM, known.id, allow_out=None, deny_out=deny, allow_internet=None
        )
        return f"{known.id} {deny}"

    async def snapshot(self, chooser: random.Random) -> object:
        known = self._any(chooser)
        window = {known.value}
        known.windows.append(window)
        try:
            name = chooser.choice([None, "mine"])
            snapshot, _ = await self.world.server.sandboxes.snapshot(TEAM, known.id, name=name)
        finally:
            known.windows.remove(window)
        self.snapshots[snapshot.id] = window
        return f"{known.id} -> {snapshot.id}"

    async def start_snapshot(self, chooser: random.Random) -> object:
        if not self.snapshots:
            return "none"
        snapshot_id = chooser.choice(sorted(self.snapshots))
        row = await self.world.create(template=snapshot_id, **self._request(chooser))
        return self._meet(row, self.snapshots[snapshot_id], lossy=True)

    async def delete_snapshot(self, chooser: random.Random) -> object:
        if not self.snapshots:
            return "none"
        snapshot_id = chooser.choice(sorted(self.snapshots))
        await self.world.server.sandboxes.delete_snapshot(TEAM, snapshot_id)
        return snapshot_id

    async def fork(self, chooser: random.Random) -> object:
        known = self._any(chooser)
        window: set[str | None] = {known.value}
        known.windows.append(window)
        try:
            results = await self.world.server.sandboxes.fork(TEAM, known.id, count=chooser.choice([1, 2, 3]))
        finally:
            known.windows.remove(window)
        met: list[str] = []
        for result in results:
            assert (result.sandbox is None) != (result.error is None)
            if result.sandbox is not None:
                met.append(self._meet(result.sandbox, window, lossy=True))
            else:
                assert self.broken or isinstance(result.error, ORDINARY), result.error
        return f"{known.id} -> {met}"

    async def list_all(self, chooser: random.Random) -> object:
        rows, _ = await self.world.server.sandboxes.list(SandboxFilter(TEAM))
        assert len({row.id for row in rows}) == len(rows)
        return len(rows)


def play(
    seed: int, template: Path, folder: Path, *, clients: int = 4, steps: int = 30, chaos: float = 0.0
) -> None:
    """Play one seed on a host and a database of its own (a copy of `template`), alone with its own loop, clock and ids.

    A failure names the seed and tells the last calls.
    """
    path = folder / "test.db"
    shutil.copyfile(template, path)
    drawn = random.Random(seed)
    log: list[str] = []

    async def main() -> None:
        with without_threads():
            database = Database(sqlite_url(path))
            options = {"team": Limits(sandboxes=LIMIT)}
            async with make_world(database, folder, **options) as world:
                await Scenario(world, seed, log, clients=clients, steps=steps, chaos=chaos).run()
            await database.close()

    try:
        with (
            patch.object(ids.secrets, "randbelow", drawn.randrange),
            patch.object(uuid, "uuid4", lambda: uuid.UUID(int=drawn.getrandbits(128))),
            asyncio.Runner(loop_factory=VirtualTimeLoop) as runner,
        ):
            runner.run(main())
    except BaseException as failure:
        tail = "\n  ".join(log[-60:])
        raise AssertionError(
            f"seed {seed} (clients={clients}, steps={steps}, chaos={chaos}): {failure!r}\n  {tail}"
        ) from failure
