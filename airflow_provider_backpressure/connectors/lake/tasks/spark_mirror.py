"""A range of ``mirror`` into a table that Spark's own connector writes: one commit has what differs, and the mark.

The rows are materialised and hashed. Where the hash is that of the range's last mark, nothing is written. Otherwise
they are compared with the table's rows within the bounds, and what differs is materialised too: so the MERGE touches no
other row, and it is known before it how many rows it deletes.
"""

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING

from pyspark.sql import functions
from pyspark.sql.types import DoubleType, FloatType

from airflow_provider_backpressure.connectors.lake.markers import Attempt, Mark
from airflow_provider_backpressure.connectors.lake.spark.commit_notes import LogState, note_of_mark
from airflow_provider_backpressure.connectors.lake.spark.range_conditions import list_conditions
from airflow_provider_backpressure.connectors.lake.spark.table import SparkTable, open_table, translate_refusals
from airflow_provider_backpressure.connectors.lake.tasks.materialised_rows import MATERIALISED
from airflow_provider_backpressure.connectors.lake.tasks.spark_write import (
    Publish,
    add_stamps,
    check_partitions,
    check_unique,
    commit_once,
    find_mark,
    make_result,
    quote_column,
    stage,
)
from airflow_provider_backpressure.core.snapshot.bounds import bounds_from_json
from airflow_provider_backpressure.core.snapshot.spark_messages import RangeResult, RangeSpec, SliceResult
from airflow_provider_backpressure.exceptions import ALLOW_DELETES, RangeFailed, SinkRefused
from airflow_provider_backpressure.spark.column_types import carrier
from airflow_provider_backpressure.spark.stream_end import to_one_slice
from airflow_provider_backpressure.spark.task import Batches

if TYPE_CHECKING:
    from pyspark.resource import ResourceProfile
    from pyspark.sql import Column, DataFrame, SparkSession

log = logging.getLogger(__name__)

DONE = "backpressure_done"
"""Column of what differs: which of these three it is."""
INSERT, UPDATE, DELETE = "insert", "update", "delete"
_NEW, _OLD = "backpressure_new", "backpressure_old"
"""Beginnings of the names of columns of a row as it arrives, and as it is in the table."""


class _Unchanged(Exception):
    """The table holds the rows already. Raised and caught in this module."""

    def __init__(self, result: SliceResult) -> None:
        super().__init__()
        self.result = result


def run_range(
    session: "SparkSession",
    spec: RangeSpec,
    make_frame: "Callable[[], DataFrame]",
    profile: "ResourceProfile | None" = None,
    read: Batches | None = None,
    read_at: Callable[[], str] | None = None,
) -> RangeResult:
    """Make the table's rows within the range's bounds those of a frame, as :func:`.spark_write.run_range`.

    ``SinkRefused`` where rows of the frame lie outside the bounds or share a key, or more rows would be deleted than
    the plan may delete. Nothing is committed where the table is known to hold them.
    """
    table = open_table(session, json.loads(spec.write.plan_table)["format"], spec.write.target)
    attempt, seen = Attempt.create(spec, to_one_slice(spec)), LogState()

    def find(state: LogState) -> Mark | None:
        nonlocal seen
        seen = state
        return find_mark(attempt, table.name, state)

    def prepare() -> Publish:
        stamped = add_stamps(make_frame(), spec.write, attempt.tag, profile, read, read_at)
        rows, mark = stage(stamped, spec.write, attempt)
        mark = replace(mark, again=seen.count_discards(attempt.plan_id, attempt.slice_id))
        result = make_result(mark, attempt)
        if spec.is_unchanged(result):
            raise _Unchanged(replace(result, unchanged=True))
        check_unique(rows, spec.write.key, table.name)
        check_partitions(rows, table)
        return _Mirror.compare(spec, table, rows, mark).publish

    try:
        result = make_result(commit_once(table, attempt, find, prepare)[0], attempt)
    except _Unchanged as same:
        result = same.result
    return RangeResult(plan_id=spec.plan_id, seq=spec.seq, attempt=spec.attempt, slices=(result,))


@dataclass(frozen=True, kw_only=True)
class _Mirror:
    """What differs between a range's rows and the table's."""

    spec: RangeSpec
    table: SparkTable
    mark: Mark
    changes: "DataFrame"
    """The columns by their names, and :data:`DONE`."""
    inserted: int
    updated: int

    @classmethod
    def compare(cls, spec: RangeSpec, table: SparkTable, rows: "DataFrame", mark: Mark) -> "_Mirror":
        """Compare the rows with the table's. ``mark``: of the rows."""
        within = _list_conditions(spec)
        if within and rows.where(f"NOT coalesce({' AND '.join(within)}, false)").take(1):
            raise SinkRefused(
                f"Range {spec.seq} has rows outside its bounds in {table.name}: the transform changes the key, or the "
                "source orders it otherwise than Spark. Let it keep the key as it is, or use mode='upsert'."
            )
        with translate_refusals(table.name):
            there = table.rows()
            there = there.where(" AND ".join(within)) if within else there
            changes = _join(spec, rows, there).localCheckpoint(eager=True, storageLevel=MATERIALISED)
            counts = {row[0]: int(row[1]) for row in changes.groupBy(DONE).count().collect()}
            inserted, updated, deleted = (counts.get(each, 0) for each in (INSERT, UPDATE, DELETE))
            if inserted < mark.rows:
                _check_there(table, there, spec.write.key, expected=mark.rows - inserted + deleted)
        if deleted:
            # Several rows of one key go by one row of the MERGE, which must not hold it twice.
            gone = changes.where(quote_column(DONE) == DELETE).dropDuplicates(list(spec.write.key))
            changes = changes.where(quote_column(DONE) != DELETE).unionByName(gone)
        mark = replace(mark, deleted=deleted)
        return cls(spec=spec, table=table, mark=mark, changes=changes, inserted=inserted, updated=updated)

    def publish(self) -> LogState | None:
        """Commit what differs with the mark; the mark alone where nothing does.

        Return what the table says since the commit; ``None`` where it was not asked.
        """
        note, table = note_of_mark(self.mark), self.table
        if not (self.updated or self.mark.deleted):
            # Nothing of the table is replaced, so that ranges side by side do not come in each other's way.
            table.publish(note, self.changes.drop(DONE) if self.inserted else None)
            return None
        table.merge(note, self.changes, self._make_merge)
        state = table.state()
        if not state.admits(note):
            return state
        log.info("Nothing was to be changed in %s by %s.", table.name, self.mark.slice_id)
        table.publish(note)
        return None

    def _make_merge(self, target: str, view: str) -> str:
        self._check_deletes()
        return build_merge(self.spec, target, view)

    def _check_deletes(self) -> None:
        """Raise ``SinkRefused`` where the run would delete more than it may: what others of it have deleted counts."""
        most, own = self.spec.write.most_deleted, self.mark
        if most is None or not own.deleted:
            return
        marks = self.table.state().marks_of(own.plan_id).values()
        total = own.deleted + sum(each.deleted for each in marks if each.slice_id != own.slice_id)
        if total > most:
            raise SinkRefused(
                f"Range {self.spec.seq} would delete {own.deleted} rows of {self.table.name}, with which its run would "
                f"delete {total}, more than Budget(max_deletes=...) allows ({most}): {ALLOW_DELETES} if they are to go."
            )


def build_merge(spec: RangeSpec, target: str, view: str) -> str:
    """Return the statement that applies what differs. By the bounds it passes over files that hold other rows."""
    names = [_tick(column.name) for column in spec.write.columns]
    same = [f"t.{_tick(name)} <=> s.{_tick(name)}" for name in spec.write.key]
    every = ", ".join(f"t.{name} = s.{name}" for name in names)
    columns, values = ", ".join(names), ", ".join(f"s.{name}" for name in names)
    clauses = [
        f"WHEN MATCHED AND s.{DONE} = '{DELETE}' THEN DELETE",
        f"WHEN MATCHED THEN UPDATE SET {every}",
        f"WHEN NOT MATCHED AND s.{DONE} <> '{DELETE}' THEN INSERT ({columns}) VALUES ({values})",  # noqa: S608
    ]
    on = " AND ".join([*same, *_list_conditions(spec, "t")])
    return f"MERGE INTO {target} AS t USING {_tick(view)} AS s ON {on} {' '.join(clauses)}"


def _join(spec: RangeSpec, rows: "DataFrame", there: "DataFrame") -> "DataFrame":
    """Return the rows that differ, with :data:`DONE`: as they arrive, and those that are to go with their key alone."""
    columns = spec.write.columns
    new = rows.select(*_number(spec, _NEW), functions.lit(True).alias(_NEW))
    old = there.select(*_number(spec, _OLD), functions.lit(True).alias(_OLD))
    keys = [number for number, column in enumerate(columns) if column.name in spec.write.key]
    same_key = reduce(and_, (functions.col(f"{_NEW}{n}").eqNullSafe(functions.col(f"{_OLD}{n}")) for n in keys))
    same = reduce(and_, (_is_same(number, column.type) for number, column in enumerate(columns)))
    done = (
        functions.when(functions.col(_OLD).isNull(), INSERT)
        .when(functions.col(_NEW).isNull(), DELETE)
        .when(~same, UPDATE)
    )
    gone = functions.col(_NEW).isNull()
    named = [
        (
            functions.when(gone, functions.col(f"{_OLD}{n}")).otherwise(functions.col(f"{_NEW}{n}"))
            if n in keys
            else functions.col(f"{_NEW}{n}")
        ).alias(column.name)
        for n, column in enumerate(columns)
    ]
    joined = new.join(old, same_key, "full_outer").withColumn(DONE, done)
    return joined.where(functions.col(DONE).isNotNull()).select(*named, DONE)


def _number(spec: RangeSpec, prefix: str) -> "list[Column]":
    """Return the columns as Spark carries them, under numbers: a table may have a wider type."""
    return [
        quote_column(column.name).cast(carrier(column.type)[1]).alias(f"{prefix}{number}")
        for number, column in enumerate(spec.write.columns)
    ]


def _is_same(number: int, type_: str) -> "Column":
    """Whether a value is the same as it is stored, bit by bit: for Spark 0.0 and -0.0 are equal."""
    new, old = functions.col(f"{_NEW}{number}"), functions.col(f"{_OLD}{number}")
    if isinstance(carrier(type_)[1], FloatType | DoubleType):
        new, old = new.cast("string"), old.cast("string")
    return new.eqNullSafe(old)


def _check_there(table: SparkTable, there: "DataFrame", key: Sequence[str], *, expected: int) -> None:
    """Raise ``SinkRefused`` where a key of the source has several rows in the table: a MERGE cannot keep one of them.

    ``expected``: how many rows the table holds there otherwise.
    """
    if there.count() == expected:
        return
    columns = [quote_column(name) for name in key]
    found = there.groupBy(*columns).agg(functions.count("*").alias(DONE)).where(quote_column(DONE) > 1).take(1)
    if not found:
        raise RangeFailed(f"Others have changed rows of {table.name} while they were compared.")
    values = dict(zip(key, found[0], strict=False))
    raise SinkRefused(
        f"{table.name} has several rows with the key {values}, of which a mirror cannot keep one: delete them all "
        "there, and the row comes back with the next attempt."
    )


def _list_conditions(spec: RangeSpec, table: str = "") -> list[str]:
    return list_conditions(bounds_from_json(dict(spec.slices[0].bounds)), spec.write.columns, table)


def _tick(name: str) -> str:
    return f"`{name}`"
