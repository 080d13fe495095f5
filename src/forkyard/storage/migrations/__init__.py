"""Bringing a database to the schema of this version of the program.

`versions/` holds the steps of the whole project in one line: `0001_auth.py`, `0002_...`. A step is never
changed once it was released. `scripts/make-migration NAME` drafts one from the difference to the tables in
the code.
"""

from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, MetaData, text
from sqlalchemy.ext.asyncio import AsyncConnection

from forkyard.base.logging import get_logger
from forkyard.storage.engine import DatabaseUrl, create_migration_engine
from forkyard.storage.errors import DatabaseUnavailable, SchemaTooNew

log = get_logger(__name__)

# Any number that is nobody else's: "forkyard" in ASCII.
_ADVISORY_LOCK = int.from_bytes(b"forkyard")


async def migrate(url: DatabaseUrl) -> str:
    """Bring the database to the newest schema, and return its revision.

    All steps run in one transaction: they all happen or none does. Servers that start together wait for each
    other. Raises SchemaTooNew, before anything is changed, when the database is of a newer program, and
    DatabaseUnavailable.
    """
    engine = create_migration_engine(url)
    try:
        async with engine.begin() as connection:
            await _exclude_others(connection)
            return await connection.run_sync(_upgrade, url.shown)
    finally:
        await engine.dispose()


def alembic_config(connection: Connection, metadata: MetaData | None = None) -> Config:
    """Alembic's configuration for an open connection; with `metadata` steps can be drafted from differences."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.attributes["connection"] = connection
    config.attributes["metadata"] = metadata
    return config


async def _exclude_others(connection: AsyncConnection) -> None:
    if connection.dialect.name == "postgresql":
        await connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _ADVISORY_LOCK})


def _upgrade(connection: Connection, shown: str) -> str:
    config = alembic_config(connection)
    scripts = ScriptDirectory.from_config(config)
    head = scripts.get_current_head()
    assert head is not None, "there are no migration steps"
    known = {script.revision for script in scripts.walk_revisions()}
    current = MigrationContext.configure(connection).get_current_revision()
    if current is not None and current not in known:
        raise SchemaTooNew()
    if current != head:
        log.info("migrating the database", database=shown, before=current, after=head)
        command.upgrade(config, "head")
        _check_foreign_keys(connection)
    return head


def _check_foreign_keys(connection: Connection) -> None:
    """SQLite does not watch them during a migration, see `create_migration_engine`."""
    if connection.dialect.name != "sqlite":
        return
    broken: list[Any] = list(connection.execute(text("PRAGMA foreign_key_check")))
    if broken:
        raise DatabaseUnavailable(f"a migration would leave {len(broken)} rows without what they refer to")
