"""`teams`: the teams of the server on this machine, for whoever runs it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Annotated, Any, TypeVar

import typer

from forkyard.base.errors import Conflict, ForkyardError, InvalidInput, NotFound
from forkyard.cli.exits import CONFLICT, FAILED, NOT_FOUND, USAGE, fail
from forkyard.cli.output import Column, Format, Output, show, show_one, span
from forkyard.cli.settings import DataDir, load_settings
from forkyard.node import teams as node_teams

T = TypeVar("T")

teams = typer.Typer(help="Teams of the server on this machine.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="Name of the team.")]


def _limit(what: str) -> Any:
    return typer.Option(
        min=0, help=f"Most {what}; 0: no limit. The server's own limit for teams if not given."
    )


MaxSandboxes = Annotated[int | None, _limit("running sandboxes")]
MaxVcpus = Annotated[int | None, _limit("vCPUs of running sandboxes")]
MaxMemory = Annotated[int | None, _limit("memory of running sandboxes, in MiB")]
MaxDisk = Annotated[int | None, _limit("disk of running sandboxes, in MiB")]
MaxRate = Annotated[float | None, _limit("sandboxes created a second")]

_CODES = ((Conflict, CONFLICT), (NotFound, NOT_FOUND), (InvalidInput, USAGE))


@teams.command("list")
def list_(data_dir: DataDir = None, output: Output = Format.AUTO) -> None:
    """List the teams, with the limits that are theirs alone."""
    found = _run(node_teams.list_teams(load_settings(data_dir=data_dir)))
    columns: Sequence[Column] = (
        ("ID", lambda t: str(t["id"])),
        ("NAME", lambda t: str(t["name"])),
        ("CREATED", lambda t: span(t["created_at"])),
        ("LIMITS", lambda t: " ".join(f"{k}={v}" for k, v in t["limits"].items() if v is not None) or "-"),
    )
    show(found, columns, output, empty="no teams")


@teams.command("create")
def create(
    name: Name,
    max_sandboxes: MaxSandboxes = None,
    max_vcpus: MaxVcpus = None,
    max_memory_mb: MaxMemory = None,
    max_disk_mb: MaxDisk = None,
    max_creates_per_second: MaxRate = None,
    data_dir: DataDir = None,
    output: Output = Format.AUTO,
) -> None:
    """Make a team. Its first key, an admin's, is shown once."""
    limits = _limits(max_sandboxes, max_vcpus, max_memory_mb, max_disk_mb, max_creates_per_second)
    made = _run(node_teams.create_team(load_settings(data_dir=data_dir), name, limits))
    show_one(made, made["key"], output)


@teams.command("limit")
def limit(
    name: Name,
    max_sandboxes: MaxSandboxes = None,
    max_vcpus: MaxVcpus = None,
    max_memory_mb: MaxMemory = None,
    max_disk_mb: MaxDisk = None,
    max_creates_per_second: MaxRate = None,
    data_dir: DataDir = None,
    output: Output = Format.AUTO,
) -> None:
    """Give a team these limits in place of those it has; a running server knows them within 5 s."""
    limits = _limits(max_sandboxes, max_vcpus, max_memory_mb, max_disk_mb, max_creates_per_second)
    team = _run(node_teams.limit_team(load_settings(data_dir=data_dir), name, limits))
    show_one(team, f"the limits of {name} are set", output)


def _limits(
    sandboxes: int | None, vcpus: int | None, memory_mb: int | None, disk_mb: int | None, rate: float | None
) -> dict[str, int | float]:
    given = {
        "sandboxes": sandboxes,
        "vcpus": vcpus,
        "memory_mb": memory_mb,
        "disk_mb": disk_mb,
        "creates_per_second": rate,
    }
    return {name: value for name, value in given.items() if value is not None}


def _run(work: Coroutine[Any, Any, T]) -> T:
    try:
        return asyncio.run(work)
    except ForkyardError as error:
        fail(error.message, next((code for kind, code in _CODES if isinstance(error, kind)), FAILED))


def register(app: typer.Typer) -> None:
    app.add_typer(teams, name="teams", rich_help_panel="Server")
