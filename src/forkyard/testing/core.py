"""The sandbox core on a `FakeHost`: everything real but the driver, the daemons and the edge."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry
from sqlalchemy.ext.asyncio import AsyncSession

from forkyard.auth.trail import AuditTrail
from forkyard.base.clock import Clock
from forkyard.base.crashpoints import crash_hook
from forkyard.base.ids import new_short_id, new_template_id, random_text
from forkyard.base.tasks import Operations, Supervisor
from forkyard.guest.client import GuestIdentity
from forkyard.sandboxes.admission import Admission, Limits
from forkyard.sandboxes.changes import Changes
from forkyard.sandboxes.core import Core, CoreSettings
from forkyard.sandboxes.driver import MachineEventKind, MachineSpec
from forkyard.sandboxes.endings import machine_died
from forkyard.sandboxes.expiry import Expiry
from forkyard.sandboxes.journal import Journal
from forkyard.sandboxes.models import Durability, Snapshot, SnapshotKind, SnapshotName, SnapshotState
from forkyard.sandboxes.naming import DEFAULT_TAG
from forkyard.sandboxes.recovery import Recovered, recover
from forkyard.sandboxes.samples import Samples
from forkyard.sandboxes.service import Sandboxes
from forkyard.sandboxes.snapshots import Manifest, SnapshotFiles
from forkyard.sandboxes.store import SandboxStore
from forkyard.sandboxes.telemetry import Telemetry
from forkyard.sandboxes.upkeep import upkeep
from forkyard.sandboxes.warm import DEFAULT_EGRESS, WarmPool
from forkyard.storage.session import Database
from forkyard.testing.clock import ManualClock
from forkyard.testing.fake_driver import FakeDriver
from forkyard.testing.fake_guest import FakeGuests
from forkyard.testing.fake_host import IMAGE, FakeHost
from forkyard.testing.fake_routes import FakeRoutes
from forkyard.testing.faults import Crashed, Life

T = TypeVar("T")

NODE = "node-1"
TEAM = "team-1"

_PATIENCE_S = 20.0
"""Real seconds after which something that should have ended is taken to hang."""

_IDLE_PASSES = 30
"""Passes of the event loop without a call in progress after which nothing moves but the clock."""


_in_loop: ContextVar[bool] = ContextVar("in_loop", default=False)
"""Whether this is one of the loops of a node, and nothing that it has started."""


class WorldClock(ManualClock):
    """A manual clock that knows who waits on it: loops, which always do, or operations, which want to be woken."""

    def __init__(self) -> None:
        super().__init__()
        self._wakes: list[float] = []

    async def sleep(self, seconds: float) -> None:
        if _in_loop.get():
            return await super().sleep(seconds)
        wake = self.monotonic() + seconds
        self._wakes.append(wake)
        try:
            await super().sleep(seconds)
        finally:
            self._wakes.remove(wake)

    @property
    def wanted(self) -> float | None:
        """Seconds until the first of those who are no loops is woken; None if nobody waits."""
        return max(0.0, min(self._wakes) - self.monotonic()) if self._wakes else None


class ForegroundOperations(Operations):
    """What a loop starts is no loop."""

    def start(self, work: Coroutine[Any, Any, T], name: str | None = None) -> asyncio.Task[T]:
        token = _in_loop.set(False)
        try:
            return super().start(work, name)
        finally:
            _in_loop.reset(token)


class GatedDatabase(Database):
    """A database behind the gate of a server's life. Calls: `store.read` and `store.write`.

    A fault that acts after a write stands for a commit that happened although its caller heard of an error.
    """

    def __init__(self, database: Database, life: Life) -> None:
        # Everything is done by the wrapped one.
        self.url = database.url
        self._wrapped = database
        self._life = life

    async def close(self) -> None:
        await self._wrapped.close()

    @asynccontextmanager
    async def read(self) -> AsyncGenerator[AsyncSession]:
        async with self._life.call("store.read"), self._wrapped.read() as session:
            yield session

    @asynccontextmanager
    async def write(self, durable: bool = True) -> AsyncGenerator[AsyncSession]:
        async with self._life.call("store.write"), self._wrapped.write(durable) as session:
            yield session
            # Who dies in the middle of a transaction has written nothing.
            self._life.check()

    async def flush(self) -> None:
        async with self._life.call("store.flush"):
            await self._wrapped.flush()


class GatedFiles(SnapshotFiles):
    """Snapshot files behind the gate of a server's life. Calls: `files.<method>`, subject the snapshot."""

    def __init__(self, root: Path, life: Life) -> None:
        super().__init__(root)
        self._life = life

    async def seal(self, snapshot_id: str, driver: str, result: Any) -> Manifest:
        async with self._life.call("files.seal", snapshot_id):
            return await super().seal(snapshot_id, driver, result)

    async def check(self, snapshot_id: str, manifest: Manifest) -> None:
        async with self._life.call("files.check", snapshot_id):
            await super().check(snapshot_id, manifest)

    async def make_host_safe(self, snapshot_id: str, manifest: Manifest) -> Manifest:
        async with self._life.call("files.make_host_safe", snapshot_id):
            return await super().make_host_safe(snapshot_id, manifest)

    async def remove(self, snapshot_id: str) -> None:
        async with self._life.call("files.remove", snapshot_id):
            await super().remove(snapshot_id)


def make_core(
    database: Database,
    host: FakeHost,
    clock: Clock,
    tmp_path: Path,
    *,
    life: Life | None = None,
    routes: FakeRoutes | None = None,
    node: Limits | None = None,
    team: Limits | None = None,
    team_limits: Callable[[str], Limits] | None = None,
    min_free_disk: int = 0,
    **settings: Any,
) -> Core:
    """A core on this host and database, with its files under `tmp_path`. `settings` are those of `CoreSettings`."""
    life = life or Life(host.faults)
    for folder in ("snapshots", "journal"):
        (tmp_path / folder).mkdir(exist_ok=True)
    return Core(
        node_id=NODE,
        store=SandboxStore(GatedDatabase(database, life)),
        driver=FakeDriver(host, life),
        routes=routes or FakeRoutes(host, life),
        guests=FakeGuests(host, life),
        files=GatedFiles(tmp_path / "snapshots", life),
        admission=Admission(
            node_id=NODE,
            node=node or Limits(),
            team=team or Limits(),
            data_dir=tmp_path,
            min_free_disk=min_free_disk,
            clock=clock,
            team_limits=team_limits,
        ),
        journal=Journal(tmp_path / "journal", clock),
        audit=AuditTrail(database, clock),
        telemetry=Telemetry(CollectorRegistry()),
        clock=clock,
        changes=Changes(),
        operations=ForegroundOperations(),
        settings=replace(CoreSettings(), **settings),
    )


async def add_template(core: Core, *, name: str = "base", team_id: str | None = None) -> Snapshot:
    """A template that every team (or one) sees: a machine booted, marked and captured, as `templates/` does it."""
    shape = core.driver.shape(image=IMAGE, vcpus=2, memory_mb=512, disk_mb=1024)
    machine = f"template-{new_short_id()}"
    template_id, snapshot_id = new_template_id(), random_text(20)
    handle = await core.driver.create(MachineSpec(machine, shape, DEFAULT_EGRESS))
    identity = GuestIdentity("template", template_id, 0, "template", "boot-0", "machine-0", None)
    version = await core.guests.init(handle.address, identity, timeout_s=1.0)
    result = await core.driver.checkpoint(handle, core.files.directory(snapshot_id))
    manifest = await core.files.seal(snapshot_id, core.driver.name, result)
    await core.driver.destroy(handle)
    snapshot = Snapshot(
        id=snapshot_id,
        team_id=team_id,
        node_id=core.node_id,
        kind=SnapshotKind.TEMPLATE,
        state=SnapshotState.READY,
        durability=Durability.HOST,
        template_id=template_id,
        generation=0,
        vcpus=shape.vcpus,
        memory_mb=shape.memory_mb,
        disk_mb=shape.disk_mb,
        size_bytes=manifest.size_bytes,
        envd_version=version,
        keeps_memory=True,
        settings={"env": {"PATH": "/bin"}, "user": "user", "workdir": "/home/user"},
        manifest=manifest.to_json(),
        created_at=core.clock.now(),
    )
    label = SnapshotName(
        team_id=team_id or "",
        name=name,
        tag=DEFAULT_TAG,
        snapshot_id=snapshot_id,
        created_at=core.clock.now(),
    )
    await core.store.insert_snapshot(snapshot, [label])
    return snapshot


@dataclass(slots=True)
class Server:
    """One run of a server on a fake host: the core, the service over it, and what a real one runs in the background."""

    core: Core
    sandboxes: Sandboxes
    pool: WarmPool
    expiry: Expiry
    samples: Samples
    life: Life
    host: FakeHost
    clock: WorldClock
    _loops: Supervisor

    async def quiet(self, but: int = 0) -> None:
        """Wait until no operation is in progress (`but` for some that a test holds up), letting the clock run for those
        that wait on it.
        """
        await self._until(lambda: len(self.core.operations) <= but)

    async def do(self, work: Awaitable[T]) -> T:
        """The result of `work`, letting the clock run while it waits on it (for a retry, say)."""
        task = asyncio.ensure_future(work)
        await self._until(task.done)
        return task.result()

    async def _until(self, done: Callable[[], bool]) -> None:
        """Until this is true. When nothing but the clock can be waited for, it goes on to the next who waits on it."""
        async with asyncio.timeout(_PATIENCE_S):
            idle = 0
            while not done():
                await asyncio.sleep(0)
                idle = 0 if self.life.busy else idle + 1
                if idle < _IDLE_PASSES:
                    continue
                idle = 0
                wake = self.clock.wanted
                if wake is not None:
                    await self.clock.advance(wake)
                else:
                    await asyncio.sleep(0.001)  # A thread or a socket, then.

    async def let_expiry_rest(self) -> None:
        """Let the expiry loop do what is due now, until it waits for the clock."""
        for _ in range(_IDLE_PASSES):
            await asyncio.sleep(0)
        async with asyncio.timeout(_PATIENCE_S):
            while not self.core.deadlines.resting:
                await asyncio.sleep(0.0005)

    async def tidy(self) -> None:
        """What the node does now and then: finish what was left, until nothing is."""
        self.host.faults.clear()
        await self.quiet()
        await self.clock.advance(6.0)
        await self.do(upkeep(self.core))
        await self.quiet()

    def start(self, loop: Callable[[], Awaitable[None]]) -> None:
        """Run one of the loops of a node until the server stops or crashes; one that fails is started again."""
        token = _in_loop.set(True)
        try:
            self._loops.start(f"loop-{len(self._loops.running)}", loop)
        finally:
            _in_loop.reset(token)

    def start_events(self) -> None:
        """Handle deaths of machines, as the node does."""
        self.start(self._events)

    async def _events(self) -> None:
        async for event in self.core.driver.events():
            if event.kind is MachineEventKind.EXIT:
                if self.pool.discard(event.name):
                    await self.core.driver.destroy(event.name)
                else:
                    self.core.operations.start_logged(
                        machine_died(self.core, event.name, event.reason), f"exit-{event.name}"
                    )

    async def stop(self) -> None:
        """A clean stop: operations end, machines run on."""
        await self.stop_loops()
        await self.pool.drain()
        await self.quiet()
        await self.core.driver.close()

    async def crash(self) -> None:
        """kill -9: nothing has an effect any more."""
        self.life.die()
        await self.stop_loops()
        await self.core.operations.cancel()
        await self.core.driver.close()

    async def stop_loops(self) -> None:
        """Stop what `start` has started."""
        await self._loops.stop()


async def open_server(
    database: Database,
    host: FakeHost,
    clock: WorldClock,
    tmp_path: Path,
    *,
    on_open: Callable[[Server], None] = lambda _server: None,
    **options: Any,
) -> tuple[Server, Recovered]:
    """Start a server on a host, as after an installation or a crash: what the last one left is recovered."""
    life = Life(host.faults)
    routes = FakeRoutes(host, life, attached=False)
    core = make_core(database, host, clock, tmp_path, life=life, routes=routes, **options)
    pool, expiry, samples = WarmPool(core), Expiry(core), Samples(core)
    server = Server(
        core,
        Sandboxes(core, pool=pool, samples=samples),
        pool,
        expiry,
        samples,
        life,
        host,
        clock,
        Supervisor(clock, first_delay=0.1),
    )
    await core.driver.open()
    on_open(server)
    return server, await server.do(recover(core, routes.attach))


@asynccontextmanager
async def running_server(
    database: Database, host: FakeHost, clock: WorldClock, tmp_path: Path, **options: Any
) -> AsyncGenerator[Server]:
    """A server for the length of the block. Whatever happened in it, no rule of the host may have been broken."""
    server, _ = await open_server(database, host, clock, tmp_path, **options)
    with crash_hook(server.life.reach):
        try:
            yield server
        finally:
            host.faults.clear()
            if server.life.dead:
                await server.crash()
            else:
                await server.stop()
    if host.violations:
        raise AssertionError("; ".join(host.violations))


__all__ = [
    "NODE",
    "TEAM",
    "Crashed",
    "GatedDatabase",
    "GatedFiles",
    "Server",
    "add_template",
    "make_core",
    "open_server",
    "running_server",
]
