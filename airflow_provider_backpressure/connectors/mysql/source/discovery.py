"""Which tables of a server a pattern means."""

from contextlib import closing

from airflow_provider_backpressure.connectors.mysql import identifiers as names
from airflow_provider_backpressure.connectors.mysql.shared_connection import Session
from airflow_provider_backpressure.connectors.mysql.source.table import ERRORS
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.table_selection import TableName, match_tables

_TABLES = """
    SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES
    WHERE TABLE_TYPE = 'BASE TABLE' AND TABLE_SCHEMA NOT IN ('mysql', 'sys', 'information_schema', 'performance_schema')
    ORDER BY 1, 2
"""


def found(endpoint: Endpoint, pattern: str) -> list[TableName]:
    """Return them in the order of their names. The server itself shows only what the user may read."""
    with closing(Session(endpoint, errors=ERRORS)) as session:
        tables = [names.TableName(database=database, name=name) for database, name in session.rows(_TABLES)]
    return match_tables(
        (TableName(schema=each.database, name=each.name, spelled=str(each)) for each in tables), pattern
    )
