"""Running `runsc` commands with the paths that the keeper has: node data always at the same place."""

from __future__ import annotations

import asyncio
import os
import signal
from asyncio.subprocess import DEVNULL
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from forkyard.base.errors import ForkyardError
from forkyard.drivers.gvisor.config import NODE

_ROOT = Path("/run/forkyard/root")
_MOST_SAID = 2000

# In a mount namespace of its own for each command; what it starts keeps it.
_ENTER = 'mkdir -p "$2" "$4" && mount --rbind "$1" "$2" && mount --bind "$3" "$4" && shift 4 && exec "$@"'


class RunscFailed(ForkyardError):
    """A runsc command failed."""

    code = "runsc_failed"


class NoSpace(RunscFailed):
    """A runsc command failed because the disk is full."""

    code = "runsc_no_space"


class Runsc:
    """One version of the binary, for the containers below one directory."""

    def __init__(self, binary: Path, node_dir: Path, root: Path) -> None:
        self._binary = binary
        self._node_dir = node_dir
        self._root = root

    def inside(self, directory: Path) -> str:
        """A container's directory as commands see it: short, because sockets lie in it."""
        return str(_ROOT / directory.relative_to(self._root))

    async def run(
        self, directory: Path, command: Sequence[str], *, output: Path | None, timeout: float
    ) -> None:
        """Run one command for the container in `directory`. What it starts has `output` as standard output and error.

        Raises TimeoutError (the command is killed then), NoSpace, RunscFailed with what it says.
        """
        said = directory / "runtime.log"
        said.unlink(missing_ok=True)
        inside = self.inside(directory)
        arguments = [
            *("unshare", "--mount", "--propagation", "slave", "sh", "-c", _ENTER, "sh"),
            *(str(self._node_dir), str(NODE), str(self._root), str(_ROOT)),
            *(str(self._binary), *_flags(inside), *command),
        ]
        fd = os.open(output or os.devnull, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            process = await asyncio.create_subprocess_exec(
                *arguments, stdin=DEVNULL, stdout=fd, stderr=fd, start_new_session=True, env=_ENVIRONMENT
            )
        finally:
            os.close(fd)
        try:
            async with asyncio.timeout(timeout):
                code = await process.wait()
        except BaseException:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGKILL)
            await process.wait()
            raise
        if code != 0:
            raise _failure(command[0], code, _read(said))


_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}


def _flags(inside: str) -> list[str]:
    """As the keeper sets them (go/internal/keeper/runtime/flags.go): a checkpoint of one is restored by the other."""
    return [
        f"--root={inside}",
        "--network=sandbox",
        "--platform=systrap",
        "--directfs=true",
        f"--overlay2=root:dir={NODE}/disks",
        "--file-access=exclusive",
        "--host-uds=none",
        "--allow-suid=true",
        "--net-disconnect-ok=true",
        "--host-settings=ignore",
        f"--log={inside}/runtime.log",
        f"--panic-log={inside}/panic.log",
    ]


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_MOST_SAID).decode(errors="replace").strip()
    except OSError:
        return ""


def _failure(command: str, code: int, said: str) -> RunscFailed:
    message = f"runsc {command} failed with exit code {code}: {said or 'it said nothing'}"
    return NoSpace(message) if "no space left on device" in said else RunscFailed(message)
