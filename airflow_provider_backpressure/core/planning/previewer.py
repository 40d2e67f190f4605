"""The previewer: everything that is checked before anything is written down."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from airflow_provider_backpressure.core.config import Budget, Consistency, Log, Mode, NewColumn
from airflow_provider_backpressure.core.gate.hydration_record import Hydration
from airflow_provider_backpressure.core.planning.catch_up_windows import server_of
from airflow_provider_backpressure.core.planning.executor_packages import (
    NEEDED_MODULES,
    check_modules,
    find_substitutes,
)
from airflow_provider_backpressure.core.planning.mirror_planning import check_mirrored
from airflow_provider_backpressure.core.planning.plan_result import Preview
from airflow_provider_backpressure.core.planning.preconditions import (
    check_deletes,
    check_key,
    check_mode,
    check_replayable,
)
from airflow_provider_backpressure.core.planning.range_size import rows_per_range
from airflow_provider_backpressure.core.planning.topic_key_order import check_parts, check_record_keys, count_parts
from airflow_provider_backpressure.core.ports import ExecutorEnvironment, Runner, Source
from airflow_provider_backpressure.core.ports.ledger import Ledger
from airflow_provider_backpressure.core.ports.sink import Sink
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.core.snapshot.schema_change import keep_planned_columns
from airflow_provider_backpressure.core.snapshot.spark_messages import ReadSpec, Transform, Window, choose_path
from airflow_provider_backpressure.core.snapshot.topic_offsets import find_place, order_by_log, take_marks


class Probes:
    """What probes of one session's executors have found: many plans need one job. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[tuple[str, ...], ExecutorEnvironment] = {}

    def find(self, runner: Runner, modules: Sequence[str]) -> ExecutorEnvironment:
        """Return what is on the executors, by a probe where these modules were not looked for yet."""
        with self._lock:
            key = tuple(modules)
            if key not in self._found:
                self._found[key] = runner.probe(modules)
            return self._found[key]


@dataclass(frozen=True, kw_only=True)
class Previewer:
    """Checks source, executors and sink of one hydration, and says what a plan would be; writes no plan."""

    source: Source
    sink: Sink
    runner: Runner
    ledger: Ledger
    budget: Budget
    mode: Mode
    key: tuple[str, ...] = ()
    """Key of the target under ``upsert``; empty: the source's own."""
    transform: Transform | None = None
    consistency: Consistency | None = None
    """``None`` for the source's own default."""
    on_new_column: NewColumn = NewColumn.STOP
    environment: str = "default"
    owner: str
    cluster: str
    probes: "Probes" = field(default_factory=lambda: Probes())
    """What is known of the executors; shared by plans of one session."""
    check_signals: Callable[[], None] = lambda: None
    """Looks once at every signal that the budget declares; raises what cannot be watched."""

    def preview(self, *, after: str | None = None, plan: Plan | None = None, counted: bool = True) -> Preview:
        """Check source, executors and sink. Raises the ``Terminal`` error of the first that refuses.

        ``after``: of what lies above this value of the source's rising column. ``plan``: the plan to continue, with its
        own columns. ``counted``: whether it matters how much there is.
        """
        check_mode(self.mode, self.source, self.sink)
        self.check_signals()
        previous = self._previous() if after is None and plan is None else None
        snapshot = self.source.snapshot(self.consistency, after=after, previous=previous, counted=counted)
        if plan is not None:
            snapshot = keep_planned_columns(snapshot, plan, self.on_new_column)
        executors, read = self._probe(self.source.read_spec(snapshot))
        ordered = snapshot.consistency is Consistency.OFFSETS and self.mode is Mode.UPSERT
        check_deletes(read, ordered=ordered, mode=self.mode)
        if ordered:
            check_record_keys(snapshot, self.key, transformed=self.transform is not None)
        columns, place = read.columns, find_place(read.columns)
        if self.transform:
            columns = self.runner.describe(replace(read, marks_tombstones=ordered), self.transform)
            columns = take_marks(columns, place) if ordered else columns
        catches_up = snapshot.consistency is Consistency.CATCH_UP
        parts = count_parts(snapshot)
        records = Log.PARTS if parts > 1 else Log.RECORDS
        log = Log.CHANGES if catches_up else records if ordered else None
        write = self.sink.fit(columns, mode=self.mode, key=self.key or snapshot.key, log=log)
        if parts > 1:
            check_parts(write, ordered=ordered, transformed=self.transform is not None)
        if ordered:
            write = order_by_log(write, place)
        if self.mode is Mode.UPSERT:
            check_key(snapshot, columns, write, increments=self.source.increments)
        if self.mode is Mode.MIRROR:
            check_mirrored(snapshot, columns, write, self.sink, place=read.place)
        if catches_up:
            transformed = self.transform is not None
            check_replayable(snapshot, write, kind=read.kind, mode=self.mode, transformed=transformed)
        return Preview(
            snapshot=snapshot,
            read=read,
            write=write,
            path=choose_path(read, write, self.transform),
            range_rows=rows_per_range(self.budget, snapshot.row_bytes),
            executors=executors,
        )

    def register(self, *, run: str | None = None) -> Hydration:
        """Return the hydration of source and sink, made where it is missing; ``LedgerRefused`` for a second owner.

        ``run``: takes it for itself where nobody has it.
        """
        return self.ledger.register(
            environment=self.environment,
            source_identity=self.source.identity,
            sink_identity=self.sink.identity,
            owner=self.owner,
            cluster=self.cluster,
            credits=self.budget.credits,
            sink_server=server_of(self.sink.identity),
            connections=self.budget.sink_connections,
            hydration_id=self._had(),
            run=run,
        )

    def _previous(self) -> Window | None:
        """Return the window of the plan whose place a new one takes: the ledger's, or the one that holds the target.

        The latter is another hydration's where the source was declared with other columns or by another address.
        """
        if not self.source.increments:
            return None
        names = {"source_identity": self.source.identity, "sink_identity": self.sink.identity}
        known = self.ledger.find(environment=self.environment, **names)
        plan = known.plan if known is not None else None
        if plan is None and (row := self.sink.held()) is not None:
            plan = row.plan
        return plan.read.window if plan is not None else None

    def _had(self) -> str | None:
        """Return the id that the target's hydration had in a ledger that was lost: its place in the log bears it."""
        if self.consistency is not Consistency.CATCH_UP:
            return None
        names = {"source_identity": self.source.identity, "sink_identity": self.sink.identity}
        if self.ledger.find(environment=self.environment, **names) is not None:
            return None
        row = self.sink.held()
        plan = row.plan if row is not None and row.source_identity == self.source.identity else None
        return plan.hydration_id if plan is not None and plan.environment == self.environment else None

    def _probe(self, read: ReadSpec) -> tuple[ExecutorEnvironment, ReadSpec]:
        found = self.probes.find(self.runner, sorted({*NEEDED_MODULES, *self.source.modules, *self.sink.modules}))
        check_modules(found, self.cluster, read.substitutes)
        return found, replace(read, substitutes=find_substitutes(found, read, self.cluster))
