"""What a hydration's task does, and when a task was heard of last."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns."""
    at = sa.DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")
    op.add_column("backpressure_hydration", sa.Column("activity", sa.Text))
    op.add_column("backpressure_hydration", sa.Column("heard_at", at))


def downgrade() -> None:
    """Drop the columns."""
    op.drop_column("backpressure_hydration", "heard_at")
    op.drop_column("backpressure_hydration", "activity")
