"""Entry point of `forkyard` and `aenv`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from forkyard.node import settings as node_settings
from forkyard.node.serve import run_down, run_serve

app = typer.Typer(help="Computers for AI agents that pause, resume and fork.", no_args_is_help=True, pretty_exceptions_enable=False)

DataDir = Annotated[Path | None, typer.Option(help="Database, snapshots, images and sockets of the server.")]


@app.command()
def serve(
    data_dir: DataDir = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on; 127.0.0.1 by default.")] = None,
    port: Annotated[int | None, typer.Option(help="Public port; 3000 by default.")] = None,
    warm_pool: Annotated[int | None, typer.Option(help="Restored sandboxes of `base` kept ready.")] = None,
) -> None:
    """Run the server in the foreground until SIGTERM or Ctrl-C. Running sandboxes survive it."""
    raise typer.Exit(run_serve(_settings(data_dir=data_dir, host=host, port=port, warm_pool=warm_pool)))


@app.command()
def down(
    data_dir: DataDir = None,
    quiet: Annotated[bool, typer.Option(help="Print nothing.")] = False,
) -> None:
    """End every running sandbox and what serves them. Paused sandboxes and snapshots stay."""
    raise typer.Exit(run_down(_settings(data_dir=data_dir), quiet=quiet))


def _settings(**given: object) -> node_settings.Settings:
    try:
        return node_settings.load(**given)
    except ValidationError as error:
        for problem in error.errors():
            typer.echo(f"forkyard: {'.'.join(map(str, problem['loc']))}: {problem['msg']}", err=True)
        raise typer.Exit(2) from None


def main() -> None:
    """Run the command line."""
    app()
