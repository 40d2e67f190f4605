"""The phases that each hydration has been in, and for how long."""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

ON_MYSQL: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin"}


def _time() -> sa.DateTime:
    return sa.DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")


def upgrade() -> None:
    """Add the table; of a hydration that is there its present phase is known, and of one in steady state its first."""
    op.create_table(
        "backpressure_phase",
        sa.Column("hydration_id", sa.String(32), nullable=False),
        sa.Column("number", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("phase", sa.String(16), nullable=False),
        sa.Column("started_at", _time(), nullable=False),
        sa.Column("ended_at", _time()),
        sa.PrimaryKeyConstraint("hydration_id", "number", name="pk_backpressure_phase"),
        **ON_MYSQL,
    )
    op.execute(
        "INSERT INTO backpressure_phase (hydration_id, number, phase, started_at, ended_at)"
        " SELECT id, 1, 'hydration', created_at, hydrated_at FROM backpressure_hydration"
        " WHERE hydrated_at IS NOT NULL OR phase = 'hydration'"
    )
    op.execute(
        "INSERT INTO backpressure_phase (hydration_id, number, phase, started_at)"
        " SELECT id, 2, phase, COALESCE(hydrated_at, updated_at) FROM backpressure_hydration"
        " WHERE phase <> 'hydration'"
    )


def downgrade() -> None:
    """Drop it."""
    op.drop_table("backpressure_phase")
