"""Removing what a closed plan wrote: its snapshot is gone, and what it read is not mixed with another one."""

import logging
from collections.abc import Sequence

from psycopg import sql

from airflow_provider_backpressure.connectors.postgres.identifiers import QualifiedName
from airflow_provider_backpressure.connectors.postgres.shared_connection import Connection
from airflow_provider_backpressure.connectors.postgres.sink.system_tables import SystemTable
from airflow_provider_backpressure.core.remedies import RESTART
from airflow_provider_backpressure.exceptions import SinkRefused

log = logging.getLogger(__name__)


def remove_rows(connection: Connection, target: QualifiedName, commits: SystemTable, *, plan_id: str) -> None:
    """Empty a target that was empty before the plan, in the transaction that fences it.

    ``SinkRefused`` where it holds other rows than the plan's markers count: somebody else has written too.
    """
    table = sql.SQL(target.sql)
    held, written = count_rows(connection, target, commits, plan_id=plan_id)
    if not held:
        return
    if held != written:
        raise SinkRefused(
            f"{target} holds {held} rows and the closed plan {plan_id} wrote {written} of them: it cannot be cleared. "
            "Empty it manually."
        )
    log.warning("%s is cleared: its %s rows were read in a snapshot that is gone.", target, held)
    may_truncate = connection.execute("SELECT has_table_privilege(%s, 'TRUNCATE')", (target.sql,)).fetchone()
    if may_truncate and may_truncate[0]:
        connection.execute(sql.SQL("TRUNCATE {}").format(table))
    else:
        delete_rows(connection, target)


def delete_rows(connection: Connection, target: QualifiedName, kept: Sequence[sql.Composable] = ()) -> int:
    """Delete the rows for which all conditions hold, and return how many.

    ``SinkRefused`` where a foreign key would change rows of another table with them, which no later row brings back.
    """
    found = connection.execute(_CASCADES, (target.sql,) * 3).fetchone()
    if found is not None:
        raise SinkRefused(
            f"Rows of {target} cannot be removed: the foreign key {found[0]} of {found[1]} would delete or change rows "
            f"there too. Drop it for that time, or empty both tables and {RESTART}."
        )
    statement = sql.SQL("DELETE FROM {}").format(sql.SQL(target.sql))
    if kept:
        statement += sql.SQL(" WHERE ") + sql.SQL(" AND ").join(kept)
    return connection.execute(statement).rowcount


def count_rows(connection: Connection, table: QualifiedName, commits: SystemTable, *, plan_id: str) -> tuple[int, int]:
    """Return how many rows a table holds, and how many a plan has written by its markers, at the same moment."""
    query = sql.SQL(
        "SELECT (SELECT count(*) FROM {}), coalesce(sum(rows), 0)::bigint FROM {} WHERE plan_id = %s"
    ).format(sql.SQL(table.sql), sql.SQL(commits.name.sql))
    found = connection.execute(query, (plan_id,)).fetchone()
    assert found is not None, "an aggregate gives a row"
    return found[0], found[1]


_CASCADES = sql.SQL(
    """
    SELECT quote_ident(k.conname), k.conrelid::regclass::text
    FROM pg_constraint k
    WHERE k.contype = 'f' AND k.confdeltype IN ('c', 'n', 'd')
      AND k.confrelid IN (SELECT %s::regclass UNION SELECT relid FROM pg_partition_ancestors(%s::regclass)
                          UNION SELECT relid FROM pg_partition_tree(%s::regclass))
    ORDER BY 1, 2 LIMIT 1
    """
)
