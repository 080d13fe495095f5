"""Engines: how connections to SQLite and PostgreSQL are made, and what every connection is told.

Each database gets two engines. The *read* engine never opens a transaction and cannot write (SQLite
`query_only`, PostgreSQL `default_transaction_read_only`). The *write* engine opens a transaction at once.

SQLite, why so:
* WAL: readers see the last commit and never wait for the writer.
* `BEGIN IMMEDIATE`: a transaction that will write takes the write lock first. With the default a transaction
  that reads and then writes fails at once, whatever the timeout, when another one wrote in between.
* `synchronous=NORMAL`, and a flush of the log after the commit for those who need it: see `wal.py`.
* a file, never memory: two connections must see one database.
"""

import os
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast
from urllib.parse import unquote, urlsplit

import asyncpg
from sqlalchemy import URL, event
from sqlalchemy.engine import Connection, ExceptionContext
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from forkyard.storage import sqlite
from forkyard.storage.dialect import to_json
from forkyard.storage.errors import DatabaseUnavailable, InvalidDatabaseUrl, translate

DialectName = Literal["sqlite", "postgresql"]

SQLITE_BUSY_TIMEOUT = 10.0
"""Seconds a SQLite connection waits for a lock that another *process* holds."""

SQLITE_READERS = 8
"""Most SQLite read connections; each is a thread."""

_SQLITE_PRAGMAS = (
    "foreign_keys=ON",
    f"busy_timeout={int(SQLITE_BUSY_TIMEOUT * 1000)}",
    "temp_store=MEMORY",
    "cache_size=-8000",  # KiB a connection
)
_SQLITE_WRITER_PRAGMAS = ("journal_mode=WAL", "synchronous=NORMAL", f"journal_size_limit={64 << 20}")

# Bounds on what one session may do to the others, enforced by the server so that they hold if we hang.
_POSTGRESQL_SETTINGS = {
    "application_name": "forkyard",
    "timezone": "UTC",
    "lock_timeout": "10s",
    "statement_timeout": "60s",
    "idle_in_transaction_session_timeout": "60s",
    "jit": "off",
}
_POSTGRESQL_CONNECT_TIMEOUT = 10.0
_POSTGRESQL_POOL = 10

# The package has no types.
_asyncpg_connect: Callable[..., Awaitable[Any]] = cast(Any, asyncpg).connect


@dataclass(frozen=True, slots=True)
class DatabaseUrl:
    """Where the database is: `path` for SQLite, `dsn` (as asyncpg reads it, with secrets) for PostgreSQL."""

    dialect: DialectName
    path: Path | None = None
    dsn: str | None = None

    def __repr__(self) -> str:
        return f"DatabaseUrl({self.shown})"

    @property
    def shown(self) -> str:
        """The URL without user, password and options, fit for logs."""
        if self.dsn is None:
            return f"sqlite:///{self.path}"
        parts = urlsplit(self.dsn)
        return f"postgresql://{parts.netloc.rpartition('@')[2]}{parts.path}"


def sqlite_url(path: Path) -> DatabaseUrl:
    """The database file at `path`."""
    return DatabaseUrl("sqlite", path=path.absolute())


def parse_database_url(text: str) -> DatabaseUrl:
    """Read a URL in the forms people write it.

    `sqlite:///relative.db`, `sqlite:////absolute.db`; `postgres://` and `postgresql://` with all that libpq
    URLs may hold (`sslmode=`, a Unix socket as `?host=/run/postgresql`, several hosts). A driver name after a
    plus sign (`postgresql+psycopg2://`) is ignored. Raises InvalidDatabaseUrl, whose message holds no secret.
    """
    match = re.match(r"([a-z][a-z0-9]*)(\+[a-z0-9_]+)?://", text.strip())
    scheme = match.group(1) if match else ""
    rest = text.strip()[match.end() :] if match else ""
    if scheme in ("postgres", "postgresql"):
        return DatabaseUrl("postgresql", dsn=f"postgresql://{rest}")
    if scheme == "sqlite":
        path, _, options = rest.partition("?")
        if not path.startswith("/") or len(path) < 2 or options or ":memory:" in path:
            raise InvalidDatabaseUrl(
                "a SQLite database is given as sqlite:///PATH of a file, without options"
            )
        return sqlite_url(Path(unquote(path[1:])))
    raise InvalidDatabaseUrl()


@dataclass(frozen=True, slots=True)
class Engines:
    """The two engines of one database."""

    read: AsyncEngine
    write: AsyncEngine

    async def dispose(self) -> None:
        """Close all connections that are not in use."""
        await self.read.dispose()
        await self.write.dispose()


def create_engines(url: DatabaseUrl) -> Engines:
    """Make the engines, which connect when used. A missing SQLite file and folder are made, for us alone.

    Raises DatabaseUnavailable when they cannot be made.
    """
    if url.dsn is not None:
        read_only = {"default_transaction_read_only": "on"}
        return Engines(
            read=_postgresql_engine(
                url.dsn, read_only, isolation_level="AUTOCOMMIT", skip_autocommit_rollback=True
            ),
            write=_postgresql_engine(url.dsn, {}),
        )
    path = _private_file(url)
    read = _sqlite_engine(
        path,
        (*_SQLITE_PRAGMAS, "query_only=ON"),
        pool_size=SQLITE_READERS,
        isolation_level="AUTOCOMMIT",
        skip_autocommit_rollback=True,
    )
    return Engines(read=read, write=_sqlite_writer(path, _SQLITE_PRAGMAS))


def create_migration_engine(url: DatabaseUrl) -> AsyncEngine:
    """An engine for one transaction that changes the schema, which may take and wait long.

    On SQLite foreign keys are not enforced: to change a table it is made anew, and dropping the old one would
    delete what refers to it.
    """
    if url.dsn is not None:
        patient = {"statement_timeout": "0", "lock_timeout": "0", "idle_in_transaction_session_timeout": "0"}
        return _postgresql_engine(url.dsn, patient)
    return _sqlite_writer(_private_file(url), ("foreign_keys=OFF", "busy_timeout=60000"))


def _private_file(url: DatabaseUrl) -> Path:
    path = url.path
    assert path is not None
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # It holds tokens of sandboxes: not for other users. SQLite gives its side files the same mode.
        os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise DatabaseUnavailable(f"cannot open the database {path}: {error.strerror}") from error
    return path


def _sqlite_engine(path: Path, pragmas: tuple[str, ...], **options: Any) -> AsyncEngine:
    engine = create_async_engine(
        # The path is here for SQLAlchemy to know that it is a file; connections are made by the creator.
        URL.create("sqlite+aiosqlite", database=str(path)),
        async_creator=partial(sqlite.connect, path, pragmas),
        json_serializer=to_json,
        # Sessions end their transactions themselves; a rollback to be sure would be one more trip.
        pool_reset_on_return=None,
        max_overflow=0,
        **options,
    )
    event.listen(engine.sync_engine, "handle_error", _translate_error)
    return engine


def _sqlite_writer(path: Path, pragmas: tuple[str, ...]) -> AsyncEngine:
    engine = _sqlite_engine(path, (*pragmas, *_SQLITE_WRITER_PRAGMAS), pool_size=1)
    event.listen(engine.sync_engine, "begin", _begin_immediate)
    return engine


def _begin_immediate(connection: Connection) -> None:
    opened = connection.connection.driver_connection
    assert isinstance(opened, sqlite.OneTripConnection)
    opened.begin_immediate()


def _postgresql_engine(dsn: str, settings: dict[str, str], **options: Any) -> AsyncEngine:
    engine = create_async_engine(
        "postgresql+asyncpg://",
        async_creator=_postgresql_connector(dsn, {**_POSTGRESQL_SETTINGS, **settings}),
        json_serializer=to_json,
        pool_size=_POSTGRESQL_POOL,
        max_overflow=_POSTGRESQL_POOL,
        pool_timeout=30,
        pool_pre_ping=True,
        **options,
    )
    event.listen(engine.sync_engine, "handle_error", _translate_error)
    return engine


def _postgresql_connector(dsn: str, settings: dict[str, str]) -> Callable[..., Awaitable[Any]]:
    async def connect(*_args: object, **_options: object) -> Any:
        try:
            return await _asyncpg_connect(dsn, timeout=_POSTGRESQL_CONNECT_TIMEOUT, server_settings=settings)
        except (OSError, TimeoutError) as error:
            raise DatabaseUnavailable(f"cannot connect to PostgreSQL: {error or 'timeout'}") from error
        except asyncpg.PostgresError as error:
            raise DatabaseUnavailable(f"PostgreSQL refuses the connection: {error}") from error
        except (ValueError, asyncpg.InterfaceError):
            # Without the error: it quotes what it could not read, which may be a part of the password.
            raise InvalidDatabaseUrl(
                "the database URL is not valid; characters like / : @ in a password must be percent-encoded"
            ) from None

    return connect


def _translate_error(context: ExceptionContext) -> BaseException | None:
    return translate(context.sqlalchemy_exception or context.original_exception)
