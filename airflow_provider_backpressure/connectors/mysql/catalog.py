"""What MySQL's catalogue says of a table: its columns, its unique keys, its size."""

import re
from dataclasses import dataclass

import pymysql

from airflow_provider_backpressure.connectors.mysql.connect import Session
from airflow_provider_backpressure.connectors.mysql.errors import code
from airflow_provider_backpressure.connectors.mysql.identifiers import KeyKind, TableName, literal
from airflow_provider_backpressure.connectors.relational.catalog_table import CatalogTable, TableColumn, TableKey
from airflow_provider_backpressure.connectors.relational.errors import where
from airflow_provider_backpressure.exceptions import SourceRefused

_SORTED = ("A", "D")
_NO_TABLE, _NO_DATABASE, _NO_RIGHT = 1146, 1049, frozenset({1142, 1044})


@dataclass(frozen=True, kw_only=True)
class CatalogColumn(TableColumn):
    """One column as ``information_schema`` has it."""

    coarse = re.compile(r"date|year.*|(datetime|timestamp)(\([0-2]\))?")
    """A type without a number of digits has whole seconds."""

    data_type: str
    """The bare name, in lower case: ``bigint``."""
    column_type: str
    """As it was declared: ``bigint unsigned``, ``enum('a','b')``."""
    characters: int | None
    octets: int | None
    """Most characters and bytes of text; bytes of a binary value."""
    precision: int | None
    scale: int | None
    fraction: int | None
    """Digits of a second's fraction."""
    charset: str | None
    visible: bool
    readable: bool
    """Whether our account may read it."""

    @property
    def unsigned(self) -> bool:
        """Whether it holds no negative numbers."""
        return "unsigned" in self.column_type

    @property
    def shown_type(self) -> str:
        """The type as it was declared."""
        return self.column_type

    @property
    def key_kind(self) -> KeyKind | None:
        """What boundaries of a key look like; ``None`` where ranges cannot be cut by this type."""
        return _KEY_KINDS.get(self.data_type)

    @property
    def is_key(self) -> bool:
        """See :attr:`..relational.catalog_table.TableColumn.is_key`."""
        return self.key_kind is not None


_KEY_KINDS = {
    **dict.fromkeys(("tinyint", "smallint", "mediumint", "int", "bigint", "year"), KeyKind.INTEGER),
    "decimal": KeyKind.NUMBER,
    **dict.fromkeys(("date", "datetime", "timestamp", "char", "varchar"), KeyKind.TEXT),
    **dict.fromkeys(("binary", "varbinary"), KeyKind.BYTES),
}


@dataclass(frozen=True, kw_only=True)
class UniqueKey(TableKey):
    """A unique index over whole columns."""

    name: str


TABLES = ("BASE TABLE", "SYSTEM VERSIONED")
"""Kinds of a table in the catalog; the second is MariaDB's, of a table that keeps its history."""


@dataclass(frozen=True, kw_only=True)
class Relation(CatalogTable[TableName, CatalogColumn, UniqueKey]):
    """A table or view."""

    key_types = "integer types, decimal, year, char, varchar, binary, varbinary, date, datetime and timestamp"

    rows: int | None
    """By the engine's statistics; of no use for a view."""
    row_bytes: float

    @property
    def is_stored(self) -> bool:
        """See :attr:`..relational.catalog_table.CatalogTable.is_stored`."""
        return self.kind in TABLES

    @property
    def default_names(self) -> tuple[str, ...]:
        """Names of the columns that are visible."""
        return tuple(column.name for column in self.columns if column.visible)


def find(session: Session, name: TableName) -> Relation:
    """Return the table; ``SourceRefused`` where there is none, or none that our account may see."""
    place = f"TABLE_SCHEMA = {literal(name.database)} AND TABLE_NAME = {literal(name.name)}"
    _ask_for(session, name)
    about = session.rows(f"SELECT TABLE_TYPE, TABLE_ROWS, AVG_ROW_LENGTH {_FROM}.TABLES WHERE {place}")
    columns = session.rows(f"SELECT {_COLUMNS} {_FROM}.COLUMNS WHERE {place} ORDER BY ORDINAL_POSITION")
    if not about or not columns:
        raise SourceRefused(f"{session.endpoint.user} has no SELECT right on {name}.")
    kind, rows, row_bytes = about[0]
    return Relation(
        name=name,
        kind=kind,
        rows=None if kind not in TABLES or rows is None else int(rows),
        row_bytes=float(row_bytes or 0),
        columns=tuple(map(_column, columns)),
        keys=_keys(session, place),
        indexed=_list_indexed_columns(session, place),
    )


def _ask_for(session: Session, name: TableName) -> None:
    """Look at the table itself: the catalogue shows a hidden table and a missing one alike."""
    try:
        session.raw(f"SELECT 1 FROM {name.sql} LIMIT 0")
    except pymysql.Error as error:
        if code(error) in (_NO_TABLE, _NO_DATABASE):
            raise SourceRefused(f"There is no table {name} in {where(session.endpoint)}.") from error
        if code(error) in _NO_RIGHT:
            raise SourceRefused(f"{session.endpoint.user} has no SELECT right on {name}.") from error
        raise session.errors.translate(error, session.endpoint) from error


def _column(row: tuple[object, ...]) -> CatalogColumn:
    name, data_type, column_type, nullable, characters, octets, precision, scale, fraction, *others = row
    charset, collation, extra, rights, default = others
    return CatalogColumn(
        name=str(name),
        data_type=str(data_type).lower(),
        column_type=_text(column_type),
        not_null=nullable == "NO",
        characters=_number(characters),
        octets=_number(octets),
        precision=_number(precision),
        scale=_number(scale),
        fraction=_number(fraction),
        charset=None if charset is None else str(charset),
        collation=None if collation is None else str(collation),
        # An enum's and a set's texts are names of numbers.
        loose=str(data_type).lower() not in ("enum", "set") and not str(collation or "_bin").endswith("_bin"),
        visible="INVISIBLE" not in str(extra).upper(),
        readable="select" in str(rights).lower().split(","),
        has_default=default is not None or "GENERATED" in str(extra).upper(),
    )


def _keys(session: Session, place: str) -> tuple[UniqueKey, ...]:
    """Return the unique indexes whose parts are columns, none of them a prefix or an expression.

    A descending part is read backwards. What is sorted by neither (a hash) finds no ranges.
    """
    parts: dict[str, list[tuple[object, ...]]] = {}
    query = (
        f"SELECT INDEX_NAME, COLUMN_NAME, SUB_PART, COLLATION {_FROM}.STATISTICS"
        f" WHERE {place} AND NON_UNIQUE = 0 ORDER BY INDEX_NAME, SEQ_IN_INDEX"
    )
    for name, *part in session.rows(query):
        parts.setdefault(str(name), []).append(tuple(part))
    return tuple(
        UniqueKey(name=name, primary=name == "PRIMARY", columns=tuple(str(column) for column, _, _ in each))
        for name, each in parts.items()
        if all(column is not None and prefix is None and order in _SORTED for column, prefix, order in each)
    )


def _list_indexed_columns(session: Session, place: str) -> frozenset[str]:
    rows = session.rows(
        f"SELECT COLUMN_NAME {_FROM}.STATISTICS WHERE {place} AND SEQ_IN_INDEX = 1 AND COLUMN_NAME IS NOT NULL"
        " AND SUB_PART IS NULL AND COLLATION IS NOT NULL"
    )
    return frozenset(str(name) for (name,) in rows)


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _number(value: object) -> int | None:
    return None if value is None else int(str(value))


_FROM = "FROM information_schema"
_COLUMNS = (
    "COLUMN_NAME, DATA_TYPE, COLUMN_TYPE, IS_NULLABLE, CHARACTER_MAXIMUM_LENGTH, CHARACTER_OCTET_LENGTH,"
    " NUMERIC_PRECISION, NUMERIC_SCALE, DATETIME_PRECISION, CHARACTER_SET_NAME, COLLATION_NAME, EXTRA, `PRIVILEGES`,"
    " COLUMN_DEFAULT"
)
