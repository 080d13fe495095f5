"""One server for all e2e tests of a run; each test has sandboxes of its own."""

from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from e2b import Sandbox

from tests.e2e.server import ServerProcess

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[ServerProcess]:
    if not (ROOT / "build" / "bin" / "envd").exists():
        pytest.fail("the programs are not built: run `make bootstrap`")
    with ServerProcess(tmp_path_factory.mktemp("server") / "data") as running:
        yield running


@pytest.fixture(autouse=True)
def sdk(server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """Points the unmodified SDK at the server."""
    for name, value in server.sdk_env().items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def make_sandbox() -> Generator[Callable[..., Sandbox]]:
    """Makes sandboxes that are killed at the end of the test."""
    made: list[Sandbox] = []

    def make(template: str = "base", **options: object) -> Sandbox:
        made.append(Sandbox.create(template, **options))
        return made[-1]

    yield make
    for sandbox in made:
        sandbox.kill()


@pytest.fixture
def sandbox(make_sandbox: Callable[..., Sandbox]) -> Sandbox:
    return make_sandbox(timeout=300)
