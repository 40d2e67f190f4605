"""Positions of sources, statistics over time, and events that last."""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

from airflow_provider_backpressure.ledger.sql_types import Unsigned64

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

ON_MYSQL: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin"}
HYDRATION, SAMPLE = "backpressure_hydration", "backpressure_sample"


def _time() -> sa.DateTime:
    return sa.DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")


def _text() -> sa.Text:
    return sa.Text().with_variant(mysql.MEDIUMTEXT(), "mysql", "mariadb")


def _of_hydration() -> tuple[sa.Column[Any], ...]:
    return (
        sa.Column("course", _text()),
        sa.Column("occurring", sa.Text),
    )


def _of_sample() -> tuple[sa.Column[Any], ...]:
    return (
        sa.Column("offset_known", Unsigned64),
        sa.Column("offset_committed", Unsigned64),
        sa.Column("upstream_rate", sa.Double),
        sa.Column("process_rate", sa.Double),
    )


def upgrade() -> None:
    """Add columns and a table."""
    for column in _of_hydration():
        op.add_column(HYDRATION, column)
    for column in _of_sample():
        op.add_column(SAMPLE, column)
    op.create_table(
        "backpressure_upstream",
        sa.Column("source", sa.String(64), nullable=False),
        sa.Column("source_identity", sa.Text, nullable=False),
        sa.Column("asked_at", _time(), nullable=False),
        sa.Column("seen_at", _time()),
        sa.Column("frontier", _text()),
        sa.PrimaryKeyConstraint("source", name="pk_backpressure_upstream"),
        **ON_MYSQL,
    )


def downgrade() -> None:
    """Drop them."""
    op.drop_table("backpressure_upstream")
    for column in _of_sample():
        op.drop_column(SAMPLE, column.name)
    for column in _of_hydration():
        op.drop_column(HYDRATION, column.name)
