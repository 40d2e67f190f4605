"""Why the latest task of a hydration has failed, and when."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

HYDRATION = "backpressure_hydration"


def upgrade() -> None:
    """Add the columns."""
    time = sa.DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")
    op.add_column(HYDRATION, sa.Column("failure", sa.Text()))
    op.add_column(HYDRATION, sa.Column("failed_at", time))


def downgrade() -> None:
    """Drop the columns."""
    for name in ("failed_at", "failure"):
        op.drop_column(HYDRATION, name)
