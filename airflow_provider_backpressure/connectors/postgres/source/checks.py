"""What a table must be to be read: there, of a kind and key that can be cut, readable, with types that can travel."""

import re

import psycopg
from psycopg import sql

from airflow_provider_backpressure.connectors.postgres.catalog import (
    KINDS,
    READABLE,
    CatalogColumn,
    Relation,
    find,
    similar,
)
from airflow_provider_backpressure.connectors.postgres.errors import where, words
from airflow_provider_backpressure.connectors.postgres.identifiers import QualifiedName, join_names
from airflow_provider_backpressure.connectors.postgres.shared_connection import Connection, Session
from airflow_provider_backpressure.connectors.postgres.source.query import user_condition
from airflow_provider_backpressure.connectors.postgres.source.types import find_uncarried
from airflow_provider_backpressure.connectors.relational.clock import check_no_clock, refuse_clock
from airflow_provider_backpressure.exceptions import SourceRefused

MINIMUM_VERSION = 130000
_CLOCK = re.compile(
    r"\b(?:now|(?:clock|statement|transaction)_timestamp|timeofday|random|gen_random_uuid)\("
    r"|\b(?:CURRENT_(?:DATE|TIME|TIMESTAMP)|LOCALTIME|LOCALTIMESTAMP)\b"
)
"""As PostgreSQL shows an expression."""
_TODAY = re.compile(r"'\s*(?:now|today|tomorrow|yesterday)\s*'", re.IGNORECASE)
"""Times that are evaluated where a statement is parsed, unless they are text."""


def readable_table(session: Session, name: QualifiedName) -> Relation:
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
    asked = names if names is not None else tuple(column.name for column in table.columns)
    unknown = [name for name in dict.fromkeys((*asked, *as_text)) if table.column(name) is None]
    if unknown:
        raise SourceRefused(f"{table.name} has no column {join_names(unknown)}.")
    if len(set(asked)) < len(asked):
        raise SourceRefused(f"A column of {table.name} is asked for twice: {join_names(asked)}.")
    if not asked:
        raise SourceRefused(f"{table.name} has no columns.")
    unread = sorted(set(as_text) - set(asked))
    if unread:
        raise SourceRefused(f"as_text names {join_names(unread)}, which columns does not ask for.")
    check_readable(session, table, asked)
    columns = tuple(column for name in asked if (column := table.column(name)) is not None)
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
            return "\n".join(line for (line,) in connection.execute(shown))
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
