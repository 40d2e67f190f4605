"""An index of each plan's first range: the end of a run finds the plans of its hydration without reading all ranges."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

FIRST = sa.text("seq = 0")


def upgrade() -> None:
    """Create the index."""
    op.create_index(
        "ix_backpressure_range_first",
        "backpressure_range",
        ["hydration_id", "seq"],
        postgresql_where=FIRST,
        sqlite_where=FIRST,
    )


def downgrade() -> None:
    """Drop the index."""
    op.drop_index("ix_backpressure_range_first", table_name="backpressure_range")
