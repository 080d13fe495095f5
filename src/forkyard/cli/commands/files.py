"""Files in and out: upload, download."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Generator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Annotated

import typer

from forkyard.cli.exits import USAGE, fail
from forkyard.cli.options import RESUME_FOR_S, SandboxId, User
from forkyard.cli.output import note, size
from forkyard.cli.running import with_api
from forkyard.cli.stdio import read_some, write_all
from forkyard.cli.transfer import Transfer
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

    async def work(api: Api) -> int:
        with _opened(source) as descriptor, Transfer(os.fstat(descriptor).st_size or None) as transfer:
            async with await api.inside(sandbox, resume_for=RESUME_FOR_S) as inside:
                await inside.upload(path, _chunks(descriptor, transfer), user=user)
            return transfer.bytes

    note(f"{size(with_api(work))} copied to {path} in {sandbox}")


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

    async def work(api: Api) -> int:
        async with (
            await api.inside(sandbox, resume_for=RESUME_FOR_S) as inside,
            inside.download(source, user=user) as chunks,
        ):
            if target is not None:
                return await _save(chunks, target)
            async for chunk in chunks:
                await write_all(sys.stdout.fileno(), chunk)
            return 0

    copied = with_api(work)
    if target is not None:
        note(f"{size(copied)} copied to {target}")


async def _save(chunks: AsyncIterator[bytes], target: Path) -> int:
    """Whole or not at all; a device or a pipe is written to as it comes. Answers the bytes. Raises OSError."""
    if _is_special(target):
        return await _write_through(chunks, target)
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        # It comes compressed: how much it will be is not known.
        with Transfer(None) as transfer, part.open("wb") as file:
            async for chunk in chunks:
                file.write(chunk)
                transfer.add(len(chunk))
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    return transfer.bytes


async def _write_through(chunks: AsyncIterator[bytes], target: Path) -> int:
    """Without showing how far it is: the device may be the terminal."""
    total = 0
    with target.open("wb", buffering=0) as file:
        async for chunk in chunks:
            await write_all(file.fileno(), chunk)
            total += len(chunk)
    return total


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


async def _chunks(descriptor: int, transfer: Transfer) -> AsyncIterator[bytes]:
    while chunk := await read_some(descriptor):
        transfer.add(len(chunk))
        yield chunk


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel="Sandboxes")(upload)
    app.command(rich_help_panel="Sandboxes")(download)
