"""`auth` and `keys`: who this command line is, and the team's API keys."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from forkyard.base.errors import ForkyardError
from forkyard.cli.credentials import DEFAULT_URL, Credentials, save_credentials
from forkyard.cli.exits import USAGE, fail
from forkyard.cli.output import Column, Format, Output, show, show_one, span
from forkyard.cli.running import exit_code, with_api
from forkyard.client.api import Api

keys = typer.Typer(help="API keys of the team.", no_args_is_help=True)


def auth(
    url: Annotated[
        str, typer.Option(envvar="E2B_API_URL", help="Address of the server, http://HOST:PORT.")
    ] = DEFAULT_URL,
    key: Annotated[
        str | None, typer.Option(help="API key; asked for, or read from a pipe, when it is not given.")
    ] = None,
) -> None:
    """Remember a server and an API key for this user (mode 0600). E2B_API_URL and E2B_API_KEY win over it."""
    if key is None:
        key = typer.prompt("API key", hide_input=True) if sys.stdin.isatty() else sys.stdin.readline()
    key = (key or "").strip()
    if not (key and key.isascii() and key.isprintable()):
        fail("which key? forkyard auth --key KEY, or the key in a pipe", USAGE)

    async def check() -> None:
        async with Api(url, key) as api:
            await api.templates()

    try:
        asyncio.run(check())
    except ForkyardError as error:
        fail(error.message, exit_code(error))
    path = save_credentials(Credentials(url, key))
    typer.echo(f"saved in {path}", err=True)


@keys.command("list")
def list_(output: Output = Format.AUTO) -> None:
    """List the team's keys (never the keys themselves)."""
    columns: Sequence[Column] = (
        ("ID", lambda k: str(k["id"])),
        ("NAME", lambda k: str(k["name"])),
        ("ROLE", lambda k: str(k["role"])),
        ("KEY", lambda k: str(k.get("masked") or k.get("prefix", ""))),
        ("CREATED", lambda k: span(k["created_at"])),
        ("LAST USED", lambda k: span(k.get("last_used_at")) or "never"),
    )
    show(with_api(lambda api: api.keys()), columns, output, empty="no keys")


@keys.command("create")
def create(
    name: Annotated[str, typer.Argument(help="What the key is for.")],
    role: Annotated[str, typer.Option(help="admin, member, read-only or sandbox-only.")] = "member",
    output: Output = Format.AUTO,
) -> None:
    """Make a key. It is shown once."""

    async def work(api: Api) -> dict[str, Any]:
        return await api.create_key(name=name, role=role)

    made = with_api(work)
    show_one(made, made["key"], output)


@keys.command("revoke")
def revoke(key_id: Annotated[str, typer.Argument(help="Id of the key (from `keys list`).")]) -> None:
    """End a key, at once."""
    with_api(lambda api: api.revoke_key(key_id))


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel="Access")(auth)
    app.add_typer(keys, name="keys", rich_help_panel="Access")
