"""A table of the cluster's catalog that is mirrored: what its log proves of the rows that it holds."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass

from airflow_provider_backpressure.connectors.lake.sink.spark_mirror_key_order import check_order
from airflow_provider_backpressure.connectors.lake.spark.commit_notes import (
    MARKS,
    LogState,
    note_of_confirmation,
    note_of_discard,
    note_of_fence,
    pack,
)
from airflow_provider_backpressure.connectors.lake.spark.table import SparkTable
from airflow_provider_backpressure.core.ports.sink import Marker
from airflow_provider_backpressure.core.snapshot.bounds import Bounds
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.core.snapshot.spark_messages import WriteSpec
from airflow_provider_backpressure.exceptions import PlanSuperseded, SinkRefused


@dataclass(frozen=True, kw_only=True)
class SparkMirror:
    """Implements :class:`..core.ports.sink.MirrorTarget`."""

    table: SparkTable
    errors: Callable[[], AbstractContextManager[None]]
    """Raises Spark's errors as ours."""

    def check(self, write: WriteSpec, split: Sequence[str]) -> None:
        """See :meth:`..core.ports.sink.MirrorTarget.check`. Files hold the values in Spark's order."""
        check_order(self.table.name, write.columns, split)

    def check_rewrites(self, write: WriteSpec, key: Sequence[str], split: Sequence[str]) -> None:
        """See :meth:`..core.ports.sink.MirrorTarget.check_rewrites`: a commit cannot be taken back."""
        raise SinkRefused(f"A range of {self.table.name} has one marker for each plan.")

    def index_ranges(self, key: Sequence[str]) -> None:
        """See :meth:`..core.ports.sink.MirrorTarget.index_ranges`: there are no indexes."""

    def rows(self, near: int | None = None) -> int:
        with self.errors():
            return self.table.rows().count() if self.table.schema() is not None else 0

    def find_confirmation(self, plan_id: str) -> int:
        with self.errors():
            return self.table.state().confirmed.get(plan_id, 0)

    def files(self) -> str:
        """See :meth:`..core.ports.sink.MirrorTarget.files`: the last commit of others."""
        with self.errors():
            return self.table.find_last_change() if self.table.schema() is not None else ""

    def count_deleted(self, plan_id: str) -> int:
        with self.errors():
            return sum(mark.deleted for mark in self.table.state(with_losses=True).marks_of(plan_id).values())

    def writes(self, since: int) -> list[Marker]:
        with self.errors():
            return [mark.marker() for mark in self.table.state().list_writes(since)]

    def confirm(self, plan: Plan, *, rows: int) -> None:
        """See :meth:`..core.ports.sink.MirrorTarget.confirm`. A commit without rows; the log is looked at behind it."""
        with self.errors():
            _check_held(self.table.state(), plan, self.table.name)
            self.table.publish(note_of_confirmation(plan.plan_id, plan.epoch, rows))
            _check_held(self.table.state(), plan, self.table.name)
            if not plan.mirrored_since:
                # Every range was staged: nothing is relied on that was there before.
                return
            if self.table.find_last_change() == plan.files and self.table.has_kept_columns():
                return
        raise SinkRefused(
            f"Others have committed to {self.table.name} since plan {plan.plan_id} was made, or its columns were "
            "changed: ranges that did not change may be missing. Trigger the DAG with "
            '{"backpressure": "restart"}, which compares every range.'
        )


def _check_held(state: LogState, plan: Plan, name: str) -> None:
    holder = state.holder
    if holder is None or (holder.plan_id, holder.epoch) != (plan.plan_id, plan.epoch):
        raise PlanSuperseded(f"Plan {plan.plan_id} no longer holds {name}.")


def discard_range(table: SparkTable, state: LogState, plan: Plan, slice_id: str, bounds: Bounds) -> int:
    """Let a range be written again; return 0: rows stay, since the range takes their place.

    No mark over its bounds proves anything from then on. Properties go last: what the note says counts before them.
    ``SinkRefused`` under another mode.
    """
    found, epoch = state.find(plan.plan_id, slice_id), state.holder.epoch if state.holder is not None else 0
    again = state.count_discards(plan.plan_id, slice_id)
    if found is None:
        # A range that did not change, whose attempt of before may still be about to commit.
        table.publish(note_of_fence(plan.plan_id, slice_id, epoch, again=again))
    table.publish(note_of_discard(plan.plan_id, slice_id, epoch, bounds.to_json(), again + 1))
    _keep_marks(table, state, state.kept, table.state())
    return 0


def prune_marks(table: SparkTable, state: LogState, plan_ids: Sequence[str]) -> int:
    """Forget the marks of these plans but those that are the latest over their bounds; return how many went."""
    latest = {(mark.plan_id, mark.slice_id) for mark in state.list_writes()}
    left = LogState(marks={key: mark for key, mark in state.marks.items() if key in latest})
    return _keep_marks(table, state, set(plan_ids) & state.kept, left)


def _keep_marks(table: SparkTable, before: LogState, plan_ids: set[str], after: LogState) -> int:
    """Let the properties of plans have the marks of another state; return how many they had more."""
    gone, kept, number = list[str](), dict[str, str](), 0
    for plan_id in sorted(plan_ids):
        old, new = (list(state.marks_of(plan_id).values()) for state in (before, after))
        if len(old) == len(new):
            continue
        number += len(old) - len(new)
        if new:
            kept[f"{MARKS}{plan_id}"] = pack([asdict(mark) for mark in new])
        else:
            gone.append(f"{MARKS}{plan_id}")
    if kept:
        table.keep(kept)
    table.forget(gone)
    return number
