"""One command in a sandbox: streams as they come, bytes as they are, its exit code as ours."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress

from forkyard.base.errors import ForkyardError
from forkyard.cli.stdio import read_stdin, write_all
from forkyard.client.errors import ApiError
from forkyard.client.sandbox import Ended, Output, SandboxClient, Started

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


async def execute(
    inside: SandboxClient,
    command: Sequence[str],
    *,
    user: str | None,
    cwd: str | None,
    envs: Mapping[str, str],
    stdin: bool,
) -> int:
    """Run it; answers its exit code. Ctrl-C and SIGTERM end it, not only us; so does a reader that goes away.

    Raises ApiError when it cannot be run, StreamBroken, BrokenPipeError.
    """
    code, pid = 1, 0
    async with (
        _caught_signals() as signals,
        inside.start(command[0], command[1:], user=user, cwd=cwd, envs=envs, stdin=stdin) as events,
        asyncio.TaskGroup() as tasks,
    ):
        helpers: list[asyncio.Task[None]] = []
        async for event in events:
            match event:
                case Started():
                    pid = event.pid
                    helpers.append(tasks.create_task(_forward_signals(inside, pid, signals)))
                    if stdin:
                        helpers.append(tasks.create_task(_forward_stdin(inside, pid)))
                case Output(stream, data):
                    try:
                        await write_all(2 if stream == "stderr" else 1, data)
                    except OSError:
                        # Nobody reads any more; here the command would have died of SIGPIPE.
                        await end(inside, pid)
                        raise
                case Ended(exit_code):
                    code = exit_code
        for helper in helpers:
            helper.cancel()
    return code


async def end(inside: SandboxClient, pid: int) -> None:
    """Kill a process whose user has gone; never fails."""
    with suppress(ForkyardError):
        await inside.signal(pid, kill=True)


async def _forward_stdin(inside: SandboxClient, pid: int) -> None:
    try:
        while data := await read_stdin():
            await inside.send(pid, data)
        await inside.close_stdin(pid)
    except ApiError as error:
        if error.status not in (400, 404):  # It has ended, or closed its standard input, before reading all.
            raise


@asynccontextmanager
async def _caught_signals() -> AsyncGenerator[asyncio.Queue[int]]:
    """Signals from before the command is asked for: one that comes while it starts must end it all the same."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    got: asyncio.Queue[int] = asyncio.Queue()

    def catch(number: int) -> None:
        got.put_nowait(number)
        if got.qsize() > 1 and task is not None:
            task.cancel()  # Nobody takes them: the start hangs, or the sandbox does not answer.

    for number in _SIGNALS:
        loop.add_signal_handler(number, catch, number)
    try:
        yield got
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


async def _forward_signals(inside: SandboxClient, pid: int, signals: asyncio.Queue[int]) -> None:
    kill = False
    while True:
        await signals.get()
        try:
            await inside.signal(pid, kill=kill)
        except ApiError:
            return
        kill = True  # A second Ctrl-C is meant seriously.
