"""How much there is: rows in all, exact where counting is cheap, and the mean size of a row."""

import json
from dataclasses import dataclass
from typing import Any

from psycopg import sql

from airflow_provider_backpressure.postgres.catalog import Relation
from airflow_provider_backpressure.postgres.session import Session
from airflow_provider_backpressure.sources.postgres_query import KeyedTable

COUNTABLE_ROWS = 20_000_000
"""Up to so many rows of the whole table are counted (some seconds); beyond, the planner's estimate stands."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """Rows that are asked for, and bytes of one."""

    rows: int | None
    exact: bool
    row_bytes: float


def measured(session: Session, table: Relation, keyed: KeyedTable, columns: list[sql.Composable]) -> Size:
    """Return the size of what is asked for."""
    estimated, width = _estimate(session, keyed.rows(columns, None, None))
    whole = estimated
    if keyed.where is not None:
        whole, _ = _estimate(session, sql.SQL("SELECT FROM {}").format(keyed.sql))
    toast_bytes, analysed = session.rows(_STORAGE, {"oid": table.oid})[0]
    row_bytes = width + toast_bytes / max(1, whole)
    if whole <= COUNTABLE_ROWS:
        total = session.value(sql.SQL("SELECT count(*) FROM {}{}").format(keyed.sql, keyed.filter()))
        return Size(rows=total, exact=True, row_bytes=row_bytes)
    return Size(rows=estimated if analysed else None, exact=False, row_bytes=row_bytes)


def _estimate(session: Session, query: sql.Composed) -> tuple[int, float]:
    """Return rows and bytes of a row as the planner sees them; it scales what ANALYZE saw to the table's size now."""
    answer: Any = session.value(sql.SQL("EXPLAIN (FORMAT JSON) ") + query)
    plan = (json.loads(answer) if isinstance(answer, str) else answer)[0]["Plan"]
    return int(plan["Plan Rows"]), float(plan["Plan Width"])


# A long value counts in the planner's width as the pointer to where it lies: what lies there is spread over the rows.
_STORAGE = sql.SQL(
    """
    SELECT coalesce(sum(pg_relation_size(nullif(c.reltoastrelid, 0))), 0)::bigint,
           coalesce(bool_and(c.reltuples > 0 OR pg_relation_size(c.oid) = 0), true)
    FROM pg_class c
    WHERE c.oid = %(oid)s AND c.relkind = 'r'
       OR c.oid IN (SELECT p.relid FROM pg_partition_tree(%(oid)s) p WHERE p.isleaf)
    """
)
