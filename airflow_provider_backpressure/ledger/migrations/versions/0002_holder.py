"""Who has a hydration for itself: runs of one hydration take turns."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column."""
    op.add_column("backpressure_hydration", sa.Column("holder", sa.String(512)))


def downgrade() -> None:
    """Drop the column."""
    op.drop_column("backpressure_hydration", "holder")
