"""Changes of several tables as batches of one frame, and each table's part of it.

Columns of one type have the same places in every table's rows, so that the frame is as wide as the widest tables.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow

from airflow_provider_backpressure.connectors.lake.tasks.change_batches import OWN, ChangeBatches
from airflow_provider_backpressure.connectors.lake.tasks.materialised_rows import pack
from airflow_provider_backpressure.connectors.relational.csv_blocks import BLOCK
from airflow_provider_backpressure.core.snapshot.shared_log_table_errors import name_table
from airflow_provider_backpressure.core.snapshot.spark_messages import Column, StreamTable
from airflow_provider_backpressure.spark.change_rows import SharedChanges
from airflow_provider_backpressure.spark.column_types import arrow_schema, carrier, declare_type
from airflow_provider_backpressure.spark.readers_and_writers import task_module

TABLE = "backpressure_table"
"""Column with the number of the table that a change is of."""
HELD_BYTES = 2 * BLOCK
"""Most changes of several tables that wait until there are enough of one for a batch."""


@dataclass(frozen=True)
class SharedColumns:
    """The columns that rows of several tables share."""

    declared: tuple[str, ...]
    """Of each the type, as Spark's SQL has it."""
    types: tuple[pyarrow.DataType, ...]
    places: tuple[tuple[int, ...], ...]
    """For each table, where each of its columns is."""

    @classmethod
    def create(cls, tables: Sequence[Sequence[Column]]) -> "SharedColumns":
        """Return as few columns as hold the rows of these tables."""
        found: dict[tuple[str, pyarrow.DataType, int], int] = {}
        places: list[tuple[int, ...]] = []
        for columns in tables:
            seen: Counter[tuple[str, pyarrow.DataType]] = Counter()
            own = []
            for column, field in zip(columns, arrow_schema(columns), strict=True):
                type_ = (declare_type(carrier(column.type)[1]), field.type)
                own.append(found.setdefault((*type_, seen[type_]), len(found)))
                seen[type_] += 1
            places.append(tuple(own))
        return cls(tuple(name for name, _, _ in found), tuple(type_ for _, type_, _ in found), tuple(places))

    def list_fields(self) -> list[tuple[str, str]]:
        """Return the columns' names, and their types as Spark's SQL declares them."""
        return [(name_shared(place), declared) for place, declared in enumerate(self.declared)]

    def widen(self, number: int, batch: pyarrow.RecordBatch) -> list[pyarrow.Array]:
        """Return the shared columns of a table's rows, which have :data:`OWN` before their own."""
        own = {place: batch.column(len(OWN) + n) for n, place in enumerate(self.places[number])}
        return [
            own[place] if place in own else pyarrow.nulls(batch.num_rows, type_)
            for place, type_ in enumerate(self.types)
        ]


def name_shared(place: int) -> str:
    """Return the name of a shared column."""
    return f"s{place}"


def read_batches(
    changes: SharedChanges, tables: Sequence[StreamTable], shared: SharedColumns
) -> Iterator[pyarrow.RecordBatch]:
    """Yield rows with :data:`OWN` columns, :data:`TABLE` and the shared ones, as :func:`.materialised_rows.pack` does.

    Behind them it says of each table's changes what is to be known, as JSON: once readers of the source see them.
    Errors about one table name it.
    """
    ints, made = pyarrow.int32(), [_open_batches(table) for table in tables]
    fields = [pyarrow.field(name_shared(place), type_) for place, type_ in enumerate(shared.types)]
    schema = pyarrow.schema([*OWN, pyarrow.field(TABLE, ints), *fields])

    def read() -> Iterator[pyarrow.RecordBatch]:
        for number, rows in _gather(changes):
            with name_table(tables[number]):
                found = [*made[number].read([rows])]
            for batch in found:
                own = [*batch.columns[: len(OWN)], pyarrow.repeat(pyarrow.scalar(number, ints), batch.num_rows)]
                yield pyarrow.record_batch([*own, *shared.widen(number, batch)], schema=schema)

    def say() -> str:
        changed = [number for number, each in enumerate(made) if each.total.rows]
        changes.await_visible(changed)
        return json.dumps({number: made[number].describe(changes.tables[number].xids, "") for number in changed})

    return pack(read(), schema, say)


def _open_batches(table: StreamTable) -> ChangeBatches:
    way_out = task_module(table.read.kind.removesuffix("_log"), "read").way_out
    return ChangeBatches(columns=table.read.columns, key=table.write.key, way_out=way_out)


def _gather(changes: SharedChanges) -> Iterator[tuple[int, Sequence[bytes]]]:
    """Yield changes as they come, more of one table at a time: a batch costs the same whatever is in it."""
    waiting: dict[int, list[bytes]] = {}
    held = 0
    for number, rows in changes:
        waiting.setdefault(number, []).extend(rows)
        held += sum(map(len, rows))
        if held >= HELD_BYTES:
            yield from waiting.items()
            waiting, held = {}, 0
    yield from waiting.items()
