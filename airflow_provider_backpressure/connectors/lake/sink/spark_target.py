"""A table of the cluster's catalog as a sink, opened: Spark's own connector writes it."""

import json
from collections.abc import Sequence
from dataclasses import replace

from airflow_provider_backpressure.connectors.lake.markers import Holder, format_other_sink, make_revoked_marker
from airflow_provider_backpressure.connectors.lake.sink.spark_fencing import (
    FencedSparkTable,
    find_pending_clear,
    next_epoch,
)
from airflow_provider_backpressure.connectors.lake.sink.spark_mirror_target import (
    SparkMirror,
    discard_range,
    prune_marks,
)
from airflow_provider_backpressure.connectors.lake.sink.target_base import check_key, check_window
from airflow_provider_backpressure.connectors.lake.spark.commit_notes import (
    MAINTAIN_EVERY,
    MARKS,
    LogState,
    note_of_fence,
    pack_state,
)
from airflow_provider_backpressure.connectors.lake.spark.range_conditions import list_conditions
from airflow_provider_backpressure.connectors.lake.spark.table import check_columns
from airflow_provider_backpressure.connectors.lake.tasks.spark_write import describe_query
from airflow_provider_backpressure.core.config import Consistency, Log, Mode
from airflow_provider_backpressure.core.ports.sink import Marker, MirrorTarget, PlanRow, ScratchSink
from airflow_provider_backpressure.core.snapshot.bounds import Bounds, LogPosition
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.core.snapshot.spark_messages import Column, Window, WriteSpec
from airflow_provider_backpressure.core.snapshot.topic_offsets import LogWindow, find_start_positions
from airflow_provider_backpressure.exceptions import RESTART, PlanSuperseded, SinkRefused

KIND = "spark_table"


class SparkTableTarget(FencedSparkTable):
    """Implements :class:`..core.ports.Sink`."""

    modes: tuple[Mode, ...] = (Mode.APPEND, Mode.UPSERT, Mode.MIRROR)

    def fit(self, columns: Sequence[Column], *, mode: str, key: Sequence[str], log: Log | None = None) -> WriteSpec:
        """See :meth:`..core.ports.Sink.fit`. The cluster is asked for the connector first."""
        if Mode(mode) not in self.modes:
            raise SinkRefused(
                f"{self._name} takes append, upsert and mirror, not {mode}: use PostgresSink for a target that is "
                "replaced at once."
            )
        by = tuple(self._key or key) if Mode(mode) is not Mode.APPEND else ()
        if Mode(mode) is not Mode.APPEND:
            check_key(self._name, by, columns)
        with self._errors():
            self._session.check_catalog(self._name)
            there = self._table.schema()
            self._table.check(there)
            check_columns(self._table, there, columns)
        return WriteSpec(
            kind=KIND,
            conn_id=self._conn_id,
            target=self._name,
            columns=tuple(columns),
            mode=mode,
            key=by,
            plan_table=json.dumps(
                {"format": self._table.format, "follows": log is not None or Mode(mode) is Mode.MIRROR}
            ),
            commit_table="",
            fence=self._name,
            # The positions of a topic's partitions are in the marks.
            frontier_table=self._name if log is Log.RECORDS else "",
            tasks=self._tasks,
        )

    def widen(self, columns: Sequence[Column]) -> None:
        """See :meth:`..core.ports.Sink.widen`."""
        names = ", ".join(column.name for column in columns)
        raise SinkRefused(
            f"{self._name} is not given the column {names}: add it by ALTER TABLE, or leave it out with columns= on "
            "the source."
        )

    def prepare(self, write: WriteSpec) -> None:
        """See :meth:`..core.ports.Sink.prepare`. A catalog may make another table than it was asked for."""
        with self._errors():
            if self._table.schema() is not None:
                return
            self._table.create(write.columns, follows=bool(json.loads(write.plan_table).get("follows")))
            there = self._table.schema()
            self._table.check(there)
            check_columns(self._table, there, write.columns)

    def begin(self, plan: Plan, *, clear: str | None = None) -> int:
        """See :meth:`..core.ports.Sink.begin`. What was not settled when a planner was killed is settled now."""
        with self._errors():
            before = self._table.state(with_losses=True)
            Holder.check_turn(_holder_of(before), plan)
            if before.holder is None and self._table.is_held_by_task_sink():
                raise SinkRefused(format_other_sink(self._name, "DeltaSink"))
            clears = (clear or "") if plan.mode is Mode.APPEND or plan.consistency is Consistency.CATCH_UP else ""
            epoch = began = next_epoch(before)
            _check_starts(before, plan, self._name)
            if before.holder is not None and before.holder.plan_id == plan.plan_id:
                # Its ranges may be in by now, unless the planner was killed before anything was removed.
                before, _ = self._find_held(plan)
                clears, began = find_pending_clear(before), before.began
            elif clears and plan.consistency is not Consistency.CATCH_UP:
                self._check_alone(before, clears)
            about: dict[str, str | int] = {"clears": clears, "began": began, MAINTAIN_EVERY: self._maintain_every}
            settled = not clears and self._follows_ended(before, plan)
            state = self._take(Holder.create(plan, epoch, **about), before, settled=settled)
            holder = state.holder
            if holder is None or holder.plan_id != plan.plan_id:
                raise PlanSuperseded(f"Plan {plan.plan_id} no longer holds {self._name}: another plan took it.")
            self._settle(state, holder)
            return holder.epoch

    def renew(self, plan_id: str) -> int | None:
        with self._errors():
            before = self._table.state()
            if before.holder is None or before.holder.plan_id != plan_id:
                return None
            about = {**before.holder.about, "clears": find_pending_clear(before)}
            state = self._take(replace(before.holder, epoch=next_epoch(before), about=about), before)
            holder = state.holder
            if holder is None or holder.plan_id != plan_id:
                return None
            self._settle(state, holder)
            return holder.epoch

    def find_holder(self) -> Holder | None:
        return _holder_of(self._state(with_losses=True))

    def held(self) -> PlanRow | None:
        """See :meth:`..core.ports.Sink.held`. Also a plan of which something is lost, since it can be restarted."""
        state = self._state(with_losses=True)
        holder = _holder_of(state)
        return None if holder is None else holder.row(committed=len(state.ranges_of(holder.plan_id)))

    def markers(self, plan_id: str, slice_ids: Sequence[str] | None = None) -> dict[str, Marker]:
        state = self._state()
        found = {key: mark.marker() for key, mark in state.ranges_of(plan_id).items()}
        for key, about in state.list_revoked(plan_id).items():
            found.setdefault(key, make_revoked_marker(about))
        return found if slice_ids is None else {key: found[key] for key in slice_ids if key in found}

    def find_frontier(self, plan: Plan) -> LogPosition:
        """See :class:`..core.ports.sink.ReplaysApart`."""
        return self._state().find_frontier(plan.plan_id, LogPosition.parse(plan.position or ""))

    def slice_query(self, write: WriteSpec, bounds: Bounds | None, window: Window | None = None) -> str:
        """See :meth:`..core.ports.Sink.slice_query`. Under ``mirror`` rows are where the bounds say.

        Otherwise ``SinkRefused`` for bounds: the table is compared as a whole.
        """
        if bounds is not None and write.mode == Mode.MIRROR:
            where = list_conditions(bounds, write.columns)
            return describe_query(json.loads(write.plan_table)["format"], self._name, write, window, where)
        if bounds is not None:
            raise SinkRefused(f"Rows of {self._name} are not found by the ranges that they came in.")
        check_window(self._name, write, window)
        return describe_query(json.loads(write.plan_table)["format"], self._name, write, window)

    def scan_queries(self, write: WriteSpec, bounds: Bounds, window: Window | None, *, parts: int) -> tuple[str, ...]:
        """See :meth:`..core.ports.Sink.scan_queries`: one reads the whole table, in tasks side by side."""
        return (self.slice_query(write, None, window),)

    def find_surplus(self, plan: Plan) -> str:
        """See :meth:`..core.ports.Sink.find_surplus`: the table is compared as a whole, which finds every row."""
        return ""

    def read_quarantine(self, plan: Plan, slice_id: str) -> tuple[str, ...]:
        """See :meth:`..core.ports.Sink.read_quarantine`: there is none."""
        return ()

    def check_history(self) -> None:
        """See :meth:`..core.ports.Sink.check_history`: what is no longer part of the table has no mark."""
        self._state()

    def discard(self, plan: Plan, slice_id: str, bounds: Bounds) -> int:
        """See :meth:`..core.ports.Sink.discard`. Only a mirror writes a range again: otherwise rows look alike."""
        with self._errors():
            state, _ = self._find_held(plan)
            if plan.mode is Mode.MIRROR:
                return discard_range(self._table, state, plan, slice_id, bounds)
        if slice_id not in state.marks_of(plan.plan_id):
            return 0
        raise SinkRefused(f"The rows of one range cannot be found in {self._name}, so none are removed; {RESTART}.")

    def revoke(self, plan: Plan, slice_id: str, bounds: Bounds) -> bool:
        with self._errors():
            state, holder = self._find_held(plan)
            again = state.count_discards(plan.plan_id, slice_id)
            self._table.publish(note_of_fence(plan.plan_id, slice_id, holder.epoch, bounds.to_json(), again))
            return self._table.state().find(plan.plan_id, slice_id) is None

    def prune(self, plan: Plan, plan_ids: Sequence[str]) -> int:
        """See :meth:`..core.ports.Sink.prune`. What the table's own log keeps of a slice stays there."""
        gone = [each for each in plan_ids if each not in (plan.plan_id, plan.held_by)]
        with self._errors():
            state, _ = self._find_held(plan)
            if plan.mode is Mode.MIRROR:
                return prune_marks(self._table, state, gone)
            kept = state.properties
            names = [name for each in gone if (name := f"{MARKS}{each}") in kept]
            self._table.forget(names)
            return sum(len(state.marks_of(name.removeprefix(MARKS))) for name in names)

    def complete(self, plan: Plan) -> None:
        """See :meth:`..core.ports.Sink.complete`. The marks outlive the log's retention from then on.

        A later plan finds out by the table's version whether it was rolled back in between.
        """
        with self._errors():
            state, _ = self._find_held(plan)
            wanted = {**pack_state(state, plan.plan_id), **self._table.describe_head()}
            if plan.mode is Mode.MIRROR:
                wanted |= self._table.describe_chain()
            kept = state.properties
            if any(kept.get(name) != value for name, value in wanted.items()):
                self._table.keep(wanted)
            self._table.tidy()

    def scratch(self, digits: str, *, indexes: bool = True) -> ScratchSink:
        raise SinkRefused(f"{self._name} has no target beside it that a probe could write: probe a task-written sink.")

    def mirror(self, write: WriteSpec | None = None) -> MirrorTarget:
        """See :meth:`..core.ports.Sink.mirror`."""
        with self._errors():
            return SparkMirror(table=self._table, errors=self._errors)

    def traces(self) -> tuple[str, ...]:
        """See :meth:`..core.ports.Sink.traces`. What is in the table's own log goes with its retention."""
        with self._errors():
            return tuple(sorted(self._table.properties())) if self._table.schema() is not None else ()

    def erase(self) -> None:
        """See :meth:`..core.ports.Sink.erase`. The plan in the table's log is followed by one that holds nothing."""
        with self._errors():
            if self._table.schema() is None:
                return
            state = self._table.state(with_losses=True)
            if state.holder is not None and state.holder.plan_id:
                state = self._take(Holder(plan_id="", epoch=next_epoch(state)), state)
                assert state.holder is not None, "taken"
                self._settle(state, state.holder)
            self._table.forget(sorted(self._table.properties()))

    def _follows_ended(self, before: LogState, plan: Plan) -> bool:
        """Whether the plan has the windows behind those of a plan that is in as a whole: nothing is to be fenced then.

        Such a plan is followed only when the ledger has all of it as committed, so it gets no range any more.
        """
        holder = before.holder
        if holder is None or not (plan.increment and plan.consistency is Consistency.CATCH_UP):
            return False
        return holder.plan_id == plan.held_by and before.has_ended(self._submitted(holder.plan_id))


def _check_starts(before: LogState, plan: Plan, name: str) -> None:
    """Raise ``SinkRefused`` where an increment of a topic would begin before what the plan before it has brought."""
    window, holder = LogWindow.from_window(plan.read.window), _holder_of(before)
    if not plan.write.ordered or window is None or holder is None or holder.plan_id == plan.plan_id:
        return
    last = holder.row(committed=0).plan
    begun = LogWindow.from_window(last.read.window) if last is not None else None
    if begun is not None and (begun.topic, begun.topic_id) == (window.topic, window.topic_id):
        there = before.find_positions(holder.plan_id, begun)
        find_start_positions(window, there, target=name, increment=plan.increment)


def _holder_of(state: LogState) -> Holder | None:
    """Return the plan that holds the table; ``None`` where what we kept of it was erased."""
    return state.holder if state.holder is not None and state.holder.plan_id else None
