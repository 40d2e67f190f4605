"""By which columns a table is cut into ranges, and which make up its unique key."""

from airflow_provider_backpressure.connectors.postgres.catalog import KINDS, CatalogColumn, Relation, UniqueKey
from airflow_provider_backpressure.connectors.postgres.key_types import INTEGERS
from airflow_provider_backpressure.connectors.relational.key_choice import (
    Split,
    find_obstacle,
    find_primary_obstacle,
    split_by_column,
    split_by_key,
)
from airflow_provider_backpressure.core.config import Consistency
from airflow_provider_backpressure.exceptions import SourceRefused


def chosen_split(table: Relation, split_column: str | None, consistency: Consistency) -> Split[CatalogColumn]:
    """Return how the table is cut; ``SourceRefused`` where it cannot be."""
    keys = _fit_keys(table)
    if split_column is not None:
        return split_by_column(table, split_column, keys)
    if keys:
        return split_by_key(table, keys[0])
    return _by_blocks(table, consistency)


def _fit_keys(table: Relation) -> list[UniqueKey]:
    """Return the unique keys by which ranges can be cut, the best first.

    Primary before others, few columns before many, numbers before text: they are cut and compared faster. The keys of a
    table say nothing of the rows that its children have.
    """
    if table.has_children:
        return []

    def rank(key: UniqueKey) -> tuple[bool, int, bool, list[int]]:
        columns = table.select_columns(key.columns)
        return (
            not key.primary,
            len(columns),
            any(column.type not in INTEGERS for column in columns),
            [column.number for column in columns],
        )

    return sorted((key for key in table.keys if find_obstacle(table, key) is None), key=rank)


def _by_blocks(table: Relation, consistency: Consistency) -> Split[CatalogColumn]:
    if not table.is_stored:
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
    return (
        find_primary_obstacle(table)
        or "it has neither a primary key nor another unique key of columns that are never NULL"
    )
