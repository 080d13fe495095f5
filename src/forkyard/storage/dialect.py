"""The few points where SQLite and PostgreSQL differ: times, JSON, the database's clock, upsert."""

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    DateTime,
    Dialect,
    Float,
    Integer,
    TypeDecorator,
    func,
    literal,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import DeclarativeBase
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeEngine

from forkyard.storage.errors import InvalidValue

# An escaped NUL in JSON text: PostgreSQL refuses it in JSONB, SQLite does not, so both refuse it here.
_JSON_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")

BigInt = BigInteger().with_variant(Integer(), "sqlite")
"""A 64-bit integer, which SQLite also takes as an autoincrement key (there only INTEGER is)."""


class UtcDateTime(TypeDecorator[datetime]):
    """An aware UTC time with microseconds, equal after a round trip on both databases.

    SQLite has no time type: there it is text of fixed width, so that it sorts and compares as the time does.
    Binding a naive time raises ValueError.
    """

    impl = DateTime
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(DateTime(timezone=dialect.name == "postgresql"))

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("a time without a time zone cannot be stored")
        value = value.astimezone(UTC)
        return value if dialect.name == "postgresql" else value.replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)


class JsonColumn(TypeDecorator[Any]):
    """JSON (JSONB on PostgreSQL). None is SQL NULL. A change inside a value is not seen: replace it.

    Binding a value with NUL characters or broken Unicode raises InvalidValue, one that is not JSON TypeError
    or ValueError. PostgreSQL does not keep the order of keys.
    """

    impl = JSON
    cache_ok = True

    def __init__(self) -> None:
        super().__init__(none_as_null=True)

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        if dialect.name == "postgresql":
            return dialect.type_descriptor(postgresql.JSONB(none_as_null=True))
        return dialect.type_descriptor(JSON(none_as_null=True))


def to_json(value: Any) -> str:
    """JSON text that both databases store. Raises InvalidValue (see JsonColumn), TypeError or ValueError."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    if "\\u0000" in text and _JSON_NUL.search(text):
        raise InvalidValue("NUL characters cannot be stored")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidValue("the text is not valid Unicode") from error
    return text


class database_now(FunctionElement[datetime]):  # noqa: N801 - reads as the SQL function it is
    """The database's clock when the statement starts, plus `offset`: what leases of several processes go by.

    On PostgreSQL stable within a statement, so that an index can be used to compare with it; on SQLite it has
    milliseconds only.
    """

    inherit_cache = True
    type = UtcDateTime()

    def __init__(self, offset: timedelta = timedelta()) -> None:
        super().__init__(literal(offset.total_seconds(), Float()))


@compiles(database_now, "sqlite")
def _sqlite_now(element: database_now, compiler: SQLCompiler, **kw: Any) -> str:
    offset = compiler.process(element.clauses, **kw)
    return f"(strftime('%Y-%m-%d %H:%M:%f', 'now', printf('%+.6f seconds', {offset})) || '000')"


@compiles(database_now, "postgresql")
def _postgresql_now(element: database_now, compiler: SQLCompiler, **kw: Any) -> str:
    return f"(statement_timestamp() + make_interval(secs => {compiler.process(element.clauses, **kw)}))"


def insert_into(session: AsyncSession, entity: type[DeclarativeBase]) -> sqlite.Insert | postgresql.Insert:
    """An INSERT that knows `on_conflict_do_nothing` and `on_conflict_do_update` (the same on both databases).

    >>> statement = insert_into(session, Team).values(id="t1", name="default")
    >>> statement = statement.on_conflict_do_nothing(index_elements=["name"])
    """
    if session.get_bind().dialect.name == "postgresql":
        return postgresql.insert(entity)
    return sqlite.insert(entity)


async def lock_name_txn(session: AsyncSession, name: str) -> None:
    """Hold the lock called `name` to the end of the transaction; another transaction that wants it waits.

    For decisions that read more than they write, such as "at most N of these". On SQLite nothing is to be
    done: a writer excludes all others.
    """
    if session.get_bind().dialect.name == "postgresql":
        await session.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(name, 0))))
