"""Options that several commands share, and the parsing of `KEY=VALUE`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from forkyard.cli.completion import complete_sandbox, complete_template
from forkyard.cli.exits import USAGE, fail

RESUME_FOR_S = 300
"""How long a paused sandbox lives that a command resumes in passing."""

SandboxId = Annotated[str, typer.Argument(help="Sandbox id.", autocompletion=complete_sandbox)]
Template = Annotated[
    str, typer.Argument(help="Template, or snapshot, by name or id.", autocompletion=complete_template)
]
User = Annotated[str | None, typer.Option("--user", "-u", help="User inside the sandbox.")]
Cwd = Annotated[str | None, typer.Option("--cwd", "-w", help="Working directory inside the sandbox.")]
Env = Annotated[list[str] | None, typer.Option("--env", "-e", help="KEY=VALUE; may be given several times.")]


def pairs(values: Sequence[str] | None, option: str) -> dict[str, str]:
    """`["A=1"]` as a dict; ends the program with a message for anything else."""
    result: dict[str, str] = {}
    for value in values or ():
        key, equals, rest = value.partition("=")
        if not equals or not key:
            fail(f"{option} {value!r}: KEY=VALUE is expected", USAGE)
        result[key] = rest
    return result
