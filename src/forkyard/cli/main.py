"""Entry point of `forkyard` and `aenv`."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable
from typing import Annotated

import typer

from forkyard import __version__
from forkyard.cli.stdio import open_missing

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


_CLIENT_SIDE = ("sandboxes", "files", "observe", "snapshots", "access")
"""Modules of commands that only talk HTTP."""

_SERVER_SIDE = {"serve": "server", "down": "server", "doctor": "doctor", "teams": "teams"}
"""Commands that need the server's packages, and their modules. Importing all takes more than a second of processor
time, which no `forkyard exec` should pay: each call imports what its first word needs."""

_OPTIONS = {"--version", "--install-completion", "--show-completion"}


def main() -> None:
    """Run the command line."""
    open_missing()
    load(_first_word())
    app()


def load(word: str) -> None:
    """Add the commands that a call with this first word needs; all of them for help, and for what is no command."""
    if word in _SERVER_SIDE:
        _add([_SERVER_SIDE[word]])
        return
    _add(_CLIENT_SIDE)
    if word not in _OPTIONS | _names():
        _add(dict.fromkeys(_SERVER_SIDE.values()))


def _add(modules: Iterable[str]) -> None:
    for name in modules:
        importlib.import_module(f"forkyard.cli.commands.{name}").register(app)


def _names() -> set[str]:
    commands = {
        command.name or getattr(command.callback, "__name__", "") for command in app.registered_commands
    }
    return commands | {group.name or "" for group in app.registered_groups}


def _first_word() -> str:
    """The command of this call, or the one that is being completed; "" when it is not known yet."""
    completed = os.environ.get("_TYPER_COMPLETE_ARGS") or os.environ.get("COMP_WORDS")
    if len(sys.argv) > 1 or completed is None:
        return sys.argv[1] if len(sys.argv) > 1 else ""
    return next(iter(completed.split()[1:]), "")
