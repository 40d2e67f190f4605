"""The plan row of a target, and tables of an earlier release that have no place for the whole plan."""

from psycopg import sql

from airflow_provider_backpressure.core.ports import PlanRow
from airflow_provider_backpressure.core.snapshot import Plan
from airflow_provider_backpressure.postgres.session import Connection
from airflow_provider_backpressure.sinks.postgres_publishing import PUBLISH
from airflow_provider_backpressure.sinks.postgres_tables import SystemTable

COLUMN = "plan"


def upgrade(connection: Connection, plans: SystemTable) -> None:
    """Add the column for the whole plan where the table is of an earlier release, and our role's to change."""
    if not _has_column(connection, plans) and _owned(connection, plans):
        table, type_ = sql.SQL(plans.name.sql), sql.SQL(plans.columns[COLUMN])
        connection.execute(sql.SQL("ALTER TABLE {} ADD COLUMN {} {}").format(table, sql.Identifier(COLUMN), type_))


def keep_plan(connection: Connection, plans: SystemTable, *, fence: str, plan: Plan) -> None:
    """Write the whole plan into its row, where the table has a place for it."""
    if _has_column(connection, plans):
        update = sql.SQL("UPDATE {} SET {} = %s WHERE target = %s").format(
            sql.SQL(plans.name.sql), sql.Identifier(COLUMN)
        )
        connection.execute(update, (plan.to_json(), fence))


def plan_row(connection: Connection, plans: SystemTable, commits: SystemTable, *, fence: str) -> PlanRow | None:
    """Return the plan row of a target; ``None`` where there is none, or no table for it."""
    there = sql.SQL("SELECT to_regclass({}), to_regclass({})")
    names = [sql.Literal(table.name.sql) for table in (plans, commits)]
    if None in (connection.execute(there.format(*names)).fetchone() or (None,)):
        return None
    query = sql.SQL(_ROW).format(plans=sql.SQL(plans.name.sql), commits=sql.SQL(commits.name.sql))
    row = connection.execute(query, {"target": fence, "publish": PUBLISH}).fetchone()
    if row is None:
        return None
    plan_id, epoch, source_identity, whole, committed = row
    return PlanRow(
        plan_id=plan_id,
        epoch=epoch,
        source_identity=source_identity,
        plan=Plan.from_json(whole) if whole else None,
        committed=committed,
    )


def _has_column(connection: Connection, plans: SystemTable) -> bool:
    values = (plans.name.schema, plans.name.name, COLUMN)
    return connection.execute(_COLUMN_THERE, values).fetchone() is not None


def _owned(connection: Connection, plans: SystemTable) -> bool:
    row = connection.execute(_OWNED, (plans.name.schema, plans.name.name)).fetchone()
    return row is not None and bool(row[0])


_COLUMN_THERE = sql.SQL(
    """
    SELECT
    FROM pg_attribute a
    JOIN pg_class c ON c.oid = a.attrelid
    JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = %s AND c.relname = %s AND a.attname = %s AND NOT a.attisdropped
    """
)
_OWNED = sql.SQL(
    """
    SELECT pg_has_role(c.relowner, 'USAGE')
    FROM pg_class c
    JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = %s AND c.relname = %s
    """
)
# By way of JSON a column that is not there yet is NULL.
_ROW = """
    SELECT p.plan_id, p.epoch, p.source_identity, to_jsonb(p) ->> 'plan',
           (SELECT count(*) FROM {commits} c
            WHERE c.plan_id = p.plan_id AND c.slice_id <> %(publish)s AND NOT c.revoked)
    FROM {plans} p
    WHERE p.target = %(target)s
"""
