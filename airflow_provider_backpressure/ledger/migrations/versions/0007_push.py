"""The number of the gate's latest change, and what the channels of processes have done."""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

ON_MYSQL: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin"}


def upgrade() -> None:
    """Add column and table."""
    op.add_column(
        "backpressure_hydration", sa.Column("gate_changes", sa.BigInteger, nullable=False, server_default="0")
    )
    at = sa.DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")
    op.create_table(
        "backpressure_push",
        sa.Column("process", sa.String(64), nullable=False),
        sa.Column("at", at, nullable=False),
        sa.Column("counts", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("process", name="pk_backpressure_push"),
        **ON_MYSQL,
    )


def downgrade() -> None:
    """Drop them."""
    op.drop_table("backpressure_push")
    op.drop_column("backpressure_hydration", "gate_changes")
