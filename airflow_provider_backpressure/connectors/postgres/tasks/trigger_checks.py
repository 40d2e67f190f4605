"""Statements on a target that follows its source: nothing else may change its rows."""

from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg import sql

from airflow_provider_backpressure.core.snapshot.spark_messages import WriteSpec
from airflow_provider_backpressure.exceptions import RESTART, RangeFailed, SinkRefused

FIRES = "IN ('A', CASE current_setting('session_replication_role') WHEN 'replica' THEN 'R' ELSE 'O' END)"
"""What a trigger or rule is enabled for, as text, where it fires in this session."""
_TRIGGERS = f"""
    SELECT tgname::text FROM pg_trigger
    WHERE (tgrelid = %(target)s::regclass OR tgrelid IN (SELECT relid FROM pg_partition_tree(%(target)s::regclass)))
      AND NOT tgisinternal AND tgenabled::text {FIRES}
"""  # noqa: S608
# Of a row and before it.
_ROW_TRIGGERS = f"{_TRIGGERS} AND tgtype & 3 = 3 LIMIT 1"
_TRIGGERS_AND_RULES = f"""
    SELECT array({_TRIGGERS} AND (tgtype & 3 = 3 OR tgdeferrable) AND %(exact)s ORDER BY 1),
           array(
               SELECT rulename::text FROM pg_rewrite
               WHERE ev_class = %(target)s::regclass AND is_instead AND ev_enabled::text {FIRES} ORDER BY 1)
"""  # noqa: S608
_CHANGED = """
    SELECT coalesce(sum(pg_stat_get_xact_tuples_inserted(c.oid) + pg_stat_get_xact_tuples_updated(c.oid)
                        + pg_stat_get_xact_tuples_deleted(c.oid)), 0)::bigint
    FROM pg_class c
    WHERE c.oid = %(target)s::regclass OR c.oid IN (SELECT relid FROM pg_partition_tree(%(target)s::regclass))
"""


def execute_alone(
    connection: psycopg.Connection,
    write: WriteSpec,
    statement: sql.Composed,
    values: Sequence[Any] = (),
    *,
    exact: bool = True,
) -> int:
    """Execute a statement that changes the target, in the transaction that is open. Return how many rows it changed.

    ``RangeFailed`` where more rows of it were changed than the statement itself changed, by the server's own count: a
    trigger or a rule changes them too. Where the server counts nothing (``track_counts``), nothing is noticed.
    ``SinkRefused`` for a rule, and with ``exact`` for a trigger, that may change or drop rows and came since the plan
    was made.
    """
    before = _count_changes(connection, write)
    changed = connection.execute(statement, values).rowcount
    _check_triggers_and_rules(connection, write, exact=exact)
    others = _count_changes(connection, write) - before - changed
    if others > 0:
        raise RangeFailed(
            f"A statement changed {changed} rows of {write.fence}, and a trigger or rule changed {others} more there: "
            f"the target would differ from the source. Drop or disable it, and {RESTART}."
        )
    return changed


def _check_triggers_and_rules(connection: psycopg.Connection, write: WriteSpec, *, exact: bool) -> None:
    """Raise ``SinkRefused`` where a trigger or a rule may have changed or dropped rows of a statement.

    The statement has been executed, so its lock keeps others from coming.
    """
    row = connection.execute(_TRIGGERS_AND_RULES, {"target": write.target, "exact": exact}).fetchone()
    triggers, rules = row if row is not None else ([], [])
    if triggers or rules:
        what = f"trigger {', '.join(triggers)}" if triggers else f"rule {', '.join(rules)}"
        raise SinkRefused(
            f"The {what} of {write.fence} came since the plan was made, and may change or drop rows: drop or disable "
            "it, and clear the task."
        )


def has_row_triggers(connection: psycopg.Connection, write: WriteSpec) -> bool:
    """Whether triggers of the target see each row before it is written, and so may drop it."""
    row = connection.execute(_ROW_TRIGGERS, {"target": write.target}).fetchone()
    return row is not None


def _count_changes(connection: psycopg.Connection, write: WriteSpec) -> int:
    row = connection.execute(_CHANGED, {"target": write.target}).fetchone()
    return row[0] if row is not None else 0
