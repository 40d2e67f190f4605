"""The sink's own tables: plans, markers of committed slices, positions in a log, rows that no target takes."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql
from psycopg.abc import Params

from airflow_provider_backpressure.connectors.postgres.connect import Connection
from airflow_provider_backpressure.connectors.postgres.identifiers import (
    QualifiedName,
    join_names,
)
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.core.snapshot.replay_window import ReplayWindow
from airflow_provider_backpressure.core.snapshot.spark_messages import Column
from airflow_provider_backpressure.core.snapshot.topic_offsets import LogWindow
from airflow_provider_backpressure.exceptions import RESTART, SinkRefused

if TYPE_CHECKING:
    pass

from dataclasses import dataclass

from airflow_provider_backpressure.connectors.postgres.connect import Query
from airflow_provider_backpressure.core.snapshot.topic_offsets import find_start_positions

PLAN, COMMIT = "backpressure_plan", "backpressure_commit"
FRONTIER, QUARANTINE = "backpressure_frontier", "backpressure_quarantine"

PLAN_COLUMNS = {
    "target": "text PRIMARY KEY",
    "plan_id": "text NOT NULL",
    "epoch": "bigint NOT NULL",
    "source_identity": "text NOT NULL",
    "consistency": "text NOT NULL",
    "mode": "text NOT NULL",
    "frontier": "jsonb NOT NULL",
    "fingerprint": "text NOT NULL",
    "slot": "text",
    "consistent": "boolean NOT NULL DEFAULT true",
    "planned_at": "timestamptz NOT NULL DEFAULT clock_timestamp()",
    # The whole of it, from which a lost ledger is rebuilt; NULL where an earlier release has begun the plan.
    "plan": "text",
    # Numbers of this table and of the target, which another table of the target's name does not have.
    "tables": "text",
}
COMMIT_COLUMNS = {
    "plan_id": "text",
    "slice_id": "text",
    "target": "text NOT NULL",
    "epoch": "bigint NOT NULL",
    "attempt": "integer NOT NULL",
    "bounds": "jsonb NOT NULL",
    "rows": "bigint NOT NULL DEFAULT 0",
    "bytes": "bigint NOT NULL DEFAULT 0",
    "checksum": "text NOT NULL DEFAULT ''",
    "quarantined": "bigint NOT NULL DEFAULT 0",
    "read_at": "text NOT NULL DEFAULT ''",
    "revoked": "boolean NOT NULL DEFAULT false",
    "deleted": "bigint NOT NULL DEFAULT 0",
    "commit_seq": "bigint GENERATED ALWAYS AS IDENTITY",
    "committed_at": "timestamptz NOT NULL DEFAULT clock_timestamp()",
}
QUARANTINE_COLUMNS = {
    "plan_id": "text NOT NULL",
    "slice_id": "text NOT NULL",
    "target": "text NOT NULL",
    "key": "text NOT NULL",
    "reason": "text NOT NULL",
    "row": "text NOT NULL",
    "at": "timestamptz NOT NULL DEFAULT clock_timestamp()",
}
FRONTIER_COLUMNS = {
    "target": "text",
    "stream": "text",
    "pos": "bigint NOT NULL",
    "moved_at": "timestamptz NOT NULL DEFAULT clock_timestamp()",
}


PREPARING = 0x6270_7072_6570
"""Advisory lock under which tables are created, so that two who do it at once do not collide."""


@dataclass(frozen=True, kw_only=True)
class SystemTable:
    """One of them."""

    name: QualifiedName
    columns: dict[str, str]
    rights: tuple[str, ...]
    """What our role needs to have on it where it exists; a shared row lock counts as an update."""
    primary_key: tuple[str, ...] = ()
    later: tuple[str, ...] = ()
    """Columns that a table of an earlier release lacks; they may be NULL."""

    def create(self) -> Query:
        """Return the statement that creates it."""
        lines = [sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(type_)) for name, type_ in self.columns.items()]
        return create_table(self.name, lines, self.primary_key)


def plan_table(schema: str) -> SystemTable:
    """Return the table of plans in a schema."""
    name = QualifiedName(schema=schema, name=PLAN)
    return SystemTable(name=name, columns=PLAN_COLUMNS, rights=("SELECT", "INSERT", "UPDATE"), later=("plan", "tables"))


def commit_table(schema: str) -> SystemTable:
    """Return the table of markers in a schema."""
    return SystemTable(
        name=QualifiedName(schema=schema, name=COMMIT),
        columns=COMMIT_COLUMNS,
        rights=("SELECT", "INSERT"),
        primary_key=("plan_id", "slice_id"),
        later=("deleted",),
    )


def quarantine_table(schema: str) -> SystemTable:
    """Return the table of rows that a target could not take, in a schema; key and row are JSON."""
    name = QualifiedName(schema=schema, name=QUARANTINE)
    return SystemTable(name=name, columns=QUARANTINE_COLUMNS, rights=("SELECT", "INSERT"))


def frontier_table(schema: str) -> SystemTable:
    """Return the table of positions in a schema; only targets that are upserted from a log have one."""
    return SystemTable(
        name=QualifiedName(schema=schema, name=FRONTIER),
        columns=FRONTIER_COLUMNS,
        rights=("SELECT", "INSERT", "UPDATE"),
        primary_key=("target", "stream"),
    )


def definition(column: Column) -> sql.Composed:
    """Return a column's definition; its type is text that PostgreSQL itself printed."""
    line = sql.SQL("{} {}").format(sql.Identifier(column.name), sql.SQL(column.type))
    return line if column.nullable else line + sql.SQL(" NOT NULL")


def create_schemas(connection: Connection, *names: str) -> None:
    """Create the schemas that are missing."""
    for schema in dict.fromkeys(names):
        if connection.execute(SCHEMA_EXISTS, (schema,)).fetchone() is None:
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))


def create_system(connection: Connection, tables: Sequence[SystemTable], *schemas: str) -> None:
    """Create the product's own tables that are missing, and the schemas, one process at a time."""
    connection.execute(sql.SQL("SELECT pg_advisory_xact_lock({})").format(sql.Literal(PREPARING)))
    create_schemas(connection, *schemas)
    for table in tables:
        if not has_table(connection, table.name):
            connection.execute(table.create())


def lock_target(fence: str) -> tuple[Query, Params]:
    """Return the statement that lets one process at a time create a target or begin a plan of it."""
    return sql.SQL("SELECT pg_advisory_xact_lock(hashtextextended(%s, %s))"), (fence, PREPARING)


def create_table(name: QualifiedName, lines: list[sql.Composed], primary_key: tuple[str, ...]) -> Query:
    """Return a CREATE TABLE of these column definitions and key."""
    if primary_key:
        key = sql.SQL(", ").join([sql.Identifier(column) for column in primary_key])
        lines = [*lines, sql.SQL("PRIMARY KEY ({})").format(key)]
    return sql.SQL("CREATE TABLE {} ({})").format(sql.SQL(name.sql), sql.SQL(", ").join(lines))


def place_streams(connection: Connection, plan: Plan) -> None:
    """Set every stream of an ordered plan to where the plan begins, within the transaction that raises the fence.

    ``SinkRefused`` where an increment would begin before what the target has.
    """
    window, replayed = LogWindow.from_window(plan.read.window), ReplayWindow.from_window(plan.read.window)
    if not plan.write.ordered:
        return
    table = sql.SQL(plan.write.frontier_table)
    if replayed is not None:
        _place_log(connection, plan, replayed)
    if window is None:
        return
    there: dict[str, int] = dict(
        connection.execute(
            sql.SQL("SELECT stream, pos FROM {} WHERE target = %s FOR UPDATE").format(table), (plan.write.fence,)
        ).fetchall()
    )
    for stream, start in find_start_positions(window, there, target=plan.write.fence, increment=plan.increment).items():
        connection.execute(sql.SQL(_PLACE).format(table), (plan.write.fence, stream, start))


def _place_log(connection: Connection, plan: Plan, window: ReplayWindow) -> None:
    """Set a log's stream to where it was kept from, after ranges, or check that it is where the plan begins."""
    table, start = sql.SQL(plan.write.frontier_table), window.start
    query = sql.SQL("SELECT pos FROM {} WHERE target = %s AND stream = %s FOR UPDATE").format(table)
    found = connection.execute(query, (plan.write.fence, window.stream)).fetchone()
    if not window.first and (found is None or found[0] != start.at):
        raise SinkRefused(
            f"The log was replayed into {plan.write.fence} up to {found[0] if found else 'no position'}, and the plan "
            f"would continue from {start.at} ({start.label}): ledger or target was restored. Trigger the DAG with "
            '{"backpressure": "restart"} to read the table again.'
        )
    connection.execute(sql.SQL(_PLACE).format(table), (plan.write.fence, window.stream, start.at))


_PLACE = """
    INSERT INTO {} (target, stream, pos) VALUES (%s, %s, %s)
    ON CONFLICT (target, stream) DO UPDATE SET pos = excluded.pos, moved_at = clock_timestamp()
"""


def add_columns(connection: Connection, target: QualifiedName, columns: Sequence[Column], *, place: str) -> None:
    """Add columns to a target that exists; ``SinkRefused`` where one is there already with values."""
    if not has_table(connection, target):
        return
    table = sql.SQL(target.sql)
    for column in columns:
        name = sql.Identifier(column.name)
        query = sql.SQL("SELECT FROM {} WHERE {} IS NOT NULL LIMIT 1").format(table, name)
        there = connection.execute(_COLUMN_THERE, (target.schema, target.name, column.name)).fetchone()
        if there is not None and connection.execute(query).fetchone() is not None:
            raise SinkRefused(
                f"{place} has a column {join_names([column.name])} already, with values in rows that were committed "
                f"before the source had it: drop it there, and the run adds it, or {RESTART}."
            )
        added = sql.SQL("ALTER TABLE {} ADD COLUMN IF NOT EXISTS {}")
        connection.execute(added.format(table, definition(replace(column, nullable=True))))


def has_rows(connection: Connection, name: QualifiedName, *, there: bool = False) -> bool:
    """Whether a relation exists and holds a row. ``there``: it was seen to exist, so that it is asked at once."""
    query = sql.SQL("SELECT EXISTS (SELECT FROM {})").format(sql.SQL(name.sql))
    try:
        return (there or has_table(connection, name)) and bool((connection.execute(query).fetchone() or (False,))[0])
    except psycopg.errors.UndefinedTable:
        return False


def has_table(connection: Connection, name: QualifiedName) -> bool:
    """Whether a relation of this name exists."""
    return connection.execute(*find_table(name)).fetchone() is not None


def find_table(name: QualifiedName) -> tuple[Query, Params]:
    """Return the statement that finds a row where a relation of this name exists."""
    return _RELATION_THERE, (name.schema, name.name)


SCHEMA_EXISTS = sql.SQL("SELECT FROM pg_namespace WHERE nspname = %s")


_RELATION_THERE = sql.SQL(
    "SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = %s"
)


_COLUMN_THERE = sql.SQL(
    "SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_attribute a ON a.attrelid = c.oid"
    " WHERE n.nspname = %s AND c.relname = %s AND a.attname = %s AND NOT a.attisdropped"
)
