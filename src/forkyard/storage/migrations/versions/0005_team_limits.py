"""Limits of single teams."""

import sqlalchemy as sa
from alembic import op

from forkyard.storage.dialect import JsonColumn

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("teams", schema=None) as batch_op:
        batch_op.add_column(sa.Column("limits", JsonColumn(), nullable=True))
