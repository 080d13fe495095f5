"""Settings of the server on this machine, for the commands that work on it without asking it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from forkyard.cli.exits import USAGE, fail
from forkyard.node import settings as node_settings

DataDir = Annotated[
    Path | None,
    typer.Option(
        resolve_path=True,
        help="Database, snapshots, images and sockets of the server; /var/lib/forkyard by default.",
    ),
]


def load_settings(**given: object) -> node_settings.Settings:
    """Settings from all sources; ends the program with a message when one is wrong."""
    try:
        return node_settings.load(**given)
    except ValidationError as error:
        for problem in error.errors():
            name = "".join(f"{part}: " for part in problem["loc"])
            typer.echo(f"forkyard: {name}{problem['msg'].removeprefix('Value error, ')}", err=True)
        raise typer.Exit(USAGE) from None
    except (OSError, ValueError) as error:
        fail(f"forkyard.toml: {error}", USAGE)
