"""Which plan holds a table of the cluster's catalog, under which epoch: late attempts of others cannot commit."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from airflow_provider_backpressure.connectors.lake.markers import Holder
from airflow_provider_backpressure.connectors.lake.sink.target_base import FilesTarget
from airflow_provider_backpressure.connectors.lake.spark.commit_notes import (
    LogState,
    Note,
    list_slices,
    name_window,
    note_of_clearing,
    note_of_fence,
    note_of_plan,
    note_of_settling,
)
from airflow_provider_backpressure.connectors.lake.spark.sql_session import SqlSession
from airflow_provider_backpressure.connectors.lake.spark.table import FORMATS, SparkTable, open_table, translate_errors
from airflow_provider_backpressure.core.config import Consistency
from airflow_provider_backpressure.core.snapshot.bounds import LogPosition
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.exceptions import RESTART, PlanSuperseded, SinkRefused, SinkUnavailable

log = logging.getLogger(__name__)

EPOCHS = 40
"""Epochs that are tried, each twice the one before: more than any table has had."""
Submitted = Callable[[str], Sequence[str] | None]


class FencedSparkTable(FilesTarget):
    """The table accepts one commit for each token, which names plan, slice and epoch.

    A newer epoch takes the tokens of what was submitted under the epochs before it, so that no late attempt can commit:
    ``tell_submitted`` says which slices these are; without it every slice of the plan that has no mark is fenced.
    """

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

    def holds_rows(self) -> bool:
        with self._errors():
            if self._table.schema() is None:
                return False
            return bool(self._table.rows().take(1))

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
        found = self._table.rows().count()
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


def next_epoch(state: LogState) -> int:
    return state.holder.epoch + 1 if state.holder is not None else 1


def _with_epoch(holder: Holder, epoch: int) -> Holder:
    """Return the plan's row under another epoch than the one that it could not have."""
    began = holder.about.get("began")
    return replace(holder, epoch=epoch, about={**holder.about, "began": epoch if began == holder.epoch else began})


def find_pending_clear(state: LogState) -> str:
    """Return the closed plan whose rows the present holder has still to remove; empty where it has settled."""
    pending = state.holder is not None and state.settled < state.holder.epoch
    return str(state.holder.about.get("clears", "")) if pending and state.holder is not None else ""
