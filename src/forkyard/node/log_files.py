"""Keeps the log files of edge and keepers bounded.

They are open for appending in processes that outlive this one, so a file is not moved away: it is copied, then cut to
nothing where it is. A line that is written between the two is lost.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

from forkyard.base.clock import Clock
from forkyard.base.logging import get_logger
from forkyard.host.disk import remove_tree
from forkyard.host.processes import listener_of

log = get_logger(__name__)

INTERVAL_S = 30.0
"""The edge writes 200 lines a second at most, which is about 3 MB in that time."""

MAX_BYTES = 16 << 20
"""Past this a file is cut; what it held is kept as `<name>.1` until the next time."""

KEEP_S = 7 * 24 * 3600.0
"""How long the files of a keeper that has ended stay."""


class LogFiles:
    """One loop a node."""

    def __init__(self, log_dir: Path, run_dir: Path, clock: Clock) -> None:
        """`run_dir` is where the keepers' sockets are."""
        self._log_dir = log_dir
        self._run_dir = run_dir
        self._clock = clock

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.to_thread(self.look)
            await self._clock.sleep(INTERVAL_S)

    def look(self) -> None:
        """Cut what is too large, remove what belongs to keepers of the past. Blocks."""
        for path in sorted([*self._log_dir.glob("*.log"), *self._log_dir.glob("*.out")]):
            try:
                found = path.stat(follow_symlinks=False)
                if found.st_size > MAX_BYTES:
                    _cut(path)
                elif path.name.startswith("keeper-") and time.time() - found.st_mtime > KEEP_S:
                    self._remove_if_ended(path)
            except OSError as error:
                log.warning("a log file cannot be kept small", path=str(path), error=str(error))

    def _remove_if_ended(self, path: Path) -> None:
        if listener_of(self._run_dir / f"{path.stem}.sock") is None:
            for old in (path, _kept(path)):
                old.unlink(missing_ok=True)


def _cut(path: Path) -> None:
    fresh = path.with_name(f".{path.name}.new")
    try:
        _copy(path, fresh)
        fresh.replace(_kept(path))
    except OSError as error:
        # On a full disk above all the file must not go on growing.
        log.warning("a log file is cut without being kept", path=str(path), error=str(error))
        with suppress(OSError):
            remove_tree(fresh)
    os.truncate(path, 0)


def _copy(source: Path, target: Path) -> None:
    fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as new, source.open("rb") as old:
        shutil.copyfileobj(old, new)


def _kept(path: Path) -> Path:
    return path.with_name(f"{path.name}.1")
