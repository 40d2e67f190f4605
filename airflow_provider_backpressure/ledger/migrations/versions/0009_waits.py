"""Who waits for a connection to its target's server, and since when."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

HYDRATION = "backpressure_hydration"


def _time() -> sa.DateTime:
    return sa.DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")


def upgrade() -> None:
    """Add the columns."""
    for name in ("waits_since", "waits_until"):
        op.add_column(HYDRATION, sa.Column(name, _time()))


def downgrade() -> None:
    """Drop the columns."""
    for name in ("waits_until", "waits_since"):
        op.drop_column(HYDRATION, name)
