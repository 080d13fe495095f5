"""A local terminal attached to one in a sandbox: raw mode, resize, everything typed goes there, Ctrl-C too."""

from __future__ import annotations

import asyncio
import os
import signal
import termios
import tty
from collections.abc import Generator
from contextlib import contextmanager

from forkyard.base.errors import ForkyardError
from forkyard.cli.execute import end, execute
from forkyard.cli.stdio import read_stdin, write_all
from forkyard.client.errors import ApiError
from forkyard.client.sandbox import Ended, Output, SandboxClient, Size, Started

_SHELL = "/bin/bash"
_HANG_UPS = (signal.SIGHUP, signal.SIGTERM)


async def attach_shell(inside: SandboxClient, *, user: str | None, cwd: str | None) -> int:
    """A login shell on a terminal of the local size; answers its exit code. Without a local terminal it is a plain
    shell that reads standard input.
    """
    if not os.isatty(0):
        return await execute(inside, [_SHELL, "-l"], user=user, cwd=cwd, envs={}, stdin=True)
    envs = {"TERM": os.environ.get("TERM", "xterm-256color"), "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"}
    size = _size()
    code, pid = 1, 0
    async with (
        inside.start(_SHELL, ["-i", "-l"], user=user, cwd=cwd, envs=envs, pty=size) as events,
        asyncio.TaskGroup() as tasks,
    ):
        helpers: list[asyncio.Task[None]] = []
        with _raw():
            async for event in events:
                match event:
                    case Started():
                        pid = event.pid
                        helpers.append(tasks.create_task(_keys(inside, pid)))
                        helpers.append(tasks.create_task(_resizes(inside, pid, size)))
                        helpers.append(tasks.create_task(_hang_up(inside, pid)))
                    case Output(data=data):
                        try:
                            await write_all(1, data)
                        except OSError:  # The terminal is gone.
                            await end(inside, pid)
                            raise
                    case Ended(exit_code):
                        code = exit_code
        for helper in helpers:
            helper.cancel()
    return code


async def _keys(inside: SandboxClient, pid: int) -> None:
    """Raw terminals have no end of input: it means that the terminal is gone."""
    while data := await read_stdin():
        try:
            await inside.send(pid, data, pty=True)
        except ApiError as error:
            if error.status == 404:
                return  # The shell has ended; its end event is on the way.
            raise
    await end(inside, pid)


async def _hang_up(inside: SandboxClient, pid: int) -> None:
    """A shell whose terminal is closed ends, as with any terminal; the sandbox goes on."""
    gone = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in _HANG_UPS:
        loop.add_signal_handler(number, gone.set)
    try:
        await gone.wait()
        await end(inside, pid)
    finally:
        for number in _HANG_UPS:
            loop.remove_signal_handler(number)


async def _resizes(inside: SandboxClient, pid: int, told: Size) -> None:
    changed = asyncio.Event()
    changed.set()  # It may have changed while the shell was starting.
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGWINCH, changed.set)
    try:
        while True:
            await changed.wait()
            changed.clear()
            size = _size()
            if size == told:
                continue
            try:
                await inside.resize(pid, size)
            except ForkyardError:
                return
            told = size
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)


def _size() -> Size:
    try:
        found = os.get_terminal_size(0)
    except OSError:
        return Size(80, 24)
    return Size(found.columns or 80, found.lines or 24)


@contextmanager
def _raw() -> Generator[None]:
    before = termios.tcgetattr(0)
    # Not flushed: what was typed while we started is meant for the shell.
    tty.setraw(0, termios.TCSADRAIN)
    try:
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)
