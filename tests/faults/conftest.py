"""Servers for the faults: real machines, no pools (so that what is there is what the store says)."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.server import ServerProcess
from tests.faults.inspection import check_nothing_left, on_host

ROOT = Path(__file__).parents[2]
NO_POOLS = {"FORKYARD_WARM_POOL": "0", "FORKYARD_EMPTY_POOL": "0"}


@pytest.fixture(scope="session", autouse=True)
def _programs() -> None:
    if not (ROOT / "build" / "bin" / "envd").exists():
        pytest.fail("the programs are not built: run `make bootstrap`")


@pytest.fixture(scope="module")
def make_server(tmp_path_factory: pytest.TempPathFactory) -> Generator[Callable[..., ServerProcess]]:
    """Makes servers, not started yet; at the end nothing of any of them may be left on the host."""
    with _servers(tmp_path_factory) as make:
        yield make


@pytest.fixture(scope="package")
def make_hostile_server(tmp_path_factory: pytest.TempPathFactory) -> Generator[Callable[..., ServerProcess]]:
    """The same for the length of a package."""
    with _servers(tmp_path_factory) as make:
        yield make


@contextmanager
def _servers(tmp_path_factory: pytest.TempPathFactory) -> Generator[Callable[..., ServerProcess]]:
    made: list[ServerProcess] = []

    def make(data_dir: Path | None = None, **env: str) -> ServerProcess:
        data_dir = data_dir or tmp_path_factory.mktemp("server", numbered=True) / "d"
        made.append(ServerProcess(data_dir, env={**NO_POOLS, **env}))
        return made[-1]

    try:
        yield make
    finally:
        for server in made:
            if server.alive():
                server.stop()
            if (server.data_dir / "instance").exists() and on_host(server.data_dir):
                server.down()
                check_nothing_left(server.data_dir)


@pytest.fixture(scope="module")
def server(make_server: Callable[..., ServerProcess]) -> ServerProcess:
    """One server for a module's tests. Each leaves it running."""
    server = make_server()
    server.start()
    return server
