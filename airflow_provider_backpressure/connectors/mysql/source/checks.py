"""What a table must be to be read, and what it, its server and its rights need so that its binlog can be replayed."""

import logging
import re
from collections.abc import Sequence

import pymysql

from airflow_provider_backpressure.connectors.mysql.binlog.character_sets import CODECS, UTF8
from airflow_provider_backpressure.connectors.mysql.binlog_position import status
from airflow_provider_backpressure.connectors.mysql.catalog import CatalogColumn, Relation
from airflow_provider_backpressure.connectors.mysql.connect import Session
from airflow_provider_backpressure.connectors.mysql.errors import code, is_lost, words
from airflow_provider_backpressure.connectors.mysql.identifiers import join_names, literal, quote
from airflow_provider_backpressure.connectors.mysql.source.query import user_condition
from airflow_provider_backpressure.connectors.mysql.source.types import DATES, carry_column
from airflow_provider_backpressure.connectors.relational.errors import where
from airflow_provider_backpressure.connectors.relational.key_choice import choose_names
from airflow_provider_backpressure.connectors.relational.user_queries import check_no_clock
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


log = logging.getLogger(__name__)

_SETTINGS = {
    "log_bin": ("ON", "start the server with log_bin"),
    "gtid_mode": ("ON", "let it be ON, by the steps of MySQL's manual"),
    "binlog_format": ("ROW", "SET PERSIST binlog_format = ROW"),
    "binlog_row_image": ("FULL", "SET PERSIST binlog_row_image = FULL"),
    "binlog_row_metadata": ("FULL", "SET PERSIST binlog_row_metadata = FULL"),
    "binlog_row_value_options": ("", "SET PERSIST binlog_row_value_options = ''"),
    "binlog_order_commits": ("ON", "SET PERSIST binlog_order_commits = ON"),
    "log_bin_use_v1_row_events": ("OFF", "SET PERSIST log_bin_use_v1_row_events = OFF"),
    "log_slave_updates": ("ON", "start the server with log_replica_updates"),
    "log_replica_updates": ("ON", "start the server with log_replica_updates"),
}
"""What each has to be, and what to do; a server may lack some of them."""
_MARIADB = "Changes are replayed from MySQL's binlog by its GTIDs, and MariaDB has others."
_DENIED = frozenset({1227, 1044, 1045})
_ENGINE = "InnoDB"


def replayable(session: Session, table: Relation, columns: Sequence[CatalogColumn], *, as_text: Sequence[str]) -> None:
    """Raise ``SourceRefused`` with every obstacle to replaying the table's changes."""
    if session.mariadb:
        raise SourceRefused(_MARIADB)
    against = [*_against_server(session), *_against_rights(session)]
    against += [*_against_table(session, table), *_against_columns(columns, as_text)]
    if against:
        raise SourceRefused(f"The changes of {table.name} cannot be replayed: {'; '.join(against)}.")


def check_server(session: Session) -> None:
    """Raise ``SourceRefused`` with every obstacle to following any table of the server."""
    if session.mariadb:
        raise SourceRefused(_MARIADB)
    if against := [*_against_server(session), *_against_rights(session)]:
        raise SourceRefused(
            f"The binlog of MySQL at {where(session.endpoint)} cannot be replayed: {'; '.join(against)}."
        )


def _against_server(session: Session) -> list[str]:
    names = ", ".join(literal(name) for name in (*_SETTINGS, "sync_binlog"))
    found: dict[str, str] = dict(session.rows(f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({names})"))
    if found.get("sync_binlog", "1") != "1":
        log.warning(
            "sync_binlog is %s: after a crash the server's binlog may lack changes that were replayed already, and "
            "nobody would know. Let it be 1.",
            found["sync_binlog"],
        )
    return [
        f"{name} is {found[name] or 'empty'} and has to be {wanted or 'empty'} ({what})"
        for name, (wanted, what) in _SETTINGS.items()
        if name in found and found[name].upper() != wanted
    ]


def check_complete(session: Session) -> None:
    """Raise ``SourceRefused`` where the server leaves statements out of its binlog: none shows that one is missing."""
    with session.errors.translate_errors(session.endpoint):
        against = _against_filters(status(session.raw))
    if against:
        raise SourceRefused(
            f"The binlog of MySQL at {where(session.endpoint)} cannot be replayed: {'; '.join(against)}. Then trigger "
            'the DAG with {"backpressure": "restart"}.'
        )


def _against_rights(session: Session) -> list[str]:
    """Ask for what takes a right, since rights may come by roles; and whether the binlog is filtered."""
    lacking, against, user = [], [], session.endpoint.user
    try:
        session.raw("SHOW BINLOG EVENTS LIMIT 1")
    except pymysql.Error as error:
        lacking += ["REPLICATION SLAVE"] if code(error) in _DENIED else []
    try:
        against = _against_filters(status(session.raw))
    except (pymysql.Error, IndexError) as error:
        lacking += ["REPLICATION CLIENT"] if code(error) in _DENIED else []
    if lacking:
        against.insert(0, f"{user} lacks {' and '.join(lacking)}: GRANT {', '.join(lacking)} ON *.* TO {user}")
    return against


def _against_filters(place: Sequence[object]) -> list[str]:
    """Return what is wrong where a server logs some databases only, by what it says of its log.

    It decides about rows by the database of their table, and about ``TRUNCATE`` and other statements by the database
    that the session uses: ``USE other; TRUNCATE shop.orders`` leaves no trace.
    """
    names = ("binlog_do_db", "binlog_ignore_db")
    found = {name: str(value or "") for name, value in zip(names, place[2:4], strict=False)}
    return [
        f"{name} is {value} and has to be empty, since by it statements such as TRUNCATE are left out of the log, "
        "whatever table they name (start the server without it)"
        for name, value in found.items()
        if value
    ]


def _against_table(session: Session, table: Relation) -> list[str]:
    if table.kind != "BASE TABLE":
        return ["it is a view, and only a table's are"]
    place = f"TABLE_SCHEMA = {literal(table.name.database)} AND TABLE_NAME = {literal(table.name.name)}"
    engine = session.value(f"SELECT ENGINE FROM information_schema.TABLES WHERE {place}")
    against = (
        [] if engine == _ENGINE else [f"its engine is {engine}, and only {_ENGINE} keeps rows and binlog together"]
    )
    if not table.keys:
        against.append("it has no key by which a change finds its row: give it a primary key")
    cascades = session.rows(
        "SELECT CONSTRAINT_NAME FROM information_schema.REFERENTIAL_CONSTRAINTS"
        f" WHERE CONSTRAINT_SCHEMA = {literal(table.name.database)} AND TABLE_NAME = {literal(table.name.name)}"
        " AND (DELETE_RULE NOT IN ('NO ACTION', 'RESTRICT') OR UPDATE_RULE NOT IN ('NO ACTION', 'RESTRICT'))"
    )
    if cascades:
        names = ", ".join(str(name) for (name,) in cascades)
        against.append(f"rows change by the foreign key {names}, and MySQL does not log what a cascade does")
    return against


def _against_columns(columns: Sequence[CatalogColumn], as_text: Sequence[str]) -> list[str]:
    against = [
        f"column {column.name} is in the character set {column.charset}, which is not read from the log: leave it out"
        for column in columns
        if column.charset is not None and (column.characters or 0) > 0 and column.charset in _STRANGE
    ]
    return against + [
        f"column {column.name} is filled up with zeros, which the log does not say: as_text cannot name it"
        for column in columns
        if column.name in as_text and "zerofill" in column.column_type
    ]


_STRANGE = frozenset({"cp932", "ujis", "eucjpms", "gb18030", "big5"})
"""Those with several bytes for a character of which some are understood differently outside of MySQL."""
assert not _STRANGE & (UTF8 | set(CODECS))
