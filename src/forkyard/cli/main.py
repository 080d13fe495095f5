"""Entry point of `forkyard` and `aenv`."""

from __future__ import annotations

from typing import Annotated

import typer

from forkyard import __version__
from forkyard.cli.commands import access, doctor, files, observe, sandboxes, server, snapshots

_HELP = """Computers for AI agents that pause, resume and fork.

\b
  forkyard serve                    run a server
  forkyard start                    a sandbox with a shell
  forkyard exec ID -- python3 -V    a command in it
  forkyard fork ID --count 4        four running copies

Server and key come from E2B_API_URL and E2B_API_KEY, from `forkyard auth`, or from the server of this machine.

Exit codes: 0 done, 1 failed, 2 wrong usage or request, 3 not found, 4 not authenticated or allowed, 5 wrong state,
6 limit reached, 7 server unreachable, 125 `exec` could not run its command.
"""

app = typer.Typer(help=_HELP, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode="rich")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options of every command."""


for _group in (server, sandboxes, files, observe, snapshots, access, doctor):
    _group.register(app)


def main() -> None:
    """Run the command line."""
    app()
