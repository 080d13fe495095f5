"""Pytest plugin: the fixture `database`, once on SQLite and once on PostgreSQL, with the schema made once.

A SQLite test gets a copy of a migrated file, a PostgreSQL test a migrated database that is emptied
afterwards. Either takes milliseconds; starting the PostgreSQL server takes a second or two, once.
"""

import asyncio
import shutil
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio
from sqlalchemy import delete

from forkyard.node.tables import METADATA
from forkyard.storage.engine import DatabaseUrl, parse_database_url, sqlite_url
from forkyard.storage.migrations import migrate
from forkyard.storage.session import Database
from forkyard.testing.postgres import PostgresServer, running_postgres


@pytest.fixture(scope="session")
def postgres_server() -> Generator[PostgresServer]:
    """A PostgreSQL server of this test process. Fails, not skips, if there is none: both databases are supported."""
    with running_postgres() as server:
        yield server


@pytest.fixture(scope="session")
def postgres_url(postgres_server: PostgresServer) -> DatabaseUrl:
    """A database with the newest schema."""
    url = parse_database_url(postgres_server.create_database())
    asyncio.run(migrate(url))
    return url


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with the newest schema, to be copied."""
    path = tmp_path_factory.mktemp("sqlite") / "template.db"
    asyncio.run(migrate(sqlite_url(path)))
    return path


@pytest.fixture
def sqlite_copy(sqlite_template: Path, tmp_path: Path) -> DatabaseUrl:
    """A SQLite file with the newest schema, for this test alone."""
    path = tmp_path / "test.db"
    shutil.copyfile(sqlite_template, path)
    return sqlite_url(path)


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest) -> DatabaseUrl:
    """Where a database with the newest schema and no rows is."""
    return request.getfixturevalue("postgres_url" if request.param == "postgresql" else "sqlite_copy")


@pytest_asyncio.fixture
async def database(database_url: DatabaseUrl) -> AsyncGenerator[Database]:
    """A migrated, empty database."""
    async with emptied_database(database_url) as database:
        yield database


@asynccontextmanager
async def emptied_database(url: DatabaseUrl) -> AsyncGenerator[Database]:
    """The database at `url`; at the end its rows are deleted, unless it is a file that goes with its folder."""
    database = Database(url)
    try:
        yield database
    finally:
        try:
            if database.dialect == "postgresql":
                await _delete_all_rows(database)
        finally:
            await database.close()


async def _delete_all_rows(database: Database) -> None:
    """Waits for transactions that a test left open, and fails then, instead of leaving rows to the next test."""
    async with database.write(durable=False) as session:
        for table in reversed(METADATA.sorted_tables):
            await session.execute(delete(table))
