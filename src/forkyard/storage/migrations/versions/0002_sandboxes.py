"""Sandboxes, snapshots, idempotency keys."""

import sqlalchemy as sa
from alembic import op

from forkyard.storage.dialect import JsonColumn, UtcDateTime

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "idempotency_keys",
        sa.Column("team_id", sa.String(length=36), nullable=False),
        sa.Column("key", sa.String(length=255), nullable=False),
        sa.Column("request_hash", sa.String(length=64), nullable=False),
        sa.Column("sandbox_id", sa.String(length=40), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("team_id", "key", name=op.f("pk_idempotency_keys")),
    )
    op.create_index("ix_idempotency_keys_created_at", "idempotency_keys", ["created_at"])
    op.create_table(
        "sandboxes",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("team_id", sa.String(length=36), nullable=False),
        sa.Column("node_id", sa.String(length=36), nullable=False),
        sa.Column("state", sa.String(40), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("transition", sa.String(length=40), nullable=True),
        sa.Column("transition_at", UtcDateTime(), nullable=True),
        sa.Column("transition_snapshot_id", sa.String(length=40), nullable=True),
        sa.Column("handle", JsonColumn(), nullable=True),
        sa.Column("snapshot_id", sa.String(length=40), nullable=True),
        sa.Column("template_id", sa.String(length=40), nullable=False),
        sa.Column("template_name", sa.String(length=200), nullable=True),
        sa.Column("source_snapshot_id", sa.String(length=40), nullable=False),
        sa.Column("parent_id", sa.String(length=40), nullable=True),
        sa.Column("vcpus", sa.Integer(), nullable=False),
        sa.Column("memory_mb", sa.Integer(), nullable=False),
        sa.Column("disk_mb", sa.Integer(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("started_at", UtcDateTime(), nullable=False),
        sa.Column("end_at", UtcDateTime(), nullable=False),
        sa.Column("timeout_s", sa.Integer(), nullable=False),
        sa.Column("paused_at", UtcDateTime(), nullable=True),
        sa.Column("ended_at", UtcDateTime(), nullable=True),
        sa.Column("end_reason", sa.String(length=400), nullable=True),
        sa.Column("unhealthy_reason", sa.String(length=400), nullable=True),
        sa.Column("pause_on_timeout", sa.Boolean(), nullable=False),
        sa.Column("pause_keeps_memory", sa.Boolean(), nullable=False),
        sa.Column("paused_without_memory", sa.Boolean(), nullable=False),
        sa.Column("auto_resume", sa.Boolean(), nullable=False),
        sa.Column("envd_version", sa.String(length=20), nullable=False),
        sa.Column("envd_token", sa.String(length=100), nullable=True),
        sa.Column("traffic_token", sa.String(length=100), nullable=True),
        sa.Column("public_traffic", sa.Boolean(), nullable=False),
        sa.Column("allow_internet", sa.Boolean(), nullable=True),
        sa.Column("allow_out", JsonColumn(), nullable=True),
        sa.Column("deny_out", JsonColumn(), nullable=True),
        sa.Column("mask_host", sa.String(length=300), nullable=True),
        sa.Column("settings", JsonColumn(), nullable=False),
        sa.Column("env_vars", JsonColumn(), nullable=False),
        sa.Column("metadata", JsonColumn(), nullable=False),
        sa.Column("hostname", sa.String(length=64), nullable=False),
        sa.Column("boot_id", sa.String(length=36), nullable=False),
        sa.Column("machine_id", sa.String(length=32), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sandboxes")),
    )
    op.create_index("ix_sandboxes_node_id", "sandboxes", ["node_id"])
    op.create_index("ix_sandboxes_state_end", "sandboxes", ["state", "end_at"])
    op.create_index("ix_sandboxes_team_state_started", "sandboxes", ["team_id", "state", "started_at", "id"])
    op.create_table(
        "snapshots",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("team_id", sa.String(length=36), nullable=True),
        sa.Column("node_id", sa.String(length=36), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("durability", sa.String(length=16), nullable=False),
        sa.Column("sandbox_id", sa.String(length=40), nullable=True),
        sa.Column("template_id", sa.String(length=40), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("parent_id", sa.String(length=40), nullable=True),
        sa.Column("vcpus", sa.Integer(), nullable=False),
        sa.Column("memory_mb", sa.Integer(), nullable=False),
        sa.Column("disk_mb", sa.Integer(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("envd_version", sa.String(length=20), nullable=False),
        sa.Column("keeps_memory", sa.Boolean(), nullable=False),
        sa.Column("settings", JsonColumn(), nullable=False),
        sa.Column("manifest", JsonColumn(), nullable=True),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_snapshots")),
    )
    op.create_index("ix_snapshots_sandbox_id", "snapshots", ["sandbox_id"])
    op.create_index("ix_snapshots_state", "snapshots", ["state"])
    op.create_index("ix_snapshots_team_id", "snapshots", ["team_id"])
    op.create_index("ix_snapshots_template_id", "snapshots", ["template_id"])
    op.create_table(
        "sandbox_tags",
        sa.Column("sandbox_id", sa.String(length=40), nullable=False),
        sa.Column("key", sa.String(length=500), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["sandbox_id"], ["sandboxes.id"], name=op.f("fk_sandbox_tags_sandbox_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("sandbox_id", "key", name=op.f("pk_sandbox_tags")),
    )
    op.create_table(
        "snapshot_names",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("team_id", sa.String(length=36), nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("tag", sa.String(length=128), nullable=False),
        sa.Column("snapshot_id", sa.String(length=40), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["snapshot_id"], ["snapshots.id"], name=op.f("fk_snapshot_names_snapshot_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_snapshot_names")),
        sa.UniqueConstraint("team_id", "name", "tag", name=op.f("uq_snapshot_names_team_id_name_tag")),
    )
    op.create_index("ix_snapshot_names_snapshot_id", "snapshot_names", ["snapshot_id"])
