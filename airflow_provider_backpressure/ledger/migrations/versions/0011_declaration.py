"""What a hydration was declared to do when it was planned, so that commands need no DAG."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column."""
    text = sa.Text().with_variant(mysql.MEDIUMTEXT(), "mysql", "mariadb")
    op.add_column("backpressure_hydration", sa.Column("declaration", text))


def downgrade() -> None:
    """Drop the column."""
    op.drop_column("backpressure_hydration", "declaration")
