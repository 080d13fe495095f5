"""Run by Alembic for each of its commands; see `alembic_config`."""

from typing import Any, Literal

from alembic import context
from alembic.autogenerate.api import AutogenContext
from sqlalchemy import Enum

from forkyard.storage.dialect import JsonColumn, UtcDateTime
from forkyard.storage.models import BigInt


def _render(kind: str, value: Any, _autogen: AutogenContext) -> str | Literal[False]:
    """How a type of ours is written in a drafted step."""
    if kind == "type" and isinstance(value, UtcDateTime | JsonColumn):
        return f"{type(value).__name__}()"
    if isinstance(value, Enum):
        return f"sa.String({value.length})"
    if kind == "type" and value is BigInt:
        return "BigInt"
    return False


context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=context.config.attributes["metadata"],
    # sqlite3 as we open it leaves transactions alone, so that SQLite's DDL is in them like PostgreSQL's.
    transactional_ddl=True,
    render_as_batch=True,
    render_item=_render,
)
with context.begin_transaction():
    context.run_migrations()
