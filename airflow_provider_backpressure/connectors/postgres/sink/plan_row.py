"""The plan row of a target, and tables of an earlier release that have no place for the whole plan."""

import json
from collections.abc import Sequence
from typing import LiteralString

import psycopg
from psycopg import sql
from psycopg.abc import Params

from airflow_provider_backpressure.connectors.postgres.connect import Connection, Query, Row, Session, run_together
from airflow_provider_backpressure.connectors.postgres.identifiers import (
    QualifiedName,
)
from airflow_provider_backpressure.connectors.postgres.sink.system_tables import (
    SystemTable,
)
from airflow_provider_backpressure.connectors.postgres.sink.table_swap import PUBLISH
from airflow_provider_backpressure.core.config import Consistency, Mode
from airflow_provider_backpressure.core.ports.sink import PlanRow
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.core.snapshot.replay_window import ReplayWindow
from airflow_provider_backpressure.exceptions import PlanSuperseded, SinkRefused

PLAN, TABLES = "plan", "tables"
CONFIRMED = "confirmed"
"""The slice of the marker that confirms all ranges of a plan that did not change."""
OWN = (PUBLISH, CONFIRMED)
"""Slices of markers that are of no range."""


def upgrade(connection: Connection, *tables: SystemTable) -> None:
    """Add the columns that the tables of an earlier release lack, where they are our role's to change."""
    for each in tables:
        for name in each.later:
            if not _has_column(connection, each, name) and _is_owned(connection, each):
                table, type_ = sql.SQL(each.name.sql), sql.SQL(each.columns[name])
                added = sql.SQL("ALTER TABLE {} ADD COLUMN {} {}").format(table, sql.Identifier(name), type_)
                connection.execute(added)


def keep_plan(connection: Connection, plans: SystemTable, *, fence: str, plan: Plan, target: QualifiedName) -> bool:
    """Write the whole plan and the numbers of the tables into its row, as far as the table has a place for them.

    Returns whether it has a place for both.
    """
    columns = (_COLUMNS_THERE, (plans.name.schema, plans.name.name, [PLAN, TABLES]))
    found, numbers = run_together(connection, columns, (_NUMBERS, (plans.name.sql, target.sql)))
    tables = None if plan.mode is Mode.REPLACE else "/".join(map(str, numbers[0]))
    there, values = [name for (name,) in found], {PLAN: plan.to_json(), TABLES: tables}
    if there:
        update = sql.SQL("UPDATE {} SET {} WHERE target = %s").format(
            sql.SQL(plans.name.sql),
            sql.SQL(", ").join(sql.SQL("{} = %s").format(sql.Identifier(name)) for name in there),
        )
        connection.execute(update, (*(values[name] for name in there), fence))
    return len(there) == len(values)


def begin_plan(
    connection: Connection, plans: SystemTable, *, fence: str, plan: Plan, target: QualifiedName | None = None
) -> int | None:
    """Give a target to a plan and return its epoch; ``None`` where another plan has taken it meanwhile.

    ``target``: where the table is known to have a place for them, the whole plan and the numbers of the tables are
    written with that, unless the plan has the target already.
    """
    replayed = ReplayWindow.from_window(plan.read.window)
    values = {
        "target": fence,
        "plan_id": plan.plan_id,
        "held_by": plan.held_by,
        "source_identity": plan.source_identity,
        "consistency": plan.consistency.value,
        "mode": plan.mode.value,
        "frontier": json.dumps(plan.frontier),
        "fingerprint": plan.fingerprint,
        "slot": replayed.stream if replayed else None,
        "consistent": plan.consistency is not Consistency.CATCH_UP or bool(replayed and not replayed.hydrating),
    }
    more = _NOTHING_MORE if target is None else _WHOLE
    if target is not None:
        numbered = plan.mode is not Mode.REPLACE
        values |= {PLAN: plan.to_json(), "numbered": numbered, "plans": plans.name.sql, "table": target.sql}
    row = connection.execute(sql.SQL(BEGIN_PLAN).format(sql.SQL(plans.name.sql), **more), values).fetchone()
    return int(row[0]) if row else None


def list_schemas(plans: SystemTable) -> tuple[Query, Params]:
    """Return the statement that finds the schemas with a plan table that our role may read."""
    return _PLAN_SCHEMAS, (plans.name.name,)


def recall_schemas(session: Session, plans: SystemTable) -> list[Row]:
    """Return them as a target of the same server has found them a moment ago: who begins a plan looks again."""
    fact = ("plan schemas", plans.name.name)
    found: list[Row] | None = session.recall(fact)
    if found is None:
        found = session.rows(*list_schemas(plans))
        session.note(fact, found)
    return found


def check_other_schemas(
    connection: Connection,
    plans: SystemTable,
    schemas: Sequence[Row],
    *,
    fence: str,
    target: QualifiedName,
    place: str,
    own: Sequence[Row] | None = None,
) -> None:
    """Raise ``SinkRefused`` where a row of another schema's plan table holds the target: no fence is of both.

    Not where ours has a row of the target already, and not where our role may not read the other table. A row of
    another table that had the target's name does not count, ours neither: the table was renamed or dropped, or the row
    was copied. ``own``: what :func:`find_holder` has found in our own table, where that was asked.
    """
    for schema in sorted((schema for (schema,) in schemas), key=lambda schema: schema != plans.name.schema):
        ours = own if schema == plans.name.schema else None
        rows = connection.execute(*find_holder(plans, schema, fence, target)).fetchall() if ours is None else ours
        row = next(iter(rows), None)
        if row is not None and schema == plans.name.schema:
            if not is_another_table(connection, plans, fence=fence, target=target):
                return
        elif row is not None and not row[2]:
            raise SinkRefused(
                f"{place} is held by plan {row[0]} of {row[1]} in the schema {schema}: two hydrations would overwrite "
                f"each other's rows. Use system_schema={schema!r}, or delete the target's row from "
                f"{schema}.{plans.name.name} if that hydration is gone."
            )


def find_holder(plans: SystemTable, schema: str, fence: str, target: QualifiedName) -> tuple[Query, Params]:
    """Return the statement that finds which plan of a schema's plan table holds a target."""
    held = HELD.format(sql.Identifier(schema, plans.name.name))
    return held, {"target": fence, "table": target.sql, "plans": plans.name.name}


def is_another_table(connection: Connection, plans: SystemTable, *, fence: str, target: QualifiedName) -> bool:
    """Whether the target is not the table that the plan of the row wrote: it is gone, or was created again.

    Not where the plan table is another one too: then both were restored from a dump.
    """
    return is_another(connection.execute(*find_numbers(plans, fence=fence, target=target)).fetchall())


def find_numbers(plans: SystemTable, *, fence: str, target: QualifiedName) -> tuple[Query, Params]:
    """Return the statement that finds the numbers of the tables as the plan of the row wrote them, and as they are."""
    query = sql.SQL(_NUMBERS_BOTH).format(sql.SQL(plans.name.sql))
    return query, {"target": fence, "plans": plans.name.sql, "table": target.sql}


def is_another(rows: Sequence[Row]) -> bool:
    """Whether the numbers that :func:`find_numbers` has found are those of another table."""
    if not rows or rows[0][0] is None:
        return False
    before, *now = rows[0]
    numbers = "/".join(map(str, now))
    return bool(before != numbers and before.partition("/")[0] == numbers.partition("/")[0])


def raise_epoch(connection: Connection, plans: SystemTable, target: str, plan_id: str) -> int | None:
    """Raise the epoch under which a plan holds a target, and return it; ``None`` where it holds none."""
    return _epoch(
        connection,
        plans,
        "UPDATE {} SET epoch = epoch + 1 WHERE target = %s AND plan_id = %s RETURNING epoch",
        (target, plan_id),
    )


def find_epoch(connection: Connection, plans: SystemTable, target: str, plan_id: str) -> int | None:
    """Return the epoch under which a plan holds a target; ``None`` where it holds none."""
    return _epoch(connection, plans, "SELECT epoch FROM {} WHERE target = %s AND plan_id = %s", (target, plan_id))


def _epoch(connection: Connection, plans: SystemTable, statement: LiteralString, values: tuple[str, str]) -> int | None:
    try:
        row = connection.execute(sql.SQL(statement).format(sql.SQL(plans.name.sql)), values).fetchone()
    except psycopg.errors.UndefinedTable:
        return None
    return row[0] if row else None


def hold_target(connection: Connection, plans: SystemTable, *, fence: str, plan: Plan) -> None:
    """Keep every other plan from the target until the transaction ends; ``PlanSuperseded`` where one has it."""
    lock = sql.SQL("SELECT FROM {} WHERE target = %s AND plan_id = %s FOR SHARE").format(sql.SQL(plans.name.sql))
    if connection.execute(lock, (fence, plan.plan_id)).fetchone() is None:
        raise PlanSuperseded(f"Plan {plan.plan_id} no longer holds {fence}.")


def mark_consistent(
    connection: Connection, plans: SystemTable, *, fence: str, plan: Plan, consistent: bool = True
) -> None:
    """Say in the row of a plan whether its target has the source's rows of one moment."""
    query = sql.SQL("UPDATE {} SET consistent = %s WHERE target = %s AND plan_id = %s")
    connection.execute(query.format(sql.SQL(plans.name.sql)), (consistent, fence, plan.plan_id))


def prune_markers(
    connection: Connection, commits: SystemTable, *, fence: str, plan: Plan, plan_ids: Sequence[str]
) -> int:
    """Delete markers of earlier plans, as far as no later plan needs them, and return how many there were."""
    query = sql.SQL(PRUNE_MIRRORED if plan.mode is Mode.MIRROR else PRUNE_MARKERS)
    values = {"target": fence, "kept": [plan.plan_id, plan.held_by or ""], "plans": list(plan_ids)}
    return connection.execute(query.format(commits=sql.SQL(commits.name.sql)), values).rowcount


def describe_missing(connection: Connection, table: SystemTable, column: str) -> str:
    """Say that a table of an earlier release lacks a column that our role may not add; empty where it does not."""
    columns = (_COLUMNS_THERE, (table.name.schema, table.name.name, [column]))
    there, found = run_together(connection, (sql.SQL("SELECT to_regclass(%s)"), (table.name.sql,)), columns)
    if there[0][0] is None or found or _is_owned(connection, table):
        return ""
    return f"{table.name} has no column {column}, and belongs to another role"


def find_rows(connection: Connection, quarantine: SystemTable, plan_id: str, slice_id: str) -> tuple[str, ...]:
    """Return the rows of a slice that are in quarantine, as JSON."""
    query = sql.SQL("SELECT row FROM {} WHERE plan_id = %s AND slice_id = %s").format(sql.SQL(quarantine.name.sql))
    return tuple(row for (row,) in connection.execute(query, (plan_id, slice_id)).fetchall())


def plan_row(connection: Connection, plans: SystemTable, commits: SystemTable, *, fence: str) -> PlanRow | None:
    """Return the plan row of a target; ``None`` where there is none, or no table for it."""
    query = sql.SQL(_ROW).format(plans=sql.SQL(plans.name.sql), commits=sql.SQL(commits.name.sql))
    try:
        values = {"target": fence, "own": list(OWN), "replaces": Mode.REPLACE.value, "publish": PUBLISH}
        row = connection.execute(query, values).fetchone()
    except psycopg.errors.UndefinedTable:
        return None
    if row is None:
        return None
    plan_id, epoch, source_identity, whole, committed, published = row
    return PlanRow(
        plan_id=plan_id,
        epoch=epoch,
        source_identity=source_identity,
        plan=Plan.from_json(whole) if whole else None,
        committed=committed,
        published=published,
    )


def _has_column(connection: Connection, plans: SystemTable, column: str) -> bool:
    return bool(_find_columns(connection, plans, [column]))


def _find_columns(connection: Connection, plans: SystemTable, columns: list[str]) -> list[str]:
    """Return those of the columns that the table has, in the order of their names."""
    values = (plans.name.schema, plans.name.name, columns)
    return [name for (name,) in connection.execute(_COLUMNS_THERE, values).fetchall()]


def _is_owned(connection: Connection, plans: SystemTable) -> bool:
    row = connection.execute(_OWNED, (plans.name.schema, plans.name.name)).fetchone()
    return row is not None and bool(row[0])


# No plan can begin in a table without a key: it is a copy of the rows. A dump has the key.
_PLAN_SCHEMAS = sql.SQL(
    """
    SELECT n.nspname
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relname = %s AND c.relkind = 'r' AND c.relpersistence <> 't'
      AND (SELECT count(*) FROM pg_index i WHERE i.indrelid = c.oid AND i.indisunique) > 0
      AND (SELECT count(*) FROM pg_attribute a
           WHERE a.attrelid = c.oid AND a.attname = 'target' AND NOT a.attisdropped) > 0
      AND has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')
    """
)
# A number that no table has says nothing: a whole database that is restored from a dump has other numbers. The row is
# found by the key: a schema with a thousand targets has as many rows, and each of them asks.
HELD = sql.SQL(
    """
    SELECT r.row ->> 'plan_id', r.row ->> 'source_identity',
           CASE WHEN r.numbers IS NULL THEN false
                WHEN r.numbers[1]::oid <> r.here
                THEN EXISTS (SELECT FROM pg_class c WHERE c.oid = r.numbers[1]::oid AND c.relname = %(plans)s)
                ELSE r.numbers[2]::oid <> coalesce(to_regclass(%(table)s)::oid, 0)
                     AND EXISTS (SELECT FROM pg_class c WHERE c.oid = r.numbers[2]::oid)
           END
    FROM (SELECT to_jsonb(p) AS row, p.tableoid AS here,
                 regexp_match(to_jsonb(p) ->> 'tables', '^([0-9]+)/([0-9]+)$') AS numbers
          FROM {} p
          WHERE p.target::text = %(target)s) AS r
    """
)
_NUMBERS_BOTH = """
    SELECT to_jsonb(p) ->> 'tables', coalesce(to_regclass(%(plans)s)::oid, 0), coalesce(to_regclass(%(table)s)::oid, 0)
    FROM {} p
    WHERE p.target = %(target)s
"""
_NUMBERS = sql.SQL("SELECT coalesce(to_regclass(%s)::oid, 0), coalesce(to_regclass(%s)::oid, 0)")
_COLUMNS_THERE = sql.SQL(
    """
    SELECT a.attname
    FROM pg_attribute a
    JOIN pg_class c ON c.oid = a.attrelid
    JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = %s AND c.relname = %s AND a.attname = ANY (%s) AND NOT a.attisdropped
    ORDER BY 1
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
            WHERE c.plan_id = p.plan_id AND NOT c.slice_id = ANY (%(own)s) AND NOT c.revoked),
           p.mode <> %(replaces)s OR EXISTS (
            SELECT FROM {commits} c WHERE c.plan_id = p.plan_id AND c.slice_id = %(publish)s)
    FROM {plans} p
    WHERE p.target = %(target)s
"""


# The row lock that an update takes orders two plans; attempts that hold it shared have been ended just before.
BEGIN_PLAN = """
    INSERT INTO {} AS p (target, plan_id, epoch, source_identity, consistency, mode, frontier, fingerprint,
        slot, consistent{names})
    VALUES (%(target)s, %(plan_id)s, 1, %(source_identity)s, %(consistency)s, %(mode)s, %(frontier)s, %(fingerprint)s,
        %(slot)s, %(consistent)s{values})
    ON CONFLICT (target) DO UPDATE SET
        plan_id = excluded.plan_id, epoch = p.epoch + 1, source_identity = excluded.source_identity,
        consistency = excluded.consistency, mode = excluded.mode, frontier = excluded.frontier,
        fingerprint = excluded.fingerprint, slot = excluded.slot, consistent = excluded.consistent,
        planned_at = clock_timestamp(){changes}
    WHERE %(held_by)s::text IS NULL OR p.plan_id IN (%(held_by)s::text, excluded.plan_id)
    RETURNING epoch
"""

_NOTHING_MORE = dict.fromkeys(("names", "values", "changes"), sql.SQL(""))
# A plan that has the target already is as it was written then: others may have committed ranges of it since.
_WHOLE = {
    "names": sql.SQL(", plan, tables"),
    "values": sql.SQL(
        ", %(plan)s, CASE WHEN %(numbered)s THEN concat_ws('/', coalesce(to_regclass(%(plans)s)::oid, 0),"
        " coalesce(to_regclass(%(table)s)::oid, 0)) END"
    ),
    "changes": sql.SQL(
        ", plan = CASE WHEN p.plan_id = excluded.plan_id THEN p.plan ELSE excluded.plan END,"
        " tables = CASE WHEN p.plan_id = excluded.plan_id THEN p.tables ELSE excluded.tables END"
    ),
}


REVOKE_SLICE = """
    INSERT INTO {} (plan_id, slice_id, target, epoch, attempt, bounds, revoked)
    VALUES (%s, %s, %s, %s, 0, %s, true)
    ON CONFLICT DO NOTHING
"""


READ_MARKERS = """
    SELECT plan_id, slice_id, epoch, attempt, bounds, rows, bytes, checksum, committed_at, revoked, quarantined,
           read_at
    FROM {}
    WHERE plan_id = %(plan_id)s AND NOT slice_id = ANY (%(own)s)
      AND (%(wanted)s::text[] IS NULL OR slice_id = ANY (%(wanted)s))
"""


PRUNE_MARKERS = """
    DELETE FROM {commits} AS c
    WHERE c.target = %(target)s AND c.plan_id <> ALL (%(kept)s::text[]) AND c.plan_id = ANY (%(plans)s::text[])
"""
# Equal bounds, not overlapping ones: how keys are ordered is not known here. A marker goes only where a newer one has
# all of its bounds, so no older marker becomes the newest write over its own bounds by that. Markers that a mirror has
# kept are older than any plan that the ledger knows, so all plans but the latest two are looked through.
PRUNE_MIRRORED = """
    DELETE FROM {commits} AS c
    WHERE c.target = %(target)s AND c.plan_id <> ALL (%(kept)s::text[]) AND (c.revoked OR EXISTS (
        SELECT FROM {commits} n
        WHERE n.target = c.target AND n.bounds = c.bounds AND n.commit_seq > c.commit_seq AND NOT n.revoked))
"""
