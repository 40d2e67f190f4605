"""A table with the key by which it is cut, and the pieces that its boundaries make."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from airflow_provider_backpressure.connectors.relational.catalog_table import NameT
from airflow_provider_backpressure.core.snapshot.bounds import Bounds, KeyBounds, Values, cover, cut
from airflow_provider_backpressure.core.snapshot.plan import Snapshot
from airflow_provider_backpressure.core.snapshot.spark_messages import Column, Window, null_bounds


@dataclass(frozen=True, kw_only=True)
class NamedColumn:
    """A column by which ranges are cut, or whose windows are read."""

    name: str


KeyColumnT = TypeVar("KeyColumnT", bound=NamedColumn)
SqlT = TypeVar("SqlT")


@dataclass(frozen=True, kw_only=True)
class CutTable(Generic[NameT, KeyColumnT, SqlT]):
    """A table with the key by which it is cut, and what else decides which of its rows are read."""

    name: NameT
    key: tuple[KeyColumnT, ...]
    """Empty where it is read whole, or cut by blocks."""
    unique: bool
    where: str | None
    """The user's own condition."""
    window: Window | None = None
    rising: KeyColumnT | None = None
    """The column of the window."""
    size: SqlT | None = None
    """Expression for the bytes of a row, where rows differ much in size."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the key's columns."""
        return tuple(column.name for column in self.key)

    @property
    def partial(self) -> bool:
        """Whether some of the table's rows are not read, so that its statistics say little."""
        return self.where is not None or self.window is not None


def list_pieces(table: CutTable[Any, Any, Any], snapshot: Snapshot, boundaries: Iterator[Values]) -> Iterator[Bounds]:
    """Yield the pieces of the key, and the rows without one, unless one piece is all of the table."""
    only = False
    for piece in cover(table.columns, boundaries):
        only = piece.is_open
        yield piece
    if not only and not table.unique:
        yield from null_bounds(snapshot.columns, table.columns)


def cut_evenly(
    bounds: KeyBounds,
    columns: Sequence[Column],
    *,
    rows: int,
    parts: int,
    find_boundaries: Callable[[int], Iterator[Values]],
) -> list[Bounds]:
    """Return about so many pieces of these bounds, which hold so many rows.

    ``find_boundaries``: returns boundaries with so many rows between two.
    """
    step = math.ceil(rows / parts)
    pieces: list[Bounds] = [*cut(bounds, find_boundaries(step))] if step else [bounds]
    return [*pieces, *null_bounds(columns, bounds.columns)] if bounds.is_open and len(pieces) > 1 else pieces
