"""By which columns a table is cut into ranges, and which make up its unique key; which columns are read."""

import logging
from dataclasses import dataclass
from typing import Any, Generic

from airflow_provider_backpressure.connectors.relational.catalog_table import (
    CatalogTable,
    ColumnT,
    KeyT,
    NameT,
    TableKey,
)
from airflow_provider_backpressure.exceptions import SourceRefused

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Split(Generic[ColumnT]):
    """How a table is cut."""

    columns: tuple[ColumnT, ...]
    """Empty: not by a key."""
    unique: bool
    key: tuple[str, ...]
    """The table's unique key; empty where it has none."""


def split_by_key(table: CatalogTable[NameT, ColumnT, KeyT], key: KeyT) -> Split[ColumnT]:
    """Return the cut by a unique key."""
    return Split(columns=table.select_columns(key.columns), unique=True, key=key.columns)


def split_by_column(table: CatalogTable[NameT, ColumnT, KeyT], name: str, keys: list[KeyT]) -> Split[ColumnT]:
    """Return the cut by a column that the user names; ``SourceRefused`` where there is none that can be cut by.

    ``keys``: the unique keys by which ranges can be cut, the best first.
    """
    column = table.column(name)
    if column is None:
        raise SourceRefused(f"{table.name} has no column {table.join_names([name])} to be split by.")
    if not column.is_key:
        raise SourceRefused(
            f"{table.name} cannot be split by {table.join_names([name])}: its type is {column.shown_type}, and ranges "
            f"are cut by columns of {table.key_types}."
        )
    unique = any(key.columns == (name,) for key in keys)
    if not unique:
        lacking = table.is_stored and name not in table.indexed
        log.warning(
            "%s is cut by %s, which is not its unique key: %swhat one value holds is never cut.",
            table.name,
            table.join_names([name]),
            "it has no index on it, so every range reads the whole table, and " if lacking else "",
        )
    return Split(columns=(column,), unique=unique, key=keys[0].columns if keys else ())


def check_rising(
    table: CatalogTable[NameT, ColumnT, KeyT],
    name: str,
    *,
    columns: tuple[str, ...] | None,
    as_text: tuple[str, ...],
) -> ColumnT:
    """Return the column by which increments are read; ``SourceRefused`` where it cannot be."""
    column = table.column(name)
    if column is None:
        raise SourceRefused(f"{table.name} has no column {table.join_names([name])} to read increments by.")
    if not column.is_key:
        raise SourceRefused(
            f"Increments of {table.name} cannot be read by {table.join_names([name])}: its type is "
            f"{column.shown_type}, and windows are cut by columns of {table.key_types}."
        )
    if name in as_text or (columns is not None and name not in columns):
        raise SourceRefused(
            f"{table.join_names([name])} of {table.name}, by which increments are read, has to be among the columns as "
            "it is."
        )
    return column


def find_obstacle(table: CatalogTable[Any, Any, Any], key: TableKey) -> str | None:
    """Return why ranges cannot be cut by a key, or ``None``."""
    for column in table.select_columns(key.columns):
        name = table.join_names([column.name])
        if not column.is_key:
            return f"the type of {name} is {column.shown_type}, and only {table.key_types} are supported"
        if not column.not_null:
            return f"{name} may be NULL"
    return key.obstacle


def find_primary_obstacle(table: CatalogTable[Any, Any, Any]) -> str | None:
    """Return why ranges cannot be cut by the primary key; ``None`` where there is none, or they can."""
    primary = next((key for key in table.keys if key.primary), None)
    if primary is None:
        return None
    return f"of its primary key {table.join_names(primary.columns)}, {find_obstacle(table, primary)}"


def choose_names(
    table: CatalogTable[Any, Any, Any], names: tuple[str, ...] | None, as_text: tuple[str, ...]
) -> tuple[str, ...]:
    """Return the names of the columns to be read; ``SourceRefused`` names those that there are not, or twice."""
    asked = table.default_names if names is None else names
    unknown = [name for name in dict.fromkeys((*asked, *as_text)) if table.column(name) is None]
    if unknown:
        raise SourceRefused(f"{table.name} has no column {table.join_names(unknown)}.")
    if len(set(asked)) < len(asked):
        raise SourceRefused(f"A column of {table.name} is asked for twice: {table.join_names(asked)}.")
    if not asked:
        raise SourceRefused(f"{table.name} has no columns.")
    unread = sorted(set(as_text) - set(asked))
    if unread:
        raise SourceRefused(f"as_text names {table.join_names(unread)}, which columns does not ask for.")
    return asked
