"""By which columns a table is cut into ranges, and which make up its unique key."""

import logging
import re
from dataclasses import dataclass

from airflow_provider_backpressure.connectors.postgres.catalog import (
    KINDS,
    ORDINARY,
    PARTITIONED,
    CatalogColumn,
    Relation,
    UniqueKey,
)
from airflow_provider_backpressure.connectors.postgres.identifiers import join_names
from airflow_provider_backpressure.connectors.postgres.predicates import INTEGERS, KEY_TYPES, key_cast
from airflow_provider_backpressure.core.config import Consistency
from airflow_provider_backpressure.exceptions import SourceRefused

log = logging.getLogger(__name__)

_COARSE = re.compile(r"date|timestamp\([0-2]\).*")


@dataclass(frozen=True, kw_only=True)
class Split:
    """How a table is cut."""

    columns: tuple[CatalogColumn, ...]
    """Empty: by the blocks of its files."""
    unique: bool
    key: tuple[str, ...]
    """The table's unique key; empty where it has none."""


def chosen_split(table: Relation, split_column: str | None, consistency: Consistency) -> Split:
    """Return how the table is cut; ``SourceRefused`` where it cannot be."""
    if split_column is not None:
        return _find_split_column(table, split_column)
    keys = _fit_keys(table)
    if keys:
        best = keys[0]
        return Split(columns=_columns(table, best), unique=True, key=best.columns)
    return _by_blocks(table, consistency)


def check_rising(
    table: Relation, name: str, *, columns: tuple[str, ...] | None, as_text: tuple[str, ...]
) -> CatalogColumn:
    """Return the column by which increments are read; ``SourceRefused`` where it cannot be."""
    column = table.column(name)
    if column is None:
        raise SourceRefused(f"{table.name} has no column {join_names([name])} to read increments by.")
    if key_cast(column.type) is None:
        raise SourceRefused(
            f"Increments of {table.name} cannot be read by {join_names([name])}: its type is {column.type}, and "
            f"windows are cut by columns of types {KEY_TYPES}."
        )
    if name in as_text or (columns is not None and name not in columns):
        raise SourceRefused(
            f"{join_names([name])} of {table.name}, by which increments are read, has to be among the columns as it is."
        )
    return column


def is_coarse(column: CatalogColumn) -> bool:
    """Whether many rows have one value of this column, as they do of a date or of whole seconds."""
    return _COARSE.fullmatch(column.type) is not None


def _find_split_column(table: Relation, name: str) -> Split:
    column = table.column(name)
    if column is None:
        raise SourceRefused(f"{table.name} has no column {join_names([name])} to be split by.")
    if key_cast(column.type) is None:
        raise SourceRefused(
            f"{table.name} cannot be split by {join_names([name])}: its type is {column.type}, and ranges "
            f"are cut by columns of types {KEY_TYPES}."
        )
    keys = _fit_keys(table)
    unique = any(key.columns == (name,) for key in keys)
    if not unique:
        lacking = table.kind in (ORDINARY, PARTITIONED) and name not in table.indexed
        log.warning(
            "%s is cut by %s, which is not its unique key: %swhat one value holds is never cut.",
            table.name,
            join_names([name]),
            "it has no index on it, so every range reads the whole table, and " if lacking else "",
        )
    main = next((key for key in keys if key.primary), None) or next(iter(keys), None)
    return Split(columns=(column,), unique=unique, key=main.columns if main else ())


def _fit_keys(table: Relation) -> list[UniqueKey]:
    """Return the unique keys by which ranges can be cut, the best first.

    Primary before others, few columns before many, numbers before text: they are cut and compared faster. The keys of a
    table say nothing of the rows that its children have.
    """
    if table.has_children:
        return []

    def rank(key: UniqueKey) -> tuple[bool, int, bool, list[int]]:
        columns = _columns(table, key)
        return (
            not key.primary,
            len(columns),
            any(column.type not in INTEGERS for column in columns),
            [column.number for column in columns],
        )

    return sorted((key for key in table.unique_keys if _unfit(table, key) is None), key=rank)


def _unfit(table: Relation, key: UniqueKey) -> str | None:
    """Return why ranges cannot be cut by a key, or ``None``."""
    for column in _columns(table, key):
        if key_cast(column.type) is None:
            return f"the type of {join_names([column.name])} is {column.type}, and only {KEY_TYPES} are supported"
        if not column.not_null:
            return f"{join_names([column.name])} may be NULL"
    if not key.ordered:
        return "its index is sorted otherwise than its columns are"
    return None


def _by_blocks(table: Relation, consistency: Consistency) -> Split:
    if table.kind not in (ORDINARY, PARTITIONED):
        raise SourceRefused(f"{table.name} is {KINDS[table.kind]} and has no key: name a split_column to cut it by.")
    if table.row_security:
        raise SourceRefused(f"{table.name} has no key, and the row security on it does not let its blocks be read.")
    if consistency is not Consistency.SNAPSHOT:
        raise SourceRefused(
            f"{table.name} cannot be cut into ranges of a key: {_why(table)}. Name a split_column, or read it by "
            f"blocks with consistency='snapshot'."
        )
    return Split(columns=(), unique=False, key=())


def _why(table: Relation) -> str:
    if table.has_children:
        return "other tables inherit from it, and its key does not cover their rows"
    primary = next((key for key in table.unique_keys if key.primary), None)
    if primary is not None:
        return f"of its primary key {join_names(primary.columns)}, {_unfit(table, primary)}"
    return "it has neither a primary key nor another unique key of columns that are never NULL"


def _columns(table: Relation, key: UniqueKey) -> tuple[CatalogColumn, ...]:
    return tuple(column for name in key.columns if (column := table.column(name)) is not None)
