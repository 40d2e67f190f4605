"""A window of a log that tables share, into tables that Spark's own connector writes: read once, a commit for each.

No transaction spans such tables. So each has the mark of the window in its own commit, which is refused unless the
window begins where the table's frontier is: the token of the commit names that place, and a table takes each token
once. The log's own table has the mark when all of them have it, and only then the source lets its log go. An attempt
passes over tables that have the window, and gives a table that has a part of it the rest.
"""

import json
import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow
from pyspark.sql import functions

from airflow_provider_backpressure.connectors.lake.markers import Attempt, Mark
from airflow_provider_backpressure.connectors.lake.spark.commit_notes import (
    LogState,
    is_shared_window,
    name_window,
    note_of_mark,
)
from airflow_provider_backpressure.connectors.lake.spark.connect_or_classic_session import SPARK_ERRORS
from airflow_provider_backpressure.connectors.lake.spark.table import (
    SparkTable,
    first_line,
    is_lost,
    open_table,
    translate_refusals,
)
from airflow_provider_backpressure.connectors.lake.tasks.change_batches import ASK, KEPT, OP, SEQ
from airflow_provider_backpressure.connectors.lake.tasks.materialised_rows import declare, materialise
from airflow_provider_backpressure.connectors.lake.tasks.shared_change_batches import (
    TABLE,
    SharedColumns,
    name_shared,
    read_batches,
)
from airflow_provider_backpressure.connectors.lake.tasks.spark_change_merge import quote
from airflow_provider_backpressure.connectors.lake.tasks.spark_table_maintenance import maintain
from airflow_provider_backpressure.connectors.lake.tasks.spark_write import (
    Publish,
    add_up,
    check_partitions,
    commit_once,
    find_mark,
    make_result,
    publish_changes,
)
from airflow_provider_backpressure.connectors.lake.tasks.spark_write_changes import (
    OWN_TYPES,
    Staged,
    WindowAttempt,
    find_window_mark,
)
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.failpoints import Step, reach
from airflow_provider_backpressure.core.snapshot.bounds import LogBounds, LogPosition, bounds_from_json
from airflow_provider_backpressure.core.snapshot.shared_log_table_errors import is_of_table, name_table
from airflow_provider_backpressure.core.snapshot.spark_messages import RangeResult, RangeSpec, StreamTable
from airflow_provider_backpressure.core.stage_metrics import StageTime, flow_of, times_of, total
from airflow_provider_backpressure.exceptions import (
    RESTART,
    BackpressureError,
    InvalidDeclaration,
    PlanSuperseded,
    RangeFailed,
    SinkRefused,
    from_text,
    strip_frames,
)
from airflow_provider_backpressure.spark.change_rows import get_shared_reader
from airflow_provider_backpressure.spark.task import map_batches, report_errors

if TYPE_CHECKING:
    from pyspark.resource import ResourceProfile
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)


def run_window(
    session: "SparkSession", spec: RangeSpec, source: Endpoint, profile: "ResourceProfile | None" = None
) -> RangeResult:
    """Apply a window to each of its tables exactly once. Runs where the lane does; errors as those of one table's."""
    began = time.perf_counter()
    place = open_table(session, json.loads(spec.write.plan_table)["format"], spec.write.target)
    attempt = Attempt.create(spec, spec.slices[0])
    window = SharedWindow(session=session, spec=spec, source=source, profile=profile, tag=attempt.tag)
    states: list[tuple[SparkTable, LogState]] = []

    def prepare() -> Publish:
        states.extend(window.apply())
        mark = _sum_up(spec, attempt, [state for _, state in states])
        return partial(place.publish, note_of_mark(mark))

    mark, state = commit_once(place, attempt, partial(find_window_mark, spec, attempt), prepare)
    times = [maintain(table, each, attempt.tag, began=began) for table, each in (*states, (place, state))]
    spent: Mapping[Any, StageTime] = total(*map(flow_of, times))
    result = replace(make_result(mark, attempt), times=times_of(spent))
    return RangeResult(plan_id=spec.plan_id, seq=spec.seq, attempt=spec.attempt, slices=(result,))


@dataclass(frozen=True, kw_only=True)
class _Part:
    """What a table still lacks of a window."""

    stream: StreamTable
    """With ``start``: up to where the log is in the table."""
    table: SparkTable
    window: "_TableWindow"


@dataclass(frozen=True, kw_only=True)
class _TableWindow(WindowAttempt):
    """One attempt at one table's part of a window. Its message is as if the table had the log for itself."""

    reading: bool
    """Whether ranges of the table are still to be read."""

    def is_trusted(self, state: LogState) -> bool:
        return not self.reading and super().is_trusted(state)


@dataclass(frozen=True, kw_only=True)
class SharedWindow:
    """One attempt at one window."""

    session: "SparkSession"
    spec: RangeSpec
    source: Endpoint
    profile: "ResourceProfile | None"
    tag: str

    def apply(self) -> list[tuple[SparkTable, LogState]]:
        """Commit to each table what it lacks of the window, and return what each one says then."""
        found = [self._look_up(table) for table in self.spec.tables]
        parts = [part for part, _, _ in found if part is not None]
        done = {table.name: (table, state) for part, table, state in found if part is None}
        if done and parts:
            log.info("%s of %s tables have the window already.", len(done), len(found))
        if parts:
            for part, staged in zip(parts, self._stage(parts), strict=True):
                done[part.table.name] = (part.table, self._commit(part, staged))
        return [done[table.name] for _, table, _ in found]

    @property
    def bounds(self) -> LogBounds:
        """The window."""
        bounds = bounds_from_json(dict(self.spec.slices[0].bounds))
        if not isinstance(bounds, LogBounds):
            raise InvalidDeclaration("Only a piece of a log can be replayed.")
        return bounds

    def _look_up(self, stream: StreamTable) -> tuple[_Part | None, SparkTable, LogState]:
        """Return what a table lacks, ``None`` where it has the window; ``PlanSuperseded`` where that is not its plan's.

        ``SinkRefused`` where it lacks something of before.
        """
        bounds, write = self.bounds, stream.write
        table = open_table(self.session, json.loads(write.plan_table)["format"], write.target)
        with name_table(stream), translate_refusals(table.name):
            state = table.state()
        start = state.find_frontier(stream.plan_id, LogPosition.parse(stream.since))
        if start.has_reached(bounds.end):
            return None, table, state
        if not bounds.end.has_reached(start):
            with name_table(stream):
                raise SinkRefused(
                    f"{table.name} has the log up to {start.label}, of which the source lacks a part now, and the "
                    f"window ends at {bounds.end.label}: {RESTART}."
                )
        if not start.has_reached(bounds.start):
            with name_table(stream):
                raise SinkRefused(
                    f"{table.name} has the log up to {start.label} only, and the window begins at "
                    f"{bounds.start.label}: it was restored, or old entries of its own log were removed; {RESTART}."
                )
        left = LogBounds(stream=bounds.stream, start=start, end=bounds.end)
        piece = replace(self.spec.slices[0], slice_id=name_window(start), bounds=left.to_json(), query=stream.query)
        spec = replace(
            self.spec,
            plan_id=stream.plan_id,
            epoch=stream.epoch,
            read=replace(stream.read, window=self.spec.read.window),
            write=write,
            slices=(piece,),
            tables=(),
        )
        attempt = Attempt.create(spec, piece)
        attempt.check(state.holder, table.name)
        window = _TableWindow(
            session=self.session,
            spec=spec,
            source=self.source,
            profile=self.profile,
            attempt=attempt,
            reading=stream.reading,
        )
        return _Part(stream=replace(stream, start=str(start)), table=table, window=window), table, state

    def _stage(self, parts: Sequence[_Part]) -> list[Staged]:
        """Read the window once, in one task, and return the changes of each table, all materialised."""
        source, piece, tag, kind = self.source, self.spec.slices[0], self.tag, self.spec.read.kind
        tables = [part.stream for part in parts]
        shared = SharedColumns.create([table.read.columns for table in tables])

        def read(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
            with report_errors():
                for _ in batches:
                    changes = get_shared_reader(kind).stream_changes(source, tables, piece, tag)
                    for batch in read_batches(changes, tables, shared):
                        yield batch
                        reach(Step.IN_COPY, tag)

        schema = declare([*OWN_TYPES, (TABLE, "int"), *shared.list_fields()])
        (said,), rows = materialise(map_batches(self.session.range(0, 1, 1, 1), read, schema, self.profile))
        told, found = json.loads(said), list[Staged]()
        for number, table in enumerate(tables):
            own = [quote(name_shared(place)).alias(f"_{n}") for n, place in enumerate(shared.places[number])]
            changes = rows.where(quote(TABLE) == functions.lit(number)).select(SEQ, OP, KEPT, ASK, *own)
            about = told.get(str(number), {**_NOTHING, "checksum": ""})
            found.append(Staged(changes=changes, **{**about, "kept": tuple(about["kept"])}))
            log.debug("%s changes of %s.", about["rows"], table.write.target)
        return found

    def _commit(self, part: _Part, staged: Staged) -> LogState:
        """Commit a table's changes, and return what the table says then.

        ``RangeFailed`` where another window came first that ends earlier: a later attempt has the rest.
        """
        table, window, end = part.table, part.window, self.bounds.end

        def prepare() -> Publish:
            rows, fold, read_at = window.fold(table, staged)
            mark = Mark.made(
                window.attempt,
                rows=staged.rows,
                bytes=staged.bytes,
                checksum=staged.checksum,
                files=(),
                read_at=read_at,
            )
            if staged.rows:
                check_partitions(rows, table)
            return partial(publish_changes, table, mark, rows, fold)

        with name_table(part.stream, names=_is_of_table), _translate_failures(table.name):
            _, state = commit_once(table, window.attempt, partial(find_mark, window.attempt, table.name), prepare)
        if not state.find_frontier(part.stream.plan_id, LogPosition.parse(part.stream.start)).has_reached(end):
            raise RangeFailed(
                f"A window that ends before {end.label} came first in {table.name}: a later try continues."
            )
        return state


_NOTHING: dict[str, Any] = {
    "rows": 0,
    "bytes": 0,
    "truncated": -1,
    "kept": (),
    "moved": False,
    "once": True,
    "spans": (),
    "xids": "",
    "read_at": "",
}
"""What is said of a table without changes."""


def _is_of_table(error: BackpressureError) -> bool:
    """Whether a table is to be left out for an error; not for that of an attempt which another lane has overtaken."""
    return is_of_table(error) and not isinstance(error, PlanSuperseded)


@contextmanager
def _translate_failures(name: str) -> Iterator[None]:
    """Let an error of a statement on one table be one that can name the table. A lost server is that of all tables."""
    try:
        yield
    except SPARK_ERRORS as error:
        if is_lost(error):
            raise
        known = from_text(str(error))
        raise known or RangeFailed(f"A statement on {name} failed: {first_line(error)}") from strip_frames(error)


def _sum_up(spec: RangeSpec, attempt: Attempt, states: Sequence[LogState]) -> Mark:
    """Return the mark of a window that all tables have, also those to which an earlier attempt has brought it."""
    bounds = bounds_from_json(dict(attempt.bounds))
    assert isinstance(bounds, LogBounds), "its tables were brought to its end"
    marks, read_at = list[Mark](), list[LogPosition]()
    for table, state in zip(spec.tables, states, strict=True):
        own = [each for each in state.marks_of(table.plan_id).values() if _is_within(each, bounds)]
        marks += own
        if not table.reading:
            # A table with ranges left is read later than any value that was asked for here.
            read_at += [LogPosition.parse(each.read_at) for each in own if each.read_at]
    said = (json.dumps([each.rows, each.bytes, each.checksum, ""]) for each in marks if each.rows)
    rows, size, checksum = add_up(said)
    return Mark.made(
        attempt, rows=rows, bytes=size, checksum=checksum, files=(), read_at=str(max(read_at)) if read_at else ""
    )


def _is_within(mark: Mark, window: LogBounds) -> bool:
    """Whether a table's mark is of a window that ends within this one, or behind it."""
    if not is_shared_window(mark.slice_id):
        return False
    bounds = bounds_from_json(dict(mark.bounds))
    return isinstance(bounds, LogBounds) and bounds.end > window.start
