"""What can go wrong with the database, apart from constraint violations.

`sqlalchemy.exc.IntegrityError` is left as it is: stores catch it where a unique key is their way to decide.
"""

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


def translate(error: BaseException) -> ForkyardError | None:
    """The error of this module that `error`, raised by SQLAlchemy or its drivers, stands for; None if none does."""
    if isinstance(error, exc.TimeoutError):
        return DatabaseBusy("no database connection became free in time")
    if isinstance(error, exc.IntegrityError) or not isinstance(error, exc.DBAPIError):
        return None
    text = str(error.orig)
    state = str(getattr(error.orig, "sqlstate", None) or "")
    if state:
        return _from_sqlstate(state, error)
    if isinstance(error, exc.DataError) or isinstance(error.orig, UnicodeEncodeError | OverflowError):
        return InvalidValue()
    if "database or disk is full" in text:
        return DatabaseFull()
    if "database is locked" in text:
        return DatabaseBusy()
    if error.connection_invalidated or "unable to open database file" in text or "disk I/O error" in text:
        return DatabaseUnavailable(f"the database cannot be used: {text}")
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
