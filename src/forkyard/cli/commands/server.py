"""`serve` and `down`: the server on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from forkyard.cli.settings import DataDir, load_settings
from forkyard.node.serve import run_down, run_serve


def serve(
    data_dir: DataDir = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on; 127.0.0.1 by default.")] = None,
    port: Annotated[int | None, typer.Option(help="Public port; 3000 by default.")] = None,
    domain: Annotated[
        str | None,
        typer.Option(
            help="Sandboxes are reached at <port>-<id>.DOMAIN, the API at api.DOMAIN; localhost by default."
        ),
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="PEM file with the certificate for *.DOMAIN.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="PEM file with its key.")] = None,
    tls_port: Annotated[
        int | None,
        typer.Option(
            help="A second port, for TLS, the first one staying plain; TLS is on --port by default."
        ),
    ] = None,
    public_domain: Annotated[
        str | None,
        typer.Option(help="DOMAIN:PORT as SDKs reach it by TLS, where something in front changes that."),
    ] = None,
    warm_pool: Annotated[
        int | None, typer.Option(help="Restored sandboxes of `base` kept ready; 2 by default.")
    ] = None,
    no_keeper: Annotated[
        bool, typer.Option("--no-keeper", help="Start sandboxes with the plain runsc command line (slower).")
    ] = False,
) -> None:
    """Run the server in the foreground until SIGTERM or Ctrl-C; running sandboxes survive it.

    Every setting is also an environment variable, FORKYARD_<NAME>, and a key of forkyard.toml in the data directory.
    """
    settings = load_settings(
        data_dir=data_dir,
        host=host,
        port=port,
        domain=domain,
        tls_cert=tls_cert,
        tls_key=tls_key,
        tls_port=tls_port,
        public_domain=public_domain,
        warm_pool=warm_pool,
        keeper=False if no_keeper else None,
    )
    raise typer.Exit(run_serve(settings))


def down(
    data_dir: DataDir = None, quiet: Annotated[bool, typer.Option(help="Print nothing.")] = False
) -> None:
    """End every running sandbox and what serves them. Paused sandboxes and snapshots stay."""
    raise typer.Exit(run_down(load_settings(data_dir=data_dir), quiet=quiet))


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel="Server")(serve)
    app.command(rich_help_panel="Server")(down)
