"""What a transition in progress was asked for."""

import sqlalchemy as sa
from alembic import op

from forkyard.storage.dialect import JsonColumn

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("sandboxes", schema=None) as batch_op:
        batch_op.add_column(sa.Column("transition_intent", JsonColumn(), nullable=True))
