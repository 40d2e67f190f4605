"""Steering while a hydration runs, the queue per cluster, limits that hydrations share, and the flow of stages."""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

ON_MYSQL: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin"}
HYDRATION = "backpressure_hydration"


def _time() -> sa.DateTime:
    return sa.DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")


def _columns() -> tuple[sa.Column[Any], ...]:
    return (
        sa.Column("credits_set", sa.Integer),
        sa.Column("slots", sa.Integer),
        sa.Column("range_rows_set", sa.BigInteger),
        sa.Column("priority", sa.Integer, nullable=False, server_default="0"),
        sa.Column("sink_server", sa.String(512), nullable=False, server_default=""),
    )


def upgrade() -> None:
    """Add columns and tables."""
    for column in _columns():
        op.add_column(HYDRATION, column)
    op.create_index("ix_backpressure_hydration_sink_server", HYDRATION, ["sink_server"])
    op.create_index("ix_backpressure_hydration_cluster", HYDRATION, ["cluster"])
    op.create_table(
        "backpressure_queue",
        sa.Column("hydration_id", sa.String(32), nullable=False),
        sa.Column("run", sa.String(512)),
        sa.Column("ready_at", _time(), nullable=False),
        sa.Column("started_at", _time()),
        sa.Column("lease_until", _time(), nullable=False),
        sa.PrimaryKeyConstraint("hydration_id", name="pk_backpressure_queue"),
        **ON_MYSQL,
    )
    op.create_table(
        "backpressure_limit",
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("name", sa.String(512), nullable=False),
        sa.Column("most", sa.BigInteger),
        sa.Column("set_by", sa.String(512)),
        sa.PrimaryKeyConstraint("kind", "name", name="pk_backpressure_limit"),
        **ON_MYSQL,
    )
    op.create_table(
        "backpressure_flow",
        sa.Column("hydration_id", sa.String(32), nullable=False),
        sa.Column("at", _time(), nullable=False),
        sa.Column("worker_id", sa.String(512), nullable=False),
        sa.Column("times", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("hydration_id", "at", "worker_id", name="pk_backpressure_flow"),
        **ON_MYSQL,
    )


def downgrade() -> None:
    """Drop them."""
    op.drop_table("backpressure_flow")
    op.drop_table("backpressure_limit")
    op.drop_table("backpressure_queue")
    op.drop_index("ix_backpressure_hydration_cluster", HYDRATION)
    op.drop_index("ix_backpressure_hydration_sink_server", HYDRATION)
    for column in _columns():
        op.drop_column(HYDRATION, column.name)
