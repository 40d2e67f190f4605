"""A table as a database's catalogue has it: what the choice of columns and keys asks of it."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from airflow_provider_backpressure.connectors.relational.identifiers import RelationName


@dataclass(frozen=True, kw_only=True)
class TableColumn(ABC):
    """One column."""

    coarse: ClassVar[re.Pattern[str]]
    """Types of which many rows have one value, as they do of a date or of whole seconds."""

    name: str
    not_null: bool
    """Holds for every row: a constraint that was never validated does not count."""
    has_default: bool
    """A row may leave it out though it is not nullable."""
    collation: str | None
    """By what its texts are ordered; ``None`` for types without collation."""
    loose: bool
    """Whether texts that differ, as by case, are equal."""

    @property
    @abstractmethod
    def shown_type(self) -> str:
        """Its type as the database spells it."""

    @property
    @abstractmethod
    def is_key(self) -> bool:
        """Whether ranges can be cut by its type."""

    @property
    def is_coarse(self) -> bool:
        """Whether many rows have one value of this column."""
        return self.coarse.fullmatch(self.shown_type) is not None


@dataclass(frozen=True, kw_only=True)
class TableKey:
    """A unique index over whole columns."""

    columns: tuple[str, ...]
    primary: bool

    @property
    def obstacle(self) -> str | None:
        """Why ranges cannot be cut by its index, if they cannot."""
        return None


NameT = TypeVar("NameT", bound=RelationName)
ColumnT = TypeVar("ColumnT", bound=TableColumn)
KeyT = TypeVar("KeyT", bound=TableKey)


@dataclass(frozen=True, kw_only=True)
class CatalogTable(ABC, Generic[NameT, ColumnT, KeyT]):
    """A table, view … as the catalogue has it."""

    key_types: ClassVar[str]
    """Types of columns by which ranges can be cut, for a sentence."""

    name: NameT
    kind: str
    columns: tuple[ColumnT, ...]
    keys: tuple[KeyT, ...]
    """The unique ones."""
    indexed: frozenset[str] = frozenset()
    """Columns that an index of all rows begins with, so that ranges of them are found through it."""

    @property
    @abstractmethod
    def is_stored(self) -> bool:
        """Whether it has rows of its own, as no view has."""

    @property
    def hides_rows(self) -> bool:
        """Whether the login is shown only some of its rows."""
        return False

    @property
    def default_names(self) -> tuple[str, ...]:
        """Names of the columns that are read where none is named."""
        return tuple(column.name for column in self.columns)

    def column(self, name: str) -> ColumnT | None:
        """Return the column of this name."""
        return next((column for column in self.columns if column.name == name), None)

    def select_columns(self, names: Iterable[str]) -> tuple[ColumnT, ...]:
        """Return the columns of these names, in their order, as far as there are any."""
        return tuple(column for name in names if (column := self.column(name)) is not None)

    def join_names(self, names: tuple[str, ...] | list[str]) -> str:
        """Return names of columns for a sentence."""
        return self.name.quoting.join_names(names)
