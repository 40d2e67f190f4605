"""A range of a topic into a table that Spark's own connector writes, in the topic's order: one MERGE applies it.

The last record of each key counts, and a tombstone takes its key's row away. Rows, mark and the partitions' positions
are one commit: a position is the end of the last range of the partition that has a mark.
"""

import json
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql import functions
from pyspark.sql.window import Window

from airflow_provider_backpressure.connectors.lake.last_row_per_key import GONE
from airflow_provider_backpressure.connectors.lake.markers import Attempt, Mark
from airflow_provider_backpressure.connectors.lake.spark.commit_notes import LogState
from airflow_provider_backpressure.connectors.lake.spark.table import open_table
from airflow_provider_backpressure.connectors.lake.tasks.change_batches import OP
from airflow_provider_backpressure.connectors.lake.tasks.spark_change_merge import ChangeFold, quote
from airflow_provider_backpressure.connectors.lake.tasks.spark_write import (
    AT,
    PLACED,
    Publish,
    add_stamps,
    check_partitions,
    commit_once,
    find_mark,
    maintain_behind,
    publish_changes,
    stage,
)
from airflow_provider_backpressure.core.snapshot.spark_messages import RangeResult, RangeSpec, WriteSpec
from airflow_provider_backpressure.core.snapshot.topic_offsets import LogWindow, keyless, move_streams
from airflow_provider_backpressure.exceptions import InvalidDeclaration
from airflow_provider_backpressure.spark.change_rows import DELETE, UPSERT
from airflow_provider_backpressure.spark.stream_end import to_one_slice
from airflow_provider_backpressure.spark.task import Batches

if TYPE_CHECKING:
    from pyspark.resource import ResourceProfile
    from pyspark.sql import DataFrame, SparkSession


def run_range(
    session: "SparkSession",
    spec: RangeSpec,
    make_frame: "Callable[[], DataFrame]",
    profile: "ResourceProfile | None" = None,
    read: Batches | None = None,
    read_at: Callable[[], str] | None = None,
) -> RangeResult:
    """Apply the records of a frame exactly once and in their turn. Arguments as for :func:`.spark_write.run_range`.

    ``RangeFailed`` unless each partition is where the range begins.
    """
    table = open_table(session, json.loads(spec.write.plan_table)["format"], spec.write.target)
    attempt, began = Attempt.create(spec, to_one_slice(spec)), time.perf_counter()

    def prepare() -> Publish:
        stamped = add_stamps(make_frame(), spec.write, attempt.tag, profile, read, read_at)
        rows, mark = stage(stamped, spec.write, attempt)
        _check_keys(rows, spec.write, table.name)
        last, fold = _fold(rows, spec.write), ChangeFold(write=spec.write, kept=(), truncated=-1)
        check_partitions(last.where(quote(OP) != DELETE), table)
        return partial(publish_changes, table, mark, last, fold)

    committed = commit_once(table, attempt, partial(_find_mark, spec, attempt), prepare)
    return maintain_behind(table, spec, attempt, committed, began=began)


def _find_mark(spec: RangeSpec, attempt: Attempt, state: LogState) -> Mark | None:
    """Return the range's mark; errors as those of :func:`.spark_write.find_mark`, and where it is not its turn."""
    name = spec.write.target
    found = find_mark(attempt, name, state)
    if found is None:
        move_streams(_find_positions(state, spec), attempt.moves, name)
    return found


def _find_positions(state: LogState, spec: RangeSpec) -> dict[str, int]:
    """Return up to where each partition is in the table, by the marks of the plan."""
    window = LogWindow.from_window(spec.read.window)
    if window is None:
        raise InvalidDeclaration("Only records of a topic have an order.")
    return state.find_positions(spec.plan_id, window)


def _check_keys(rows: "DataFrame", write: WriteSpec, name: str) -> None:
    """Raise ``SinkRefused`` for a record without a key: it could be no row's successor."""
    for key in write.key:
        lacking = rows.where(quote(key).isNull()).orderBy(AT).select(*PLACED[:-1]).take(1)
        if lacking:
            raise keyless(lacking[0][0], lacking[0][1], write.key, name)


def _fold(rows: "DataFrame", write: WriteSpec) -> "DataFrame":
    """Return the last record of each key, with what it does."""
    place = [quote(name).desc() for name in (*PLACED[:-1], AT)]
    newest = functions.row_number().over(Window.partitionBy(*map(quote, write.key)).orderBy(*place))
    done = functions.when(quote(GONE), DELETE).otherwise(UPSERT).cast("short")
    last = rows.withColumn(OP, newest).where(quote(OP) == 1).withColumn(OP, done)
    return last.select(*(quote(column.name) for column in write.columns), quote(OP))
