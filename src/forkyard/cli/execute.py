"""One command in a sandbox: streams as they come, bytes as they are, its exit code as ours."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping, Sequence

from forkyard.cli.terminal import read_stdin, write_all
from forkyard.client.errors import ApiError
from forkyard.client.sandbox import Ended, Output, SandboxClient, Started


async def execute(
    inside: SandboxClient,
    command: Sequence[str],
    *,
    user: str | None,
    cwd: str | None,
    envs: Mapping[str, str],
    stdin: bool,
) -> int:
    """Run it; answers its exit code. Ctrl-C and SIGTERM end it, not only us."""
    code = 1
    async with (
        inside.start(command[0], command[1:], user=user, cwd=cwd, envs=envs, stdin=stdin) as events,
        asyncio.TaskGroup() as tasks,
    ):
        helpers: list[asyncio.Task[None]] = []
        async for event in events:
            match event:
                case Started(pid):
                    helpers.append(tasks.create_task(_forward_signals(inside, pid)))
                    if stdin:
                        helpers.append(tasks.create_task(_forward_stdin(inside, pid)))
                case Output(stream, data):
                    write_all(2 if stream == "stderr" else 1, data)
                case Ended(exit_code):
                    code = exit_code
        for helper in helpers:
            helper.cancel()
    return code


async def _forward_stdin(inside: SandboxClient, pid: int) -> None:
    try:
        while data := await read_stdin():
            await inside.send(pid, data)
        await inside.close_stdin(pid)
    except ApiError as error:
        if error.status not in (400, 404):  # It has ended, or closed its standard input, before reading all.
            raise


async def _forward_signals(inside: SandboxClient, pid: int) -> None:
    loop = asyncio.get_running_loop()
    got: asyncio.Queue[bool] = asyncio.Queue()
    loop.add_signal_handler(signal.SIGINT, got.put_nowait, False)
    loop.add_signal_handler(signal.SIGTERM, got.put_nowait, False)
    try:
        kill = False
        while True:
            await got.get()
            try:
                await inside.signal(pid, kill=kill)
            except ApiError:
                return
            kill = True  # A second Ctrl-C is meant seriously.
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        loop.remove_signal_handler(signal.SIGTERM)
