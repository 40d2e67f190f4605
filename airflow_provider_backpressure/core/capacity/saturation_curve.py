"""Performance boundaries: what steps of a probe measured, the knee over them, and what holds rows up there. Pure.

With W ranges in flight at R rows a second, a row is in flight for W / R seconds. Where twice the credits bring no more
rows, each row takes twice the time; which part of its way has grown says what is the bound.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import Any

from airflow_provider_backpressure.core.snapshot.ranges import RangeRecord
from airflow_provider_backpressure.core.stage_metrics import Flow, Stage, StageTime, State, flow_of, times_of

LEAST_RISE = 0.05
"""Credits that bring less than this are not worth having."""
NOISE = 0.03
"""By how much either of two figures may be wrong."""
COUNTS = max(1 + LEAST_RISE, (1 + NOISE) / (1 - NOISE))
"""A rise up to this factor is none: noise alone could show it."""
SCRATCH = re.compile(r'_probe_([0-9a-f]{8})"?$')
"""How the name of a target ends that a probe has made, see :func:`format_suffix`."""
MEMORY = ("predicted memory", "executor memory")
"""The gate's signals that hold ranges back for want of executor memory."""
FILLED = 0.75
"""Below this share of the credits in flight, the gate held back what they would have let through."""


class Bound(StrEnum):
    """What keeps a step from more rows a second."""

    CREDITS = "credits"
    """The next credits brought more."""
    SINK = "sink"
    SOURCE = "source"
    SOURCE_OR_TRANSFORM = "source or transform"
    """Both are timed as one stage."""
    TRANSFORM = "transform"
    """The executors' processors: only in curves of earlier releases, which timed the transform by itself."""
    SLOTS = "slots"
    """Ranges waited for a free slot of the cluster."""
    DRIVER = "driver"
    """Ranges waited, and not for a slot: what each of them costs beside its rows."""
    MEMORY = "memory"
    GATE = "gate"
    """Another of the gate's signals."""
    UNKNOWN = "unknown"
    """The runner reports no times, or ranges of another size brought more."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """What was measured with so many credits and ranges of this size."""

    credits: int
    range_rows: int
    rows: int
    """Rows that were counted."""
    seconds: float
    """Time in which they came in."""
    in_flight: float
    """Ranges in flight meanwhile, on average."""
    flow: Flow = field(default_factory=dict)
    """What reader, transform and sink did over ``flow_rows``."""
    flow_rows: int = 0
    slots: int | None = None
    """Tasks that the cluster runs at once; ``None`` where it does not say."""
    held: str | None = None
    """The signal by which the gate refused most, if it did."""

    @property
    def rate(self) -> float:
        """Rows a second."""
        return self.rows / self.seconds

    @property
    def held_back(self) -> bool:
        """Whether the gate kept fewer ranges in flight than there are credits."""
        return self.held is not None and self.in_flight < FILLED * self.credits

    @property
    def way(self) -> tuple[float, float, float, float] | None:
        """Seconds that a row spends with reader, transform and sink, and waiting; ``None`` where no times are reported.

        Where reader and transform are measured together, both are the reader's.
        """
        stages = (Stage.READ, Stage.READ_AND_TRANSFORM, Stage.TRANSFORM, Stage.SINK)
        read, both, transform, sink = (self.flow.get(stage, StageTime()) for stage in stages)
        read += both
        if not self.flow_rows or not (read.seconds or sink.seconds):
            return None
        worked = max(read.seconds, sink.seconds) / self.flow_rows
        busy = (spent.busy / self.flow_rows for spent in (read, transform, sink))
        return (*busy, max(0.0, self.in_flight / self.rate - worked))  # type: ignore[return-value]

    @property
    def sink_idle(self) -> float:
        """Share of its time that the sink had nothing to do, in the tasks that ran."""
        return self.flow.get(Stage.SINK, StageTime()).share(State.IDLE)


def measure_step(
    records: Sequence[RangeRecord], *, credits: int, range_rows: int, flow: Flow, slots: int | None, held: str | None
) -> Step | None:
    """Return the step that these committed ranges make; ``None`` where they are too few.

    Not counted are the first ranges, one for each credit, in which workers start, and those that were committed after
    the last one was admitted: fewer and fewer are in flight then.
    """
    passed = sorted(
        (record.committed_at, record.admitted_at, record.rows or 0)
        for record in records
        if record.committed_at is not None and record.admitted_at is not None
    )
    if len(passed) <= credits:
        return None
    begin, last = passed[credits - 1][0], max(admitted for _, admitted, _ in passed)
    counted = [one for one in passed[credits:] if one[0] <= last] or passed[credits:]
    end = counted[-1][0]
    seconds = (end - begin).total_seconds()
    rows = sum(rows for _, _, rows in counted)
    if seconds <= 0 or not rows:
        return None
    flight = sum(
        max(0.0, (min(end, committed) - max(begin, admitted)).total_seconds()) for committed, admitted, _ in passed
    )
    return Step(
        credits=credits,
        range_rows=range_rows,
        rows=rows,
        seconds=seconds,
        in_flight=flight / seconds,
        flow=flow,
        flow_rows=sum(rows for _, _, rows in passed),
        slots=slots,
        held=held,
    )


def format_suffix(digits: str) -> str:
    """Return what a probe's target bears behind the name of the real one."""
    return f"_probe_{digits}"


def rose(before: Step, after: Step) -> bool:
    """Whether the rows a second rose by as much as counts, and by more than noise could show."""
    return round(after.rate / before.rate, 4) > round(COUNTS, 4)


def ladder(most: int, measure: Callable[[int], Step | None]) -> list[Step]:
    """Measure 1, 2, 4, 8 … credits up to ``most``, until a step brings nothing or cannot be measured."""
    steps: list[Step] = []
    credits = 1
    while credits <= most:
        step = measure(credits)
        if step is None:
            break
        steps.append(step)
        if len(steps) > 1 and not rose(steps[-2], steps[-1]):
            break
        credits *= 2
    return steps


def bound(step: Step, than: Step) -> Bound:
    """Return what bounds a step that brought no more than another one, or less: where its rows spend more time."""
    if step.held_back:
        return Bound.MEMORY if step.held in MEMORY else Bound.GATE
    way, before = step.way, than.way
    if way is None or before is None:
        return Bound.UNKNOWN
    crowded = step.slots is None or step.in_flight > step.slots
    first = Bound.SOURCE_OR_TRANSFORM if Stage.READ_AND_TRANSFORM in step.flow else Bound.SOURCE
    parts = (first, Bound.TRANSFORM, Bound.SINK, Bound.SLOTS if crowded else Bound.DRIVER)
    return max(zip(way, before, parts, strict=True), key=lambda part: part[0] - part[1])[2]


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A probe's steps and what they say. At least one step over credits."""

    at: str
    """When it began, as ISO 8601."""
    configured: int
    """Credits that the hydration might take then."""
    steps: tuple[Step, ...]
    """Over credits, with one size of ranges; the last one brought nothing, unless the most was reached before."""
    sizes: tuple[Step, ...] = ()
    """Over sizes of ranges, at the knee."""

    @property
    def flat(self) -> bool:
        """Whether the last credits brought nothing: the knee was found."""
        return len(self.steps) > 1 and not rose(self.steps[-2], self.steps[-1])

    @property
    def knee(self) -> Step:
        """The fewest credits of which more bring nothing; the most that were tried where each brought more."""
        return self.steps[-2] if self.flat else self.steps[-1]

    @property
    def bound(self) -> Bound:
        """What keeps the knee from more."""
        if self.flat:
            return bound(self.steps[-1], self.knee)
        return Bound.CREDITS if not self.knee.held_back else bound(self.knee, self.knee)

    def bounds(self) -> tuple[Bound, ...]:
        """Return what bounded each step, over credits and then over sizes."""
        over_credits = [
            Bound.CREDITS if rose(before, after) and not before.held_back else self.bound
            for before, after in pairwise(self.steps)
        ]
        over_sizes = [self._bound_of_size(step) for step in self.sizes]
        return (*over_credits, self.bound, *over_sizes)

    def _bound_of_size(self, step: Step) -> Bound:
        if rose(self.knee, step):
            return Bound.UNKNOWN
        return bound(step, self.knee) if rose(step, self.knee) else self.bound

    def verdict(self) -> str:
        """Return the sentences for a person: the credits, the bound, the size of ranges."""
        return " ".join(filter(None, (self._credits(), self._bound(), self._size())))

    def _credits(self) -> str:
        knee, now = self.knee.credits, self.configured
        if not self.flat:
            return f"No knee up to {knee} credits: each doubling brought {LEAST_RISE:.0%} or more." * (knee > 1)
        if knee < now:
            return f"{now} credits can be scaled down to {knee}: more bring less than {LEAST_RISE:.0%}."
        if knee > now:
            return f"{now} credits can be raised to {knee}: more than these bring less than {LEAST_RISE:.0%}."
        return f"{now} credits are right: more bring less than {LEAST_RISE:.0%}."

    def _bound(self) -> str:
        step = self.steps[-1]
        match self.bound:
            case Bound.SINK | Bound.SOURCE as side:
                return f"More executors will not help: the {side} is the bound."
            case Bound.SOURCE_OR_TRANSFORM:
                return (
                    "Source or transform is the bound: if it is the transform, more processors for the executors, or a "
                    "cheaper transform, would help."
                )
            case Bound.TRANSFORM:
                return (
                    "The transform is the bound: more processors for the executors, or a cheaper transform, would help."
                )
            case Bound.SLOTS:
                return f"More executors would help: every slot was busy and the sink was idle {step.sink_idle:.0%}."
            case Bound.DRIVER:
                return (
                    "More executors will not help: what a range costs beside its rows is the bound; make them larger."
                )
            case Bound.MEMORY:
                return (
                    f"Executor memory is the bound: {step.in_flight:.1f} ranges fitted; give executors more, or make "
                    "ranges smaller."
                )
            case Bound.GATE:
                return f"The gate is the bound: {step.held} held ranges back at {step.in_flight:.1f} in flight."
            case Bound.UNKNOWN:
                return "What bounds it is unknown: the runner reports no times of source and sink."
        return "More credits may bring more: try a higher --most."

    def _size(self) -> str:
        if not self.sizes:
            return ""
        best = max(self.sizes, key=lambda step: step.rate)
        if rose(self.knee, best):
            gain = best.rate / self.knee.rate - 1
            return f"Ranges of {best.range_rows:,} rows instead of {self.knee.range_rows:,} bring {gain:.0%} more."
        return f"Other sizes than {self.knee.range_rows:,} rows a range bring less than {LEAST_RISE:.0%} more."

    def to_json(self) -> str:
        """Return it as JSON."""
        steps, sizes = (
            [{**asdict(step), "flow": times_of(step.flow)} for step in of] for of in (self.steps, self.sizes)
        )
        return json.dumps({"at": self.at, "configured": self.configured, "steps": steps, "sizes": sizes})

    @classmethod
    def from_json(cls, text: str) -> "Curve":
        """Read what :meth:`to_json` wrote."""
        value = json.loads(text)
        return cls(
            at=value["at"],
            configured=value["configured"],
            steps=tuple(_step(one) for one in value["steps"]),
            sizes=tuple(_step(one) for one in value["sizes"]),
        )


def _step(value: Mapping[str, Any]) -> Step:
    return Step(**{**value, "flow": flow_of(value["flow"])})
