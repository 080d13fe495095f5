"""Files in and out: upload, download."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Generator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TransferSpeedColumn

from forkyard.cli.exits import USAGE, fail
from forkyard.cli.options import RESUME_FOR_S, SandboxId, User
from forkyard.cli.running import with_api
from forkyard.cli.stdio import read_some, write_all
from forkyard.client.api import Api

_STREAM = "-"


def upload(
    sandbox: SandboxId,
    source: Annotated[str, typer.Argument(help="Local file; - for standard input.")],
    destination: Annotated[str, typer.Argument(help="Path in the sandbox; one that ends in / is a folder.")],
    user: User = None,
) -> None:
    """Copy a file into a sandbox; missing folders are made. An upload that breaks leaves the old file as it was."""
    path = destination
    if destination.endswith("/"):
        if source == _STREAM:
            fail(f"{destination} is a folder: standard input needs the path of a file", USAGE)
        path += Path(source).name

    async def work(api: Api) -> None:
        with _opened(source) as descriptor, _progress() as progress:
            task = progress.add_task("", total=os.fstat(descriptor).st_size or None)
            async with await api.inside(sandbox, resume_for=RESUME_FOR_S) as inside:
                await inside.upload(path, _chunks(descriptor, progress, task), user=user)

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
    target = None if destination == _STREAM else _target(source, destination).resolve()
    if target is not None and target.exists() and not force:
        fail(f"{target} is there already; --force overwrites it", USAGE)

    async def work(api: Api) -> None:
        async with (
            await api.inside(sandbox, resume_for=RESUME_FOR_S) as inside,
            inside.download(source, user=user) as chunks,
        ):
            if target is None:
                async for chunk in chunks:
                    await write_all(sys.stdout.fileno(), chunk)
            else:
                await _save(chunks, target)

    with_api(work)


async def _save(chunks: AsyncIterator[bytes], target: Path) -> None:
    """Whole or not at all; a device or a pipe is written to as it comes. Raises OSError."""
    if _is_special(target):
        with target.open("wb", buffering=0) as file:
            async for chunk in chunks:
                await write_all(file.fileno(), chunk)
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


def _is_special(target: Path) -> bool:
    return target.exists() and not target.is_file()


def _target(source: str, destination: str | None) -> Path:
    target = Path(destination or ".")
    if not target.is_dir():
        return target
    name = PurePosixPath(source).name
    if name in ("", ".."):
        fail(f"{source} is not the path of a file", USAGE)
    return target / name


@contextmanager
def _opened(source: str) -> Generator[int]:
    """A descriptor of a file, device or pipe to read from; ends the program when it cannot be one."""
    if source == _STREAM:
        yield sys.stdin.fileno()
        return
    if Path(source).is_dir():
        fail(f"{source} is a folder; upload takes files", USAGE)
    try:
        descriptor = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        fail(f"{source}: {error.strerror}", USAGE)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


async def _chunks(descriptor: int, progress: Progress, task: TaskID) -> AsyncIterator[bytes]:
    while chunk := await read_some(descriptor):
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
