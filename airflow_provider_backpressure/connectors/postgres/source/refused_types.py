"""Types whose values cannot leave their cluster: no binary form, or numbers that mean something else elsewhere."""

from collections.abc import Sequence

from psycopg import sql

from airflow_provider_backpressure.connectors.postgres.catalog import CatalogColumn, Relation
from airflow_provider_backpressure.connectors.postgres.connect import Connection, Session

REASONS = {
    "binary": "it has no binary form",
    "catalogue": "its values are numbers of this cluster's own catalogue",
    "empty": "its empty value is sent in a form that PostgreSQL itself does not take in",
    "internal": "it is PostgreSQL's own and takes no input",
}


def find_uncarried(session: Session, table: Relation, columns: list[CatalogColumn]) -> list[tuple[CatalogColumn, str]]:
    """Return the columns that cannot be carried, each with the reason, looking into arrays, domains and composites."""
    found = table.uncarried
    if found is None:
        found = session.read(lambda connection: read_uncarried(connection, [table.oid]))[table.oid]
    return [(column, REASONS[found[column.number]]) for column in columns if column.number in found]


def read_uncarried(connection: Connection, tables: Sequence[int]) -> dict[int, dict[int, str]]:
    """Return by table which columns cannot be carried, by their numbers, each with a key of :data:`REASONS`."""
    found: dict[int, dict[int, str]] = {table: {} for table in tables}
    for table, number, reason in connection.execute(_STRANDED, (list(tables),)).fetchall():
        found[table][number] = reason
    return found


# The types that internal statistics and index summaries are kept in have binary functions that refuse all input.
_STRANDED = sql.SQL(
    """
    WITH RECURSIVE held (relation, number, type) AS (
        SELECT a.attrelid, a.attnum, a.atttypid FROM pg_attribute a
        WHERE a.attrelid = ANY (%s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
        UNION
        SELECT h.relation, h.number, part.type
        FROM held h
        JOIN pg_type t ON t.oid = h.type
        CROSS JOIN LATERAL (
            SELECT t.typelem WHERE t.typelem <> 0 AND t.typlen = -1
            UNION ALL
            SELECT t.typbasetype WHERE t.typtype = 'd'
            UNION ALL
            SELECT r.rngsubtype FROM pg_range r WHERE t.oid IN (r.rngtypid, (to_jsonb(r) ->> 'rngmultitypid')::oid)
            UNION ALL
            SELECT f.atttypid FROM pg_attribute f
            WHERE t.typtype = 'c' AND f.attrelid = t.typrelid AND f.attnum > 0 AND NOT f.attisdropped
        ) part (type)
    )
    SELECT h.relation::bigint, h.number, min(w.reason)
    FROM held h
    JOIN pg_type t ON t.oid = h.type
    CROSS JOIN LATERAL (
        SELECT CASE
            WHEN t.typnamespace = 'pg_catalog'::regnamespace AND t.typname ~ '^reg[a-z]+$' THEN 'catalogue'
            WHEN t.typnamespace = 'pg_catalog'::regnamespace
                 AND t.typname ~ '^pg_(node_tree|ndistinct|dependencies|mcv_list|brin_.*)$' THEN 'internal'
            WHEN t.oid IN ('tsquery'::regtype, 'int2vector'::regtype, 'oidvector'::regtype) THEN 'empty'
            WHEN t.typtype = 'p' OR t.typsend = 0 OR t.typreceive = 0 THEN 'binary'
        END
    ) w (reason)
    WHERE w.reason IS NOT NULL
    GROUP BY h.relation, h.number
    """
)
