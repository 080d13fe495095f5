"""How a command ends: exit codes, and the one line on standard error that goes with a failure."""

from __future__ import annotations

from typing import NoReturn

import typer

FAILED = 1
USAGE = 2
NOT_FOUND = 3
NOT_AUTHENTICATED = 4
CONFLICT = 5
LIMIT = 6
UNREACHABLE = 7


def fail(message: str, code: int = FAILED) -> NoReturn:
    typer.echo(f"forkyard: {plain(message)}", err=True)
    raise typer.Exit(code)


def plain(text: str) -> str:
    """`text` without what steers a terminal: names and messages may come from inside a sandbox."""
    return "".join(
        char if char.isprintable() or char in "\n\t" else "\N{REPLACEMENT CHARACTER}" for char in text
    )
