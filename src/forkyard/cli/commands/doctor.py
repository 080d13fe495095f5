"""`doctor`: checks this host and says what to do about each problem."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from forkyard.base.errors import ForkyardError
from forkyard.cli.exits import FAILED, fail
from forkyard.cli.output import Format, Output, wants_json
from forkyard.cli.settings import DataDir, load_settings
from forkyard.node import doctor as node_doctor
from forkyard.node.doctor import CheckResult, Status

_MARKS = {
    Status.OK: "[green]ok[/]     ",
    Status.HINT: "[cyan]hint[/]   ",
    Status.WARNING: "[yellow]warning[/]",
    Status.FAILED: "[red]failed[/] ",
}


def doctor(
    data_dir: DataDir = None,
    fix: Annotated[
        bool, typer.Option("--fix", help="Apply the host settings that were measured to help.")
    ] = False,
    undo: Annotated[
        bool, typer.Option("--undo", help="Give those settings the values they had before.")
    ] = False,
    clean: Annotated[
        bool,
        typer.Option("--clean", help="Remove what dead instances left, and versions that nothing needs."),
    ] = False,
    output: Output = Format.AUTO,
) -> None:
    """Check this host, and say what to do about each problem. Exit code 1: a server cannot start."""
    settings = load_settings(data_dir=data_dir)
    try:
        if fix or undo:
            for line in node_doctor.fix(undo=undo) or ["nothing to change"]:
                typer.echo(line)
            return
        if clean:
            for line in asyncio.run(node_doctor.clean_up(settings)) or ["nothing to remove"]:
                typer.echo(line)
            return
        results = asyncio.run(node_doctor.examine(settings))
    except ForkyardError as error:
        fail(error.message)
    if wants_json(output):
        typer.echo(json.dumps([_to_json(result) for result in results], indent=2))
    else:
        _print(results)
    if any(result.status is Status.FAILED for result in results):
        raise typer.Exit(FAILED)


def _to_json(result: CheckResult) -> dict[str, str]:
    return {
        "name": result.name,
        "status": result.status.value,
        "found": result.found,
        "why": result.why,
        "fix": result.fix,
    }


def _print(results: list[CheckResult]) -> None:
    console = Console(highlight=False)
    for result in results:
        console.print(f"{_MARKS[result.status]} {escape(f'{result.name}: {result.found}')}")
        if result.why:
            console.print(f"         {escape(result.why)}", style="dim")
        if result.fix:
            console.print(f"         → {escape(result.fix)}", style="bold")


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel="Server")(doctor)
