"""Files in and out: upload, download."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, BinaryIO

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TransferSpeedColumn

from forkyard.cli.options import SandboxId, User
from forkyard.cli.running import USAGE, fail, with_api
from forkyard.client.api import Api

_CHUNK = 1 << 18


def upload(
    sandbox: SandboxId,
    source: Annotated[str, typer.Argument(help="Local file; - for standard input.")],
    destination: Annotated[str, typer.Argument(help="Path in the sandbox; one that ends in / is a folder.")],
    user: User = None,
) -> None:
    """Copy a file into a sandbox; missing folders are made."""
    if source != "-" and not Path(source).is_file():
        fail(f"{source} is not a file", USAGE)
    path = destination + Path(source).name if destination.endswith("/") and source != "-" else destination

    total = Path(source).stat().st_size if source != "-" else None

    async def work(api: Api) -> None:
        with _progress() as progress, _open_source(source) as file:
            task = progress.add_task("", total=total)
            async with await api.inside(sandbox) as inside:
                await inside.upload(path, _chunks(file, progress, task), user=user)

    with_api(work)


def download(
    sandbox: SandboxId,
    source: Annotated[str, typer.Argument(help="Path in the sandbox.")],
    destination: Annotated[
        str | None, typer.Argument(help="Local path; - for standard output; here by default.")
    ] = None,
    user: User = None,
    force: Annotated[bool, typer.Option("--force", "-f", help="Overwrite a local file.")] = False,
) -> None:
    """Copy a file out of a sandbox. A download that breaks leaves no half file."""
    target = _target(source, destination)
    if target is not None and target.exists() and not force:
        fail(f"{target} is there already; --force overwrites it", USAGE)

    async def work(api: Api) -> None:
        async with await api.inside(sandbox) as inside, inside.download(source, user=user) as chunks:
            if target is None:
                async for chunk in chunks:
                    sys.stdout.buffer.write(chunk)
                sys.stdout.buffer.flush()
                return
            part = target.with_name(f".{target.name}.{os.getpid()}.part")
            try:
                with _progress() as progress, part.open("wb") as file:
                    task = progress.add_task("", total=None)
                    async for chunk in chunks:
                        file.write(chunk)
                        progress.advance(task, len(chunk))
                part.replace(target)
            finally:
                part.unlink(missing_ok=True)

    with_api(work)


def _target(source: str, destination: str | None) -> Path | None:
    if destination == "-":
        return None
    target = Path(destination or ".")
    return target / Path(source).name if target.is_dir() else target


def _open_source(source: str) -> BinaryIO:
    return sys.stdin.buffer if source == "-" else Path(source).open("rb")


async def _chunks(file: BinaryIO, progress: Progress, task: TaskID) -> AsyncIterator[bytes]:
    while chunk := await asyncio.to_thread(file.read, _CHUNK):
        progress.advance(task, len(chunk))
        yield chunk


def _progress() -> Progress:
    console = Console(stderr=True)
    return Progress(
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel="Sandboxes")(upload)
    app.command(rich_help_panel="Sandboxes")(download)
