"""Making SQLite commits durable together.

With `synchronous=FULL` SQLite flushes the write-ahead log inside each commit, one after the other, with the
write lock held: 0.1 ms on an idle disk, but 1 to 20 ms while snapshots are written to the same disk, and
every other writer waits. So connections commit with NORMAL (not flushed), the lock is given back, and whoever
needs durability waits for a flush of the log that began after the commit. One flush serves all who wait.

The log is one file that only grows until a checkpoint, and its frames carry checksums, so a flush makes
durable everything committed before it. A checkpoint that comes between flushes the log by itself before it
moves frames into the database. Opening and closing the log beside SQLite is safe: it holds its locks on other
files.
"""

import asyncio
import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from forkyard.base.logging import get_logger
from forkyard.storage.errors import DatabaseFull, DatabaseUnavailable

log = get_logger(__name__)

SOON = 5.0
"""Seconds after which a commit that nobody waits for is flushed: how much a crash of the host may take back.

Not less: on ext4 a flush makes the journal commit, with the data of whatever else is being written, and the
kernel does that every 5 seconds anyway.
"""


class WalFlush:
    """Flushes the log of the database at `path`; use it from one event loop."""

    def __init__(self, path: Path) -> None:
        self._log = path.with_name(path.name + "-wal")
        # A thread of its own: the common pool may be full of slow work.
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="wal-flush")
        self._running: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def flush(self) -> None:
        """Return when all that was committed before this call is on the disk.

        Raises DatabaseFull or DatabaseUnavailable when the disk fails; a crash of the host may take it back
        then.
        """
        await asyncio.shield(self._join_next())

    def flush_soon(self) -> None:
        """Have all that was committed before this call on the disk a few seconds later; does not wait."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SOON, self._start_flush)

    async def close(self) -> None:
        """End the thread, after the flushes that were asked for."""
        if self._timer is not None:
            self._timer.cancel()
            self._start_flush()
        pending = [task for task in (self._running, self._next) if task is not None]
        await asyncio.gather(*pending, return_exceptions=True)
        self._executor.shutdown(wait=False)

    def _join_next(self) -> asyncio.Task[None]:
        # A flush that runs already may have begun before our commit: the next one is ours.
        if self._next is None:
            self._next = asyncio.create_task(self._round(self._running))
        return self._next

    def _start_flush(self) -> None:
        self._timer = None
        self._join_next().add_done_callback(_log_failure)

    async def _round(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        self._running, self._next = self._next, None
        await asyncio.get_running_loop().run_in_executor(self._executor, self._flush)

    def _flush(self) -> None:
        try:
            log = os.open(self._log, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return  # the last connection was closed: all is in the database file, flushed
        try:
            os.fdatasync(log)
        except OSError as error:
            kind = DatabaseFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else DatabaseUnavailable
            raise kind(f"cannot flush the database: {error.strerror}") from error
        finally:
            os.close(log)


def _log_failure(flush: asyncio.Task[None]) -> None:
    if not flush.cancelled() and (error := flush.exception()) is not None:
        log.error("the database could not be flushed", error=str(error))
