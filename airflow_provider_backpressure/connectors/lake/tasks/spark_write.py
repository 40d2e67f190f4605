"""A range into a table that Spark's own connector writes: the tasks read, Spark writes, and one commit has both.

The rows of all tasks are materialised first. So they are read from the source once, however often the connector reads
them or tries to commit; and their number and hash are known before the commit, which carries them.
"""

import json
import logging
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

import pyarrow
from pyspark import TaskContext
from pyspark.sql import functions

from airflow_provider_backpressure.connectors.lake.last_row_per_key import GONE, within
from airflow_provider_backpressure.connectors.lake.markers import Attempt, Mark
from airflow_provider_backpressure.connectors.lake.spark.commit_notes import LogState, note_of_mark
from airflow_provider_backpressure.connectors.lake.spark.connect_or_classic_session import SPARK_ERRORS
from airflow_provider_backpressure.connectors.lake.spark.table import (
    LOST_IN_PARTITIONS,
    SparkTable,
    build_merge,
    first_line,
    open_table,
    translate_refusals,
)
from airflow_provider_backpressure.connectors.lake.tasks.materialised_rows import END, declare, materialise, pack
from airflow_provider_backpressure.connectors.lake.tasks.parquet_writer import cast
from airflow_provider_backpressure.connectors.lake.tasks.spark_change_merge import ChangeFold
from airflow_provider_backpressure.connectors.lake.tasks.spark_table_maintenance import maintain
from airflow_provider_backpressure.core.config import Mode
from airflow_provider_backpressure.core.failpoints import Step, reach
from airflow_provider_backpressure.core.snapshot.bounds import LogPosition, check_marked
from airflow_provider_backpressure.core.snapshot.replay_window import goal
from airflow_provider_backpressure.core.snapshot.spark_messages import (
    ChecksumSpec,
    RangeResult,
    RangeSpec,
    SliceResult,
    Window,
    WriteSpec,
    columns_from_json,
)
from airflow_provider_backpressure.core.snapshot.topic_offsets import HIDDEN_PLACE, list_marks_of
from airflow_provider_backpressure.exceptions import PlanSuperseded, RangeFailed, SinkRefused
from airflow_provider_backpressure.spark.column_types import arrow_schema, carrier, declare_type
from airflow_provider_backpressure.spark.stream_end import check_names, split_marks, to_one_slice
from airflow_provider_backpressure.spark.task import Batches, map_batches, report_errors
from airflow_provider_backpressure.spark.value_hash import BatchSum

if TYPE_CHECKING:
    from pyspark.resource import ResourceProfile
    from pyspark.sql import Column, DataFrame, SparkSession

log = logging.getLogger(__name__)

Publish = Callable[[], LogState | None]
"""Commits what is staged, and may return what the table says since then."""
PLACED = (*(column.name for column in HIDDEN_PLACE.values()), GONE)
"""Columns with the position of a record, and whether its key was deleted."""
AT = "backpressure_at"
"""Column that rises with a range's rows as they have arrived."""
MOST_ROWS = 2**33
"""More rows than a task has."""


def run_range(
    session: "SparkSession",
    spec: RangeSpec,
    make_frame: "Callable[[], DataFrame]",
    profile: "ResourceProfile | None" = None,
    read: Batches | None = None,
    read_at: Callable[[], str] | None = None,
) -> RangeResult:
    """Write the rows of a frame exactly once, as the range's first slice. Runs where the lane does.

    The frame is made only where the range is not committed yet. ``read``: makes the rows of what the frame has, in the
    same tasks; ``read_at`` returns the position of the source's log there, behind a task's last row.
    """
    table = open_table(session, json.loads(spec.write.plan_table)["format"], spec.write.target)
    attempt = Attempt.create(spec, to_one_slice(spec))

    def prepare() -> Publish:
        stamped = add_stamps(make_frame(), spec.write, attempt.tag, profile, read, read_at)
        rows, mark = stage(stamped, spec.write, attempt)
        key = spec.write.key if spec.write.mode == Mode.UPSERT else ()
        check_unique(rows, key, table.name)
        check_partitions(rows, table)
        return partial(_publish, table, mark, rows, key)

    mark, _ = commit_once(table, attempt, partial(find_mark, attempt, table.name), prepare)
    return RangeResult(plan_id=spec.plan_id, seq=spec.seq, attempt=spec.attempt, slices=(make_result(mark, attempt),))


def run_checksum(session: "SparkSession", spec: ChecksumSpec) -> SliceResult:
    """Count and hash the rows of a table, in as many tasks as Spark reads it by."""
    query = json.loads(spec.query)
    table = open_table(session, query["format"], query["table"])
    columns = columns_from_json(query["columns"])
    schema = arrow_schema(columns)
    window = Window(**query["window"]) if query["window"] else None
    names = [column.name for column in columns]

    def hash_rows(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        total = BatchSum()
        for batch in batches:
            total.update(cast(within(batch.rename_columns(names), window), schema))
        yield pyarrow.record_batch([pyarrow.array([_say(total)])], names=[END])

    with translate_refusals(table.name):
        there = table.rows()
        for condition in query.get("where", ()):
            there = there.where(condition)
        rows = there.select(*(quote_column(name).alias(f"_{n}") for n, name in enumerate(names)))
        said = map_batches(rows, hash_rows, f"{END} string").collect()
    count, size, checksum = add_up(row[0] for row in said)
    return SliceResult(slice_id="", rows=count, bytes=size, checksum=checksum)


def _publish(table: SparkTable, mark: Mark, rows: "DataFrame", key: Sequence[str]) -> None:
    """Commit the rows, in place of those with their key if it is given."""
    note = note_of_mark(mark)
    if key:
        table.merge(note, rows, partial(build_merge, columns=rows.columns, key=key))
    else:
        table.publish(note, rows)


def publish_changes(table: SparkTable, mark: Mark, rows: "DataFrame", fold: ChangeFold) -> LogState | None:
    """Commit changes by key. A MERGE that finds nothing to change commits nothing: its mark goes in without rows.

    Return what the table says since the commit; ``None`` where it was not asked.
    """
    note = note_of_mark(mark)
    if not mark.rows:
        table.publish(note)
        return None
    table.merge(note, rows, fold.make_merge)
    # Where it is not admitted the mark is there, or this is a late attempt, which has to leave the table alone.
    state = table.state()
    if not state.admits(note):
        return state
    log.info("Nothing was to be changed in %s by %s.", table.name, mark.slice_id)
    table.publish(note)
    return None


def commit_once(
    table: SparkTable,
    attempt: Attempt,
    find: Callable[[LogState], Mark | None],
    prepare: Callable[[], Publish],
) -> tuple[Mark, LogState]:
    """Return the slice's mark, and what the table said with it.

    Where ``find`` finds none, what ``prepare`` stages is committed as it says, if the table admits the mark by then.
    """
    with translate_refusals(table.name):
        found = find(state := table.state())
    if found is None:
        publish = prepare()
        reach(Step.BEFORE_SINK_COMMIT, attempt.tag)
        with translate_refusals(table.name):
            found, state = _commit(table, attempt, publish)
        reach(Step.AFTER_SINK_COMMIT, attempt.tag)
    return found, state


def _commit(table: SparkTable, attempt: Attempt, publish: Publish) -> tuple[Mark, LogState]:
    """Let rows and mark be published, and return the slice's mark: this attempt's, or that of one before it."""
    try:
        said = publish()
    except SPARK_ERRORS as error:
        found = find_mark(attempt, table.name, state := table.state())
        if found is None:
            raise
        log.info("The commit of %s ended in an error, and its range is committed: %s", attempt.tag, first_line(error))
        return found, state
    state = table.state() if said is None else said
    found = find_mark(attempt, table.name, state)
    if found is None:
        raise RangeFailed(f"The log of {table.name} has no commit of the attempt {attempt.tag}.")
    return found, state


def find_mark(attempt: Attempt, name: str, state: LogState) -> Mark | None:
    """Return the slice's mark; ``PlanSuperseded`` where there is none and the attempt may not commit any more."""
    found = state.find(attempt.plan_id, attempt.slice_id)
    if found is None:
        attempt.check(state.holder, name)
        if state.is_fenced(attempt):
            raise PlanSuperseded(f"{name} refuses the attempt {attempt.tag}: its range was revoked.")
    return found


def stage(stamped: "DataFrame", write: WriteSpec, attempt: Attempt) -> tuple["DataFrame", Mark]:
    """Materialise the rows, and return them with the mark of what they are."""
    said, staged = materialise(stamped)
    count, size, checksum = add_up(said)
    read_at = _find_latest(json.loads(each)[3] for each in said)
    mark = Mark.made(attempt, rows=count, bytes=size, checksum=checksum, files=(), read_at=read_at)
    return select_named(staged, write), mark


def add_stamps(
    frame: "DataFrame",
    write: WriteSpec,
    tag: str,
    profile: "ResourceProfile | None",
    read: Batches | None,
    read_at: Callable[[], str] | None,
) -> "DataFrame":
    """Return the rows as :func:`.materialised_rows.pack` makes them, with the sum of those of each task."""
    planned = arrow_schema(write.columns)
    # Columns are numbered on their way: PySpark reads a dot in a name as a field of something.
    fields = [(f"_{n}", declare_type(carrier(column.type)[1])) for n, column in enumerate(write.columns)]
    types = list(planned.types)
    if write.ordered:
        fields += [*((name, "bigint") for name in PLACED[:-1]), (GONE, "boolean"), (AT, "bigint")]
        types += [pyarrow.int64(), pyarrow.int64(), pyarrow.bool_(), pyarrow.int64()]
    schema = pyarrow.schema([pyarrow.field(name, type_) for (name, _), type_ in zip(fields, types, strict=True)])

    def stamp(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        total = BatchSum()

        def say() -> str:
            return _say(total, read_at() if read_at is not None else "")

        with report_errors():
            given = batches if read is None else read(batches)
            for batch in pack(_stamp(given, planned, schema, total, write), schema, say):
                yield batch
                reach(Step.IN_COPY, tag)

    if read is None:
        frame = _number_columns(frame, write)
    return map_batches(frame, stamp, declare(fields), profile)


def _stamp(
    batches: Iterable[pyarrow.RecordBatch],
    planned: pyarrow.Schema,
    schema: pyarrow.Schema,
    total: BatchSum,
    write: WriteSpec,
) -> Iterator[pyarrow.RecordBatch]:
    """Yield rows of the planned types, of ordered ones also where they come from, and add them to the total."""
    arriving = [*planned.names, *(column.name for column in list_marks_of(write))]
    at = _find_first_place()
    for batch in batches:
        rows, marks = batch.rename_columns(arriving), list[pyarrow.Array]()
        if write.ordered:
            rows, placed = split_marks(rows, write.place)
            arrived = pyarrow.array(range(at, at + rows.num_rows), pyarrow.int64())
            types = schema.types[len(planned) :]
            marks = [column.cast(type_) for column, type_ in zip([*placed.columns, arrived], types, strict=True)]
            at += rows.num_rows
        rows = cast(rows, planned)
        total.update(rows)
        yield pyarrow.record_batch([*rows.columns, *marks], schema=schema)


def _find_first_place() -> int:
    """Return the place of this task's first row, behind those of the tasks before it.

    Not by Spark's function for it: a MERGE into an Iceberg table that copies on write refuses one that may change.
    """
    task = TaskContext.get()
    return (task.partitionId() if task is not None else 0) * MOST_ROWS


def _number_columns(frame: "DataFrame", write: WriteSpec) -> "DataFrame":
    """Return a frame with numbers for names, the marks of an ordered plan last; ``RunnerRefused`` for other columns."""
    names = list(frame.columns)
    nothing = pyarrow.record_batch([pyarrow.nulls(0)] * len(names), names=names)
    if write.ordered:
        nothing, _ = split_marks(nothing, write.place)
    check_names(nothing, write)
    numbered = frame.toDF(*(f"_{n}" for n in range(len(names))))
    last = [names.index(column.name) for column in list_marks_of(write)]
    return numbered.select(*(f"_{n}" for n in range(len(names)) if n not in last), *(f"_{n}" for n in last))


def select_named(staged: "DataFrame", write: WriteSpec) -> "DataFrame":
    """Return the rows under their names.

    Behind them those of a topic have :data:`PLACED`, and :data:`AT`, which rises as they have arrived.
    """
    named = [functions.col(f"_{n}").alias(column.name) for n, column in enumerate(write.columns)]
    return staged.select(*named, *((*PLACED, AT) if write.ordered else ()))


def check_partitions(rows: "DataFrame", table: SparkTable) -> None:
    """Raise ``SinkRefused`` where the table's format would keep a text as NULL."""
    with translate_refusals(table.name):
        names = table.list_lossy_partitions()
    for name in names:
        lost = rows.where(quote_column(name).isin(*LOST_IN_PARTITIONS)).select(quote_column(name)).take(1)
        if lost:
            raise SinkRefused(
                f"{table.name} is partitioned by {name}, where {table.format} keeps {lost[0][0]!r} as NULL: leave such "
                "rows out by where=, or partition the table by another column."
            )


def check_unique(rows: "DataFrame", key: Sequence[str], name: str) -> None:
    """Raise ``SinkRefused`` where rows share a key or lack one: a merge would take any of them, or all."""
    if not key:
        return
    columns = [quote_column(each) for each in key]
    lacking = reduce(operator.or_, (column.isNull() for column in columns))
    found = (
        rows.groupBy(*columns)
        .agg(functions.count("*").alias(END))
        .where(lacking | (quote_column(END) > 1))
        .limit(1)
        .collect()
    )
    if found:
        values = dict(zip(key, found[0], strict=False))
        if None in values.values():
            raise SinkRefused(f"Rows for {name} have NULL in their key ({', '.join(key)}).")
        raise SinkRefused(f"Several rows for {name} in one range have the key {values}.")


def quote_column(name: str) -> "Column":
    return functions.col(f"`{name}`")


def _say(total: BatchSum, read_at: str = "") -> str:
    return json.dumps([total.rows, total.bytes, str(total), read_at])


def _find_latest(read_at: Iterable[str]) -> str:
    """Return the position of the log that all tasks had reached when their rows were read; empty where none asked."""
    positions = [text for text in read_at if text]
    return str(goal(LogPosition.parse(positions[0]), positions[1:])) if positions else ""


def add_up(said: Iterable[str]) -> tuple[int, int, str]:
    """Return rows, bytes and checksum of all parts together: hashes are added modulo 2^64."""
    whole = BatchSum()
    rows = size = number = 0
    for count, bytes_, checksum, _ in map(json.loads, said):
        rows, size, number = rows + count, size + bytes_, number + int(checksum.rpartition(":")[2], 16)
    return rows, size, f"{str(whole).rpartition(':')[0]}:{number % 2**64:016x}"


def maintain_behind(
    table: SparkTable, spec: RangeSpec, attempt: Attempt, committed: tuple[Mark, LogState], *, began: float
) -> RangeResult:
    """Maintain the table behind a commit, and return what the mark says.

    ``committed``: what :func:`commit_once` returned; ``began``: when, by ``time.perf_counter``.
    """
    mark, state = committed
    times = maintain(table, state, attempt.tag, began=began)
    result = replace(make_result(mark, attempt), times=times)
    return RangeResult(plan_id=spec.plan_id, seq=spec.seq, attempt=spec.attempt, slices=(result,))


def make_result(mark: Mark, attempt: Attempt) -> SliceResult:
    """Return what the slice's mark says, whichever attempt has made it; ``LedgerRefused`` for one of other bounds."""
    check_marked(mark.bounds, attempt.bounds, slice_id=attempt.slice_id, plan_id=attempt.plan_id)
    return SliceResult(
        slice_id=mark.slice_id,
        rows=mark.rows,
        bytes=mark.bytes,
        checksum=mark.checksum,
        read_at=mark.read_at,
        deleted=mark.deleted,
    )


def describe_query(format_: str, name: str, write: WriteSpec, window: Window | None, where: Sequence[str] = ()) -> str:
    """Return what :func:`run_checksum` reads: the rows of a window, for which all ``where`` hold."""
    columns: list[dict[str, Any]] = [asdict(column) for column in write.columns]
    about = {"format": format_, "table": name, "columns": columns, "window": asdict(window) if window else None}
    return json.dumps({**about, "where": list(where)} if where else about)
