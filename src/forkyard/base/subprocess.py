"""Running programs: no shell, bounded in time and output, and no process left behind."""

import asyncio
import os
import signal
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

from forkyard.base.errors import DeadlineExceeded, ForkyardError

MAX_OUTPUT = 1 << 20
"""Bytes kept of each output stream, unless the caller says otherwise."""

_CHUNK = 64 << 10

_STRAGGLERS = 0.5
"""Seconds after the program's end in which its output must end too; then its descendants are killed."""


class CommandFailed(ForkyardError):
    """A program ended with an error."""

    code = "command_failed"

    def __init__(self, message: str, result: "CommandResult | None" = None) -> None:
        super().__init__(message)
        self.result = result
        """What it did; None if it could not be started."""


class CommandTimeout(DeadlineExceeded):
    """A program took too long and was killed."""

    code = "command_timeout"


@dataclass(frozen=True, slots=True)
class CommandResult:
    """`returncode` is negative when a signal ended the program. Of a stream its beginning is kept."""

    argv: tuple[str, ...]
    returncode: int
    stdout: bytes
    stderr: bytes
    truncated: bool
    """Whether either stream was longer than what was kept."""

    def check(self) -> "CommandResult":
        """This result, if the program succeeded. Raises CommandFailed with the end of its error output."""
        if self.returncode == 0:
            return self
        said = self.stderr.decode(errors="replace").strip()[-2000:]
        ended = f"exit code {self.returncode}"
        if self.returncode < 0:
            ended = f"signal {signal.Signals(-self.returncode).name}"
        raise CommandFailed(f"{self.argv[0]} failed with {ended}: {said or 'it said nothing'}", self)


async def run_command(
    argv: Sequence[str | Path],
    *,
    timeout: float,
    stdin: bytes | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    max_output: int = MAX_OUTPUT,
) -> CommandResult:
    """Run `argv` (a path or a name on PATH, and arguments) to its end.

    It gets a session of its own, and when it takes more than `timeout` seconds or we are cancelled the whole
    process group is killed with SIGKILL. `env` replaces the environment. Output beyond `max_output` bytes a
    stream is read and dropped. Returns whatever the exit code is: `.check()` raises on failure.

    Raises CommandTimeout, and CommandFailed when the program cannot be started.
    """
    args = tuple(str(arg) for arg in argv)
    async with AsyncExitStack() as stack:
        out = _Output.open(stack, max_output)
        err = _Output.open(stack, max_output)
        starting = asyncio.ensure_future(
            asyncio.create_subprocess_exec(
                *args,
                stdin=DEVNULL if stdin is None else _file_with(stack, stdin),
                stdout=out.write_end,
                stderr=err.write_end,
                env=env,
                cwd=cwd,
                start_new_session=True,
            )
        )
        try:
            process = await asyncio.shield(starting)
        except OSError as error:
            raise CommandFailed(f"cannot run {args[0]}: {error.strerror or error}") from error
        except asyncio.CancelledError:
            # The program may run already, with children that only we know how to end.
            starting.add_done_callback(_kill_started)
            raise
        streams = asyncio.gather(out.read(), err.read())
        try:
            async with asyncio.timeout(timeout):
                returncode = await process.wait()
                await asyncio.wait([streams], timeout=_STRAGGLERS)
        except TimeoutError:
            raise CommandTimeout(f"{args[0]} took longer than {timeout:g} s") from None
        finally:
            await _end(process, streams)
    return CommandResult(args, returncode, bytes(out.kept), bytes(err.kept), out.cut or err.cut)


class _Output:
    """A pipe for one output stream, and what is kept of it.

    Not asyncio's own pipes: with those, waiting for a program's end waits for the end of its output as well, which a
    descendant of it can keep open. And no transport: uvloop's closes a pipe twice, the second time whatever another
    thread has opened under that number meanwhile.
    """

    def __init__(self, read_end: FileIO, write_end: FileIO, limit: int) -> None:
        self.write_end = write_end
        self.kept = bytearray()
        self.cut = False
        self._read_end = read_end
        self._limit = limit

    @classmethod
    def open(cls, stack: AsyncExitStack, limit: int) -> "_Output":
        read_end, write_end = os.pipe()
        os.set_blocking(read_end, False)
        return cls(
            stack.enter_context(FileIO(read_end, "r")), stack.enter_context(FileIO(write_end, "w")), limit
        )

    async def read(self) -> None:
        """Read to the end, that is until all who have the write end have closed it."""
        self.write_end.close()
        loop = asyncio.get_running_loop()
        fd = self._read_end.fileno()
        ended: asyncio.Future[None] = loop.create_future()

        def on_readable() -> None:
            chunk = self._read_end.read(_CHUNK)
            if chunk is None or ended.done():  # nothing there after all
                return
            if not chunk:
                ended.set_result(None)
                return
            room = self._limit - len(self.kept)
            self.kept += chunk[:room]
            self.cut = self.cut or len(chunk) > room

        loop.add_reader(fd, on_readable)
        try:
            await ended
        finally:
            loop.remove_reader(fd)


def _file_with(stack: AsyncExitStack, data: bytes) -> FileIO:
    """A file in memory: unlike a pipe it needs nobody to feed it."""
    file = stack.enter_context(FileIO(os.memfd_create("stdin"), "r+"))
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]
    file.seek(0)
    return file


def _kill_started(starting: asyncio.Future[Process]) -> None:
    if not starting.cancelled() and starting.exception() is None:
        _kill_group(starting.result())


def _kill_group(process: Process) -> None:
    # The group's number cannot belong to others as long as one of its members lives.
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


async def _end(process: Process, streams: asyncio.Future[Any]) -> None:
    """Kill what is left of the process group and reap the program."""
    if process.returncode is None or not streams.done():
        _kill_group(process)
        await asyncio.shield(process.wait())
        await asyncio.wait([streams], timeout=_STRAGGLERS)
    # A daemon that left the group may still hold the output open.
    streams.cancel()
    with suppress(asyncio.CancelledError):
        await streams
