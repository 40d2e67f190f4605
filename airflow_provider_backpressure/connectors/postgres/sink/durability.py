"""Whether rows outlive a crash: a table that a crash empties loses the rows and keeps their markers elsewhere."""

from collections.abc import Sequence

from psycopg import sql

from airflow_provider_backpressure.connectors.postgres.identifiers import QualifiedName
from airflow_provider_backpressure.connectors.postgres.shared_connection import Connection
from airflow_provider_backpressure.core.remedies import RESTART

_REASONS = {
    "unlogged": "is unlogged: a crash or a failover of its server empties it, and markers of the rows stay. "
    f"ALTER TABLE %s SET LOGGED, and if that may have happened to rows of earlier runs, {RESTART}",
    "temporary": "is a temporary table, which ends with its session",
    "foreign": "is a foreign table: its rows and their markers are not committed together",
}


def find_undurable(connection: Connection, target: QualifiedName, others: Sequence[QualifiedName]) -> list[str]:
    """Return which of the tables, and of the target's partitions, do not keep rows as their markers are kept, and why.

    Each as part of a sentence about the target. Tables that are not there are left out.
    """
    connection.execute(sql.SQL("SET LOCAL search_path TO ''"))
    found = []
    for name in (target, *others):
        for part, own, reason in connection.execute(_UNDURABLE, (name.schema, name.name)).fetchall():
            subject = part if name != target else "it" if own else f"its partition {part}"
            found.append(f"{subject} {_REASONS[reason].replace('%s', part)}")
    return found


_UNDURABLE = sql.SQL(
    """
    SELECT m.oid::regclass::text, m.oid = c.oid,
           CASE WHEN m.relkind = 'f' THEN 'foreign' WHEN m.relpersistence = 't' THEN 'temporary' ELSE 'unlogged' END
    FROM pg_class c
    JOIN pg_namespace n ON n.oid = c.relnamespace
    CROSS JOIN LATERAL (
        SELECT c.oid UNION SELECT p.relid FROM pg_partition_tree(c.oid) p WHERE p.isleaf
    ) part (oid)
    JOIN pg_class m ON m.oid = part.oid
    WHERE n.nspname = %s AND c.relname = %s AND m.relkind <> 'p'
      AND (m.relpersistence <> 'p' OR m.relkind = 'f' AND m.oid <> c.oid)
    ORDER BY 1
    """
)
