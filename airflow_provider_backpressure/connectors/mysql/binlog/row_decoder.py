"""Rows of the log as texts: one reader for each table as a TABLE_MAP event describes it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from airflow_provider_backpressure.connectors.mysql.binlog.byte_reader import Bytes
from airflow_provider_backpressure.connectors.mysql.binlog.column_decoders import Charsets, Text, Wish, length, way
from airflow_provider_backpressure.connectors.mysql.binlog.table_map import LoggedTable
from airflow_provider_backpressure.connectors.mysql.identifiers import join_names
from airflow_provider_backpressure.exceptions import SourceRefused

Row = list[bytes | None]
"""The text of each column that is read, in the plan's order."""
_Step = tuple[int, int, int, Text | None, int]
"""A column's bit among the NULLs, its size, its prefix, how it is read (``None``: passed over), and its place."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a plan reads of a table."""

    types: Mapping[str, str]
    """PostgreSQL's spelling of each column's type, in the plan's order."""
    key: tuple[str, ...]
    wishes: Mapping[str, Wish] = field(default_factory=dict)
    added: frozenset[str] = frozenset()
    """Columns that an earlier row may lack: they are NULL then."""


class RowReader:
    """Reads the rows of one table. Raises ``SourceRefused`` where it is not the one that was planned."""

    def __init__(self, table: LoggedTable, wanted: Wanted, charsets: Charsets) -> None:
        self._name = f"{table.database}.{table.name}"
        self._width = len(table.columns)
        _check_names(table, wanted)
        self._places = len(wanted.types)
        places = {name: place for place, name in enumerate(wanted.types)}
        self._steps: list[_Step] = []
        self._key_steps: list[_Step] = []
        for number, column in enumerate(table.columns):
            if column.name in places:
                found = way(column, charsets, wanted.wishes.get(column.name, Wish()))
                _check_type(self._name, column.name, found.type, wanted.types[column.name])
                step: _Step = (1 << number, found.size, found.prefix, found.text, places[column.name])
            else:
                step = (1 << number, *length(column), None, 0)
            self._steps.append(step)
            self._key_steps.append(step if column.name in wanted.key else (*step[:3], None, 0))

    def rows(self, body: bytes) -> Iterator[Row]:
        """Yield the rows of an event that wrote or deleted some."""
        at, size = self._begin(body, images=1), len(body)
        while at < size:
            row, at = self._row(body, at, self._steps)
            yield row

    def pairs(self, body: bytes) -> Iterator[tuple[Row, Row]]:
        """Yield each row of an update as it was, with nothing but its key, and as it became."""
        at, size = self._begin(body, images=2), len(body)
        while at < size:
            before, at = self._row(body, at, self._key_steps)
            after, at = self._row(body, at, self._steps)
            yield before, after

    def _begin(self, body: bytes, *, images: int) -> int:
        """Return where the rows begin, once every column is in them."""
        head = Bytes(body, 8)
        head.take(head.number(2) - 2)
        width = head.read_packed_integer()
        present = [head.number((width + 7) // 8) for _ in range(images)]
        every = (1 << width) - 1
        if width != self._width or any(bits & every != every for bits in present):
            raise SourceRefused(
                f"A change of {self._name} is in the binlog without all its columns: a session has set "
                'binlog_row_image to another value than FULL. Trigger the DAG with {"backpressure": "restart"}.'
            )
        return head.at

    def _row(self, data: bytes, at: int, steps: Sequence[_Step]) -> tuple[Row, int]:
        values: Row = [None] * self._places
        end = at + (self._width + 7) // 8
        nulls, at = int.from_bytes(data[at:end], "little"), end
        for bit, size, prefix, text, place in steps:
            if nulls & bit:
                continue
            if prefix:
                end = at + prefix
                size, at = int.from_bytes(data[at:end], "little"), end
            end = at + size
            if text is not None:
                values[place] = text(data[at:end])
            at = end
        return values, at


def _check_names(table: LoggedTable, wanted: Wanted) -> None:
    if not table.named:
        raise SourceRefused(
            f"Changes of {table.database}.{table.name} are in the binlog without the names of its columns: set "
            'binlog_row_metadata to FULL, and trigger the DAG with {"backpressure": "restart"}.'
        )
    there = {column.name for column in table.columns}
    missing = [name for name in wanted.types if name not in there and name not in wanted.added]
    if missing:
        raise SourceRefused(
            f"{table.database}.{table.name} had no column {join_names(missing)} when a change was logged: trigger the "
            'DAG with {"backpressure": "restart"} to plan again.'
        )


def _check_type(table: str, name: str, found: str, planned: str) -> None:
    if found != planned:
        raise SourceRefused(
            f"Column {join_names([name])} of {table} was logged as {found}, and the plan reads {planned}: trigger the "
            'DAG with {"backpressure": "restart"} to plan again.'
        )
