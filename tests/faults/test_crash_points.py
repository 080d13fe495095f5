"""kill -9 of the server at every named point of every transition, twice in a row, on both databases."""

from __future__ import annotations

import http.client
import subprocess
import threading
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass, field

import pytest

import forkyard.node.server
from forkyard.base.crashpoints import KNOWN
from forkyard.sandboxes.state import State
from forkyard.testing.postgres import PostgresServer
from tests.e2e.server import ServerProcess
from tests.faults.inspection import check_agreement, check_nothing_left, records
from tests.faults.witness import Witness, call

assert forkyard.node.server  # every module that has points is imported now

RUNNING, PAUSED, GONE = State.RUNNING, State.PAUSED, State.GONE


@dataclass(frozen=True)
class Operation:
    """What makes the server reach a point, and how the sandbox may be found afterwards."""

    act: Callable[[ServerProcess, str], object]
    outcomes: frozenset[State]
    paused_before: bool = False


def _pause(server: ServerProcess, sandbox_id: str) -> object:
    return call(server, "POST", f"/sandboxes/{sandbox_id}/pause")


def _connect(server: ServerProcess, sandbox_id: str) -> object:
    return call(server, "POST", f"/sandboxes/{sandbox_id}/connect", {"timeout": 3600})


def _snapshot(server: ServerProcess, sandbox_id: str) -> object:
    return call(server, "POST", f"/sandboxes/{sandbox_id}/snapshots", {})


def _fork(server: ServerProcess, sandbox_id: str) -> object:
    return call(server, "POST", f"/sandboxes/{sandbox_id}/fork", {"count": 2, "timeout": 3600})


def _create(server: ServerProcess, _sandbox_id: str) -> object:
    return call(server, "POST", "/sandboxes", {"templateID": "base", "timeout": 3600})


def _create_and_kill(server: ServerProcess, _sandbox_id: str) -> object:
    """Then its slot is a spare one, which is removed when the server stops."""
    created = call(server, "POST", "/sandboxes", {"templateID": "base", "timeout": 3600})
    return call(server, "DELETE", f"/sandboxes/{created.body['sandboxID']}")


def _kill(server: ServerProcess, sandbox_id: str) -> object:
    return call(server, "DELETE", f"/sandboxes/{sandbox_id}")


PAUSE = Operation(_pause, frozenset({RUNNING, PAUSED}))
PAUSE_DONE = Operation(_pause, frozenset({PAUSED}))
RESUME = Operation(_connect, frozenset({RUNNING, PAUSED}), paused_before=True)
SNAPSHOT = Operation(_snapshot, frozenset({RUNNING}))
FORK = Operation(_fork, frozenset({RUNNING}))
CREATE = Operation(_create, frozenset({RUNNING}))
CREATE_AND_KILL = Operation(_create_and_kill, frozenset({RUNNING}))
KILL = Operation(_kill, frozenset({GONE}))
KILL_PAUSED = Operation(_kill, frozenset({GONE}), paused_before=True)

CASES: dict[str, list[tuple[str, Operation]]] = {
    "pause.committed": [("pause", PAUSE_DONE)],
    "pause.host_safe": [("pause", PAUSE_DONE)],
    "pause.destroyed": [("pause", PAUSE_DONE)],
    "fork.captured": [("fork", FORK)],
    "slots.disconnected": [("create", CREATE_AND_KILL)],
    "slots.unreleased": [("create", CREATE_AND_KILL)],
}
BY_PREFIX: dict[str, list[tuple[str, Operation]]] = {
    "pause": [("pause", PAUSE)],
    "resume": [("resume", RESUME)],
    "capture": [("snapshot", SNAPSHOT), ("fork", FORK)],
    "start": [("create", CREATE), ("fork", FORK)],
    "kill": [("running", KILL), ("paused", KILL_PAUSED)],
    "slots": [("create", CREATE)],
}
RESUME_TOO = {"start.routed", "start.committed"}
"""Points that creates, forks and resumes have in common."""


def _cases() -> list[object]:
    cases: list[object] = []
    for point in sorted(KNOWN):
        prefix = point.partition(".")[0]
        if prefix == "template":
            continue
        operations = CASES.get(point) or BY_PREFIX[prefix]
        operations = [*operations, ("resume", RESUME)] if point in RESUME_TOO else operations
        cases += [pytest.param(point, operation, id=f"{point}-{name}") for name, operation in operations]
    return cases


@dataclass
class Yard:
    """A server that is killed again and again, with two sandboxes that must never notice."""

    server: ServerProcess
    database_url: str | None
    bystanders: list[Witness] = field(default_factory=list[Witness])

    def check(self, timeout_s: float = 30.0) -> None:
        check_agreement(self.server.data_dir, self.database_url, timeout_s)

    def state(self, sandbox_id: str) -> State:
        return records(self.server.data_dir, self.database_url).state(sandbox_id)

    def crash_at(self, point: str, act: Callable[[], object], *, again: bool = False) -> None:
        """Restart the server, let it die at `point`: while it starts, in `act`, in what follows it, or in its stop.

        It must, but the second time (`again`), when there may be nothing left to do that leads there.
        """
        if self.server.alive():
            self.server.kill()
        try:
            self.server.start(env={"FORKYARD_CRASH_AT": point})
        except RuntimeError:
            assert self.server.wait() == -9, f"the server did not start:\n{self.server.tail()}"
            return
        thread = threading.Thread(target=_quietly, args=(act,), daemon=True)
        thread.start()
        # Many points lie behind the answer; a server that does not die in time has passed none.
        thread.join(60)
        try:
            code = self.server.wait(0.5 if again else 5)
        except subprocess.TimeoutExpired:
            code = self.server.stop()
        assert code == -9 or (again and code == 0), f"{point} was never reached"


def _quietly(act: Callable[[], object]) -> None:
    with suppress(OSError, http.client.HTTPException):  # the server died under it, as it should
        act()


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def yard(request: pytest.FixtureRequest, make_server: Callable[..., ServerProcess]) -> Generator[Yard]:
    url = None
    env: dict[str, str] = {}
    if request.param == "postgresql":
        postgres: PostgresServer = request.getfixturevalue("postgres_server")
        url = env["DATABASE_URL"] = postgres.create_database()
    yard = Yard(make_server(**env), url)
    yard.server.start()
    yard.bystanders += [Witness.create(yard.server), Witness.create(yard.server)]
    yard.bystanders[1].pause()
    yield yard
    if not yard.server.alive():
        yard.server.start()
    for witness in yard.bystanders:
        witness.check()
        witness.kill()
    yard.check()
    assert yard.server.stop() == 0
    # Nothing runs any more, so nothing may be left either.
    check_nothing_left(yard.server.data_dir)


QUICK = {"pause.sealed-pause", "resume.restored-resume", "start.routed-create", "kill.unrouted-running"}


def _marked(case: object) -> object:
    assert isinstance(case, type(pytest.param()))
    marks = [pytest.mark.quick] if case.id in QUICK else [pytest.mark.slow]
    return pytest.param(*case.values, id=str(case.id), marks=marks)


@pytest.mark.timeout(180)
@pytest.mark.parametrize(("point", "operation"), [_marked(case) for case in _cases()])
def test_killed_twice_at(yard: Yard, point: str, operation: Operation) -> None:
    if yard.database_url and point.startswith("slots."):
        pytest.skip("no database is concerned")
    server = yard.server
    if not server.alive():
        server.start()
    witness = Witness.create(server)
    if operation.paused_before:
        witness.pause()
    for again in (False, True):
        yard.crash_at(point, lambda: operation.act(server, witness.id), again=again)
    server.start()
    yard.check()
    state = yard.state(witness.id)
    assert state in operation.outcomes
    if state is not GONE:
        witness.check()
    yard.bystanders[0].check()
    _check_others(yard, witness)
    yard.check()


def _check_others(yard: Yard, witness: Witness) -> None:
    """Children and new sandboxes that the store calls running do run; then all but the bystanders go."""
    rows = records(yard.server.data_dir, yard.database_url)
    bystanders = {b.id for b in yard.bystanders}
    for row in rows.of(RUNNING, PAUSED):
        if row.id in bystanders:
            continue
        if row.parent_id == witness.id:
            witness.check(row.id)
        elif row.id != witness.id:
            assert call(yard.server, "GET", f"/sandboxes/{row.id}").status == 200
        assert call(yard.server, "DELETE", f"/sandboxes/{row.id}").status == 204
    for snapshot in rows.snapshots:
        if snapshot.kind == "snapshot":
            assert call(yard.server, "DELETE", f"/templates/{snapshot.id}").status == 204


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("point", sorted(p for p in KNOWN if p.startswith("template.")))
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_killed_twice_while_the_template_is_made(
    request: pytest.FixtureRequest, make_server: Callable[..., ServerProcess], point: str, database: str
) -> None:
    env: dict[str, str] = {}
    if database == "postgresql":
        env["DATABASE_URL"] = request.getfixturevalue("postgres_server").create_database()
    yard = Yard(make_server(**env), env.get("DATABASE_URL"))
    for _ in range(2):
        with pytest.raises(RuntimeError):
            yard.server.start(env={"FORKYARD_CRASH_AT": point})
        assert yard.server.wait() == -9
        if point == "template.registered":
            break  # it is made now
    yard.server.start()
    yard.check()
    witness = Witness.create(yard.server)
    witness.check()
    witness.kill()
    yard.check()
    assert yard.server.stop() == 0
    check_nothing_left(yard.server.data_dir)
