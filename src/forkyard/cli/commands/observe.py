"""What happens in a sandbox: logs, metrics."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime
from typing import Annotated, Any

import typer

from forkyard.cli.exits import plain
from forkyard.cli.options import SandboxId
from forkyard.cli.output import Format, Output, show, size, wants_json, words
from forkyard.cli.running import with_api
from forkyard.client.api import Api

_FOLLOW_S = 1.0


def logs(
    sandbox: SandboxId,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until Ctrl-C.")] = False,
    output: Output = Format.AUTO,
) -> None:
    """What happened to a sandbox: created, paused, resumed, died and why."""

    async def work(api: Api) -> None:
        after = 0
        while True:
            for entry in await api.logs(sandbox, after_ms=after):
                _print_entry(entry, output)
                after = int(datetime.fromisoformat(entry["timestamp"]).timestamp() * 1000) + 1
            if not follow:
                return
            await asyncio.sleep(_FOLLOW_S)

    with_api(work)


def metrics(sandbox: SandboxId, output: Output = Format.AUTO) -> None:
    """CPU, memory and disk of a sandbox, sampled every 5 s for the last hour."""
    samples = with_api(lambda api: api.metrics(sandbox))
    show(
        samples[-20:] if not wants_json(output) else samples,
        (
            ("TIME", lambda m: datetime.fromisoformat(m["timestamp"]).astimezone().strftime("%H:%M:%S")),
            ("CPU", lambda m: f"{m['cpuUsedPct']:.0f} % of {m['cpuCount']}"),
            ("MEMORY", lambda m: f"{size(m['memUsed'])} of {size(m['memTotal'])}"),
            ("DISK", lambda m: f"{size(m['diskUsed'])} of {size(m['diskTotal'])}"),
        ),
        output,
        empty="no samples yet; the first comes within 5 s",
    )


def _print_entry(entry: dict[str, Any], output: Format) -> None:
    if wants_json(output):
        typer.echo(json.dumps(entry))
        return
    at = datetime.fromisoformat(entry["timestamp"]).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    line = f"{at} {entry['level']:5} {entry['message']} {words(entry.get('fields'))}"
    typer.echo(plain(line).rstrip())


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel="Sandboxes")(logs)
    app.command(rich_help_panel="Sandboxes")(metrics)
