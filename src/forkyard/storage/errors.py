"""What can go wrong with the database, apart from constraint violations.

`sqlalchemy.exc.IntegrityError` is left as it is: stores catch it where a unique key is their way to decide.
"""

import sqlite3

from sqlalchemy import exc

from forkyard.base.errors import Conflict, ForkyardError, InvalidInput, StorageFull, Unavailable


class DatabaseUnavailable(Unavailable):
    """The database cannot be reached now."""

    code = "database_unavailable"


class DatabaseBusy(Unavailable):
    """Another transaction holds the database for too long."""

    code = "database_busy"


class DatabaseConflict(Conflict):
    """Two transactions got in each other's way; nothing was written and the work can be repeated."""

    code = "database_conflict"


class DatabaseFull(StorageFull):
    """The disk of the database is full; nothing was written."""

    code = "database_full"


class InvalidValue(InvalidInput):
    """The value cannot be stored: it holds NUL characters, broken Unicode, or is out of range."""

    code = "invalid_value"


class InvalidDatabaseUrl(InvalidInput):
    """The database URL is not one of sqlite:///PATH or postgresql://USER:PASSWORD@HOST/NAME."""

    code = "invalid_database_url"


class SchemaTooNew(ForkyardError):
    """The database was written by a newer version of Forkyard; start that version or restore a backup."""

    code = "schema_too_new"


_UNAVAILABLE_CLASSES = ("08", "57P")
_CONFLICT_STATES = ("40001", "40P01")
_BUSY_STATES = ("55P03", "53300")
_SQLITE_BROKEN = (
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_CORRUPT,
)


def translate(error: BaseException) -> ForkyardError | None:
    """The error of this module that `error`, raised by SQLAlchemy, stands for; None if none does."""
    if isinstance(error, exc.StatementError) and isinstance(error.orig, ForkyardError):
        return error.orig  # one of ours, raised while values were prepared
    if isinstance(error, exc.IntegrityError) or not isinstance(error, exc.DBAPIError):
        return None
    if state := str(getattr(error.orig, "sqlstate", None) or ""):
        return _from_sqlstate(state, error)
    if isinstance(error, exc.DataError):
        return InvalidValue()
    if error.connection_invalidated:
        return DatabaseUnavailable()
    return _translate_sqlite(error.orig)


def _translate_sqlite(error: BaseException | None) -> ForkyardError | None:
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return None
    primary = int(code) & 0xFF  # the rest says what exactly the disk or the lock was about
    if primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return DatabaseBusy()
    if primary == sqlite3.SQLITE_FULL:
        return DatabaseFull()
    if primary in _SQLITE_BROKEN:
        return DatabaseUnavailable(f"the database cannot be used: {error}")
    return None


def _from_sqlstate(state: str, error: exc.DBAPIError) -> ForkyardError | None:
    if state in _CONFLICT_STATES:
        return DatabaseConflict()
    if state in _BUSY_STATES:
        return DatabaseBusy()
    if state == "53100":
        return DatabaseFull()
    if state.startswith("22"):
        return InvalidValue()
    if error.connection_invalidated or state.startswith(_UNAVAILABLE_CLASSES):
        return DatabaseUnavailable()
    return None
