"""The frame path: slice → DataFrame → the user's transform → target, each range in one transaction.

What a transform does to partitions is not known (a join, an aggregation, adaptive execution), so a range is read by as
many tasks as it has slices, and written by exactly one. Without a transform that one task reads too: handing rows to
Spark's own and back would only cost. Rows that Spark's own connector reads are a DataFrame from the start.
"""

import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING

import pyarrow
from pyspark import cloudpickle
from pyspark.sql import functions
from pyspark.sql.types import StructField, StructType

from airflow_provider_backpressure.core.config import Mode
from airflow_provider_backpressure.core.connector_kinds import CHECKED_JSON
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.snapshot.ranges import attempt_tag
from airflow_provider_backpressure.core.snapshot.spark_messages import (
    Column,
    RangeResult,
    RangeSpec,
    ReadSpec,
    Slice,
    SliceResult,
    Transform,
)
from airflow_provider_backpressure.core.stage_metrics import Stage
from airflow_provider_backpressure.exceptions import RunnerRefused, from_text
from airflow_provider_backpressure.spark.change_rows import log_reader
from airflow_provider_backpressure.spark.column_types import carrier, postgres_type
from airflow_provider_backpressure.spark.readers_and_writers import (
    SPARK_READ,
    reader,
    task_module,
    writer,
)
from airflow_provider_backpressure.spark.refused_views import refuse_views
from airflow_provider_backpressure.spark.stream_end import END, append_end, hidden_columns
from airflow_provider_backpressure.spark.task import RESULT, map_batches, measure, outcome, report_errors

if TYPE_CHECKING:
    from pyspark.resource import ResourceProfile
    from pyspark.sql import DataFrame, SparkSession

Function = Callable[["DataFrame"], "DataFrame"]
ZONE, UTC = "spark.sql.session.timeZone", frozenset({"UTC", "Etc/UTC", "GMT", "Z"})
_READS_ROWS = (
    "The transform reads rows while its columns are determined: leave out what runs a job of its own (collect, count, "
    "toPandas, checkpoint), so that it only says what is to be done with a range."
)


def apply_transform(
    session: "SparkSession", frame: "DataFrame", transform: Transform | None, function: Function | None
) -> "DataFrame":
    """Return what the transform makes of a frame; ``RunnerRefused`` for one that cannot be found or fails."""
    if transform is None:
        return frame
    if transform.sql is not None:
        return _select(session, frame, transform.sql)
    return _call(_found(transform.python, function), frame)


def _transform(
    session: "SparkSession", read: ReadSpec, frame: "DataFrame", transform: Transform | None, function: Function | None
) -> "DataFrame":
    """Return what the transform makes of the source's rows; ``RunnerRefused`` where it moves a condition of theirs.

    Spark evaluates the condition of a catalog's table in the job, by the zone that the session has then. The plan has
    counted its rows in UTC.
    """
    found = apply_transform(session, frame, transform, function)
    if transform is not None and read.kind == SPARK_READ and (zone := session.conf.get(ZONE)) not in UTC:
        raise RunnerRefused(
            f"The transform sets the session's time zone to {zone}, by which Spark would read the condition and the "
            "views of the source too, and these are in UTC: leave the zone as it is, and convert times with "
            "from_utc_timestamp."
        )
    return found


def _select(session: "SparkSession", frame: "DataFrame", query: str) -> "DataFrame":
    # A view would be shared by all ranges of the session; a frame as parameter belongs to this one alone. The query
    # is in brackets, so that it may have a WITH of its own and can be nothing but a query.
    text = query.strip().removesuffix(";").replace("{", "{{").replace("}", "}}")
    return session.sql(f"WITH source AS (SELECT * FROM {{frame}}) SELECT * FROM (\n{text}\n)", frame=frame)  # noqa: S608


def _call(function: Function, frame: "DataFrame") -> "DataFrame":
    name = getattr(function, "__qualname__", type(function).__name__)
    _by_value(function)
    try:
        with refuse_views(frame):
            result = function(frame)
    except RunnerRefused:
        raise
    except Exception as error:
        if isinstance(found := from_text(str(error)), RunnerRefused):
            raise found from error
        raise RunnerRefused(f"The transform {name} failed: {type(error).__name__}: {error}") from error
    if type(result).__name__ != "DataFrame" or not hasattr(result, "mapInArrow"):
        raise RunnerRefused(f"The transform {name} must return a DataFrame, not {type(result).__name__}.")
    return result


def _found(reference: str | None, handed: Function | None) -> Function:
    if not reference:
        if handed is None:
            raise RunnerRefused("The transform names no function and none was handed over.")
        return handed
    module, _, name = reference.partition(":")
    try:
        found: Function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise RunnerRefused(f"The transform {reference!r} cannot be imported: {error}") from error
    if not callable(found):
        raise RunnerRefused(f"The transform {reference!r} is not a function.")
    return found


def _by_value(function: Function) -> None:
    """Let functions of the transform's module travel whole: a DAG's file cannot be imported by the executors."""
    module = sys.modules.get(function.__module__) if isinstance(function, FunctionType) else None
    if module is not None and module.__name__ != "__main__":
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


def frame_job(
    session: "SparkSession",
    spec: RangeSpec,
    source: Endpoint,
    sink: Endpoint,
    function: Function | None,
    profile: "ResourceProfile | None",
) -> "DataFrame":
    """Return the job of a range: one row with its result."""
    if spec.transform is None and spec.read.kind != SPARK_READ:
        return _straight(session, spec, source, sink, profile)
    read = _source(session, spec.read, spec.pieces or spec.slices, source, spec, profile)
    frame = _transform(session, spec.read, read, spec.transform, function)
    if spec.pieces:
        # They are read side by side, and then handed to the one task that writes.
        frame = frame.repartition(1)
    names = [*frame.columns, END]

    def write(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        def work() -> SliceResult:
            return writer(spec.write.kind).write(sink, spec, (batch.rename_columns(names) for batch in batches))

        yield outcome(lambda: measure(work, Stage.READ_AND_TRANSFORM))

    whole = _with_end(session, frame, len(names) - 1)
    return map_batches(whole.coalesce(1), write, RESULT, profile)


def _straight(
    session: "SparkSession", spec: RangeSpec, source: Endpoint, sink: Endpoint, profile: "ResourceProfile | None"
) -> "DataFrame":
    """Return the job of a range whose rows stay as they are: one task, through which they stream."""

    def work() -> SliceResult:
        trusting = replace(spec, read=replace(spec.read, trusts=_target_looks(spec)))
        rows = (batch for piece in spec.slices for batch in _read(trusting, piece, source))
        told = partial(_position, spec, source) if spec.read.tells_position else None
        given = append_end(rows, spec.read.columns, hidden_columns(spec.read))
        return writer(spec.write.kind).write(sink, spec, given, told)

    def hash_or_work() -> SliceResult:
        rows = (batch for piece in spec.slices for batch in _read(spec, piece, source))
        given = append_end(rows, spec.read.columns, hidden_columns(spec.read))
        found = task_module(spec.write.kind, "range_hash").hash_batches(spec, given)
        return replace(found, unchanged=True) if found is not None and spec.is_unchanged(found) else work()

    task = hash_or_work if spec.last_write is not None and not spec.last_write.staged else work

    def run(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        for _ in batches:
            yield outcome(lambda: measure(task))

    return map_batches(session.range(0, 1, 1, 1), run, RESULT, profile)


def run_on_frame(
    session: "SparkSession",
    spec: RangeSpec,
    source: Endpoint,
    function: Function | None,
    profile: "ResourceProfile | None",
) -> RangeResult:
    """Run a range whose rows Spark's own connector writes: its tasks only read. Returns when it is committed."""
    name = "spark_write_topic" if spec.write.ordered else "spark_write"
    run_range = task_module(spec.write.kind, "spark_mirror" if spec.write.mode == Mode.MIRROR else name).run_range
    pieces = spec.pieces or spec.slices
    if spec.transform is not None or spec.read.kind == SPARK_READ:

        def transform() -> "DataFrame":
            read = _source(session, spec.read, pieces, source, spec, profile)
            return _transform(session, spec.read, read, spec.transform, function)

        transformed: RangeResult = run_range(session, spec, transform, profile)
        return transformed
    make_tasks = partial(session.range, 0, len(pieces), 1, len(pieces))
    read_at = partial(_position, spec, source) if spec.read.tells_position else None
    read = partial(_read_pieces, spec, pieces, source)
    result: RangeResult = run_range(session, spec, make_tasks, profile, read, read_at)
    return result


def _read_pieces(
    spec: RangeSpec, pieces: Sequence[Slice], source: Endpoint, batches: Iterable[pyarrow.RecordBatch]
) -> Iterator[pyarrow.RecordBatch]:
    """Yield the rows of the pieces whose numbers arrive."""
    for batch in batches:
        for index in batch.column(0).to_pylist():
            yield from _read(spec, pieces[index], source)


def _target_looks(spec: RangeSpec) -> bool:
    """Whether JSON may be handed on unseen: the target refuses what is none, and the next attempt then looks for it.

    Where such records are to be kept aside they are expected, and a second attempt each time would cost more.
    """
    return spec.write.kind in CHECKED_JSON and spec.attempt == 1 and not spec.read.keep_bad


def _position(spec: RangeSpec, source: Endpoint) -> str:
    return log_reader(f"{spec.read.kind}_log").position(source, spec.tag)


def _read(spec: RangeSpec, piece: Slice, source: Endpoint) -> Iterator[pyarrow.RecordBatch]:
    name = attempt_tag(spec.plan_id, piece.slice_id, spec.attempt)
    return reader(spec.read.kind).read(source, spec.read, piece, name)


def describe_columns(
    session: "SparkSession", read: ReadSpec, transform: Transform, function: Function | None
) -> tuple[Column, ...]:
    """Return the columns that a transform makes, by analysis; nothing is read.

    A column keeps the source's type where name and carrier are the source's: ``code varchar(8)``, ``id uuid`` stay
    what they were. ``RunnerRefused`` for a type that PostgreSQL has no counterpart of, and for a name that comes twice.
    """
    frame = _transform(session, read, _source(session, read), transform, function)
    known = {column.name: column for column in read.columns}
    found = [(field, _describe_field(field, known.get(field.name))) for field in frame.schema.fields]
    strange = [f"{field.name} a {field.dataType.simpleString()}" for field, column in found if column is None]
    if strange:
        raise RunnerRefused(
            f"The transform makes {', '.join(strange)}, which PostgreSQL has no type for: cast it, for instance with "
            "to_json."
        )
    columns = tuple(column for _, column in found if column is not None)
    twice = {column.name for column in columns if [other.name for other in columns].count(column.name) > 1}
    if twice:
        raise RunnerRefused(f"The transform gives {', '.join(sorted(twice))} more than once: give each column a name.")
    return columns


def _source(
    session: "SparkSession",
    what: ReadSpec,
    pieces: Sequence[Slice] = (),
    source: Endpoint | None = None,
    spec: RangeSpec | None = None,
    profile: "ResourceProfile | None" = None,
) -> "DataFrame":
    """Return the source's rows, a task for each piece; without pieces none, for analysis.

    Where names differ by case alone, the session, which
    nobody but this hydration has, takes them for different ones from then on.
    """
    if len({column.name.lower() for column in what.columns}) < len(what.columns):
        session.conf.set("spark.sql.caseSensitive", "true")
    if what.kind == SPARK_READ and pieces:
        transformed = spec is not None and spec.transform is not None
        read_frame = task_module(SPARK_READ, "spark_read").read_frame
        frame: DataFrame = read_frame(session, what, pieces, keeps_zone=transformed)
        return frame
    columns = (*what.columns, *hidden_columns(what))
    schema = StructType([StructField(column.name, carrier(column.type)[1], column.nullable) for column in columns])

    def read(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        for batch in batches:
            for index in batch.column(0).to_pylist():
                with report_errors():
                    if source is None or spec is None:
                        raise RunnerRefused(_READS_ROWS)
                    yield from _read(spec, pieces[index], source)

    tasks = max(1, len(pieces))
    return map_batches(session.range(0, tasks, 1, tasks), read, schema, profile)


def _with_end(session: "SparkSession", frame: "DataFrame", width: int) -> "DataFrame":
    """Return the frame, which has so many columns, with a row behind all others that says so.

    It is the last partition of what one task writes, so it comes only after everything before has been read to its end.
    And it is there where nothing else is: an empty result, which the optimiser may have left without partitions.
    Its columns are numbered: PySpark passes them to a function by their names, and reads a dot in one as a field of
    something, a backtick as a quote, and ``Id`` and ``id`` as the same.
    """
    numbers = [f"_{number}" for number in range(width)]
    marked = frame.toDF(*numbers).select("*", functions.lit(False).alias(END))
    nothing = [functions.lit(None).alias(number) for number in numbers]
    return marked.union(session.range(0, 1, 1, 1).select(*nothing, functions.lit(True).alias(END)))


def _describe_field(field: StructField, known: Column | None) -> Column | None:
    """Return the column that a field becomes; ``None`` where PostgreSQL has no type for it."""
    if known is not None and carrier(known.type)[1] == field.dataType:
        return Column(name=field.name, type=known.type, nullable=field.nullable, collation=known.collation)
    type_ = postgres_type(field.dataType)
    return None if type_ is None else Column(name=field.name, type=type_, nullable=field.nullable)
