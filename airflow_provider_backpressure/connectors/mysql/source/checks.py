"""What a table must be to be read: columns that are there, readable and of types that can travel."""

import re

import pymysql

from airflow_provider_backpressure.connectors.mysql.catalog import CatalogColumn, Relation
from airflow_provider_backpressure.connectors.mysql.connect import Session
from airflow_provider_backpressure.connectors.mysql.errors import code, is_lost, words
from airflow_provider_backpressure.connectors.mysql.identifiers import join_names, quote
from airflow_provider_backpressure.connectors.mysql.source.query import user_condition
from airflow_provider_backpressure.connectors.mysql.source.types import DATES, carry_column
from airflow_provider_backpressure.connectors.relational import check_no_clock
from airflow_provider_backpressure.connectors.relational.split import choose_names
from airflow_provider_backpressure.exceptions import SourceRefused

_CLOCK = re.compile(
    r"\b(?:now|sysdate|curdate|curtime|rand|uuid)\s*\(|\bunix_timestamp\s*\(\s*\)"
    r"|(?<![\w.])(?:(?:current|utc)_(?:date|time|timestamp)|localtime|localtimestamp)\b",
    re.IGNORECASE,
)
_NO_COLUMN, _NO_RIGHT = 1054, frozenset({1142, 1143})


def chosen_columns(
    table: Relation, names: tuple[str, ...] | None, as_text: tuple[str, ...], *, user: str
) -> tuple[CatalogColumn, ...]:
    """Return the columns to be read in the order in which they were asked for; ``SourceRefused`` names the bad ones."""
    asked = choose_names(table, names, as_text)
    check_readable(table, asked, user=user)
    columns = table.select_columns(asked)
    bad = [column for column in columns if carry_column(column, as_text=column.name in as_text) is None]
    if bad:
        what = ", ".join(f"{join_names([column.name])} ({column.column_type})" for column in bad)
        raise SourceRefused(f"Columns of {table.name} cannot be carried so: {what}; leave them out.")
    return columns


def check_rights(session: Session, table: Relation, names: tuple[str, ...] | None) -> None:
    """Raise ``SourceRefused`` where our account may not read what is asked for; nothing is read.

    The catalogue hides columns that an account may not read: "all columns" would be fewer without a word.
    """
    what = "*" if names is None else ", ".join(quote(name) for name in names)
    try:
        session.raw(f"SELECT {what} FROM {table.name.sql} LIMIT 0")
    except pymysql.Error as error:
        if code(error) in _NO_RIGHT:
            raise SourceRefused(
                f"{session.endpoint.user} has no SELECT right on all that is read of {table.name}: {words(error)}."
            ) from error
        if code(error) != _NO_COLUMN:
            raise session.errors.translate(error, session.endpoint) from error


def check_readable(table: Relation, names: tuple[str, ...], *, user: str) -> None:
    """Raise ``SourceRefused`` where our account may not read one of these columns."""
    lacking = [name for name in names if (column := table.column(name)) is not None and not column.readable]
    if lacking:
        raise SourceRefused(f"{user} has no SELECT right on {join_names(lacking)} of {table.name}.")


def check_zero_dates(table: Relation, names: tuple[str, ...]) -> None:
    """Raise ``SourceRefused`` where a key has dates whose zeros arrive as NULL.

    To the server the zero date of a column that is ``NOT NULL`` is both the lowest date and NULL, so that two ranges
    would have its row; of others it is one thing in the source and another in the target.
    """
    dates = [name for name in names if (column := table.column(name)) is not None and column.data_type in DATES]
    if dates:
        raise SourceRefused(
            f"{table.name} is cut by {join_names(dates)} or has it in its key, so its zero dates cannot arrive as "
            "NULL: leave out zero_dates, or name another split_column."
        )


def check_condition(session: Session, table: Relation, condition: str) -> None:
    """Have MySQL parse and plan the user's condition, by itself and for this table, without running it.

    The second form has other brackets around it: what closes the first ones and opens them again does not fit there.
    What asks the clock is refused.
    """
    for form in (
        f"EXPLAIN SELECT 1 FROM {table.name.sql} WHERE {user_condition(condition)}",
        f"EXPLAIN SELECT IF(\n{condition}\n, 1, 0) FROM {table.name.sql}",
    ):
        try:
            session.raw(form)
        except pymysql.Error as error:
            if is_lost(error):
                raise session.errors.translate(error, session.endpoint) from error
            raise SourceRefused(
                f"The condition {condition!r} is not one that {table.name} can answer: {words(error)}."
            ) from error
    check_no_clock(condition, table.name, text=condition, clock=_CLOCK)
