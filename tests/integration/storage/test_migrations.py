"""Migrations: equal to the tables in the code, on both databases; safe to run together; nothing lost."""

import asyncio
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from forkyard.base.errors import ForkyardError
from forkyard.node.tables import METADATA
from forkyard.storage import migrations
from forkyard.storage.engine import DatabaseUrl, create_migration_engine, parse_database_url, sqlite_url
from forkyard.storage.errors import SchemaTooNew
from forkyard.storage.migrations import alembic_config, migrate
from forkyard.storage.session import Database
from forkyard.testing.postgres import PostgresServer

SERVERS = 3


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[DatabaseUrl]:
    """A database without tables."""
    if request.param == "sqlite":
        yield sqlite_url(tmp_path / "empty.db")
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    url = server.create_database()
    yield parse_database_url(url)
    server.drop_database(url)


async def run(url: DatabaseUrl, *statements: str) -> list[Any]:
    engine = create_migration_engine(url)
    async with engine.begin() as connection:
        for statement in statements:
            result = await connection.execute(text(statement))
    await engine.dispose()
    return list(result) if result.returns_rows else []


def differences(connection: Connection) -> list[Any]:
    options = {"compare_type": True, "compare_server_default": True}
    return compare_metadata(MigrationContext.configure(connection, opts=options), METADATA)


async def test_the_migrated_schema_is_what_the_tables_in_the_code_say(database: Database) -> None:
    engine = create_migration_engine(database.url)
    async with engine.connect() as connection:
        assert await connection.run_sync(differences) == []
        # That this comparison can fail:
        await connection.execute(text("ALTER TABLE teams ADD COLUMN extra INTEGER"))
        assert await connection.run_sync(differences) != []
        await connection.rollback()
    await engine.dispose()


async def test_there_is_one_line_of_steps(empty_url: DatabaseUrl) -> None:
    engine = create_migration_engine(empty_url)
    async with engine.connect() as connection:
        scripts = await connection.run_sync(lambda c: ScriptDirectory.from_config(alembic_config(c)))
    await engine.dispose()
    revisions = [script.revision for script in scripts.walk_revisions()]
    assert len(scripts.get_heads()) == 1
    assert revisions == sorted(revisions, reverse=True)


async def test_a_second_run_changes_nothing(empty_url: DatabaseUrl) -> None:
    head = await migrate(empty_url)
    await run(
        empty_url, "INSERT INTO teams (id, name, created_at) VALUES ('t', 't', '2026-01-01 00:00:00.000000')"
    )
    assert await migrate(empty_url) == head
    assert await run(empty_url, "SELECT id FROM teams") == [("t",)]


async def test_servers_that_start_together_migrate_once(empty_url: DatabaseUrl) -> None:
    """Each in a process of its own, as servers are."""
    program = (
        "import asyncio, sys; from forkyard.storage.engine import parse_database_url;"
        "from forkyard.storage.migrations import migrate;"
        "print('revision', asyncio.run(migrate(parse_database_url(sys.argv[1]))))"
    )
    address = empty_url.dsn or f"sqlite:///{empty_url.path}"
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable,
            *("-c", program, address),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        for _ in range(SERVERS)
    ]
    outputs = [(await process.communicate())[0].decode() for process in processes]
    assert [process.returncode for process in processes] == [0] * SERVERS, outputs
    assert sum("migrating the database" in output for output in outputs) == 1


async def test_a_database_of_a_newer_program_is_refused_untouched(empty_url: DatabaseUrl) -> None:
    await migrate(empty_url)
    await run(empty_url, "UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(SchemaTooNew):
        await migrate(empty_url)
    assert await run(empty_url, "SELECT version_num FROM alembic_version") == [("9999",)]


async def test_a_step_that_fails_takes_back_all_steps(
    empty_url: DatabaseUrl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if killed in the middle: nothing of it is there, and the next start begins anew."""
    steps = Path(migrations.__file__).parent
    folder = tmp_path / "migrations"
    (folder / "versions").mkdir(parents=True)
    for source in [steps / "env.py", *(steps / "versions").glob("0*.py")]:
        (folder / source.relative_to(steps)).write_text(source.read_text())
    last = max((folder / "versions").glob("0*.py"))
    last.write_text(last.read_text() + "\n    raise LookupError('power cut')\n")
    monkeypatch.setattr(migrations, "__file__", str(folder / "__init__.py"))
    with pytest.raises(LookupError, match="power cut"):
        await migrate(empty_url)
    monkeypatch.undo()
    tables = "SELECT name FROM sqlite_master WHERE type = 'table'"
    if empty_url.dialect == "postgresql":
        tables = "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
    assert await run(empty_url, tables) == []
    await migrate(empty_url)


async def test_changing_a_table_keeps_what_refers_to_it(sqlite_copy: DatabaseUrl) -> None:
    """SQLite makes the table anew and drops the old one, which must not cascade."""
    url = sqlite_copy
    await run(
        url, "CREATE TABLE parents (id INTEGER PRIMARY KEY, x INTEGER)", "INSERT INTO parents VALUES (1, 2)"
    )
    await run(
        url,
        "CREATE TABLE children (id INTEGER REFERENCES parents (id) ON DELETE CASCADE)",
        "INSERT INTO children VALUES (1)",
        "CREATE TABLE parents_new (id INTEGER PRIMARY KEY)",
        "INSERT INTO parents_new SELECT id FROM parents",
        "DROP TABLE parents",
        "ALTER TABLE parents_new RENAME TO parents",
    )
    assert await run(url, "SELECT id FROM children") == [(1,)]


async def test_broken_references_stop_a_migration(
    sqlite_copy: DatabaseUrl, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = sqlite_copy
    await run(
        url,
        "INSERT INTO api_keys (id, team_id, name, role, hash, prefix, suffix, created_by, created_at)"
        " VALUES ('k', 'nobody', 'k', 'admin', 'h', 'p', 's', 'operator', '2026-01-01 00:00:00.000000')",
        # What comes next finds a step to do, which is replaced by nothing.
        "DELETE FROM alembic_version",
    )
    monkeypatch.setattr(migrations.command, "upgrade", lambda _config, _to: None)
    with pytest.raises(ForkyardError, match="1 rows"):
        await migrate(url)
