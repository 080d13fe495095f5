"""`snapshot create|list|delete` and `template list`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from forkyard.cli.completion import complete_snapshot, complete_template
from forkyard.cli.options import SandboxId
from forkyard.cli.output import Column, Format, Output, show, show_one
from forkyard.cli.running import with_api
from forkyard.client.api import Api

snapshot = typer.Typer(help="Snapshots: captured machines that outlive their sandbox.", no_args_is_help=True)
template = typer.Typer(help="Templates: what sandboxes start from.", no_args_is_help=True)


@snapshot.command("create")
def create(
    sandbox: SandboxId,
    name: Annotated[str | None, typer.Option(help="A name that leads to it, with an optional :tag.")] = None,
    output: Output = Format.AUTO,
) -> None:
    """Capture a running sandbox; it runs on. `forkyard start SNAPSHOT` makes another from it."""
    made = with_api(lambda api: api.snapshot(sandbox, name=name))
    show_one(made, made["snapshotID"], output)


@snapshot.command("list")
def list_(
    sandbox: Annotated[str | None, typer.Option("--sandbox-id", help="Only those of this sandbox.")] = None,
    output: Output = Format.AUTO,
) -> None:
    """List snapshots, newest first."""

    async def work(api: Api) -> list[dict[str, Any]]:
        return [item async for item in api.snapshots(sandbox_id=sandbox)]

    columns: Sequence[Column] = (
        ("ID", lambda s: str(s["snapshotID"])),
        ("NAMES", lambda s: " ".join(s["names"])),
    )
    show(with_api(work), columns, output, empty="no snapshots")


@snapshot.command("delete")
def delete(
    references: Annotated[list[str], typer.Argument(help="Ids or names.", autocompletion=complete_snapshot)],
) -> None:
    """Delete snapshots. Sandboxes made from them are not touched."""

    async def work(api: Api) -> None:
        for reference in references:
            await api.delete_snapshot(reference)

    with_api(work)


@template.command("delete")
def delete_template(
    references: Annotated[list[str], typer.Argument(help="Ids or names.", autocompletion=complete_template)],
) -> None:
    """Delete templates of the team. Sandboxes made from them are not touched."""
    delete(references)


@template.command("list")
def list_templates(output: Output = Format.AUTO) -> None:
    """List the templates that this key may use."""
    columns: Sequence[Column] = (
        ("ID", lambda t: str(t["templateID"])),
        ("NAMES", lambda t: " ".join(t.get("names") or t["aliases"])),
        ("CPU", lambda t: str(t["cpuCount"])),
        ("MEMORY", lambda t: f"{t['memoryMB']} MiB"),
        ("DISK", lambda t: f"{t['diskSizeMB']} MiB"),
    )
    show(with_api(lambda api: api.templates()), columns, output, empty="no templates")


def register(app: typer.Typer) -> None:
    snapshot.command("ls", hidden=True)(list_)
    snapshot.command("rm", hidden=True)(delete)
    template.command("ls", hidden=True)(list_templates)
    template.command("rm", hidden=True)(delete_template)
    app.add_typer(snapshot, name="snapshot", rich_help_panel="Snapshots and templates")
    app.add_typer(snapshot, name="snap", hidden=True)
    app.add_typer(template, name="template", rich_help_panel="Snapshots and templates")
    app.add_typer(template, name="templates", hidden=True)
