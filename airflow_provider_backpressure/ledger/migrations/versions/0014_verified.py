"""Whether what was planned last was verified: an increment leaves the phase as it is, and may not have been."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column. Of plans that were made before, the phase alone says it, as it did then."""
    verified = sa.Column("verified", sa.Boolean, nullable=False, server_default="1")
    op.add_column("backpressure_hydration", verified)


def downgrade() -> None:
    """Drop the column."""
    op.drop_column("backpressure_hydration", "verified")
