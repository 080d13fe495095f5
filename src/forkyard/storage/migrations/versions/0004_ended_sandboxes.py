"""Indexes that keep ended sandboxes out of the way, and find them when they are purged."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.drop_index("ix_sandboxes_node_id", "sandboxes")
    op.drop_index("ix_sandboxes_state_end", "sandboxes")
    op.create_index("ix_sandboxes_node_state_end", "sandboxes", ["node_id", "state", "end_at"])
    ended = sa.text("ended_at IS NOT NULL")
    op.create_index(
        "ix_sandboxes_ended",
        "sandboxes",
        ["node_id", "ended_at"],
        sqlite_where=ended,
        postgresql_where=ended,
    )
    op.drop_index("ix_idempotency_keys_created_at", "idempotency_keys")
    op.create_index("ix_idempotency_keys_sandbox_id", "idempotency_keys", ["sandbox_id"])
