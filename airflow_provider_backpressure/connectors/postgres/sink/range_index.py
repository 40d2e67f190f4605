"""The index by which ranges are found again in a table that has none on their key: from a lost snapshot to the end."""

import hashlib
import logging
from collections.abc import Sequence

from psycopg import sql

from airflow_provider_backpressure.connectors.postgres.catalog import find
from airflow_provider_backpressure.connectors.postgres.connect import Connection, Session
from airflow_provider_backpressure.connectors.postgres.identifiers import QualifiedName
from airflow_provider_backpressure.exceptions import Transient

log = logging.getLogger(__name__)

PATIENCE = "10s"
"""How long the end of a run waits for readers of the table before the index stays."""


def make_range_index(session: Session, table: QualifiedName, key: Sequence[str]) -> None:
    """Create the index where no other one begins with a column of the key; idempotent."""
    found = find(session, table)
    if found is None or found.indexed & set(key):
        return
    columns = sql.SQL(", ").join(map(sql.Identifier, key))
    parts = {"index": sql.Identifier(_name(table).name), "table": sql.SQL(table.sql), "columns": columns}

    def make(connection: Connection) -> None:
        connection.execute(sql.SQL("CREATE INDEX IF NOT EXISTS {index} ON {table} ({columns})").format(**parts))
        connection.execute(sql.SQL("ANALYZE {table} ({columns})").format(**parts))

    session.transaction(make)


def drop_range_index(connection: Connection, table: QualifiedName) -> None:
    """Drop the index; nothing where there is none."""
    if connection.execute("SELECT to_regclass(%s)", (_name(table).sql,)).fetchone() != (None,):
        connection.execute(sql.SQL("DROP INDEX IF EXISTS {}").format(sql.SQL(_name(table).sql)))


def try_to_drop_range_index(session: Session, table: QualifiedName) -> None:
    """Drop the index of a table that others read, or leave it to the next run with a warning."""

    def drop(connection: Connection) -> None:
        connection.execute(sql.SQL("SET LOCAL lock_timeout = {}").format(sql.Literal(PATIENCE)))
        drop_range_index(connection, table)

    try:
        session.transaction(drop)
    except Transient as error:
        log.warning("The index %s stays until the next run ends, since its table is read: %s", _name(table), error)


def _name(table: QualifiedName) -> QualifiedName:
    """Return its name, which no other index of the schema has."""
    digest = hashlib.sha256(table.name.encode()).hexdigest()[:12]
    return QualifiedName(schema=table.schema, name=f"backpressure_ranges_{digest}")
