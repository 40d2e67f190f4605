"""Rows that take the place of those with their key: files that hold such rows are written again without them."""

import uuid
from collections.abc import Callable, Iterator, Sequence

import pyarrow
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.expressions import (
    AlwaysTrue,
    And,
    BooleanExpression,
    GreaterThanOrEqual,
    LessThanOrEqual,
    Reference,
)
from pyiceberg.expressions.literals import literal
from pyiceberg.io.pyarrow import ArrowScan, parquet_files_to_data_files
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask, Table, TableProperties, Transaction

from airflow_provider_backpressure.connectors.lake.iceberg.files import Data, schema_of
from airflow_provider_backpressure.connectors.lake.last_write import Settled
from airflow_provider_backpressure.connectors.lake.markers import Mark
from airflow_provider_backpressure.connectors.lake.table import FILE_BYTES
from airflow_provider_backpressure.connectors.lake.tasks.parquet_files import StagedRows, require_files
from airflow_provider_backpressure.exceptions import SinkRefused

_ORDERED = (pyarrow.types.is_integer, pyarrow.types.is_string, pyarrow.types.is_binary)
"""Types whose bounds a file's statistics have in the order of the values."""
GROUP_BYTES = 64 * 1024 * 1024
"""Bytes of rows that are compared with the keys, and written, at once."""


def merge(
    table: Table, data: Data, mark: Mark, key: Sequence[str], settled: Settled | None = None
) -> Callable[[Transaction, dict[str, str]], None]:
    """Return what makes the snapshot: new files in, files with rows of their keys out, what remains of those in.

    ``settled``: what of the new files' rows goes in, where that is not all. Memory holds the range's keys and one part
    of a file. ``SinkRefused`` for files of which rows were deleted apart, ``RangeFailed`` where a new file is gone.
    """
    staged = StagedRows(mark=mark, table=".".join(table.name()), open_file=data.input)
    keys = pyarrow.Table.from_batches([batch.select(list(key)) for batch in staged.read()])
    removed: list[DataFile] = []
    live = mark.files if settled is None or settled.is_every_row_live else _live(table, data, staged, settled)
    added = [data.path(name) for name in live]
    for task in table.scan(row_filter=_near(keys, key)).plan_files():
        if task.delete_files:
            raise SinkRefused(f"{'.'.join(table.name())} has delete files: compact it before rows are merged into it.")
        found = _without(table, data, task, keys, key)
        if found is not None:
            removed.append(task.file)
            added += [data.path(name) for name in found]

    def change(transaction: Transaction, about: dict[str, str]) -> None:
        if transaction.table_metadata.name_mapping() is None:
            mapping = transaction.table_metadata.schema().name_mapping.model_dump_json()
            transaction.set_properties({TableProperties.DEFAULT_NAME_MAPPING: mapping})
        with require_files(staged.table):
            files = list(parquet_files_to_data_files(table.io, transaction.table_metadata, iter(added)))
        with transaction.update_snapshot(snapshot_properties=about).overwrite() as snapshot:
            for file in removed:
                snapshot.delete_data_file(file)
            for file in files:
                snapshot.append_data_file(file)

    return change


def _live(table: Table, data: Data, staged: StagedRows, settled: Settled) -> list[str]:
    """Write the rows that stay into new files, and name these."""
    schema, names = schema_of(table, staged.table), list[str]()
    rows = (batch for batch in settled.select_live(staged.read()) if batch.num_rows)
    while (first := next(rows, None)) is not None:
        names.append(f"{uuid.uuid4().hex}-settled.parquet")
        with data.output(names[-1]) as stream, pq.ParquetWriter(stream, schema, compression="zstd") as writer:
            writer.write_batch(first)
            while stream.tell() < FILE_BYTES and (batch := next(rows, None)) is not None:
                writer.write_batch(batch)
    return names


def _near(keys: pyarrow.Table, key: Sequence[str]) -> BooleanExpression:
    """Return a condition that passes over files whose bounds say that they hold none of the keys."""
    first = keys[key[0]]
    if not any(ordered(first.type) for ordered in _ORDERED):
        return AlwaysTrue()
    ends = pc.min_max(first).as_py()
    return And(
        GreaterThanOrEqual(term=Reference(key[0]), value=literal(ends["min"])),
        LessThanOrEqual(term=Reference(key[0]), value=literal(ends["max"])),
    )


def _without(table: Table, data: Data, task: FileScanTask, keys: pyarrow.Table, key: Sequence[str]) -> list[str] | None:
    """Write a file's rows that have none of the keys into a new file, and name it; ``None`` where all rows stay."""
    schema = schema_of(table, ".".join(table.name()))
    name, kept, total = f"{uuid.uuid4().hex}-merged.parquet", 0, 0
    with data.output(name) as stream, pq.ParquetWriter(stream, schema, compression="zstd") as writer:
        for rows in _parts(table, task, schema):
            total += rows.num_rows
            rest = rows.join(keys, keys=list(key), join_type="left anti").select(schema.names).cast(schema)
            kept += rest.num_rows
            if rest.num_rows:
                writer.write_table(rest)
    if kept == total or not kept:
        data.delete(name)
    return None if kept == total else [name] if kept else []


def _parts(table: Table, task: FileScanTask, schema: pyarrow.Schema) -> Iterator[pyarrow.Table]:
    """Yield a file's rows as the table's columns have them, some at a time."""
    scan = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue())
    held: list[pyarrow.RecordBatch] = []
    for batch in scan.to_record_batches([task]):
        held.append(batch)
        if sum(each.nbytes for each in held) >= GROUP_BYTES:
            yield pyarrow.Table.from_batches(held).select(schema.names).cast(schema)
            held = []
    if held:
        yield pyarrow.Table.from_batches(held).select(schema.names).cast(schema)
