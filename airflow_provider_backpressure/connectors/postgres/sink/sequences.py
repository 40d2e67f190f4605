"""Sequences that a target's columns own: they continue after the loaded rows, or the next insert would collide."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from psycopg import sql
from psycopg.abc import Params

from airflow_provider_backpressure.connectors.postgres.connect import Connection, Query
from airflow_provider_backpressure.connectors.postgres.identifiers import QualifiedName, join_names

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Owned:
    """A sequence of a serial or identity column."""

    oid: int
    name: str
    """As SQL spells it, with its schema."""
    column: str
    serial: bool
    """Only its column's default draws from it; that of an identity column is a part of the column."""
    rising: bool
    least: int
    most: int
    may_be_set: bool
    """Whether our role may read it and set it."""


def advance(
    connection: Connection,
    table: QualifiedName,
    columns: Sequence[str],
    *,
    shown: QualifiedName,
    serials_of: QualifiedName | None = None,
) -> None:
    """Let the sequences of these columns continue after the table's rows; never backwards.

    ``shown``: what the log calls the table. ``serials_of``: the table that owns the serials, where that is another one.
    A sequence that our role may not set stays, and the log says what to run. A column that does not arrive has drawn
    its numbers from its sequence already.
    """
    found = _sequences(connection, table, columns)
    if serials_of is not None:
        found += [each for each in _sequences(connection, serials_of, columns) if each.serial]
    for owned in found:
        last = _last(connection, table, owned)
        if last is None or not owned.least <= last <= owned.most:
            continue
        if not owned.may_be_set:
            log.warning(
                "The sequence %s of %s in %s is not moved behind its rows: our role lacks SELECT or UPDATE on it. "
                "Run SELECT setval('%s', %s) where it is below.",
                owned.name,
                join_names([owned.column]),
                shown,
                owned.name,
                last,
            )
        elif connection.execute(_build_advance(owned), {"sequence": owned.oid, "last": last}).fetchone() is not None:
            log.info("The sequence of %s in %s continues after %s.", join_names([owned.column]), shown, last)


def find_sequences(table: QualifiedName, columns: Sequence[str]) -> tuple[Query, Params]:
    """Return the statement that finds the sequences of these columns: a row for each."""
    return _OWNED, {"schema": table.schema, "name": table.name, "columns": list(columns)}


def _sequences(connection: Connection, table: QualifiedName, columns: Sequence[str]) -> list[Owned]:
    rows = connection.execute(*find_sequences(table, columns)).fetchall()
    names = ("oid", "name", "column", "serial", "rising", "least", "most", "may_be_set")
    return [Owned(**dict(zip(names, row, strict=True))) for row in rows]


def _last(connection: Connection, table: QualifiedName, owned: Owned) -> int | None:
    """Return the value that the sequence must have passed; ``None`` of a table without rows."""
    query = sql.SQL("SELECT {}({})::bigint FROM {}").format(
        sql.SQL("max" if owned.rising else "min"), sql.Identifier(owned.column), sql.SQL(table.sql)
    )
    row = connection.execute(query).fetchone()
    return None if row is None else row[0]


def _build_advance(owned: Owned) -> sql.Composed:
    # In one statement: a number drawn at this moment is after the last row, or the next one is.
    return sql.SQL(
        "SELECT setval(%(sequence)s::oid::regclass, %(last)s, true) FROM {} s"
        " WHERE s.last_value {} %(last)s OR s.last_value = %(last)s AND NOT s.is_called"
    ).format(sql.SQL(owned.name), sql.SQL("<" if owned.rising else ">"))


_OWNED = sql.SQL(
    """
    SELECT q.oid::bigint, format('%%I.%%I', m.nspname, q.relname), a.attname, d.deptype = 'a', s.seqincrement > 0,
           s.seqmin, s.seqmax, has_sequence_privilege(q.oid, 'SELECT') AND has_sequence_privilege(q.oid, 'UPDATE')
    FROM pg_class c
    JOIN pg_namespace n ON n.oid = c.relnamespace
    JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass
                    AND d.refobjid = c.oid AND d.refobjsubid = a.attnum AND d.deptype IN ('a', 'i')
    JOIN pg_class q ON q.oid = d.objid AND q.relkind = 'S'
    JOIN pg_namespace m ON m.oid = q.relnamespace
    JOIN pg_sequence s ON s.seqrelid = q.oid
    WHERE n.nspname = %(schema)s AND c.relname = %(name)s AND a.attname = ANY (%(columns)s)
      AND a.atttypid IN ('int2'::regtype, 'int4'::regtype, 'int8'::regtype)
    ORDER BY a.attnum
    """
)
