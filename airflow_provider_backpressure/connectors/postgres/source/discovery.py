"""Which tables of a database a pattern means."""

from contextlib import closing

from psycopg import sql

from airflow_provider_backpressure.connectors.postgres.connect import READ_ONLY
from airflow_provider_backpressure.connectors.postgres.identifiers import QualifiedName
from airflow_provider_backpressure.connectors.postgres.shared_connection import Session
from airflow_provider_backpressure.connectors.postgres.source.table import ERRORS
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.table_selection import TableName, match_tables

# A partition is read with the table that it is of; views have to be named, with the column by which they are cut.
_TABLES = sql.SQL(
    """
    SELECT n.nspname, c.relname
    FROM pg_class c
    JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p') AND c.relpersistence <> 't' AND NOT c.relispartition
      AND n.nspname NOT IN ('pg_catalog', 'information_schema') AND n.nspname NOT LIKE 'pg\\_toast%%'
      AND c.relname NOT LIKE 'backpressure\\_%%'
      AND has_schema_privilege(n.oid, 'USAGE') AND has_any_column_privilege(c.oid, 'SELECT')
    ORDER BY 1, 2
    """
)


def found(endpoint: Endpoint, pattern: str) -> list[TableName]:
    """Return them in the order of their names."""
    with closing(Session(endpoint, errors=ERRORS, settings=READ_ONLY)) as session:
        names = [QualifiedName(schema=schema, name=name) for schema, name in session.rows(_TABLES)]
    return match_tables((TableName(schema=name.schema, name=name.name, spelled=str(name)) for name in names), pattern)
