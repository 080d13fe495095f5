"""Tab completion: names from the server, nothing when it is not there, and no server packages imported for it."""

import subprocess
import sys

import pytest

from forkyard.cli import main
from forkyard.cli.completion import complete_sandbox, complete_snapshot, complete_template
from tests.unit.cli.conftest import FakeServer
from tests.unit.cli.test_commands import SANDBOX, sandbox


def test_names_come_from_the_server(api: FakeServer) -> None:
    api.on("GET /v2/sandboxes", [sandbox()])
    api.on("GET /templates", [{"names": ["base"], "aliases": ["base"]}])
    api.on("GET /snapshots", [{"snapshotID": "b1", "names": ["before"]}])
    assert complete_sandbox("i0") == [(SANDBOX, "base, running")]
    assert complete_sandbox("x") == []
    assert complete_template("b") == [("base", "template"), ("before", "snapshot"), ("b1", "snapshot")]
    assert complete_snapshot("") == [("b1", "before")]


def test_a_server_that_fails_gives_no_names(api: FakeServer) -> None:
    api.on("GET /v2/sandboxes", {"not": "a list"})
    api.on("GET /templates", None, 500)
    assert complete_sandbox("") == []
    assert complete_template("") == []


@pytest.mark.parametrize(
    ("words", "environment", "first"),
    [
        (["forkyard", "list"], {}, "list"),
        (["forkyard"], {}, ""),
        (["forkyard"], {"COMP_WORDS": "forkyard connect "}, "connect"),
        (["aenv"], {"_TYPER_COMPLETE_ARGS": "aenv exec i"}, "exec"),
    ],
)
def test_the_command_is_known_before_anything_is_imported(
    monkeypatch: pytest.MonkeyPatch, words: list[str], environment: dict[str, str], first: str
) -> None:
    monkeypatch.setattr("sys.argv", words)
    for name in ("COMP_WORDS", "_TYPER_COMPLETE_ARGS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert main._first_word() == first


@pytest.mark.parametrize(
    ("word", "spared"),
    [
        ("list", {"sqlalchemy", "fastapi", "forkyard.node"}),
        ("--version", {"sqlalchemy", "fastapi", "forkyard.node"}),
        ("teams", {"fastapi", "uvicorn", "aiohttp", "forkyard.node.server"}),
        ("doctor", {"fastapi", "uvicorn", "forkyard.node.server"}),
    ],
)
def test_a_command_imports_only_what_it_needs(word: str, spared: set[str]) -> None:
    code = f"import sys; from forkyard.cli.main import load; load({word!r}); print({spared!r} & set(sys.modules))"
    found = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    assert found.stdout == "set()\n"
