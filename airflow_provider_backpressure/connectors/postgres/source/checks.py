"""What a table must be to be read: there, of a kind and key that can be cut, readable, with types that can travel."""

import re
from collections.abc import Callable, Iterator, Sequence

import psycopg
from psycopg import sql

from airflow_provider_backpressure.connectors.postgres.catalog import (
    KINDS,
    ORDINARY,
    READABLE,
    CatalogColumn,
    Relation,
    find,
    similar,
)
from airflow_provider_backpressure.connectors.postgres.connect import Connection, Session
from airflow_provider_backpressure.connectors.postgres.errors import words
from airflow_provider_backpressure.connectors.postgres.identifiers import QualifiedName, join_names
from airflow_provider_backpressure.connectors.postgres.source.query import user_condition
from airflow_provider_backpressure.connectors.postgres.source.refused_types import find_uncarried
from airflow_provider_backpressure.connectors.relational.errors import where
from airflow_provider_backpressure.connectors.relational.key_choice import choose_names
from airflow_provider_backpressure.connectors.relational.user_queries import check_no_clock, refuse_clock
from airflow_provider_backpressure.exceptions import SourceRefused

MINIMUM_VERSION = 130000
_CLOCK = re.compile(
    r"\b(?:now|(?:clock|statement|transaction)_timestamp|timeofday|random(?:_normal)?|gen_random_uuid)\("
    r"|\buuid(?:v[47]|_generate_v\d\w*)\("
    r"|\b(?:CURRENT_(?:DATE|TIME|TIMESTAMP)|LOCALTIME|LOCALTIMESTAMP)\b"
)
"""As PostgreSQL shows an expression."""
_TODAY = re.compile(r"'\s*(?:now|today|tomorrow|yesterday)\s*'", re.IGNORECASE)
"""Times that are evaluated where a statement is parsed, unless they are text."""


def readable_table(
    session: Session, name: QualifiedName, find: Callable[[Session, QualifiedName], Relation | None] = find
) -> Relation:
    """Return the table of this name; ``SourceRefused`` where there is none or none of a kind that can be read."""
    if session.server_version < MINIMUM_VERSION:
        version, oldest = session.server_version // 10000, MINIMUM_VERSION // 10000
        raise SourceRefused(
            f"PostgreSQL at {where(session.endpoint)} is of version {version}; a source needs {oldest} or later."
        )
    table = find(session, name)
    if table is None:
        slip = similar(session, name)
        hint = f"; there is {slip}, to be written with its double quotes" if slip else ""
        raise SourceRefused(f"There is no table {name} in {where(session.endpoint)}{hint}.")
    if table.kind not in READABLE:
        raise SourceRefused(f"{name} is {KINDS.get(table.kind, 'no table')}, which has no rows to be read.")
    if table.temporary:
        raise SourceRefused(f"{name} is a temporary table, which no other connection can see.")
    return table


def chosen_columns(
    session: Session, table: Relation, names: tuple[str, ...] | None, as_text: tuple[str, ...]
) -> tuple[CatalogColumn, ...]:
    """Return the columns to be read in the order in which they were asked for; ``SourceRefused`` names the bad ones."""
    asked = choose_names(table, names, as_text)
    check_readable(session, table, asked)
    columns = table.select_columns(asked)
    bad = find_uncarried(session, table, [column for column in columns if column.name not in as_text])
    if bad:
        what = ", ".join(f"{join_names([column.name])} ({column.type}: {reason})" for column, reason in bad)
        raise SourceRefused(
            f"Columns of {table.name} cannot be carried: {what}; leave them out or name them in as_text."
        )
    return columns


def check_condition(session: Session, table: Relation, condition: str) -> None:
    """Have PostgreSQL parse and plan the user's condition, by itself and for this table, without running it.

    The second form has other brackets around it: what closes the first ones and opens them again does not fit there.
    What asks the clock is refused.
    """

    query = sql.SQL("EXPLAIN SELECT FROM {} WHERE {} AND ARRAY[\n{}\n] IS NOT NULL").format(
        sql.SQL(table.name.sql), user_condition(condition), sql.SQL(condition)
    )

    shown = sql.SQL("EXPLAIN (VERBOSE, COSTS OFF) SELECT {} FROM {}").format(
        user_condition(condition), sql.SQL(table.name.sql)
    )

    def explain(connection: Connection) -> str:
        try:
            connection.execute(query)
            return "\n".join(_drop_table_filters([line for (line,) in connection.execute(shown)]))
        except (psycopg.ProgrammingError, psycopg.DataError) as error:
            raise SourceRefused(
                f"The condition {condition!r} is not one that {table.name} can answer: {words(error)}."
            ) from error

    # As PostgreSQL spells it, functions in SQL replaced by what they do, and times such as 'today' by what they are.
    text = session.transaction(explain)
    check_no_clock(condition, table.name, text=text, clock=_CLOCK)
    for word in _TODAY.findall(condition):
        if word.lower() not in text.lower():
            refuse_clock(condition, table.name, word)


def _drop_table_filters(plan: Sequence[str]) -> Iterator[str]:
    """Yield a plan without the conditions of a view or a policy; those in a query of the condition's own stay."""
    within: int | None = None
    for line in plan:
        depth, text = len(line) - len(line.lstrip()), line.lstrip()
        if within is not None and depth <= within:
            within = None
        if within is None and text.startswith(("SubPlan", "InitPlan")):
            within = depth
        if within is not None or not text.startswith(_OF_THE_TABLE):
            yield line


_OF_THE_TABLE = ("Filter:", "Index Cond:", "Recheck Cond:", "One-Time Filter:")


def check_readable(session: Session, table: Relation, names: tuple[str, ...]) -> None:
    """Return where our role may read these columns; ``SourceRefused`` names what it may not."""
    user = session.endpoint.user
    if not table.schema_usable:
        raise SourceRefused(f"{user} has no USAGE right on schema {join_names([table.name.schema])}.")
    lacking = table.find_lacking("SELECT", names)
    if lacking:
        every = len(lacking) == len(table.columns)
        what = str(table.name) if every else f"{join_names(lacking)} of {table.name}"
        raise SourceRefused(f"{user} has no SELECT right on {what}.")


PUBLISHES_GENERATED = 180000
"""Version since which stored generated columns can be published."""
LOG_MINIMUM_VERSION = 140000
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
    keys = tuple(key.columns for key in table.keys if key.immediate and told.issuperset(key.columns))
    if not keys:
        raise SourceRefused(f"The changes of {table.name} cannot be replayed: {_LACKS.format('a key of its rows')}.")
    return keys


def check_childless(session: Session, table: Relation) -> None:
    """Raise ``SourceRefused`` where other tables inherit from a followed one by now: its log has none of their rows."""
    if session.value(_CHILDREN, (table.oid,)):
        raise SourceRefused(f"The changes of {table.name} cannot be replayed: {_INHERITED}.")


def _against_server(session: Session) -> list[str]:
    level, standby, may = session.rows(_SERVER)[0]
    against = []
    if session.server_version < LOG_MINIMUM_VERSION:
        against.append(f"it takes PostgreSQL {LOG_MINIMUM_VERSION // 10000} or later")
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
        against.append(_INHERITED)
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
    """Some types have another text where they are cast to one, as ``true`` of ``t``; the log has the type's own.

    A cast without a function gives the bytes as they are stored, which are not what every type prints.
    """
    cast = [name for (name,) in session.rows(_CAST, (table.oid, list(as_text)))]
    return [f"{join_names(cast)} in as_text has another text in the log than in a query: leave it out"] if cast else []


_SERVER = sql.SQL(
    """
    SELECT current_setting('wal_level'), pg_is_in_recovery(), r.rolsuper OR r.rolreplication OR EXISTS (
        SELECT FROM pg_roles m WHERE m.rolname = 'rds_replication' AND pg_has_role(m.oid, 'MEMBER'))
    FROM pg_roles r WHERE r.rolname = current_user
    """
)
_INHERITED = "other tables inherit from it"
_CHILDREN = sql.SQL("SELECT EXISTS (SELECT FROM pg_inherits WHERE inhparent = %s)")
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
    JOIN pg_type t ON t.oid = base.oid
    JOIN pg_proc o ON o.oid = t.typoutput
    WHERE a.attrelid = %s AND a.attname = ANY (%s) AND k.casttarget = 'text'::regtype
      AND (k.castmethod = 'f' OR k.castmethod = 'b' AND o.prosrc NOT IN ('textout', 'varcharout'))
    ORDER BY a.attnum
    """
)
_GENERATED = sql.SQL(
    "SELECT attname::text, attgenerated::text FROM pg_attribute"
    " WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped AND attgenerated <> '' ORDER BY attnum"
)
