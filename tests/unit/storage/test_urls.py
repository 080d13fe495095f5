"""Database URLs as people write them."""

from pathlib import Path

import pytest
from sqlalchemy import exc

from forkyard.base.errors import ForkyardError
from forkyard.storage.engine import parse_database_url
from forkyard.storage.errors import (
    DatabaseConflict,
    DatabaseFull,
    InvalidDatabaseUrl,
    InvalidValue,
    translate,
)


@pytest.mark.parametrize(
    ("text", "dsn"),
    [
        ("postgres://u:p@host/db", "postgresql://u:p@host/db"),
        ("postgresql://u:p@host:5433/db?sslmode=require", "postgresql://u:p@host:5433/db?sslmode=require"),
        ("postgresql+psycopg2://u@host/db", "postgresql://u@host/db"),
        ("postgresql+asyncpg://u@h1,h2/db", "postgresql://u@h1,h2/db"),
        (" postgresql:///db?host=/run/postgresql\n", "postgresql:///db?host=/run/postgresql"),
    ],
)
def test_postgresql(text: str, dsn: str) -> None:
    url = parse_database_url(text)
    assert (url.dialect, url.dsn, url.path) == ("postgresql", dsn, None)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("sqlite:////var/lib/a.db", Path("/var/lib/a.db")),
        ("sqlite:///a.db", Path.cwd() / "a.db"),
        ("sqlite+aiosqlite:////x%20y/a.db", Path("/x y/a.db")),
    ],
)
def test_sqlite(text: str, path: Path) -> None:
    url = parse_database_url(text)
    assert (url.dialect, url.dsn, url.path) == ("sqlite", None, path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "mysql://h/db",
        "sqlite://",
        "sqlite:///",
        "sqlite:///:memory:",
        "sqlite:///a.db?mode=ro",
        "/a.db",
    ],
)
def test_others_are_refused(text: str) -> None:
    with pytest.raises(InvalidDatabaseUrl):
        parse_database_url(text)


def test_what_is_shown_holds_no_secret() -> None:
    url = parse_database_url("postgres://user:hunter2@host:1/db?password=hunter3")
    assert url.shown == "postgresql://host:1/db"
    assert "hunter" not in repr(url)


class PostgresError(Exception):
    def __init__(self, sqlstate: str) -> None:
        super().__init__("said the server")
        self.sqlstate = sqlstate


@pytest.mark.parametrize(
    ("sqlstate", "kind"),
    [
        ("40P01", DatabaseConflict),
        ("40001", DatabaseConflict),
        ("53100", DatabaseFull),
        ("22021", InvalidValue),
        ("42601", None),
    ],
)
def test_postgresql_errors(sqlstate: str, kind: type[ForkyardError] | None) -> None:
    error = translate(exc.DBAPIError("SELECT", {}, PostgresError(sqlstate)))
    assert (type(error) if error else None) is kind
