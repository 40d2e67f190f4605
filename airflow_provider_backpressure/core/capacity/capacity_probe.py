"""A probe: a sample of the real source into a target beside the real one, through the real gate, step by step."""

import logging
import random
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from airflow_provider_backpressure.core.admission.permits_and_reservations import Limiter
from airflow_provider_backpressure.core.capacity.saturation_curve import SCRATCH, Curve, Step, ladder, measure_step
from airflow_provider_backpressure.core.config import Budget, Consistency, Law, Mode
from airflow_provider_backpressure.core.default_limits import LEASE_SECONDS
from airflow_provider_backpressure.core.execution.lane_runner import Hydrator
from airflow_provider_backpressure.core.execution.lane_submission import LaneResult
from airflow_provider_backpressure.core.gate.hydration_record import Hydration, Permit, Refusal
from airflow_provider_backpressure.core.planning.plan_result import Planned
from airflow_provider_backpressure.core.planning.planner import Planner
from airflow_provider_backpressure.core.ports.sink import ScratchSink
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.core.snapshot.ranges import PlannedRange, RangeState
from airflow_provider_backpressure.exceptions import LedgerRefused

log = logging.getLogger(__name__)

OWNER = "airflow backpressure probe"
DIGITS = 8
"""At the end of a scratch target's name."""
MOST_RANGES = 1_000
"""Ranges in one step's sample."""
ROUNDS = 4
"""A step lets in so many ranges for each credit at least, be its time over or not."""
LONGEST = 6
"""Times its seconds that a step may take for that."""
SIZES = (1 / 4, 4)
UNBOUNDED = 2**62


@dataclass(kw_only=True)
class Timed(Limiter):
    """The gate of a step: once its time is over it lets nothing more in. Counts by which signals it refused."""

    seconds: float
    least: int
    refusals: Counter[str] = field(default_factory=Counter)
    _began: float | None = None
    _admitted: int = 0

    def acquire(
        self, *, lane: str, session_id: str, seq: int | None = None, lease_seconds: float = LEASE_SECONDS
    ) -> Permit | Refusal:
        now = self.clock.monotonic()
        self._began = now if self._began is None else self._began
        if self.last is not None and self._over(now - self._began):
            return Refusal(decision=self.last, exhausted=True)
        answer = super().acquire(lane=lane, session_id=session_id, seq=seq, lease_seconds=lease_seconds)
        if isinstance(answer, Permit):
            self._admitted += 1
        else:
            self.refusals.update(signal.name for signal in answer.decision.signals if signal.closed)
        return answer

    def _over(self, elapsed: float) -> bool:
        return elapsed >= self.seconds * (1 if self._admitted >= self.least else LONGEST)


def spread(ranges: Iterable[PlannedRange], *, most: int, seed: int) -> list[PlannedRange]:
    """Return a sample of the ranges in random order, renumbered: as many as there are, or ``most``."""
    chance, kept = random.Random(seed), list[PlannedRange]()
    for number, one in enumerate(ranges):
        if number < most:
            kept.append(one)
        elif (place := chance.randrange(number + 1)) < most:
            kept[place] = one
    chance.shuffle(kept)
    return [replace(one, seq=seq) for seq, one in enumerate(kept)]


@dataclass(frozen=True, kw_only=True)
class Prober:
    """Probes one hydration that has a plan, and changes nothing of it."""

    planner: Planner
    """Of the hydration itself."""
    hydration: Hydration
    plan: Plan
    seconds: float = 10.0
    """How long a step lasts."""
    rounds: int = ROUNDS
    """How many ranges it lets in for each credit at least."""
    sizes: Sequence[float] = SIZES
    """Sizes of ranges that are tried at the knee, as multiples of those planned."""
    tell: Callable[[str], None] = log.info
    """Called with each step as it ends."""

    def run(self, *, most: int | None = None, range_rows: int | None = None) -> Curve:
        """Measure over credits, then over sizes of ranges, and keep the curve in the ledger.

        ``most``: highest number of credits, by default two for each slot of the cluster. ``range_rows``: rows of a
        range, by default as in the plan. ``LedgerRefused`` while the hydration is under way, or another probe of it.
        """
        ledger = self.planner.ledger
        self._check()
        self.clear()
        at, rows = datetime.now(UTC), range_rows or self._rows()
        steps = ladder(self._most(most), lambda credits: self._measure(credits, rows))
        if not steps:
            raise LedgerRefused(
                f"{self.plan.source_identity} has too few ranges of {rows:,} rows to be measured: name a smaller "
                "--range-rows."
            )
        curve = Curve(at=at.isoformat(timespec="seconds"), configured=self.hydration.credits_max, steps=tuple(steps))
        tried = (self._measure(curve.knee.credits, max(1, int(rows * times))) for times in self.sizes)
        curve = replace(curve, sizes=tuple(step for step in tried if step is not None))
        ledger.keep_probe(self.hydration.id, curve.to_json())
        return curve

    def clear(self) -> None:
        """Remove what a probe of this target has left that was killed; ``LedgerRefused`` where one is under way."""
        ledger = self.planner.ledger
        for found in ledger.hydrations():
            name = SCRATCH.search(found.sink_identity) if found.owner == OWNER else None
            if name is None:
                continue
            with closing(self.planner.sink.scratch(name[1])) as sink:
                if sink.identity != found.sink_identity:
                    continue
                left = ledger.find_abandoned(found.id)
                if ledger.gate(found.id).in_flight > len(left):
                    raise LedgerRefused(
                        f"Another probe of {self.hydration.sink_identity} is under way, or was killed less than "
                        f"{LEASE_SECONDS:.0f} s ago: try again."
                    )
                for record in left:
                    if record.session_id and record.tag:
                        self.planner.runner.interrupt(record.session_id, record.tag)
                log.warning("%s is removed: the probe that made it was killed.", found.sink_identity)
                self._remove(found.id, sink)

    def _check(self) -> None:
        if self.planner.ledger.gate(self.hydration.id).in_flight:
            raise LedgerRefused(f"{self.hydration.sink_identity} is being hydrated: probe it when that is done.")
        if self.planner.source.identity != self.plan.source_identity:
            raise LedgerRefused(
                f"{self.plan.source_identity} is a part of a table, and the ledger does not know which rows: run "
                "its plan_snapshot task once."
            )
        if self.plan.consistency is Consistency.CATCH_UP:
            raise LedgerRefused(
                f"{self.plan.source_identity} keeps its log for a target that follows it: a probe would need another."
            )
        if self.plan.write.ordered:
            raise LedgerRefused(
                f"The ranges of {self.plan.source_identity} go in by the order of the log, which a sample of them "
                "would break, so it cannot be probed."
            )

    def _most(self, most: int | None) -> int:
        reading = self.planner.runner.memory()
        slots = reading.slots if reading is not None else None
        if not slots:
            return most or 2 * self.hydration.credits_max
        return min(most or 2 * slots, 2 * slots)

    def _rows(self) -> int:
        found = self.planner.ledger.ranges(self.plan.plan_id, limit=1)
        return self.hydration.range_rows_set or max((one.planned_rows for one in found), default=Budget.range_rows)

    def _measure(self, credits: int, rows: int) -> Step | None:
        """Copy a sample with so many credits and ranges of so many rows; ``None`` where there is too little of it."""
        ledger = self.planner.ledger
        with self._scratch(credits, rows) as (planned, planner):
            hydration_id = planned.hydration.id
            if planned.ranges <= credits:
                return None
            gate = Timed(
                ledger=ledger,
                hydration_id=hydration_id,
                budget=planner.budget,
                memory=planner.runner.memory,
                seconds=self.seconds,
                least=self.rounds * credits,
            )
            result = self._drain(planned, planner, gate)
            records = ledger.ranges(planned.plan.plan_id, states=[RangeState.COMMITTED])
            if not records:
                reasons = "; ".join(result.decision.reasons) if result.decision else "nothing was admitted"
                raise LedgerRefused(f"Nothing could be measured with {credits} credits: {reasons}.")
            held = Counter({name: times for name, times in gate.refusals.items() if name != "credits"}).most_common(1)
            step = measure_step(
                records,
                credits=credits,
                range_rows=rows,
                flow=ledger.flow(hydration_id, seconds=LONGEST * self.seconds + LEASE_SECONDS),
                slots=ledger.hydration(hydration_id).slots,
                held=held[0][0] if held else None,
            )
        if step is not None:
            self.tell(f"{credits} credits, ranges of {rows:,} rows: {step.rate:,.0f} rows/s")
        return step

    def _drain(self, planned: Planned, planner: Planner, gate: Timed) -> LaneResult:
        lane = Hydrator(
            hydration_id=planned.hydration.id,
            plan=planned.plan,
            lane=OWNER,
            ledger=planner.ledger,
            source=planner.source,
            sink=planner.sink,
            runner=planner.runner,
            limiter=gate,
            budget=planner.budget,
            share=planner.budget.credits,
        )
        try:
            return lane.run()
        except BaseException:
            # Also where a person interrupts: ranges in flight would continue to write.
            lane.cancel()
            raise

    @contextmanager
    def _scratch(self, credits: int, rows: int) -> Iterator[tuple[Planned, Planner]]:
        """Plan a sample into a target of its own, and remove it again whatever happens."""
        digits = uuid.uuid4().hex[:DIGITS]
        # Under ``replace`` rows go into a shadow, which has no indexes while they come.
        with closing(self.planner.sink.scratch(digits, indexes=self.plan.mode is not Mode.REPLACE)) as sink:
            planner = replace(
                self.planner,
                sink=sink,
                mode=Mode.UPSERT if self.plan.mode is Mode.UPSERT else Mode.APPEND,
                key=self.plan.write.key,
                transform=self.plan.transform,
                consistency=self.plan.consistency,
                owner=OWNER,
                budget=replace(
                    self.planner.budget,
                    credits=credits,
                    range_rows=rows,
                    range_bytes=UNBOUNDED,
                    range_seconds=float(UNBOUNDED),
                    law=Law.FIXED,
                    sink_connections=None,
                ),
                choose=lambda ranges: spread(ranges, most=MOST_RANGES, seed=credits),
            )
            hydration_id = planner.register().id
            try:
                yield planner.plan(), planner
            finally:
                self._remove(hydration_id, sink)

    def _remove(self, hydration_id: str, sink: ScratchSink) -> None:
        """Remove the target first: as long as the ledger knows of it, a later probe can."""
        ledger = self.planner.ledger
        plan = ledger.hydration(hydration_id).plan
        if plan is not None:
            sink.drop(plan.plan_id)
        for record in ledger.ranges(plan.plan_id, states=[RangeState.ADMITTED]) if plan is not None else ():
            ledger.release(record.plan_id, record.seq, attempt=record.attempt, error="the probe is over")
        ledger.forget(hydration_id)
