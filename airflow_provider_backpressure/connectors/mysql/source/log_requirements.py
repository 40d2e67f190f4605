"""What a server, its rights and a table need so that changes can be replayed from the binlog."""

import logging
from collections.abc import Sequence

import pymysql

from airflow_provider_backpressure.connectors.mysql.binlog.values import CODECS, UTF8
from airflow_provider_backpressure.connectors.mysql.binlog_position import status
from airflow_provider_backpressure.connectors.mysql.catalog import CatalogColumn, Relation
from airflow_provider_backpressure.connectors.mysql.connect import Session
from airflow_provider_backpressure.connectors.mysql.errors import code
from airflow_provider_backpressure.connectors.mysql.identifiers import literal
from airflow_provider_backpressure.connectors.relational.errors import where
from airflow_provider_backpressure.exceptions import SourceRefused

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
    against = [*_against_server(session), *_against_rights(session, table)]
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


def _against_rights(session: Session, table: Relation | None = None) -> list[str]:
    """Ask for what takes a right, since rights may come by roles; and whether a table's database is logged."""
    lacking, user = [], session.endpoint.user
    try:
        session.raw("SHOW BINLOG EVENTS LIMIT 1")
    except pymysql.Error as error:
        lacking += ["REPLICATION SLAVE"] if code(error) in _DENIED else []
    try:
        logged, ignored = (str(each or "") for each in status(session.raw)[2:4])
    except (pymysql.Error, IndexError) as error:
        lacking += ["REPLICATION CLIENT"] if code(error) in _DENIED else []
        logged = ignored = ""
    against = [f"{user} lacks {' and '.join(lacking)}: GRANT {', '.join(lacking)} ON *.* TO {user}"] if lacking else []
    database = table.name.database if table is not None else ""
    if table is not None and ((logged and database not in logged.split(",")) or database in ignored.split(",")):
        against.append(f"the binlog leaves out the database {database} (binlog_do_db, binlog_ignore_db)")
    return against


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
