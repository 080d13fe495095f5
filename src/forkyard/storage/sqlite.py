"""SQLite connections that make one trip to their thread for each statement.

sqlite3 blocks, so aiosqlite gives each connection a thread and sends it every call: to open a cursor, to run
the statement, to fetch the rows, to close the cursor. A trip there and back costs about 0.1 ms on a busy
machine. Doing the four in one trip halves a short transaction. All rows of a result are fetched at once.
"""

import asyncio
import sqlite3
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Self

import aiosqlite

_Row = tuple[Any, ...]

_THREAD_END = 5.0
"""Seconds for a thread to end after its connection could not be made."""


class OneTripConnection(aiosqlite.Connection):
    """An aiosqlite connection whose `cursor()` is a OneTripCursor, and that begins transactions without a trip."""

    _begin_next = False

    def begin_immediate(self) -> None:
        """Have the next statement begin a transaction first, which holds the write lock before it reads anything."""
        self._begin_next = True

    async def commit(self) -> None:
        """Commit the transaction, if there is one."""
        if not self._take_begin():
            await super().commit()

    async def rollback(self) -> None:
        """Roll the transaction back, if there is one."""
        if not self._take_begin():
            await super().rollback()

    def _take_begin(self) -> bool:
        """Whether a transaction is still to begin; then it is not any more."""
        begin, self._begin_next = self._begin_next, False
        return begin

    async def run_statement(
        self, run: Callable[[sqlite3.Cursor], object]
    ) -> tuple[sqlite3.Cursor, list[_Row]]:
        """Call `run(cursor)` in the connection's thread; the closed cursor, and all rows."""
        begin, opened = self._take_begin(), self._conn

        def trip() -> tuple[sqlite3.Cursor, list[_Row]]:
            if begin:
                opened.execute("BEGIN IMMEDIATE").close()
            cursor = opened.cursor()
            try:
                run(cursor)
                return cursor, cursor.fetchall() if cursor.description else []
            finally:
                cursor.close()

        return await self._execute(trip)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]

    def cursor(self) -> "OneTripCursor":  # pyright: ignore[reportIncompatibleMethodOverride]
        return OneTripCursor(self)


class OneTripCursor:
    """What SQLAlchemy needs of a cursor (its `AsyncIODBAPICursor`)."""

    def __init__(self, connection: OneTripConnection) -> None:
        self._connection = connection
        self._rows: deque[_Row] = deque()
        self.description: Sequence[Any] | None = None
        self.rowcount = -1
        self.lastrowid: int | None = None
        self.arraysize = 1

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        return None

    async def execute(self, sql: str, parameters: Iterable[Any] = ()) -> Self:
        """Run one statement and fetch its rows."""
        return await self._run(lambda cursor: cursor.execute(sql, tuple(parameters)))

    async def executemany(self, sql: str, rows: Iterable[Iterable[Any]]) -> Self:
        """Run one statement for each row of parameters."""
        return await self._run(lambda cursor: cursor.executemany(sql, [tuple(row) for row in rows]))

    async def _run(self, run: Callable[[sqlite3.Cursor], object]) -> Self:
        cursor, rows = await self._connection.run_statement(run)
        self._rows = deque(rows)
        self.description, self.rowcount, self.lastrowid = (
            cursor.description,
            cursor.rowcount,
            cursor.lastrowid,
        )
        return self

    async def fetchone(self) -> _Row | None:
        """The next row, or None."""
        return self._rows.popleft() if self._rows else None

    async def fetchmany(self, size: int | None = None) -> list[_Row]:
        """Up to `size` next rows."""
        count = min(size or self.arraysize, len(self._rows))
        return [self._rows.popleft() for _ in range(count)]

    async def fetchall(self) -> list[_Row]:
        """All rows that are left."""
        rows, self._rows = list(self._rows), deque()
        return rows

    async def __aiter__(self) -> AsyncIterator[_Row]:
        while self._rows:
            yield self._rows.popleft()

    async def close(self) -> None:
        """Nothing is left to close: the cursor in the thread was closed with its statement."""


async def connect(path: Path, pragmas: Sequence[str]) -> OneTripConnection:
    """Open `path` in autocommit mode (a statement begins a transaction) and set `pragmas` (`name=value`)."""

    def open_it() -> sqlite3.Connection:
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            for pragma in pragmas:
                connection.execute(f"PRAGMA {pragma}").close()
        except BaseException:
            connection.close()
            raise
        return connection

    connection = OneTripConnection(open_it, iter_chunk_size=64)
    thread = connection._thread  # pyright: ignore[reportPrivateUsage]
    # A connection that is never closed must not keep the process from ending.
    thread.daemon = True
    try:
        await connection
    except BaseException:
        # aiosqlite has told the thread to end but does not wait; it reports its end to our event loop, which
        # must still be there then.
        await asyncio.shield(asyncio.to_thread(thread.join, _THREAD_END))
        raise
    return connection
