"""The guide names every command, every second name and every exit code."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from forkyard.cli import exits
from forkyard.cli.commands import sandboxes
from forkyard.cli.main import app

GUIDE = (Path(__file__).parents[3] / "docs" / "guide" / "cli.md").read_text()


def commands(group: typer.Typer, prefix: str = "") -> Iterator[tuple[str, bool]]:
    """Every command with its group, and whether `--help` leaves it out."""
    for command in group.registered_commands:
        name = command.name or getattr(command.callback, "__name__", "")
        yield prefix + name, bool(command.hidden)
    for inner in group.registered_groups:
        if not inner.hidden and inner.typer_instance is not None:
            yield from commands(inner.typer_instance, f"{inner.name} ")


def test_every_command_has_a_row() -> None:
    missing = [
        name
        for name, hidden in commands(app)
        if not re.search(rf"\(`{name.split()[-1]}`\)" if hidden else rf"^\| `{name}[ `]", GUIDE, re.MULTILINE)
    ]
    assert missing == []
    assert len(list(commands(app))) > 20


def test_every_row_is_a_command() -> None:
    known = {name for name, _ in commands(app)}
    rows = re.findall(r"^\| `([a-z]+(?: (?:create|list|delete|revoke|limit))?)\b", GUIDE, re.MULTILINE)
    assert [row for row in rows if row not in known] == []


@pytest.mark.parametrize(
    "code",
    [
        exits.FAILED,
        exits.USAGE,
        exits.NOT_FOUND,
        exits.NOT_AUTHENTICATED,
        exits.CONFLICT,
        exits.LIMIT,
        exits.UNREACHABLE,
        sandboxes.OWN_FAILURE,
    ],
)
def test_every_exit_code_has_a_row(code: int) -> None:
    assert f"\n| {code} | " in GUIDE


def test_every_test_of_a_report_exists() -> None:
    """The table in tests/README.md."""
    root = Path(__file__).parents[3]
    rows = re.findall(r"^\| R\d\d \|.*$", (root / "tests" / "README.md").read_text(), re.MULTILINE)
    named = [name.split("::") for row in rows for name in re.findall(r"`([^`]+::[^`]+)`", row)]
    for file, test in named:
        path = root / ("go/internal" if file.endswith(".go") else "tests/e2e") / file
        assert re.search(rf"^(async def|def|func) {test}\(", path.read_text(), re.MULTILINE), (
            f"{file}::{test}"
        )
    assert len(rows) == 15
