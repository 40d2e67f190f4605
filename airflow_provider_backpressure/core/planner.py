"""The planner: everything that is checked and written down before the first row moves."""

import uuid
from dataclasses import dataclass, replace
from enum import Enum

from airflow_provider_backpressure.core.config import Budget, Consistency, Mode
from airflow_provider_backpressure.core.hydration import Hydration
from airflow_provider_backpressure.core.messages import ReadSpec, Transform, WriteSpec
from airflow_provider_backpressure.core.offsets import PLACE, in_order
from airflow_provider_backpressure.core.paths import COPY, FRAME, copies
from airflow_provider_backpressure.core.phases import Phase
from airflow_provider_backpressure.core.ports import ExecutorEnvironment, Ledger, Runner, Sink, Source
from airflow_provider_backpressure.core.snapshot import Plan, Snapshot, fingerprint
from airflow_provider_backpressure.exceptions import (
    InvalidDeclaration,
    LedgerRefused,
    RunnerRefused,
    SinkRefused,
    SourceRefused,
)

ASSUMED_ROWS_PER_SECOND = 100_000.0
"""What one range is expected to move per second."""
NEEDED_MODULES = ("pyarrow", "xxhash")
"""What every task imports on the executors."""


class Verdict(Enum):
    """What a run of the DAG finds to do."""

    PLANNED = "planned"
    """A new plan was made."""
    RESUMED = "resumed"
    """The plan of an earlier run is not complete: its ranges go on."""
    UNCHANGED = "unchanged"
    """Everything is committed and the source has not moved: nothing to do."""
    MOVED = "moved"
    """Everything is committed but the source, declared static, holds another number of rows now."""


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A planner's answer."""

    verdict: Verdict
    hydration: Hydration
    plan: Plan
    ranges: int
    """Ranges of the plan, in all."""
    note: str = ""
    """One sentence for the log."""


@dataclass(frozen=True, kw_only=True)
class Preview:
    """What a plan would be, before anything is written."""

    snapshot: Snapshot
    write: WriteSpec
    path: str
    range_rows: int
    executors: ExecutorEnvironment


def rows_per_range(budget: Budget, row_bytes: float, rows_per_second: float = ASSUMED_ROWS_PER_SECOND) -> int:
    """Return the rows of one range: the tightest of the bounds in rows, bytes and expected seconds, at least one."""
    by_bytes = budget.range_bytes / max(row_bytes, 1.0)
    by_seconds = budget.range_seconds * rows_per_second
    return max(1, int(min(budget.range_rows, by_bytes, by_seconds)))


def choose_path(read: ReadSpec, write: WriteSpec, transform: Transform | None) -> str:
    """Return ``copy`` where rows may pass undecoded: same columns, identical types, no transform; else ``frame``."""
    same = [(each.name, each.type) for each in read.columns] == [(each.name, each.type) for each in write.columns]
    return COPY if same and transform is None and copies(read.kind, write.kind) else FRAME


def ordered(write: WriteSpec) -> WriteSpec:
    """Return what makes rows of a log go in by its order; ``SinkRefused`` where the target cannot keep it."""
    lacking = [name for name in PLACE if name not in [column.name for column in write.columns]]
    if lacking:
        raise SinkRefused(
            f"Rows of a log can only be upserted by its order, and {' and '.join(lacking)} of each record does not "
            "arrive: let the transform keep it."
        )
    if not write.frontier_table:
        raise SinkRefused(f"{write.fence} cannot be upserted from a log: a {write.kind} sink does not keep its order.")
    return replace(write, ordered=True)


def check_modules(found: ExecutorEnvironment, cluster: str) -> None:
    """Raise ``RunnerRefused`` where the executors lack a module that a task imports."""
    missing = [name for name in found.modules if found.modules[name] is None]
    if missing:
        raise RunnerRefused(
            f"The executors of {cluster} lack the Python package{'s' * (len(missing) > 1)} "
            f"{', '.join(missing)}: install on every executor what `pip install {' '.join(missing)}` brings."
        )


@dataclass(frozen=True, kw_only=True)
class Planner:
    """Plans one hydration. All checks come first and change nothing; then sink, then ledger are written."""

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
    environment: str = "default"
    owner: str
    cluster: str

    def preview(self, *, after: str | None = None) -> Preview:
        """Check source, executors and sink. Raises the ``Terminal`` error of the first that refuses.

        ``after``: of what lies above this value of the source's rising column.
        """
        self._check_mode()
        snapshot = self.source.snapshot(self.consistency, after=after)
        executors = self._probe()
        read = self.source.read_spec(snapshot)
        columns = self.runner.describe(read, self.transform) if self.transform else read.columns
        write = self.sink.fit(columns, mode=self.mode, key=self.key or snapshot.key)
        if snapshot.consistency is Consistency.OFFSETS and self.mode is Mode.UPSERT:
            write = ordered(write)
        return Preview(
            snapshot=snapshot,
            write=write,
            path=choose_path(read, write, self.transform),
            range_rows=rows_per_range(self.budget, snapshot.row_bytes),
            executors=executors,
        )

    def plan(self, *, restart: bool = False) -> Planned:
        """Plan anew, resume what is open, or find nothing to do. ``restart`` asks for a new plan in any case."""
        hydration = self.register()
        if hydration.plan is not None and not restart:
            return self._go_on(hydration, hydration.plan)
        return self._begin(hydration, self.preview())

    def register(self) -> Hydration:
        """Return the hydration of source and sink, made where it is missing; ``LedgerRefused`` for a second owner."""
        return self.ledger.register(
            environment=self.environment,
            source_identity=self.source.identity,
            sink_identity=self.sink.identity,
            owner=self.owner,
            cluster=self.cluster,
            credits=self.budget.credits,
        )

    def close(self, hydration: Hydration, plan: Plan) -> Planned:
        """Close a plan whose snapshot is gone, remove what it wrote as the mode demands, and plan anew."""
        return self._begin(hydration, self.preview(), clears=plan.plan_id)

    def _probe(self) -> ExecutorEnvironment:
        found = self.runner.probe(sorted({*NEEDED_MODULES, *self.source.modules, *self.sink.modules}))
        check_modules(found, self.cluster)
        return found

    def _check_mode(self) -> None:
        if self.mode is Mode.REPLACE and self.source.increments:
            raise InvalidDeclaration(
                "mode='replace' takes all rows anew each time, and this source brings what has come since: "
                "use append or upsert, or leave increment_column out where that is what asks for it."
            )

    def _begin(self, hydration: Hydration, preview: Preview, *, clears: str | None = None) -> Planned:
        """Plan anew: first in the ledger, then in the sink, so that a kill in between leaves a plan that can go on."""
        snapshot = preview.snapshot
        draft = Plan(
            plan_id=uuid.uuid4().hex,
            epoch=0,
            source_identity=self.source.identity,
            sink_identity=self.sink.identity,
            consistency=snapshot.consistency,
            mode=self.mode,
            frontier=dict(snapshot.frontier),
            fingerprint=fingerprint(snapshot.columns),
            total=snapshot.total,
            total_exact=snapshot.total_exact,
            path=preview.path,
            read=replace(self.source.read_spec(snapshot), keep_bad=self._keeps_bad(preview)),
            write=preview.write,
            transform=self.transform,
            clears=clears,
            position=snapshot.position,
        )
        self._check_empty(draft)
        cut = self.source.ranges(snapshot, rows=preview.range_rows, bytes=self.budget.range_bytes)
        ranges = self.ledger.save_plan(hydration.id, draft, in_order(cut) if draft.write.ordered else cut)
        plan = self.take_target(hydration, draft)
        return Planned(
            verdict=Verdict.PLANNED,
            hydration=self.ledger.hydration(hydration.id),
            plan=plan,
            ranges=ranges,
            note=f"{ranges} ranges of at most {preview.range_rows:,} rows by the {plan.path} path",
        )

    def _keeps_bad(self, preview: Preview) -> bool:
        """Whether records that cannot be taken apart go to the sink's quarantine; a transform would not know them."""
        log = preview.snapshot.consistency is Consistency.OFFSETS
        return log and preview.write.quarantine is not None and self.transform is None

    def take_target(self, hydration: Hydration, plan: Plan) -> Plan:
        """Return the plan with the epoch under which it holds the target; every older plan is refused from then on.

        For a plan that the ledger has and the sink does not know yet (its epoch is 0).
        """
        self.sink.prepare(plan.write)
        self._check_empty(plan)
        plan = replace(plan, epoch=self.sink.begin(plan, clear=plan.clears))
        # Until the fence stood, a late attempt of the plan before may have come in.
        self._check_empty(plan)
        self.ledger.take_over(hydration.id, plan)
        return plan

    def _check_empty(self, plan: Plan) -> None:
        fresh = plan.mode is Mode.APPEND and not plan.increment and (plan.epoch or plan.clears is None)
        if fresh and self.sink.holds_rows():
            raise SinkRefused(
                f"The target {plan.write.target} already holds rows, and a new plan in append mode would add to "
                f"them: use mode='replace', which puts the new rows in their place at once, or mode='upsert', or empty "
                "it first."
            )

    def _go_on(self, hydration: Hydration, plan: Plan) -> Planned:
        if not plan.epoch:
            plan = self.take_target(hydration, plan)
        counts = self.ledger.counts(plan.plan_id)
        complete = not counts.open and hydration.phase is Phase.STEADY_STATE
        if complete and self.source.increments:
            return self._increment(hydration, plan, counts.total)
        preview = self.preview()
        self._check_unchanged(plan, preview)
        total, exact = preview.snapshot.total, preview.snapshot.total_exact and plan.total_exact
        if not complete:
            verdict, note = Verdict.RESUMED, f"{counts.committed} of {counts.total} ranges are committed already"
        elif exact and total != sum(plan.frontier.values()):
            verdict, note = (
                Verdict.MOVED,
                (
                    f"{self.source.identity} holds {total} rows, the committed snapshot {plan.total}: "
                    'the source has moved; trigger the DAG with {"backpressure": "restart"} to read it again'
                ),
            )
        else:
            verdict, note = Verdict.UNCHANGED, "everything is committed and the number of rows has not changed"
        return Planned(verdict=verdict, hydration=hydration, plan=plan, ranges=counts.total, note=note)

    def _increment(self, hydration: Hydration, plan: Plan, ranges: int) -> Planned:
        """Plan what has come since the committed window, or find that nothing has."""
        after = plan.read.window.upto if plan.read.window else None
        preview = self.preview(after=after)
        self._check_unchanged(plan, preview)
        if preview.snapshot.window is None or preview.snapshot.total == 0:
            note = f"nothing has come above {_short(after)}" if after is not None else "the source is still empty"
            return Planned(verdict=Verdict.UNCHANGED, hydration=hydration, plan=plan, ranges=ranges, note=note)
        return self._begin(hydration, preview)

    def _check_unchanged(self, plan: Plan, preview: Preview) -> None:
        """Raise where plan, source and target are no longer those of each other."""
        if fingerprint(preview.snapshot.columns) != plan.fingerprint:
            raise SourceRefused(
                f"The columns of {self.source.identity} are not those of plan {plan.plan_id}: trigger the DAG with "
                '{"backpressure": "restart"} to plan anew.'
            )
        if self.sink.epoch(plan.plan_id) is None:
            raise LedgerRefused(
                f"The target {plan.write.fence} does not know plan {plan.plan_id}: the ledger or the target was "
                'restored or another plan took the target; trigger the DAG with {"backpressure": "restart"}.'
            )


def _short(text: str, width: int = 120) -> str:
    """Return the text for a sentence: a log's frontier has a number for each partition."""
    return text if len(text) <= width else f"{text[:width]}…"
