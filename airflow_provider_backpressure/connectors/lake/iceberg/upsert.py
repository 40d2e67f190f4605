"""Rows that take the place of those with their key: files that hold such rows are written again without them."""

import json
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow
import pyarrow.compute as pc
from pyiceberg.exceptions import (
    CommitFailedException,
)
from pyiceberg.expressions import (
    AlwaysTrue,
    And,
    BooleanExpression,
    GreaterThanOrEqual,
    LessThanOrEqual,
    Reference,
)
from pyiceberg.expressions.literals import literal
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask, Table, Transaction
from pyiceberg.table.update import AssertCurrentSchemaId

from airflow_provider_backpressure.connectors.lake.base_table import FILE_BYTES
from airflow_provider_backpressure.connectors.lake.iceberg import snapshot_history
from airflow_provider_backpressure.connectors.lake.iceberg.column_bounds import describe_files, may_hold
from airflow_provider_backpressure.connectors.lake.iceberg.data_files import (
    Data,
    check_format,
    put_ids,
    remove,
    schema_of,
)
from airflow_provider_backpressure.connectors.lake.last_row_per_key import Settled
from airflow_provider_backpressure.connectors.lake.markers import Holder, Mark, format_other_sink
from airflow_provider_backpressure.connectors.lake.plan_and_mark_files import FOOTERS
from airflow_provider_backpressure.connectors.lake.tasks.parquet_writer import (
    StagedRows,
    check_arriving,
    open_writer,
    require_files,
)
from airflow_provider_backpressure.core.snapshot.spark_messages import WriteSpec
from airflow_provider_backpressure.exceptions import SinkRefused

PLAN, SLICES, BEFORE = "backpressure.plan", "backpressure.slices", "backpressure.slices.before"
"""Table properties: the plan that holds the table, its committed slices, and those of the plan before it."""
STREAMS = "backpressure.streams"
"""Table property: the position of each partition of a log that is upserted by its order."""
LAST = "backpressure.last"
"""Table property: our last snapshot, see :mod:`..connectors.lake.iceberg.data_files`."""
OURS = (PLAN, SLICES, BEFORE, STREAMS, LAST)
Change = Callable[[Transaction, dict[str, str]], None]
"""What makes the snapshot of a commit, given the snapshot's summary."""


_ORDERED = (pyarrow.types.is_integer, pyarrow.types.is_string, pyarrow.types.is_binary)
"""Types whose bounds a file's statistics have in the order of the values."""
GROUP_BYTES = 64 * 1024 * 1024
"""Bytes of rows that are compared with the keys, and written, at once."""


def merge(
    table: Table, data: Data, mark: Mark, write: WriteSpec, settled: Settled | None = None
) -> Callable[[Transaction, dict[str, str]], None]:
    """Return what makes the snapshot: new files in, files with rows of their keys out, what remains of those in.

    ``settled``: what of the new files' rows goes in, where that is not all. Memory holds the range's keys and one part
    of a file. ``SinkRefused`` for files of which rows were deleted apart, and for a column that does not arrive,
    ``RangeFailed`` where a new file is gone.
    """
    key = write.key
    check_arriving(".".join(table.name()), table.schema().column_names, write)
    staged = StagedRows(mark=mark, table=".".join(table.name()), open_file=data.input)
    keys = pyarrow.Table.from_batches([batch.select(list(key)) for batch in staged.read()])
    removed: list[DataFile] = []
    live = mark.files if settled is None or settled.is_every_row_live else _live(table, data, staged, settled)
    added = [data.path(name) for name in live]
    for task in _find_near(table, keys, key):
        if task.delete_files:
            raise SinkRefused(f"{'.'.join(table.name())} has delete files: compact it before rows are merged into it.")
        found = _without(table, data, task, keys, key)
        if found is not None:
            removed.append(task.file)
            added += [data.path(name) for name in found]

    def change(transaction: Transaction, about: dict[str, str]) -> None:
        with require_files(staged.table):
            files = list(describe_files(table.io, transaction.table_metadata, added))
        with transaction.update_snapshot(snapshot_properties=about).overwrite() as snapshot:
            for file in removed:
                snapshot.delete_data_file(file)
            for file in files:
                snapshot.append_data_file(file)

    return change


def _live(table: Table, data: Data, staged: StagedRows, settled: Settled) -> list[str]:
    """Write the rows that stay into new files, and name these."""
    schema, names = put_ids(schema_of(table, staged.table), table), list[str]()
    rows = (batch.select(schema.names) for batch in settled.select_live(staged.read()) if batch.num_rows)
    while (first := next(rows, None)) is not None:
        names.append(f"{uuid.uuid4().hex}-settled.parquet")
        with data.output(names[-1]) as stream, open_writer(stream, schema) as writer:
            writer.write_batch(first)
            while stream.tell() < FILE_BYTES and (batch := next(rows, None)) is not None:
                writer.write_batch(batch)
    return names


def _find_near(table: Table, keys: pyarrow.Table, key: Sequence[str]) -> Iterator[FileScanTask]:
    """Yield the files that may hold some of the keys, by the bounds of the first column."""
    first = keys[key[0]]
    if not any(is_kind(first.type) for is_kind in _ORDERED):
        yield from table.scan().plan_files()
        return
    ends = pc.min_max(first).as_py()
    row_filter: BooleanExpression = And(
        GreaterThanOrEqual(term=Reference(key[0]), value=literal(ends["min"])),
        LessThanOrEqual(term=Reference(key[0]), value=literal(ends["max"])),
    )
    near = list(table.scan(row_filter=row_filter).plan_files())
    yield from near
    if pyarrow.types.is_integer(first.type):
        return
    taken = {task.file.file_path for task in near}
    others = [task for task in table.scan().plan_files() if task.file.file_path not in taken]
    with ThreadPoolExecutor(FOOTERS) as pool:
        found = pool.map(lambda task: may_hold(table, task.file, key[0], ends["min"], ends["max"]), others)
        yield from (task for task, may in zip(others, found, strict=True) if may)


def _without(table: Table, data: Data, task: FileScanTask, keys: pyarrow.Table, key: Sequence[str]) -> list[str] | None:
    """Write a file's rows that have none of the keys into a new file, and name it; ``None`` where all rows stay."""
    schema = put_ids(schema_of(table, ".".join(table.name())), table)
    name, kept, total = f"{uuid.uuid4().hex}-merged.parquet", 0, 0
    with data.output(name) as stream, open_writer(stream, schema) as writer:
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


def commit_change(table: Table, properties: dict[str, str], about: dict[str, str], change: Change) -> bool:
    """Swap the metadata; ``False`` where branch or columns are others than when the table was loaded.

    The new files have the ids of the columns that were loaded with it.

    A refusal proves nothing: where the answer of a commit was lost and the transport sent it again, the second call is
    refused because of the first. So the table is loaded again before anything is deleted.
    """
    check_format(table)
    producers, clean_ups, number = list[Any](), list[Callable[[], None]](), 0
    try:
        with table.transaction() as transaction:
            change(transaction, about)
            columns = AssertCurrentSchemaId.model_validate({"current-schema-id": table.metadata.current_schema_id})
            transaction._stage((), (columns,))
            snapshot = transaction.table_metadata.current_snapshot()
            transaction.set_properties({**properties, LAST: snapshot_history.describe_snapshot(snapshot)})
            number = (snapshot.sequence_number if snapshot is not None else None) or 0
            producers = transaction._snapshot_producers
            clean_ups = [_postpone_clean_up(producer) for producer in producers]
    except CommitFailedException:
        snapshots = table.catalog.load_table(table.name()).metadata.snapshots
        if producers and {each.snapshot_id for each in producers} <= {each.snapshot_id for each in snapshots}:
            return True
        # Another snapshot has the number of this one, so this one cannot be in the table, nor arrive there later.
        # Otherwise its files stay: files that nothing names do no harm.
        if number and any(each.sequence_number == number for each in snapshots):
            for clean_up in clean_ups:
                clean_up()
        return False
    return True


def _postpone_clean_up(producer: Any) -> Callable[[], None]:
    """Return what deletes the manifests of a snapshot, and keep pyiceberg from it: it does so after every refusal."""
    clean_up: Callable[[], None] = producer._clean_all_uncommitted
    producer._clean_all_uncommitted = lambda: None
    return clean_up


def forget_properties(table: Table) -> bool:
    """Take our properties away; ``False`` where somebody was quicker."""
    present = [name for name in OURS if name in table.properties]
    try:
        with table.transaction() as transaction:
            if present:
                transaction.remove_properties(*present)
    except CommitFailedException:
        return False
    return True


def append_files(data: Data, mark: Mark, name: str) -> Change:
    if not mark.rows:
        return remove([])
    paths = [data.path(name) for name in mark.files]

    def add(transaction: Transaction, about: dict[str, str]) -> None:
        with require_files(name):
            files = list(describe_files(transaction._table.io, transaction.table_metadata, paths))
        # The producer of ``add_files``: it merges manifests where the table's properties say so.
        with transaction._append_snapshot_producer(about) as snapshot:
            for file in files:
                snapshot.append_data_file(file)

    return add


def describe_mark(mark: Mark) -> dict[str, str]:
    """Return what a snapshot says of the slice that it brought."""
    return {
        "backpressure.plan": mark.plan_id,
        "backpressure.slice": mark.slice_id,
        "backpressure.epoch": str(mark.epoch),
        "backpressure.checksum": mark.checksum,
    }


def read_holder(table: Table) -> Holder | None:
    text = table.properties.get(PLAN)
    if text and not text.startswith("{"):
        raise SinkRefused(format_other_sink(".".join(table.name()), "SparkTableSink"))
    return Holder.from_json(text) if text else None


def read_stream_positions(table: Table) -> dict[str, int]:
    return dict(json.loads(table.properties.get(STREAMS, "{}")))
