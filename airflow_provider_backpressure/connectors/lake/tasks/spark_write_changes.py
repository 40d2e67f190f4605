"""A window of a log into a table that Spark's own connector writes: one task reads it, and one MERGE applies it.

The window is materialised once it is read and typed. Rows, mark and the frontier's move are one commit: the frontier is
the end of the last window that has a mark.
"""

import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pyarrow

from airflow_provider_backpressure.connectors.lake.markers import Attempt, Mark
from airflow_provider_backpressure.connectors.lake.spark.commit_notes import LogState
from airflow_provider_backpressure.connectors.lake.spark.table import SparkTable, open_table
from airflow_provider_backpressure.connectors.lake.tasks.change_batches import (
    ASK,
    KEPT,
    OP,
    SEQ,
    ChangeBatches,
    unpack_xids,
)
from airflow_provider_backpressure.connectors.lake.tasks.materialised_rows import (
    MATERIALISED,
    declare,
    materialise,
    pack,
)
from airflow_provider_backpressure.connectors.lake.tasks.spark_change_merge import UNKNOWN, ChangeFold, list_keys, quote
from airflow_provider_backpressure.connectors.lake.tasks.spark_write import (
    Publish,
    check_partitions,
    commit_once,
    find_mark,
    maintain_behind,
    publish_changes,
)
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.failpoints import Step, reach
from airflow_provider_backpressure.core.snapshot.bounds import LogBounds, bounds_from_json
from airflow_provider_backpressure.core.snapshot.replay_window import ReplayWindow, goal
from airflow_provider_backpressure.core.snapshot.spark_messages import RangeResult, RangeSpec
from airflow_provider_backpressure.core.snapshot.topic_offsets import move_streams
from airflow_provider_backpressure.exceptions import InvalidDeclaration, RangeFailed
from airflow_provider_backpressure.spark.change_rows import DELETE, Changes, log_reader
from airflow_provider_backpressure.spark.column_types import carrier, declare_type
from airflow_provider_backpressure.spark.readers_and_writers import task_module
from airflow_provider_backpressure.spark.task import map_batches, report_errors

if TYPE_CHECKING:
    from pyspark.resource import ResourceProfile
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

OWN_TYPES = ((SEQ, "bigint"), (OP, "smallint"), (KEPT, "array<smallint>"), (ASK, "array<string>"))
"""Columns before a change's values, and their types."""


@dataclass(frozen=True, kw_only=True)
class Staged:
    """Changes that are materialised, and what their reader said of them."""

    changes: "DataFrame"
    rows: int
    bytes: int
    checksum: str
    truncated: int
    kept: tuple[int, ...]
    moved: bool
    once: bool
    spans: Sequence[tuple[int, int, int]]
    xids: str
    read_at: str


def run_window(
    session: "SparkSession", spec: RangeSpec, source: Endpoint, profile: "ResourceProfile | None" = None
) -> RangeResult:
    """Apply a window exactly once. Runs where the lane does; errors as those of a range, and ``LogLost``."""
    table = open_table(session, json.loads(spec.write.plan_table)["format"], spec.write.target)
    attempt, began = Attempt.create(spec, spec.slices[0]), time.perf_counter()
    window = WindowAttempt(session=session, spec=spec, source=source, profile=profile, attempt=attempt)

    def prepare() -> Publish:
        staged = window.stage(lambda changes: changes)
        rows, fold, read_at = window.fold(table, staged)
        mark = Mark.made(
            attempt, rows=staged.rows, bytes=staged.bytes, checksum=staged.checksum, files=(), read_at=read_at
        )
        check_partitions(rows.where(quote(OP) != DELETE), table)
        return partial(publish_changes, table, mark, rows, fold)

    committed = commit_once(table, attempt, partial(find_window_mark, spec, attempt), prepare)
    return maintain_behind(table, spec, attempt, committed, began=began)


def find_window_mark(spec: RangeSpec, attempt: Attempt, state: LogState) -> Mark | None:
    """Return the window's mark. Where there is none: ``PlanSuperseded`` for one that may not commit any more,

    ``RangeFailed`` unless the frontier is where the window begins.
    """
    name = spec.write.target
    found = find_mark(attempt, name, state)
    if found is None:
        move_streams(_find_frontier(state, spec), attempt.moves, name)
    return found


def _find_frontier(state: LogState, spec: RangeSpec) -> dict[str, int]:
    """Return up to where the log is in the table, by the marks of the plan; its start where there is none."""
    window = _get_window(spec)
    bounds = [bounds_from_json(dict(mark.bounds)) for mark in state.marks_of(spec.plan_id).values()]
    ends = [each.end.at for each in bounds if isinstance(each, LogBounds)]
    return {window.stream: max([window.start.at, *ends])}


def _get_window(spec: RangeSpec) -> ReplayWindow:
    window = ReplayWindow.from_window(spec.read.window)
    if window is None:
        raise InvalidDeclaration("Only a piece of a log can be replayed.")
    return window


@dataclass(frozen=True, kw_only=True)
class WindowAttempt:
    """One attempt at one window."""

    session: "SparkSession"
    spec: RangeSpec
    source: Endpoint
    profile: "ResourceProfile | None"
    attempt: Attempt

    def stage(self, choose: Callable[[Changes], Iterable[Sequence[bytes]]], xids: Sequence[int] = ()) -> Staged:
        """Read changes in one task, and materialise them. ``choose``: what of the window is read.

        A lost block fails the job, and a block of another run of the task fails what reads it: Spark does not read the
        log a second time.
        """
        spec, source, tag = self.spec, self.source, self.attempt.tag
        piece, columns, key = spec.slices[0], spec.read.columns, spec.write.key

        def read(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
            with report_errors():
                for _ in batches:
                    changes = log_reader(spec.read.kind).changes(source, spec.read, piece, key, tag)
                    changes.xids = list(xids)
                    way_out = task_module(spec.read.kind.removesuffix("_log"), "read").way_out
                    made = ChangeBatches(columns=columns, key=key, way_out=way_out)
                    say = partial(_say, made, changes)
                    for batch in pack(made.read(choose(changes)), made.schema, say):
                        yield batch
                        reach(Step.IN_COPY, tag)

        typed = [(f"_{n}", declare_type(carrier(column.type)[1])) for n, column in enumerate(columns)]
        frame = map_batches(self.session.range(0, 1, 1, 1), read, declare([*OWN_TYPES, *typed]), self.profile)
        (said,), rows = materialise(frame)
        told = json.loads(said)
        return Staged(changes=rows, **{**told, "kept": tuple(told["kept"])})

    def fold(self, table: SparkTable, staged: Staged) -> tuple["DataFrame", ChangeFold, str]:
        """Return what is to be merged, by what, and the position of the log when a row was read again, if one was."""
        fold = ChangeFold(
            write=self.spec.write,
            kept=staged.kept,
            truncated=staged.truncated,
            moved=staged.moved,
            once=staged.once,
            spans=staged.spans,
        )
        if not staged.kept:
            return fold.fold(staged.changes).drop(UNKNOWN, ASK), fold, ""
        there, trusted = table.rows(), self.is_trusted(table.state())
        folded = fold.fold(staged.changes, there if trusted else None)
        asked = fold.select_asked(folded, there).localCheckpoint(eager=True, storageLevel=MATERIALISED)
        keys = list_keys(asked)
        if not keys:
            return asked.drop(UNKNOWN, ASK), fold, ""
        log.info("%s rows of %s are read again: the log lacks values of them.", len(keys), table.name)
        again = self.stage(lambda changes: changes.again(keys), unpack_xids(staged.xids))
        if not again.read_at:
            raise RangeFailed(f"Rows for {table.name} were read again, and no position of the log is known for that.")
        return fold.replace_asked(asked, again.changes).drop(UNKNOWN, ASK), fold, again.read_at

    def is_trusted(self, state: LogState) -> bool:
        """Whether the target is the source as it was where the window begins: nothing in it was read later."""
        window, bounds = _get_window(self.spec), bounds_from_json(dict(self.attempt.bounds))
        assert isinstance(bounds, LogBounds), "its frontier was moved by them"
        read_at = [mark.read_at for mark in state.marks_of(self.spec.plan_id).values()]
        return bounds.start.has_reached(goal(window.goal, read_at))


def _say(made: ChangeBatches, changes: Changes) -> str:
    return json.dumps(made.describe(changes.xids, changes.read_at))
