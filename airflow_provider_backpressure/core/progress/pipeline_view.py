"""The pipe that rows pass: source, gate, reading, transform, sink, each with its figures. Pure text; others draw it."""

from dataclasses import dataclass

from airflow_provider_backpressure.core.health_signal_declarations import size
from airflow_provider_backpressure.core.progress.source_position import Unit
from airflow_provider_backpressure.core.progress.summary import HydrationSummary
from airflow_provider_backpressure.core.stage_metrics import Stage, StageTime, State, unify_stages

SHORT = {Unit.TRANSACTIONS.value: "tx"}
"""Units whose names are too long for a part."""
EXACT_BELOW = 10_000
STEPS = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of the pipe."""

    name: str
    figure: str
    note: str
    spent: StageTime | None = None
    """What its stage did in the last minute; ``None`` where that is not known."""
    bottleneck: bool = False


@dataclass(frozen=True, kw_only=True)
class Pipe:
    """The pipe of one hydration, in the order in which rows pass it."""

    source: Part
    gate: Part
    read: Part
    """With the transform in one, except in figures of an earlier release."""
    transform: Part | None = None
    """``None`` where rows stay as they are read."""
    sink: Part

    @property
    def parts(self) -> tuple[Part, ...]:
        """All of them."""
        between = (self.read, self.transform) if self.transform else (self.read,)
        return (self.source, self.gate, *between, self.sink)

    @property
    def bottleneck(self) -> Part | None:
        """The one that holds the others up."""
        return next((part for part in self.parts if part.bottleneck), None)


def pipe(now: HydrationSummary) -> Pipe:
    """Return the pipe; unknown figures are called so, never 0."""
    read, *others = (_describe_work(now, name, stage) for name, stage in _apart(now).items())
    return Pipe(
        source=_source(now), gate=_gate(now), read=read, transform=others[0] if others else None, sink=_sink(now)
    )


def compact(number: float) -> str:
    """Return a number in few characters: ``9,999``, ``12.3k``, ``4.5M``."""
    if abs(number) < EXACT_BELOW:
        return f"{number:,.0f}" if number == 0 or abs(number) >= 10 else f"{number:.1f}"
    factor, letter = next(step for step in STEPS if abs(number) >= step[0])
    return f"{number / factor:.1f}{letter}"


def amount(number: float, unit: str) -> str:
    """Return a number of units in few characters: ``12.3k rows``, ``3.0 MiB``."""
    return size(number) if unit == Unit.BYTES.value else f"{compact(number)} {SHORT.get(unit, unit)}"


def _source(now: HydrationSummary) -> Part:
    course = now.course
    if course is None:
        return Part(name="source", figure="rate unknown", note="lag unknown")
    if not course.latest.follows:
        # What the source makes meanwhile is not brought, so its rate means nothing.
        return Part(name="source", figure="a snapshot", note="")
    unit, rate = course.latest.unit.value, course.upstream_rate
    return Part(
        name="source",
        figure="rate unknown" if rate is None else f"{amount(rate, unit)}/s",
        note="lag unknown" if course.lag is None else f"lag {_lag(course.lag, unit)}",
    )


def _lag(lag: int, unit: str) -> str:
    return size(lag) if unit == Unit.BYTES.value else compact(lag) if lag else "0"


def _gate(now: HydrationSummary) -> Part:
    return Part(
        name="gate",
        figure=f"{now.in_flight} of {now.credits}",
        note="at rest" if not now.moving else "closed" if now.reasons else "open",
        spent=_spent(now, Stage.ADMIT),
        bottleneck=now.bottleneck is Stage.ADMIT,
    )


def _apart(now: HydrationSummary) -> dict[str, Stage]:
    """Return the stages between gate and sink by name: both in one, or apart where an earlier release measured so."""
    plan = now.hydration.plan
    if plan is None or plan.transform is None:
        return {Stage.READ.value: Stage.READ}
    told = unify_stages(now.flow) if now.moving else {}
    if Stage.TRANSFORM in told:
        return {Stage.READ.value: Stage.READ, Stage.TRANSFORM.value: Stage.TRANSFORM}
    if Stage.READ in told:
        # A release before that one has recorded both under this name.
        return {Stage.READ_AND_TRANSFORM.value: Stage.READ}
    return {Stage.READ_AND_TRANSFORM.value: Stage.READ_AND_TRANSFORM}


def _describe_work(now: HydrationSummary, name: str, stage: Stage) -> Part:
    spent = _spent(now, stage)
    return Part(
        name=name,
        figure=_share(spent, State.BUSY, "busy") or _rest(now, "not known yet"),
        note=_share(spent, State.BACKPRESSURED, "held back"),
        spent=spent,
        bottleneck=now.bottleneck is stage,
    )


def _sink(now: HydrationSummary) -> Part:
    spent = _spent(now, Stage.SINK)
    speed = now.speed if now.moving else None
    return Part(
        name="sink",
        figure=_rest(now, "rate unknown") if speed is None else f"{amount(speed, now.unit)}/s",
        note=_share(spent, State.BUSY, "busy"),
        spent=spent,
        bottleneck=now.bottleneck is Stage.SINK,
    )


def _spent(now: HydrationSummary, stage: Stage) -> StageTime | None:
    spent = now.flow.get(stage) if now.moving else None
    return spent if spent is not None and spent.seconds else None


def _share(spent: StageTime | None, state: State, name: str) -> str:
    return f"{spent.share(state):.0%} {name}" if spent else ""


def _rest(now: HydrationSummary, otherwise: str) -> str:
    return otherwise if now.moving else "at rest"
