"""A server with small sandboxes: an attacker who is root in his, a victim in another, and a probe of the server's
health that runs under every test."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Generator

import pytest
from e2b import CommandExitException, Sandbox

from tests.e2e.server import ServerProcess
from tests.faults.inspection import command_line, instance_of, processes
from tests.faults.witness import Witness, sdk

DISK_MB = 512
MEMORY_MB = 512
WORST_P99_S = 1.0
"""For an answer of the server under attack, on a machine of two cores that the attacks share."""
MOST_RSS_MB = 300


@pytest.fixture(scope="package")
def hostile_server(
    make_hostile_server: Callable[..., ServerProcess],
) -> ServerProcess:
    server = make_hostile_server(
        FORKYARD_TEMPLATE_DISK_MB=str(DISK_MB), FORKYARD_TEMPLATE_MEMORY_MB=str(MEMORY_MB)
    )
    server.start()
    return server


@pytest.fixture(scope="package")
def victim(hostile_server: ServerProcess) -> Witness:
    return Witness.create(hostile_server)


@pytest.fixture
def attacker(hostile_server: ServerProcess) -> Generator[Sandbox]:
    sandbox = Sandbox.create("base", timeout=600, **sdk(hostile_server))
    yield sandbox
    Sandbox.kill(sandbox.sandbox_id, **sdk(hostile_server))


@pytest.fixture(autouse=True)
def server_stays_well(hostile_server: ServerProcess, victim: Witness) -> Generator[Health]:
    """Fails the test when the server answered late or not at all, grew, or the victim noticed anything."""
    with Health(hostile_server) as health:
        yield health
    victim.check()
    assert not health.failures, health.failures[:3]
    assert health.p99() < WORST_P99_S, f"p99 of /health was {health.p99():.2f} s"
    for pid, name in programs(hostile_server):
        assert resident_mb(pid) < MOST_RSS_MB, f"{name} takes {resident_mb(pid):.0f} MB"


class Health:
    """Asks the server how it is, for as long as the block lasts."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.times: list[float] = []
        self.failures: list[str] = []

    def __enter__(self) -> Health:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stop.set()
        self._thread.join(30)

    def p99(self) -> float:
        ordered = sorted(self.times)
        return ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))] if ordered else 0.0

    def _run(self) -> None:
        while not self._stop.wait(0.02):
            began = time.monotonic()
            connection = http.client.HTTPConnection("127.0.0.1", self._server.port, timeout=10)
            try:
                connection.request("GET", "/health")
                status = connection.getresponse().status
                if status not in (200, 204):
                    self.failures.append(str(status))
            except (OSError, http.client.HTTPException) as error:
                self.failures.append(repr(error))
            finally:
                connection.close()
            self.times.append(time.monotonic() - began)


def programs(server: ServerProcess) -> list[tuple[int, str]]:
    """Pids and names of server, edge and keeper."""
    found = [(server.pid, "server")]
    for pid in processes(instance_of(server.data_dir)):
        program = command_line(pid).partition(" ")[0].rpartition("/")[2]
        if program in ("edge", "keeper"):
            found.append((pid, program))
    return found


def resident_mb(pid: int) -> float:
    with open(f"/proc/{pid}/statm") as statm:
        return int(statm.read().split()[1]) * 4096 / (1 << 20)


def address_of(server: ServerProcess, sandbox_id: str) -> str:
    for path in (server.data_dir / "node" / "machines").glob(f"{sandbox_id}-*.json"):
        return str(json.loads(path.read_text())["address"])
    raise AssertionError(f"{sandbox_id} has no machine")


def as_root(sandbox: Sandbox, script: str, *, timeout: float = 60) -> str:
    """Run a Python script as root inside; what it prints. A failing script fails the test."""
    sandbox.files.write("/root/attack.py", script, user="root")
    try:
        return sandbox.commands.run("python3 /root/attack.py", user="root", timeout=timeout).stdout
    except CommandExitException as error:
        raise AssertionError(f"the script failed: {error.stderr[-2000:]}") from error
