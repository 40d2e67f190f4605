"""What the latest probe of a hydration has measured."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column."""
    text = sa.Text().with_variant(mysql.MEDIUMTEXT(), "mysql", "mariadb")
    op.add_column("backpressure_hydration", sa.Column("probe", text))


def downgrade() -> None:
    """Drop the column."""
    op.drop_column("backpressure_hydration", "probe")
