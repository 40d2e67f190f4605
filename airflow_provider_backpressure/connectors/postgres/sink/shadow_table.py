"""The shadow: a table beside the target, made like it, into which a plan under ``replace`` writes."""

import hashlib
import uuid
from collections.abc import Sequence

from psycopg import sql
from psycopg.abc import Params

from airflow_provider_backpressure.connectors.postgres.connect import Connection, Query, Row
from airflow_provider_backpressure.connectors.postgres.identifiers import QualifiedName, quote
from airflow_provider_backpressure.connectors.postgres.sink.clone_ddl import alike, creation
from airflow_provider_backpressure.connectors.postgres.sink.system_tables import create_table, definition
from airflow_provider_backpressure.core.snapshot.spark_messages import Column, WriteSpec
from airflow_provider_backpressure.exceptions import SinkRefused

_DIGITS = 16


def new_shadow(target: QualifiedName) -> QualifiedName:
    """Return a name that no other plan has: 46 ASCII characters, which leave room for the names of its indexes."""
    return QualifiedName(schema=target.schema, name=_prefix(target) + uuid.uuid4().hex[:_DIGITS])


def shadow_of(write: WriteSpec) -> QualifiedName:
    """Return the shadow of a plan."""
    return QualifiedName.parse(write.target)


def oid_of(connection: Connection, name: QualifiedName) -> int | None:
    """Return the number of what bears this name."""
    row = connection.execute(_OID, (name.schema, name.name)).fetchone()
    return row[0] if row else None


def create_shadow(
    connection: Connection, target: QualifiedName, shadow: QualifiedName, columns: Sequence[Column]
) -> None:
    """Create the shadow like the target, or of these columns where there is no target yet.

    Indexes and foreign keys come when the rows are in. ``SinkRefused`` where a publication would send its rows out.
    """
    connection.execute(sql.SQL("SET LOCAL search_path TO ''"))
    oid = oid_of(connection, target)
    if oid is None:
        connection.execute(create_table(shadow, [definition(column) for column in columns], ()))
    else:
        creation(connection, oid, shadow)
        alike(connection, oid, shadow)
    # Autovacuum would hold the shadow whenever it is to be indexed or swapped; the swap lets it in again.
    connection.execute(sql.SQL("ALTER TABLE {} SET (autovacuum_enabled = false)").format(sql.SQL(shadow.sql)))
    connection.execute(
        sql.SQL("COMMENT ON TABLE {} IS {}").format(sql.SQL(shadow.sql), sql.Literal(purpose(target, oid)))
    )
    published = publication_of(connection, shadow)
    if published:
        raise SinkRefused(
            f"{target} cannot be replaced: the publication {quote(published)} would send every row of the shadow "
            "table to its subscribers."
        )


def publication_of(connection: Connection, name: QualifiedName) -> str | None:
    """Return a publication that sends a table's rows out."""
    row = connection.execute(_PUBLISHED, (name.schema, name.name)).fetchone()
    return row[0] if row else None


def purpose(target: QualifiedName, oid: int | None) -> str:
    """Return the shadow's comment: whose place it is to take. It shows whether that is still the same table."""
    return f"backpressure: shadow of {target}, to take the place of {'nothing' if oid is None else f'table {oid}'}"


def shadows_of(connection: Connection, target: QualifiedName) -> list[QualifiedName]:
    """Return the shadows that plans of a target have left, as far as they are ours."""
    return name_shadows(target, connection.execute(*list_shadows(target)).fetchall())


def list_shadows(target: QualifiedName) -> tuple[Query, Params]:
    """Return the statement that finds them."""
    prefix = _prefix(target)
    return _SHADOWS, {"schema": target.schema, "prefix": prefix, "length": len(prefix) + _DIGITS}


def name_shadows(target: QualifiedName, rows: Sequence[Row]) -> list[QualifiedName]:
    """Return what it has found by their names."""
    return [QualifiedName(schema=target.schema, name=name) for (name,) in rows]


def drop_shadows(connection: Connection, shadows: Sequence[QualifiedName], *, but: QualifiedName | None) -> None:
    """Drop the shadows that earlier plans of a target have left."""
    for shadow in shadows:
        if shadow != but:
            connection.execute(sql.SQL("DROP TABLE {}").format(sql.SQL(shadow.sql)))


def _prefix(target: QualifiedName) -> str:
    return f"backpressure_{hashlib.sha256(target.name.encode()).hexdigest()[:_DIGITS]}_"


_OID = sql.SQL(
    "SELECT c.oid::bigint FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
    " WHERE n.nspname = %s AND c.relname = %s"
)
_PUBLISHED = sql.SQL("SELECT pubname FROM pg_publication_tables WHERE schemaname = %s AND tablename = %s")
# By a range of names, which the catalogue's index finds: a schema may hold thousands of tables.
_SHADOWS = sql.SQL(
    """
    SELECT c.relname
    FROM pg_class c
    JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = %(schema)s AND c.relkind = 'r'
      AND c.relname > %(prefix)s::name AND c.relname < (%(prefix)s || '~')::name
      AND length(c.relname) = %(length)s AND pg_has_role(c.relowner, 'USAGE')
    """
)
