"""By which columns a table is cut into ranges, and which make up its unique key."""

import logging
import re
from collections.abc import Collection
from dataclasses import dataclass

from airflow_provider_backpressure.connectors.mysql.catalog import CatalogColumn, Relation, UniqueKey
from airflow_provider_backpressure.connectors.mysql.identifiers import KeyKind, join_names
from airflow_provider_backpressure.connectors.mysql.source.types import key_kind
from airflow_provider_backpressure.exceptions import SourceRefused

log = logging.getLogger(__name__)

_COARSE = re.compile(r"date|year.*|(datetime|timestamp)(\([0-2]\))?")
"""A type without a number of digits has whole seconds."""

KEY_TYPES = "integer types, decimal, year, char, varchar, binary, varbinary, date, datetime and timestamp"


@dataclass(frozen=True, kw_only=True)
class Split:
    """How a table is cut."""

    columns: tuple[CatalogColumn, ...]
    """Empty: not at all."""
    unique: bool
    key: tuple[str, ...]
    """The table's unique key; empty where it has none."""


def chosen_split(table: Relation, split_column: str | None, *, whole: bool, columns: Collection[str] = ()) -> Split:
    """Return how the table is cut; ``SourceRefused`` where it cannot be and is not to be read whole.

    ``columns``: those that are named to be read.
    """
    keys = _fit_keys(table, columns)
    if split_column is not None:
        return _find_split_column(table, split_column, keys)
    if whole:
        return Split(columns=(), unique=False, key=keys[0].columns if keys else ())
    if keys:
        return Split(columns=_columns(table, keys[0]), unique=True, key=keys[0].columns)
    raise SourceRefused(
        f"{table.name} cannot be cut into ranges of a key: {_why(table)}. Name a split_column, or read it in one range "
        "with whole=True."
    )


def check_rising(table: Relation, name: str, *, columns: tuple[str, ...] | None, as_text: tuple[str, ...]) -> None:
    """Raise ``SourceRefused`` unless increments can be read by this column."""
    column = table.column(name)
    if column is None:
        raise SourceRefused(f"{table.name} has no column {join_names([name])} to read increments by.")
    if key_kind(column) is None:
        raise SourceRefused(
            f"Increments of {table.name} cannot be read by {join_names([name])}: its type is {column.column_type}, and "
            f"windows are cut by columns of {KEY_TYPES}."
        )
    if name in as_text or (columns is not None and name not in columns):
        raise SourceRefused(
            f"{join_names([name])} of {table.name}, by which increments are read, has to be among the columns as it is."
        )


def is_coarse(column: CatalogColumn) -> bool:
    """Whether many rows have one value of this column, as they do of a date or of whole seconds."""
    return _COARSE.fullmatch(column.column_type) is not None


def _find_split_column(table: Relation, name: str, keys: list[UniqueKey]) -> Split:
    column = table.column(name)
    if column is None:
        raise SourceRefused(f"{table.name} has no column {join_names([name])} to be split by.")
    if key_kind(column) is None:
        raise SourceRefused(
            f"{table.name} cannot be split by {join_names([name])}: its type is {column.column_type}, and ranges are "
            f"cut by columns of {KEY_TYPES}."
        )
    unique = any(key.columns == (name,) for key in keys)
    if not unique:
        lacking = table.kind == "BASE TABLE" and name not in table.indexed
        log.warning(
            "%s is cut by %s, which is not its unique key: %swhat one value holds is never cut.",
            table.name,
            join_names([name]),
            "it has no index on it, so every range reads the whole table, and " if lacking else "",
        )
    return Split(columns=(column,), unique=unique, key=keys[0].columns if keys else ())


def _fit_keys(table: Relation, named: Collection[str]) -> list[UniqueKey]:
    """Return the unique keys by which ranges can be cut: primary before others, few columns before many.

    A key of an invisible column, as MySQL generates one, comes last: it does not arrive unless it is named.
    """

    def rank(key: UniqueKey) -> tuple[bool, bool, int, bool, str]:
        columns = _columns(table, key)
        absent = any(not column.visible and column.name not in named for column in columns)
        slow = any(key_kind(column) is not KeyKind.INTEGER for column in columns)
        return absent, not key.primary, len(columns), slow, key.name

    return sorted((key for key in table.keys if _unfit(table, key) is None), key=rank)


def _unfit(table: Relation, key: UniqueKey) -> str | None:
    """Return why ranges cannot be cut by a key, or ``None``."""
    for column in _columns(table, key):
        if key_kind(column) is None:
            return (
                f"the type of {join_names([column.name])} is {column.column_type}, and only {KEY_TYPES} are supported"
            )
        if not column.not_null:
            return f"{join_names([column.name])} may be NULL"
    return None


def _why(table: Relation) -> str:
    primary = next((key for key in table.keys if key.primary), None)
    if primary is not None:
        return f"of its primary key {join_names(primary.columns)}, {_unfit(table, primary)}"
    if table.kind != "BASE TABLE":
        return "it is a view"
    return "it has neither a primary key nor another unique key of whole columns that are never NULL"


def _columns(table: Relation, key: UniqueKey) -> tuple[CatalogColumn, ...]:
    return tuple(column for name in key.columns if (column := table.column(name)) is not None)
