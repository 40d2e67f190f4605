"""What a run that only plans has found."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column."""
    text = sa.Text().with_variant(mysql.MEDIUMTEXT(), "mysql", "mariadb")
    op.add_column("backpressure_hydration", sa.Column("preview", text))


def downgrade() -> None:
    """Drop the column."""
    op.drop_column("backpressure_hydration", "preview")
