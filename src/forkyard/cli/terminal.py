"""A local terminal attached to one in a sandbox: raw mode, resize, everything typed goes there, Ctrl-C too."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import termios
import tty
from collections.abc import Generator
from contextlib import contextmanager

from forkyard.base.errors import ForkyardError
from forkyard.client.errors import ApiError
from forkyard.client.sandbox import Ended, Output, SandboxClient, Size, Started

_CHUNK = 4096


async def attach_shell(inside: SandboxClient, *, user: str | None, cwd: str | None) -> int:
    """A login shell on a terminal of the local size; answers its exit code. Without a local terminal it is a plain
    shell that reads standard input.
    """
    envs = {"TERM": os.environ.get("TERM", "xterm-256color"), "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"}
    size = _size()
    async with (
        inside.start("/bin/bash", ["-i", "-l"], user=user, cwd=cwd, envs=envs, pty=size) as events,
        asyncio.TaskGroup() as tasks,
    ):
        helpers: list[asyncio.Task[None]] = []
        code = 1
        with _raw():
            async for event in events:
                match event:
                    case Started(pid):
                        helpers.append(tasks.create_task(_keys(inside, pid)))
                        helpers.append(tasks.create_task(_resizes(inside, pid)))
                    case Output(data=data):
                        write_all(1, data)
                    case Ended(exit_code):
                        code = exit_code
        for helper in helpers:
            helper.cancel()
    return code


def write_all(descriptor: int, data: bytes) -> None:
    """All of it, unbuffered. Raises BrokenPipeError."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


async def read_stdin() -> bytes:
    """What comes next; b"" at the end. Waits without a thread that would outlive us."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def readable() -> None:
        if not ready.done():
            ready.set_result(None)

    try:
        loop.add_reader(0, readable)
    except (OSError, PermissionError):
        return os.read(0, _CHUNK)  # A regular file or /dev/null is always readable.
    try:
        await ready
    finally:
        loop.remove_reader(0)
    return os.read(0, _CHUNK)


async def _keys(inside: SandboxClient, pid: int) -> None:
    while data := await read_stdin():
        try:
            await inside.send(pid, data, pty=True)
        except ApiError as error:
            if error.status == 404:
                return  # The shell has ended; its end event is on the way.
            raise


async def _resizes(inside: SandboxClient, pid: int) -> None:
    changed = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGWINCH, changed.set)
    try:
        while True:
            await changed.wait()
            changed.clear()
            try:
                await inside.resize(pid, _size())
            except ForkyardError:
                return
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)


def _size() -> Size:
    try:
        found = os.get_terminal_size(sys.__stdin__.fileno() if sys.__stdin__ else 0)
    except OSError:
        return Size(80, 24)
    return Size(found.columns or 80, found.lines or 24)


@contextmanager
def _raw() -> Generator[None]:
    if not os.isatty(0):
        yield
        return
    before = termios.tcgetattr(0)
    # Not flushed: what was typed while we started is meant for the shell.
    tty.setraw(0, termios.TCSADRAIN)
    try:
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)
