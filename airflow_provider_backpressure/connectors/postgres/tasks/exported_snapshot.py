"""A snapshot that one connection exports and others import, by a name that never means another one.

A server numbers its snapshots from the start again when it begins, also after a crash of one of its processes. So the
name is followed by a hash of what the snapshot sees and of when the server began.
"""

import psycopg
from psycopg import sql

from airflow_provider_backpressure.connectors.postgres.errors import is_lost, words
from airflow_provider_backpressure.exceptions import SnapshotLost

_SEEN = """
    encode(sha256(convert_to(
        concat(pg_current_snapshot(), ' ', extract(epoch FROM pg_postmaster_start_time())), 'UTF8')), 'hex')
"""


def export_snapshot(connection: psycopg.Connection) -> str:
    """Return what :func:`import_snapshot` takes; it holds as long as the connection's transaction."""
    row = connection.execute(f"SELECT concat(pg_export_snapshot(), '/', {_SEEN})".encode()).fetchone()
    assert row is not None, "a SELECT without FROM has one row"
    return str(row[0])


def import_snapshot(connection: psycopg.Connection, exported: str) -> None:
    """Let a transaction that has just begun see what the snapshot sees; raises ``SnapshotLost`` where it is gone."""
    name, _, seen = exported.partition("/")
    try:
        connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(name)))
    except psycopg.Error as error:
        if is_lost(error):
            raise
        raise SnapshotLost(f"The snapshot in which ranges are read is gone: {words(error)}.") from error
    if connection.execute(f"SELECT {_SEEN}".encode()).fetchone() != (seen,):
        raise SnapshotLost("The snapshot in which ranges are read is gone: its name is that of another one by now.")
