"""A fake host with a server on it that can be killed and started again, and what must hold whenever all is quiet."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from sqlalchemy import select

from forkyard.base.crashpoints import crash_hook
from forkyard.sandboxes.core import Core, identity_of
from forkyard.sandboxes.creating import NewSandbox
from forkyard.sandboxes.driver import Handle
from forkyard.sandboxes.egress import policy_of
from forkyard.sandboxes.models import Sandbox, Snapshot, SnapshotKind, SnapshotState
from forkyard.sandboxes.recovery import Recovered
from forkyard.sandboxes.routing import RouteState
from forkyard.sandboxes.snapshots import Manifest
from forkyard.sandboxes.state import State
from forkyard.sandboxes.store import SandboxStore
from forkyard.storage.session import Database
from forkyard.testing.core import NODE, TEAM, Server, WorldClock, add_template, open_server
from forkyard.testing.fake_host import FakeHost, FakeMachine
from forkyard.testing.faults import Crashed, Fault


class World:
    """Use it as `async with make_world(...) as world`; `world.server` is the run of the server that lives now."""

    def __init__(
        self, database: Database, tmp_path: Path, options: dict[str, Any], host: FakeHost | None = None
    ) -> None:
        self.host = host or FakeHost()
        self.clock = WorldClock()
        self.options = options
        """For the next server: what `make_core` takes."""
        self.template: Snapshot | None = None
        self._database = database
        self._path = tmp_path
        self._server: Server | None = None
        self._recovered = False
        self._hook = ExitStack()

    @property
    def server(self) -> Server:
        if self._server is None:
            raise AssertionError("no server runs")
        return self._server

    @property
    def core(self) -> Core:
        return self.server.core

    async def start(self) -> Recovered:
        """Start a server; what the last one left is recovered."""

        def arm(server: Server) -> None:
            self._server = server
            self._hook.enter_context(crash_hook(server.life.reach))

        _, recovered = await open_server(
            self._database, self.host, self.clock, self._path, on_open=arm, **self.options
        )
        self._recovered = True
        return recovered

    async def start_and_die(self, nth: int) -> bool:
        """Start a server that is killed at its n-th call of all; False if its recovery ended before that."""
        fault = Fault("*", nth, effect=lambda _call: self.server.life.die())
        self.host.faults.add(fault)
        with suppress(Crashed):
            await self.start()
            await self.server.quiet()
        self.host.faults.clear()
        return self.server.life.dead

    async def stop(self) -> None:
        """A clean stop; machines run on."""
        server, self._server = self.server, None
        self._recovered = False
        await server.stop()
        self._hook.close()

    async def crash(self) -> None:
        """kill -9."""
        server, self._server = self.server, None
        self._recovered = False
        await server.crash()
        self._hook.close()
        self.host.faults.clear()

    @property
    def database(self) -> Database:
        return self._database

    def use(self, database: Database) -> None:
        """The database of the next server."""
        self._database = database

    async def abandon(self) -> None:
        """After a test that failed: nothing is checked."""
        if self._server is not None:
            await self.crash()
        self._hook.close()

    async def restart(self) -> Recovered:
        """kill -9, and the next server."""
        await self.crash()
        return await self.start()

    async def create(self, team_id: str = TEAM, template: str = "base", **request: Any) -> Sandbox:
        return await self.server.sandboxes.create(team_id, NewSandbox(template, **request))

    async def all_rows(self) -> Sequence[Sandbox]:
        """Every record, those of ended sandboxes too."""
        async with self._database.read() as session:
            return (await session.scalars(select(Sandbox))).all()

    @property
    def snapshot_folder(self) -> Path:
        return self._path / "snapshots"

    def machine(self, sandbox_id: str) -> FakeMachine:
        """The machine that requests for this sandbox reach."""
        return self.host.machine(sandbox_id)

    def reached(self, sandbox_id: str) -> FakeMachine | None:
        """The machine that requests for it reach now, if any."""
        route = self.host.routes.get(sandbox_id)
        if route is None or route.state is not RouteState.RUNNING or route.address is None:
            return None
        return self.host.at(route.address)

    @property
    def alive(self) -> bool:
        """Whether a server runs that has recovered and has not been killed."""
        return self._server is not None and self._recovered and not self._server.life.dead

    async def database_usage(self, team_id: str) -> int:
        """Sandboxes of a team that take room, whatever the server is doing."""
        return (await SandboxStore(self._database).usage(team_id=team_id)).sandboxes

    async def row(self, sandbox_id: str) -> Sandbox:
        row = await self.core.store.get(sandbox_id)
        if row is None:
            raise AssertionError(f"no record of {sandbox_id}")
        return row

    async def state(self, sandbox_id: str) -> State:
        return (await self.row(sandbox_id)).state

    async def end(self) -> None:
        """At the end of a test: whatever happened, all must be at rest, and nothing may have been left behind."""
        self.host.faults.clear()
        if self._server is not None:
            if self.server.life.dead:
                await self.restart()
            await self.server.tidy()
            await check_consistent(self.server)
            await self.stop()
        self._hook.close()
        if self.host.violations:
            raise AssertionError("; ".join(self.host.violations))


@asynccontextmanager
async def make_world(database: Database, tmp_path: Path, **options: Any) -> AsyncGenerator[World]:
    """A host with a server and the template `base`. In the end everything is checked, unless the test failed."""
    world = World(database, tmp_path, options)
    try:
        await world.start()
        world.template = await add_template(world.core)
        yield world
    except BaseException:
        await world.abandon()
        raise
    await world.end()


async def check_consistent(server: Server) -> None:
    """Records, machines, routes and files agree, every sandbox is at rest, and nobody owns or waits for anything."""
    problems: list[str] = []
    rows = await server.core.store.of_node(NODE)
    for row in rows:
        problems += await _problems_of(server, row)
    warm = sum(server.pool.ready().values())
    owned = {row.handle["name"] for row in rows if row.handle}
    extra = set(server.host.machines) - owned
    if len(extra) != warm or not all(name.startswith("warm-") for name in extra):
        problems.append(f"machines that nobody owns: {sorted(extra)}")
    strangers = set(server.host.routes) - {row.id for row in rows}
    if strangers:
        problems.append(f"routes of sandboxes that are gone: {sorted(strangers)}")
    problems += await _snapshot_problems(server, rows)
    core = server.core
    left = {"leftovers": core.leftovers, "unaligned": core.unaligned, "unburied": core.unburied}
    problems += [f"{what}: {names}" for what, names in left.items() if names]
    if len(core.operations):
        problems.append(f"{len(core.operations)} operations")
    problems += server.host.violations
    if problems:
        raise AssertionError("; ".join(problems))


async def _problems_of(server: Server, row: Sandbox) -> list[str]:
    problems: list[str] = []

    def expect(true: bool, what: str) -> None:
        if not true:
            problems.append(f"{row.id} ({row.state.value}): {what}")

    route = server.host.routes.get(row.id)
    expect(row.state in (State.RUNNING, State.PAUSED), "is not at rest")
    expect(
        not (row.transition or row.transition_at or row.transition_intent or row.transition_snapshot_id),
        "has the rest of a transition",
    )
    expect(route is not None and route.generation == row.generation, f"has the route {route}")
    if row.state is State.RUNNING:
        machine = server.host.machines.get(row.handle["name"]) if row.handle else None
        expect(machine is not None and machine.alive, f"has no machine ({row.handle})")
        expect(row.snapshot_id is None, "has a snapshot")
        expect(route is not None and route.state is RouteState.RUNNING, f"has the route {route}")
        if machine is not None:
            expect(machine.handle == Handle.from_json(row.handle or {}), "has another machine")
            expect(not machine.cut, "is cut off")
            expect(machine.watched, "is not watched")
            expect(machine.egress == policy_of(row), "has another egress policy")
            expect(machine.identity == identity_of(row), f"knows itself as {machine.identity}")
            expect(route is not None and route.address == machine.address, "is routed elsewhere")
    if row.state is State.PAUSED:
        expect(row.handle is None, "has a machine")
        expect(row.snapshot_id is not None, "has no snapshot")
        expect(route is not None and route.state is RouteState.PAUSED, f"has the route {route}")
        snapshot = await server.core.store.snapshot(row.snapshot_id or "")
        expect(snapshot is not None and snapshot.state == SnapshotState.READY, "has no usable snapshot")
    return problems


async def _snapshot_problems(server: Server, rows: Any) -> list[str]:
    problems: list[str] = []
    core = server.core
    states = [SnapshotState.WRITING, SnapshotState.READY, SnapshotState.DELETING]
    snapshots = await core.store.snapshots_in(NODE, states)
    used = {row.snapshot_id for row in rows}
    for snapshot in snapshots:
        what = f"snapshot {snapshot.id} ({snapshot.kind}, {snapshot.state})"
        if snapshot.state != SnapshotState.READY or snapshot.kind == SnapshotKind.FORK:
            problems.append(f"{what} is left")
        elif snapshot.kind == SnapshotKind.PAUSE and snapshot.id not in used:
            problems.append(f"{what} is not used")
        else:
            try:
                await core.files.check(snapshot.id, Manifest.from_json(snapshot.manifest or {}))
            except Exception as error:
                problems.append(f"{what}: {error!r}")
    there = set(core.files.present())
    if there != {snapshot.id for snapshot in snapshots}:
        problems.append(f"directories without a record: {there - {s.id for s in snapshots}}")
    return problems
