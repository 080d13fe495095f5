"""`Database`: short read and write sessions.

Rules for those who use it:
* Load, work, apply: no network call, subprocess or sleep inside `write()`. On SQLite all other writers wait.
* Functions that need an open transaction take the session and have names that end in `_txn`.
* Read what you are going to change with `.with_for_update()`, or change it by compare-and-set (an UPDATE with
  the old state in WHERE). On SQLite writers run one after the other anyway; on PostgreSQL (read committed)
  they do not.
* No `write()` inside `write()`: it would wait for itself, and raises RuntimeError.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any, TypeVar

from sqlalchemy import text
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from forkyard.base.logging import get_logger
from forkyard.storage.engine import DatabaseUrl, DialectName, create_engines
from forkyard.storage.errors import DatabaseBusy, DatabaseConflict, DatabaseUnavailable
from forkyard.storage.wal import WalFlush

T = TypeVar("T")

log = get_logger(__name__)

WRITER_TIMEOUT = 30.0
"""Seconds a SQLite writer waits for the writers of this process before it."""

SLOW_WRITE = 1.0
"""A transaction that is open longer (seconds) is logged: it holds up others."""

_ATTEMPTS = 5
_COMMIT_WITHOUT_WAITING = text("SET LOCAL synchronous_commit TO off")
_PING = text("SELECT version_num FROM alembic_version LIMIT 1")
_EMIT_RECORD = text("SELECT pg_logical_emit_message(true, 'forkyard', '')")


class Database:
    """One database, SQLite or PostgreSQL. Safe for concurrent use by the tasks of one event loop."""

    def __init__(self, url: DatabaseUrl) -> None:
        """Connects to nothing yet. Raises DatabaseUnavailable if a SQLite file cannot be made."""
        self.url = url
        self._engines = create_engines(url)
        # SQLite has one writer; a queue of ours is fair and needs no polling, its busy timeout is neither.
        self._turn = None if url.path is None else asyncio.Lock()
        self._wal = None if url.path is None else WalFlush(url.path)
        self._writing: set[asyncio.Task[Any] | None] = set()

    @property
    def dialect(self) -> DialectName:
        """`sqlite` or `postgresql`."""
        return self.url.dialect

    async def close(self) -> None:
        """Close all connections; sessions in use must have ended."""
        if self._wal is not None:
            await self._wal.close()
        await self._engines.dispose()

    @asynccontextmanager
    async def read(self) -> AsyncGenerator[AsyncSession]:
        """A session that can only read. It is in no transaction: each statement sees the newest commits.

        Never waits for writers. Loaded objects can be used after the session, as far as they were loaded.
        """
        async with AsyncSession(self._engines.read, expire_on_commit=False, autoflush=False) as session:
            await _connect(session)
            yield session

    @asynccontextmanager
    async def write(self, durable: bool = True) -> AsyncGenerator[AsyncSession]:
        """A session in one transaction: committed at the end of the block, rolled back if it raises.

        When the block has ended without an error, the data survives a crash of the process and, if `durable`,
        of the host. Commits keep their order: a durable one makes all earlier ones durable too. So where a
        crash of the host would make the record worthless anyway (a sandbox that is being created), or a later
        durable commit comes before anything is thrown away that an older record needs, `durable=False` saves
        the wait for the disk. A cancelled block is rolled back; a commit that has begun (which writes first what
        was not flushed before) is finished before the cancellation goes on. Loaded objects can be used after
        the block.

        Raises DatabaseBusy when its turn does not come in time, DatabaseUnavailable, DatabaseFull, and on
        PostgreSQL DatabaseConflict (deadlock); then nothing was written. Two exceptions: whether the data was
        written is open when the connection breaks during the commit; it was written, but not durably, when
        flushing it fails.
        """
        task = asyncio.current_task()
        if task in self._writing:
            raise RuntimeError("write() inside write() would wait for itself; hand the session down instead")
        await self._take_turn()
        self._writing.add(task)
        started = monotonic()
        try:
            async with _transaction(self._engines.write) as session:
                if not durable and self._wal is None:
                    await session.execute(_COMMIT_WITHOUT_WAITING)
                yield session
        finally:
            self._writing.discard(task)
            if self._turn is not None:
                self._turn.release()
            if (seconds := monotonic() - started) > SLOW_WRITE:
                log.warning("a transaction was open for long", seconds=round(seconds, 3), stack_info=True)
        if self._wal is not None:
            if durable:
                await self._wal.flush()
            else:
                self._wal.flush_soon()

    async def flush(self) -> None:
        """Make durable what was committed before this call with `durable=False` too.

        Raises DatabaseFull or DatabaseUnavailable when the disk fails.
        """
        if self._wal is not None:
            await self._wal.flush()
            return
        async with self.write() as session:
            # A commit that wrote nothing waits for nothing; this writes a record that nobody reads.
            await session.execute(_EMIT_RECORD)

    async def ping(self) -> None:
        """Whether it can be read now. Raises DatabaseUnavailable, DatabaseBusy; may hang as long as it does."""
        if self.url.path is not None and not self.url.path.exists():
            # Who has it open could read on, and lose all that he writes.
            raise DatabaseUnavailable(f"the database file {self.url.path} is gone")
        async with self.read() as session:
            await session.execute(_PING)

    async def transact(self, work: Callable[[AsyncSession], Awaitable[T]], durable: bool = True) -> T:
        """Run `work(session)` as `write()` does and return its result; on DatabaseConflict again, 5 times.

        `work` must have no effects but those on the session.
        """
        for _ in range(_ATTEMPTS - 1):
            try:
                async with self.write(durable) as session:
                    return await work(session)
            except DatabaseConflict:
                continue
        async with self.write(durable) as session:
            return await work(session)

    async def _take_turn(self) -> None:
        if self._turn is None:
            return
        try:
            async with asyncio.timeout(WRITER_TIMEOUT):
                await self._turn.acquire()
        except TimeoutError:
            raise DatabaseBusy(f"no turn to write within {WRITER_TIMEOUT:g} s") from None


@asynccontextmanager
async def _transaction(engine: AsyncEngine) -> AsyncGenerator[AsyncSession]:
    session = AsyncSession(engine, expire_on_commit=False)
    try:
        await _connect(session)
        yield session
        await _finish(session.run_sync(_commit_and_close))
    except BaseException:
        await _finish(session.run_sync(_roll_back_and_close))
        raise


async def _connect(session: AsyncSession) -> None:
    """Take a connection now, and begin: failing to get one is told apart from failing to use it."""
    try:
        await session.connection()
    except PoolTimeout:
        raise DatabaseBusy("no database connection became free in time") from None


def _commit_and_close(session: Session) -> None:
    session.commit()
    session.close()


def _roll_back_and_close(session: Session) -> None:
    try:
        session.rollback()
        session.close()
    except Exception as error:
        # Whatever is wrong with the connection, it must not come back with an open transaction.
        log.warning("rollback failed, dropping the connection", error=repr(error))
        session.invalidate()


async def _finish(work: Awaitable[None]) -> None:
    """Wait for `work` to its end even if cancelled meanwhile, then pass the cancellation on."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            if task.cancelled():
                raise
            cancelled = error
        except Exception:
            break
    task.result()
    if cancelled is not None:
        raise cancelled
