"""A table on a terminal, JSON in a pipe; `--output` says otherwise."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from forkyard.cli.exits import plain

Column = tuple[str, Callable[[dict[str, Any]], str]]


_WIDE = 1000


class Format(StrEnum):
    AUTO = "auto"
    TABLE = "table"
    JSON = "json"


Output = Annotated[
    Format,
    typer.Option("--output", "-o", help="table, json, or auto: a table on a terminal, JSON in a pipe."),
]


def wants_json(chosen: Format) -> bool:
    return chosen is Format.JSON or (chosen is Format.AUTO and not sys.stdout.isatty())


def show(items: Sequence[dict[str, Any]], columns: Sequence[Column], chosen: Format, *, empty: str) -> None:
    """Print items; `empty` is what a person reads when there are none."""
    if wants_json(chosen):
        typer.echo(json.dumps(list(items), indent=2))
        return
    if not items:
        typer.echo(empty)
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title, _ in columns:
        table.add_column(title, no_wrap=True)
    for item in items:
        table.add_row(*(Text(plain(value(item)).replace("\n", " ")) for _, value in columns))
    # Wider than any terminal: a cut-off id is of no use, a wrapped line is.
    Console(highlight=False, width=_WIDE).print(table, soft_wrap=True)


def show_one(item: dict[str, Any], text: str, chosen: Format) -> None:
    """Print one result: JSON, or `text` for a person."""
    typer.echo(json.dumps(item, indent=2) if wants_json(chosen) else plain(text))


def note(text: str) -> None:
    """Tell a person that it is done; a script, which reads the exit code, gets nothing."""
    if sys.stderr.isatty():
        typer.echo(plain(text), err=True)


def moment(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def span(text: str | None) -> str:
    """How far a time is from now: `in 4m`, `2h ago`."""
    at = moment(text)
    if at is None:
        return ""
    seconds = (at - datetime.now(UTC)).total_seconds()
    words = _duration(abs(seconds))
    return f"in {words}" if seconds > 0 else f"{words} ago"


def size(number: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024 or unit == "GiB":
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return ""


def _duration(seconds: float) -> str:
    for length, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= length:
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds:.0f}s"


def words(pairs: dict[str, Any] | None) -> str:
    """`a=1 b=2`."""
    return " ".join(f"{key}={value}" for key, value in (pairs or {}).items())
