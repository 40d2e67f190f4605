"""Whether a table's changes can be replayed from the log, and would be all of them: looked at before anything is made.

A publication is not without danger to those who write the table: PostgreSQL refuses their updates and deletes where the
log could not identify the row. And a table is never altered here, so what is missing is named.
"""

from collections.abc import Sequence

from psycopg import sql

from airflow_provider_backpressure.connectors.postgres.catalog import KINDS, ORDINARY, CatalogColumn, Relation
from airflow_provider_backpressure.connectors.postgres.identifiers import join_names
from airflow_provider_backpressure.connectors.postgres.shared_connection import Session
from airflow_provider_backpressure.exceptions import SourceRefused

PUBLISHES_GENERATED = 180000
"""Version since which stored generated columns can be published."""
MINIMUM_VERSION = 140000
_LACKS = "it lacks {} that is not deferrable"
BY_KEY, FULL = "d", "f"
"""Replica identities: the primary key, and the whole row."""


def replayable(
    session: Session, table: Relation, columns: Sequence[CatalogColumn], as_text: Sequence[str] = ()
) -> tuple[tuple[str, ...], ...]:
    """Return the unique keys by which the log identifies a row that is deleted, or whose key changes.

    A deferrable key is none: within one statement two rows may have the same. ``SourceRefused`` with every
    obstacle to replaying the table's changes.
    """
    against = [*_against_server(session), *_against_table(session, table)]
    identity, more = _identity(session, table)
    generated = _find_generated_columns(session, table)
    against += more or _against_generated(session, identity, generated, [column.name for column in columns])
    against += _against_text(session, table, as_text)
    if against:
        raise SourceRefused(f"The changes of {table.name} cannot be replayed: {'; '.join(against)}.")
    told = {column.name for column in table.columns if column.not_null and column.name in identity}
    keys = tuple(key.columns for key in table.unique_keys if key.immediate and told.issuperset(key.columns))
    if not keys:
        raise SourceRefused(f"The changes of {table.name} cannot be replayed: {_LACKS.format('a key of its rows')}.")
    return keys


def _against_server(session: Session) -> list[str]:
    level, standby, may = session.rows(_SERVER)[0]
    against = []
    if session.server_version < MINIMUM_VERSION:
        against.append(f"it takes PostgreSQL {MINIMUM_VERSION // 10000} or later")
    if level != "logical":
        against.append(f"wal_level is {level} and has to be logical, which needs a restart of the server")
    if standby:
        against.append("the server is a standby: name the primary")
    if not may:
        user = session.endpoint.user
        against.append(f'{user} has no replication right: ALTER ROLE "{user}" REPLICATION')
    return against


def _against_table(session: Session, table: Relation) -> list[str]:
    if table.kind != ORDINARY:
        return [f"it is {KINDS[table.kind]}, and only an ordinary table's are"]
    against = []
    if table.has_children:
        against.append("other tables inherit from it")
    if session.value(_UNLOGGED, (table.oid,)):
        against.append("it is an unlogged table, which no log knows of")
    if table.row_security:
        against.append(f"row security hides rows of it from {session.endpoint.user}, and the log shows them all")
    return against


def _identity(session: Session, table: Relation) -> tuple[tuple[str, ...], list[str]]:
    """Return the columns of the replica identity, and the obstacles to it."""
    kind, names = session.rows(_IDENTITY, (table.oid,))[0]
    if kind == FULL:
        return tuple(column.name for column in table.columns), []
    if names:
        return tuple(names), []
    lacks = "a primary key" if kind == BY_KEY else "a usable replica identity"
    return (), [
        f"{_LACKS.format(lacks)}, without which a publication would make PostgreSQL refuse updates and deletes of the "
        "table: give it one, or ALTER TABLE … REPLICA IDENTITY"
    ]


def _find_generated_columns(session: Session, table: Relation) -> dict[str, str]:
    return dict(session.rows(_GENERATED, (table.oid,)))


def _against_generated(
    session: Session, identity: Sequence[str], generated: dict[str, str], read: Sequence[str]
) -> list[str]:
    published = "s" if session.server_version >= PUBLISHES_GENERATED else ""
    unpublished = [name for name, kind in generated.items() if kind != published]
    broken = [name for name in unpublished if name in identity]
    if broken:
        return [
            f"generated {join_names(broken)} is part of its replica identity and not published, so PostgreSQL would "
            "refuse updates and deletes of the table"
        ]
    absent = [name for name in unpublished if name in read]
    return [f"generated {join_names(absent)} is not in the log: leave it out of columns"] if absent else []


def _against_text(session: Session, table: Relation, as_text: Sequence[str]) -> list[str]:
    """Some types have another text where they are cast to one, as ``true`` of ``t``; the log has the type's own."""
    cast = [name for (name,) in session.rows(_CAST, (table.oid, list(as_text)))]
    return [f"{join_names(cast)} in as_text has another text in the log than in a query: leave it out"] if cast else []


_SERVER = sql.SQL(
    """
    SELECT current_setting('wal_level'), pg_is_in_recovery(), r.rolsuper OR r.rolreplication OR EXISTS (
        SELECT FROM pg_roles m WHERE m.rolname = 'rds_replication' AND pg_has_role(m.oid, 'MEMBER'))
    FROM pg_roles r WHERE r.rolname = current_user
    """
)
_UNLOGGED = sql.SQL("SELECT relpersistence = 'u' FROM pg_class WHERE oid = %s")
_IDENTITY = sql.SQL(
    """
    SELECT c.relreplident::text, (
        SELECT array_agg(a.attname::text ORDER BY k.n)
        FROM pg_index i
        CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY k(attnum, n)
        JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
        WHERE i.indrelid = c.oid AND i.indisvalid AND i.indimmediate AND k.n <= i.indnkeyatts
          AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END)
    FROM pg_class c WHERE c.oid = %s
    """
)
_CAST = sql.SQL(
    """
    SELECT a.attname::text
    FROM pg_attribute a
    CROSS JOIN LATERAL (
        WITH RECURSIVE types AS (
            SELECT oid, typbasetype FROM pg_type WHERE oid = a.atttypid
            UNION ALL SELECT t.oid, t.typbasetype FROM types b JOIN pg_type t ON t.oid = b.typbasetype)
        SELECT oid FROM types WHERE typbasetype = 0
    ) base
    JOIN pg_cast k ON k.castsource = base.oid
    WHERE a.attrelid = %s AND a.attname = ANY (%s) AND k.casttarget = 'text'::regtype AND k.castmethod = 'f'
    ORDER BY a.attnum
    """
)
_GENERATED = sql.SQL(
    "SELECT attname::text, attgenerated::text FROM pg_attribute"
    " WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped AND attgenerated <> '' ORDER BY attnum"
)
