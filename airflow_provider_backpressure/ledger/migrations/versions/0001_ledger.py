"""The ledger's first tables.

The types are spelled out rather than taken from the models: a migration stays what it was.
"""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

from airflow_provider_backpressure.ledger.sql_types import Unsigned64

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

ON_MYSQL: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin"}
TABLES = ("control", "sample", "source_statistics", "range", "hydration")


def _time() -> sa.DateTime:
    return sa.DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "backpressure_hydration",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("identity", sa.String(64), nullable=False),
        sa.Column("environment", sa.String(250), nullable=False),
        sa.Column("source_identity", sa.Text, nullable=False),
        sa.Column("sink_identity", sa.Text, nullable=False),
        sa.Column("owner", sa.String(512), nullable=False),
        sa.Column("cluster", sa.String(250), nullable=False),
        sa.Column("phase", sa.String(16), nullable=False),
        sa.Column("plan_id", sa.String(32)),
        sa.Column("plan", sa.Text().with_variant(mysql.MEDIUMTEXT(), "mysql", "mariadb")),
        sa.Column("next_seq", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("credits", sa.Integer, nullable=False),
        sa.Column("credits_max", sa.Integer, nullable=False),
        sa.Column("paused_by", sa.String(512)),
        sa.Column("paused_why", sa.Text),
        sa.Column("decision", sa.Text),
        sa.Column("commit_seconds", sa.Double),
        sa.Column("range_memory_bytes", sa.BigInteger),
        sa.Column("sampled_at", _time()),
        sa.Column("created_at", _time(), nullable=False),
        sa.Column("updated_at", _time(), nullable=False),
        sa.Column("hydrated_at", _time()),
        sa.PrimaryKeyConstraint("id", name="pk_backpressure_hydration"),
        sa.UniqueConstraint("identity", name="uq_backpressure_hydration_identity"),
        **ON_MYSQL,
    )
    op.create_table(
        "backpressure_range",
        sa.Column("plan_id", sa.String(32), nullable=False),
        sa.Column("seq", sa.BigInteger, nullable=False, autoincrement=False),
        sa.Column("hydration_id", sa.String(32), nullable=False),
        sa.Column("bounds", sa.Text, nullable=False),
        sa.Column("state", sa.String(16), nullable=False, server_default="planned"),
        sa.Column("planned_rows", sa.BigInteger, nullable=False),
        sa.Column("planned_bytes", sa.BigInteger, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False, server_default="0"),
        sa.Column("lane", sa.String(512)),
        sa.Column("session_id", sa.String(250)),
        sa.Column("tag", sa.String(250)),
        sa.Column("lease_until", _time()),
        sa.Column("memory_bytes", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("committed_rows", Unsigned64),
        sa.Column("committed_bytes", Unsigned64),
        sa.Column("checksum", sa.String(250)),
        sa.Column("error", sa.Text),
        sa.Column("admitted_at", _time()),
        sa.Column("committed_at", _time()),
        sa.PrimaryKeyConstraint("plan_id", "seq", name="pk_backpressure_range"),
        **ON_MYSQL,
    )
    unsettled = sa.text("state IN ('admitted', 'failed')")
    op.create_index(
        "ix_backpressure_range_unsettled",
        "backpressure_range",
        ["hydration_id", "state"],
        postgresql_where=unsettled,
        sqlite_where=unsettled,
    )
    op.create_table(
        "backpressure_source_statistics",
        sa.Column("hydration_id", sa.String(32), nullable=False),
        sa.Column("worker_id", sa.String(512), nullable=False),
        sa.Column("snapshot_total", Unsigned64),
        sa.Column("snapshot_total_exact", sa.Boolean, nullable=False),
        sa.Column("snapshot_progress", Unsigned64, nullable=False),
        sa.Column("snapshot_read", Unsigned64, nullable=False),
        sa.Column("upstream_rate", sa.Double),
        sa.Column("process_rate", sa.Double),
        sa.Column("offset_known", Unsigned64),
        sa.Column("offset_committed", Unsigned64),
        sa.Column("messages_received", Unsigned64, nullable=False),
        sa.Column("bytes_received", Unsigned64, nullable=False),
        sa.Column("updated_at", _time(), nullable=False),
        sa.PrimaryKeyConstraint("hydration_id", "worker_id", name="pk_backpressure_source_statistics"),
        **ON_MYSQL,
    )
    op.create_table(
        "backpressure_sample",
        sa.Column("hydration_id", sa.String(32), nullable=False),
        sa.Column("plan_id", sa.String(32), nullable=False),
        sa.Column("at", _time(), nullable=False),
        sa.Column("committed_rows", Unsigned64, nullable=False),
        sa.Column("read_rows", Unsigned64, nullable=False),
        sa.Column("in_flight", sa.Integer, nullable=False),
        sa.Column("credits", sa.Integer, nullable=False),
        sa.Column("pressure", sa.Double),
        sa.Column("memory_used", sa.BigInteger),
        sa.Column("memory_limit", sa.BigInteger),
        sa.PrimaryKeyConstraint("hydration_id", "plan_id", "at", name="pk_backpressure_sample"),
        **ON_MYSQL,
    )
    op.create_table(
        "backpressure_control",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), nullable=False),
        sa.Column("hydration_id", sa.String(32), nullable=False),
        sa.Column("at", _time(), nullable=False),
        sa.Column("who", sa.String(512), nullable=False),
        sa.Column("action", sa.String(64), nullable=False),
        sa.Column("why", sa.Text),
        sa.Column("values", sa.Text),
        sa.PrimaryKeyConstraint("id", name="pk_backpressure_control"),
        **ON_MYSQL,
    )
    op.create_index("ix_backpressure_control_hydration_id", "backpressure_control", ["hydration_id"])


def downgrade() -> None:
    """Drop the tables, and with them all that the ledger knows."""
    for name in TABLES:
        op.drop_table(f"backpressure_{name}")
