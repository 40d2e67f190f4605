"""A table of the cluster's catalog as a sink, opened: Spark's own connector writes it."""

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from airflow_provider_backpressure.connectors.lake.markers import Holder, make_revoked_marker
from airflow_provider_backpressure.connectors.lake.sink.spark_mirror_target import (
    SparkMirror,
    discard_range,
    prune_marks,
)
from airflow_provider_backpressure.connectors.lake.sink.target_base import FilesTarget, check_key, check_window
from airflow_provider_backpressure.connectors.lake.spark.commit_notes import (
    MAINTAIN_EVERY,
    MARKS,
    LogState,
    Note,
    list_slices,
    name_window,
    note_of_clearing,
    note_of_fence,
    note_of_plan,
    note_of_settling,
    pack_state,
)
from airflow_provider_backpressure.connectors.lake.spark.range_conditions import list_conditions
from airflow_provider_backpressure.connectors.lake.spark.sql_session import SqlSession
from airflow_provider_backpressure.connectors.lake.spark.table import (
    FORMATS,
    SparkTable,
    check_columns,
    open_table,
    translate_errors,
)
from airflow_provider_backpressure.connectors.lake.tasks.spark_write import describe_query
from airflow_provider_backpressure.core.config import Consistency, Log, Mode
from airflow_provider_backpressure.core.ports.sink import Marker, MirrorTarget, PlanRow, ScratchSink
from airflow_provider_backpressure.core.snapshot.bounds import Bounds, LogPosition
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.core.snapshot.spark_messages import Column, Window, WriteSpec
from airflow_provider_backpressure.core.snapshot.topic_offsets import LogWindow, find_start_positions
from airflow_provider_backpressure.exceptions import RESTART, PlanSuperseded, SinkRefused, SinkUnavailable

log = logging.getLogger(__name__)

KIND = "spark_table"
EPOCHS = 40
"""Epochs that are tried, each twice the one before: more than any table has had."""
Submitted = Callable[[str], Sequence[str] | None]


class SparkTableTarget(FilesTarget):
    """Implements :class:`..core.ports.Sink`.

    The table accepts one commit for each token, which names plan, slice and epoch. A newer epoch takes the tokens of
    what was submitted under the epochs before it, so that no late attempt can commit: ``tell_submitted`` says which
    slices these are; without it every slice of the plan that has no mark is fenced.
    """

    modes: tuple[Mode, ...] = (Mode.APPEND, Mode.UPSERT, Mode.MIRROR)

    def __init__(
        self,
        session: SqlSession,
        name: str,
        *,
        conn_id: str,
        format_: str | None,
        tasks: int,
        key: tuple[str, ...] | None = None,
        maintain_every: int = 0,
    ) -> None:
        """Connect to nothing yet. ``format_``: ``None`` where the table must be there already.

        ``maintain_every``: windows of changes after which the table is maintained; 0 for never.
        """
        self._session = session
        self._name = name
        self._conn_id = conn_id
        self._wanted = format_
        self._tasks = tasks
        self._key = key
        self._maintain_every = maintain_every
        self._opened: SparkTable | None = None
        self._submitted: Submitted = lambda plan_id: None
        self.identity = f"spark://{session.address.removeprefix('sc://')}/{name}"

    def tell_submitted(self, submitted: Submitted) -> None:
        """Take what returns the slices of a plan that were ever submitted and are not known to be committed."""
        self._submitted = submitted

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

    def holds_rows(self) -> bool:
        with self._errors():
            if self._table.schema() is None:
                return False
            return bool(self._session.get().table(self._table.quoted).take(1))

    def begin(self, plan: Plan, *, clear: str | None = None) -> int:
        """See :meth:`..core.ports.Sink.begin`. What was not settled when a planner was killed is settled now."""
        with self._errors():
            before = self._table.state(with_losses=True)
            Holder.check_turn(_holder_of(before), plan)
            clears = (clear or "") if plan.mode is Mode.APPEND or plan.consistency is Consistency.CATCH_UP else ""
            epoch = began = _next_epoch(before)
            _check_starts(before, plan, self._name)
            if before.holder is not None and before.holder.plan_id == plan.plan_id:
                # Its ranges may be in by now, unless the planner was killed before anything was removed.
                before, _ = self._find_held(plan)
                clears, began = _find_pending_clear(before), before.began
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
            about = {**before.holder.about, "clears": _find_pending_clear(before)}
            state = self._take(replace(before.holder, epoch=_next_epoch(before), about=about), before)
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
                state = self._take(Holder(plan_id="", epoch=_next_epoch(state)), state)
                assert state.holder is not None, "taken"
                self._settle(state, state.holder)
            self._table.forget(sorted(self._table.properties()))

    def close(self) -> None:
        self._session.close()

    @property
    def _table(self) -> SparkTable:
        if self._opened is None:
            format_ = self._wanted or self._find_format()
            self._opened = open_table(self._session.get(), format_, self._name)
        return self._opened

    def _find_format(self) -> str:
        session = self._session.get()
        table = open_table(session, next(iter(FORMATS)), self._name)
        if table.schema() is None:
            raise SinkRefused(f"There is no table {self._name}: name the format it is to have, as format='iceberg'.")
        rows = table.ask(f"DESCRIBE TABLE EXTENDED {table.quoted}")
        found = next((row["data_type"] for row in rows if row["col_name"] == "Provider"), "unknown").lower()
        if found not in FORMATS:
            raise SinkRefused(f"{self._name} is of the format {found}: only {' and '.join(FORMATS)} are written.")
        return str(found)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            with translate_errors(self._name):
                yield
        except SinkUnavailable:
            # A server that was started again knows this session no more.
            self._session.forget()
            self._opened = None
            raise

    def _find_held(self, plan: Plan) -> tuple[LogState, Holder]:
        """Return the state of the table and its holder; ``PlanSuperseded`` where that is another plan."""
        state = self._table.state()
        if state.holder is None or state.holder.plan_id != plan.plan_id:
            raise PlanSuperseded(f"Plan {plan.plan_id} no longer holds {self._name}.")
        return state, state.holder

    def _state(self, *, with_losses: bool = False) -> LogState:
        with self._errors():
            return self._table.state(with_losses=with_losses)

    def _follows_ended(self, before: LogState, plan: Plan) -> bool:
        """Whether the plan has the windows behind those of a plan that is in as a whole: nothing is to be fenced then.

        Such a plan is followed only when the ledger has all of it as committed, so it gets no range any more.
        """
        holder = before.holder
        if holder is None or not (plan.increment and plan.consistency is Consistency.CATCH_UP):
            return False
        return holder.plan_id == plan.held_by and before.has_ended(self._submitted(holder.plan_id))

    def _take(self, holder: Holder, before: LogState, *, settled: bool = False) -> LogState:
        """Let a plan take the table under an epoch that nobody has; return what the table says then.

        ``settled``: whether no attempt of before can commit. The table may still have the token of an epoch of which
        its log has no note any more.
        """
        for _ in range(EPOCHS):
            self._table.publish(note_of_plan(holder, settled=settled or before.holder is None))
            state = self._table.state()
            if state.holder is not None and state.holder.epoch >= holder.epoch:
                return state
            log.info("%s was held under the epoch %s before: taking a later one.", self._name, holder.epoch)
            holder = _with_epoch(holder, 2 * holder.epoch)
        raise SinkUnavailable(f"The log of {self._name} does not show who holds the table.")

    def _settle(self, state: LogState, holder: Holder) -> None:
        """Fence every attempt of an earlier epoch, and remove what the plan that was closed has written."""
        if state.settled >= holder.epoch:
            return
        for earlier in state.unsettled:
            for slice_id in list_slices(earlier, self._submitted(earlier.plan_id)):
                if state.find(earlier.plan_id, slice_id) is None:
                    again = state.count_discards(earlier.plan_id, slice_id)
                    self._publish_fence(note_of_fence(earlier.plan_id, slice_id, earlier.epoch, again=again), state)
            self._fence_windows(earlier, state)
        closed = holder.about.get("clears")
        if closed and not state.marks_of(holder.plan_id):
            self._remove(holder, closed)
        self._table.publish(note_of_settling(holder))

    def _fence_windows(self, earlier: Holder, state: LogState) -> None:
        """Refuse every window of a shared log that was planned for an earlier epoch.

        Each has the token of the place where it begins, and all but that of the table's frontier are taken. One may
        still come before the fence, which is at the frontier behind it then.
        """
        plan = earlier.row(committed=0).plan
        if plan is None or not plan.stream:
            return
        for _ in range(EPOCHS):
            at = state.find_frontier(plan.plan_id, LogPosition.parse(plan.position or ""))
            note = note_of_fence(plan.plan_id, name_window(at), earlier.epoch)
            if note.token in state.fences:
                return
            self._publish_fence(note, state)
            state = self._table.state()
        raise SinkUnavailable(f"Windows of a log went into {self._name} while it was fenced: ask again.")

    def _remove(self, holder: Holder, closed: str) -> None:
        """Delete the rows of a closed plan, which began in an empty table: all of them, unless others wrote too.

        Once for a plan: by the time that a planner wakes up late, the rows may be those of the plan itself.
        """
        note, state = note_of_clearing(holder.plan_id), self._table.state()
        if note.token in state.fences:
            return
        if state.holder != holder:
            raise PlanSuperseded(f"Plan {holder.plan_id} no longer holds {self._name} under epoch {holder.epoch}.")
        # What follows its source is that source's alone, and changes are not as many as the rows that they leave.
        follows = holder.about.get("consistency") == Consistency.CATCH_UP
        if self.holds_rows() if follows else self._check_alone(state, closed):
            self._table.clear(note)
        self._publish_fence(note, self._table.state())

    def _check_alone(self, state: LogState, closed: str) -> int:
        """Return how many rows there are; ``SinkRefused`` where they are not those of a closed plan, or none."""
        found = self._session.get().table(self._table.quoted).count()
        ours = sum(mark.rows for mark in state.marks_of(closed).values())
        if found not in (0, ours):
            raise SinkRefused(
                f"{self._name} cannot be cleared: it holds {found:,} rows, and the closed plan {closed} wrote "
                f"{ours:,}. Empty the table, and {RESTART}."
            )
        return found

    def _publish_fence(self, note: Note, state: LogState) -> None:
        if note.token not in state.fences:
            log.info("Late attempts are refused from now on: %s.", note.token)
            self._table.publish(note)


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


def _next_epoch(state: LogState) -> int:
    return state.holder.epoch + 1 if state.holder is not None else 1


def _with_epoch(holder: Holder, epoch: int) -> Holder:
    """Return the plan's row under another epoch than the one that it could not have."""
    began = holder.about.get("began")
    return replace(holder, epoch=epoch, about={**holder.about, "began": epoch if began == holder.epoch else began})


def _find_pending_clear(state: LogState) -> str:
    """Return the closed plan whose rows the present holder has still to remove; empty where it has settled."""
    pending = state.holder is not None and state.settled < state.holder.epoch
    return str(state.holder.about.get("clears", "")) if pending and state.holder is not None else ""


def _holder_of(state: LogState) -> Holder | None:
    """Return the plan that holds the table; ``None`` where what we kept of it was erased."""
    return state.holder if state.holder is not None and state.holder.plan_id else None
