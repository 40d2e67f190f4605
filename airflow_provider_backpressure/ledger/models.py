"""The ledger's tables. Their names are promises; migrations/ holds the way to them.

There are no foreign keys: their checks would slow the planning of a million ranges down and would wait for the row lock
under which credits are given out.
"""

from typing import Any

import sqlalchemy as sa

from airflow_provider_backpressure.core.snapshot.ranges import RangeState
from airflow_provider_backpressure.ledger.sql_types import LongText, Unsigned64, UtcDateTime

metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

ON_MYSQL: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin"}
"""Texts are compared as they are: MySQL's own collations take the lanes "A" and "a" for one. And they hold any text,
whatever the database's character set."""

hydration = sa.Table(
    "backpressure_hydration",
    metadata,
    sa.Column("id", sa.String(32), primary_key=True),
    # Digest of environment, source and sink: an index over the three would be too long for MySQL.
    sa.Column("identity", sa.String(64), nullable=False, unique=True),
    sa.Column("environment", sa.String(250), nullable=False),
    sa.Column("source_identity", sa.Text, nullable=False),
    sa.Column("sink_identity", sa.Text, nullable=False),
    sa.Column("owner", sa.String(512), nullable=False),
    sa.Column("cluster", sa.String(250), nullable=False),
    sa.Column("phase", sa.String(16), nullable=False),
    sa.Column("plan_id", sa.String(32)),
    sa.Column("plan", LongText),
    # Every planned range of the plan has this sequence number or a higher one.
    sa.Column("next_seq", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("credits", sa.Integer, nullable=False),
    # As declared; a person's maximum goes before, and the cluster's slots bound both.
    sa.Column("credits_max", sa.Integer, nullable=False),
    sa.Column("paused_by", sa.String(512)),
    sa.Column("paused_why", sa.Text),
    sa.Column("decision", sa.Text),
    sa.Column("commit_seconds", sa.Double),
    sa.Column("range_memory_bytes", sa.BigInteger),
    sa.Column("sampled_at", UtcDateTime),
    sa.Column("created_at", UtcDateTime, nullable=False),
    sa.Column("updated_at", UtcDateTime, nullable=False),
    sa.Column("hydrated_at", UtcDateTime),
    sa.Column("holder", sa.String(512)),
    sa.Column("credits_set", sa.Integer),
    sa.Column("slots", sa.Integer),
    sa.Column("range_rows_set", sa.BigInteger),
    sa.Column("priority", sa.Integer, nullable=False, server_default="0"),
    sa.Column("sink_server", sa.String(512), nullable=False, server_default=sa.text("''"), index=True),
    sa.Column("probe", LongText),
    # Rates and verdict beside the source, as JSON.
    sa.Column("course", LongText),
    # Events that last, as JSON.
    sa.Column("occurring", sa.Text),
    # Number of the gate's latest change, by which subscribers see that they missed none.
    sa.Column("gate_changes", sa.BigInteger, nullable=False, server_default="0"),
    # What a plan would be, as JSON.
    sa.Column("preview", LongText),
    # For a connection to the sink's server, and how long that holds without a sign of life.
    sa.Column("waits_since", UtcDateTime),
    sa.Column("waits_until", UtcDateTime),
    # Why its latest task has failed, as a sentence without secrets; NULL from the next task's begin on.
    sa.Column("failure", sa.Text),
    sa.Column("failed_at", UtcDateTime),
    # As of the latest plan, as JSON: connection ids and no secret.
    sa.Column("declaration", LongText),
    # What its task reports with each heartbeat, as JSON, and when it did.
    sa.Column("activity", sa.Text),
    sa.Column("heard_at", UtcDateTime),
    # Whether what was planned last was verified: an increment leaves the phase as it is.
    sa.Column("verified", sa.Boolean, nullable=False, server_default="1"),
    sa.Index("ix_backpressure_hydration_cluster", "cluster"),
    **ON_MYSQL,
)

range_ = sa.Table(
    "backpressure_range",
    metadata,
    sa.Column("plan_id", sa.String(32), primary_key=True),
    sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("hydration_id", sa.String(32), nullable=False),
    sa.Column("bounds", sa.Text, nullable=False),
    sa.Column("state", sa.String(16), nullable=False, server_default=RangeState.PLANNED.value),
    sa.Column("planned_rows", sa.BigInteger, nullable=False),
    sa.Column("planned_bytes", sa.BigInteger, nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False, server_default="0"),
    sa.Column("lane", sa.String(512)),
    sa.Column("session_id", sa.String(250)),
    sa.Column("tag", sa.String(250)),
    sa.Column("lease_until", UtcDateTime),
    sa.Column("memory_bytes", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("committed_rows", Unsigned64),
    sa.Column("committed_bytes", Unsigned64),
    sa.Column("checksum", sa.String(250)),
    sa.Column("error", sa.Text),
    sa.Column("admitted_at", UtcDateTime),
    sa.Column("committed_at", UtcDateTime),
    **ON_MYSQL,
)

UNSETTLED = (RangeState.ADMITTED, RangeState.FAILED)
"""States in which few ranges are at a time. The index holds only these, and all others where a database has no partial
indexes: work per range does not grow with the plan, and planning fills the primary key alone."""


def is_unsettled(table: sa.FromClause) -> sa.ColumnElement[bool]:
    """Return the index's condition. Constants, not parameters: a planner has to prove that the index serves."""
    return table.c.state.in_([sa.literal_column(f"'{state.value}'") for state in UNSETTLED])


_UNSETTLED = is_unsettled(range_)

sa.Index(
    "ix_backpressure_range_unsettled",
    range_.c.hydration_id,
    range_.c.state,
    postgresql_where=_UNSETTLED,
    sqlite_where=_UNSETTLED,
)


def is_first(table: sa.FromClause) -> sa.ColumnElement[bool]:
    """Return the condition of the index of each plan's first range, by which a hydration's plans are found."""
    return table.c.seq == sa.literal_column("0")


_FIRST = is_first(range_)

sa.Index(
    "ix_backpressure_range_first",
    range_.c.hydration_id,
    range_.c.seq,
    postgresql_where=_FIRST,
    sqlite_where=_FIRST,
)

statistics = sa.Table(
    "backpressure_source_statistics",
    metadata,
    sa.Column("hydration_id", sa.String(32), primary_key=True),
    sa.Column("worker_id", sa.String(512), primary_key=True),
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
    sa.Column("updated_at", UtcDateTime, nullable=False),
    **ON_MYSQL,
)

sample = sa.Table(
    "backpressure_sample",
    metadata,
    sa.Column("hydration_id", sa.String(32), primary_key=True),
    sa.Column("plan_id", sa.String(32), primary_key=True),
    sa.Column("at", UtcDateTime, primary_key=True),
    sa.Column("committed_rows", Unsigned64, nullable=False),
    sa.Column("read_rows", Unsigned64, nullable=False),
    sa.Column("in_flight", sa.Integer, nullable=False),
    sa.Column("credits", sa.Integer, nullable=False),
    sa.Column("pressure", sa.Double),
    sa.Column("memory_used", sa.BigInteger),
    sa.Column("memory_limit", sa.BigInteger),
    sa.Column("offset_known", Unsigned64),
    sa.Column("offset_committed", Unsigned64),
    sa.Column("upstream_rate", sa.Double),
    sa.Column("process_rate", sa.Double),
    **ON_MYSQL,
)

control = sa.Table(
    "backpressure_control",
    metadata,
    sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
    sa.Column("hydration_id", sa.String(32), nullable=False, index=True),
    sa.Column("at", UtcDateTime, nullable=False),
    sa.Column("who", sa.String(512), nullable=False),
    sa.Column("action", sa.String(64), nullable=False),
    sa.Column("why", sa.Text),
    sa.Column("values", sa.Text),
    **ON_MYSQL,
)

queue = sa.Table(
    "backpressure_queue",
    metadata,
    sa.Column("hydration_id", sa.String(32), primary_key=True),
    sa.Column("run", sa.String(512)),
    sa.Column("ready_at", UtcDateTime, nullable=False),
    # NULL while it waits.
    sa.Column("started_at", UtcDateTime),
    sa.Column("lease_until", UtcDateTime, nullable=False),
    **ON_MYSQL,
)

limit = sa.Table(
    "backpressure_limit",
    metadata,
    sa.Column("kind", sa.String(32), primary_key=True),
    sa.Column("name", sa.String(512), primary_key=True),
    # NULL: no limit; the row is the lock under which what is shared is counted.
    sa.Column("most", sa.BigInteger),
    # Who set it; a declaration does not change it then.
    sa.Column("set_by", sa.String(512)),
    **ON_MYSQL,
)

push = sa.Table(
    "backpressure_push",
    metadata,
    sa.Column("process", sa.String(64), primary_key=True),
    sa.Column("at", UtcDateTime, nullable=False),
    sa.Column("counts", sa.Text, nullable=False),
    **ON_MYSQL,
)

flow = sa.Table(
    "backpressure_flow",
    metadata,
    sa.Column("hydration_id", sa.String(32), primary_key=True),
    sa.Column("at", UtcDateTime, primary_key=True),
    sa.Column("worker_id", sa.String(512), primary_key=True),
    sa.Column("times", sa.Text, nullable=False),
    **ON_MYSQL,
)

phase = sa.Table(
    "backpressure_phase",
    metadata,
    sa.Column("hydration_id", sa.String(32), primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("phase", sa.String(16), nullable=False),
    sa.Column("started_at", UtcDateTime, nullable=False),
    # NULL while it lasts.
    sa.Column("ended_at", UtcDateTime),
    **ON_MYSQL,
)

upstream = sa.Table(
    "backpressure_upstream",
    metadata,
    # Digest of the source's identity: several hydrations may read the same source.
    sa.Column("source", sa.String(64), primary_key=True),
    sa.Column("source_identity", sa.Text, nullable=False),
    # When a process last claimed the poll of the source; the row is the lock for that.
    sa.Column("asked_at", UtcDateTime, nullable=False),
    sa.Column("seen_at", UtcDateTime),
    sa.Column("frontier", LongText),
    **ON_MYSQL,
)
