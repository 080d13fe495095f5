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

from forkyard.storage.errors import DatabaseFull, DatabaseUnavailable


class WalFlush:
    """Flushes the log of the database at `path`; use it from one event loop."""

    def __init__(self, path: Path) -> None:
        self._log = path.with_name(path.name + "-wal")
        # A thread of its own: the common pool may be full of slow work.
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="wal-flush")
        self._running: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None

    async def flush(self) -> None:
        """Return when all that was committed before this call is on the disk.

        Raises DatabaseFull or DatabaseUnavailable when the disk fails; a crash of the host may take it back
        then.
        """
        # A flush that runs already may have begun before our commit: the next one is ours.
        if self._next is None:
            self._next = asyncio.create_task(self._round(self._running))
        await asyncio.shield(self._next)

    async def close(self) -> None:
        """End the thread, after the flushes that were asked for."""
        pending = [task for task in (self._running, self._next) if task is not None]
        await asyncio.gather(*pending, return_exceptions=True)
        self._executor.shutdown(wait=False)

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
