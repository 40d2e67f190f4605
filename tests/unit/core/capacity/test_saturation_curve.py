"""T12: the knee, the bound and the verdict, over tables of steps as sources, sinks and clusters would give them."""

import itertools
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import pytest

from airflow_provider_backpressure.core.capacity.saturation_curve import Bound, Curve, Step, ladder, measure_step, rose
from airflow_provider_backpressure.core.snapshot.bounds import KeyBounds
from airflow_provider_backpressure.core.snapshot.ranges import RangeRecord, RangeState
from airflow_provider_backpressure.core.stage_metrics import Stage, StageTime

pytestmark = pytest.mark.statement("T12")

INFINITE = float("inf")


@dataclass(frozen=True, kw_only=True)
class Model:
    """A row takes a tenth of a millisecond to read and as long to write; what is shared gives so many rows a second."""

    source: float = INFINITE
    sink: float = INFINITE
    driver: float = INFINITE
    slots: int | None = 100
    transform: float = INFINITE
    """What the processors of all executors transform; a row of it takes as long as its reading."""
    fitting: int = 10_000
    """Ranges for which the executors have memory."""
    own: float = 1e-4

    def step(self, credits: int, noise: float = 1.0, rows: int = 100_000) -> Step:
        flying = min(credits, self.fitting)
        running = min(flying, self.slots or 10_000)
        limits = {
            "slots": running / (2 * self.own),
            "source": self.source,
            "sink": self.sink,
            "transform": self.transform,
            "driver": self.driver,
        }
        least = min(limits, key=limits.__getitem__)
        rate = limits[least] * noise
        # Who is the bound keeps the rows of every task that runs.
        worked = running / rate if least != "driver" else 2 * self.own
        read = worked - self.own if least == "source" else self.own
        sink = worked - self.own if least == "sink" else self.own
        turned = worked - self.own if least == "transform" else 0.0
        flow = {
            Stage.READ: StageTime(busy=read * rows, backpressured=(worked - read) * rows),
            Stage.TRANSFORM: StageTime(busy=turned * rows, idle=(worked - turned) * rows),
            Stage.SINK: StageTime(busy=sink * rows, idle=(worked - sink) * rows),
        }
        return Step(
            credits=credits,
            range_rows=1000,
            rows=rows,
            seconds=rows / rate,
            in_flight=flying,
            flow=flow,
            flow_rows=rows,
            slots=self.slots,
            held="predicted memory" if flying < credits else None,
        )

    def curve(self, *, most: int = 64, now: int = 8, noise: tuple[float, ...] = ()) -> Curve:
        noises = iter(noise)
        steps = ladder(most, lambda credits: self.step(credits, next(noises, 1.0)))
        return Curve(at="2026-01-01T00:00:00+00:00", configured=now, steps=tuple(steps))


@pytest.mark.parametrize(
    ("model", "knee", "bound", "sentence"),
    [
        (Model(sink=5_000), 1, Bound.SINK, "More executors will not help: the sink is the bound."),
        (Model(sink=20_000), 4, Bound.SINK, "More executors will not help: the sink is the bound."),
        (Model(source=10_000), 2, Bound.SOURCE, "More executors will not help: the source is the bound."),
        (
            Model(transform=10_000),
            2,
            Bound.TRANSFORM,
            "The transform is the bound: more processors for the executors, or a cheaper transform, would help.",
        ),
        (Model(slots=4), 4, Bound.SLOTS, "More executors would help: every slot was busy and the sink was idle 50%."),
        (Model(driver=10_000), 2, Bound.DRIVER, "what a range costs beside its rows is the bound"),
        (Model(fitting=2), 2, Bound.MEMORY, "Executor memory is the bound: 2.0 ranges fitted"),
    ],
)
def test_each_bound_is_told_and_the_knee_found(model: Model, knee: int, bound: Bound, sentence: str):
    """The ladder ends at the first step that brings nothing; the step before is the knee."""
    curve = model.curve()
    assert [step.credits for step in curve.steps] == [2**n for n in range(len(curve.steps))]
    assert (curve.knee.credits, curve.steps[-1].credits) == (knee, 2 * knee)
    assert curve.bound is bound
    assert sentence in curve.verdict()
    assert f"8 credits can be scaled down to {knee}: more bring less than 5%." in curve.verdict()
    assert curve.bounds() == (Bound.CREDITS,) * (len(curve.steps) - 2) + (bound, bound)


@pytest.mark.parametrize(
    ("model", "bound"),
    [
        (Model(transform=10_000), Bound.SOURCE_OR_TRANSFORM),
        (Model(source=10_000), Bound.SOURCE_OR_TRANSFORM),
        (Model(sink=20_000), Bound.SINK),
    ],
)
def test_a_source_is_not_blamed_for_its_transform(model: Model, bound: Bound):
    """Both are timed as one stage: busy while the sink is idle, held back while it is busy."""
    curve = model.curve()

    def together(step: Step) -> Step:
        sink = step.flow[Stage.SINK]
        both = StageTime(busy=sink.idle, backpressured=sink.busy)
        return replace(step, flow={Stage.READ_AND_TRANSFORM: both, Stage.SINK: sink})

    curve = replace(curve, steps=tuple(map(together, curve.steps)))
    assert curve.bound is bound
    assert ("Source or transform is the bound" in curve.verdict()) is (bound is Bound.SOURCE_OR_TRANSFORM)


@pytest.mark.parametrize("model", [Model(sink=5_000), Model(sink=20_000), Model(source=10_000), Model(slots=4)])
def test_noise_of_three_percent_moves_neither_knee_nor_bound(model: Model):
    """Whichever way each of the steps is wrong."""
    quiet = model.curve()
    for noise in itertools.product((0.97, 1.0, 1.03), repeat=len(quiet.steps)):
        curve = model.curve(noise=noise)
        assert (curve.knee.credits, curve.bound) == (quiet.knee.credits, quiet.bound), noise


def test_a_rise_below_five_percent_ends_the_ladder_and_a_clear_one_does_not():
    one = Model(sink=5_000).step(1)
    assert not rose(one, replace(one, seconds=one.seconds / 1.049))
    assert rose(one, replace(one, seconds=one.seconds / 1.07))
    rates = iter((100, 150, 157, 300))
    steps = ladder(64, lambda credits: replace(one, credits=credits, rows=next(rates), seconds=1.0))
    assert [step.credits for step in steps] == [1, 2, 4]


def test_what_is_configured_stands_beside_the_knee():
    assert "4 credits are right" in Model(sink=20_000).curve(now=4).verdict()
    assert "2 credits can be raised to 4" in Model(sink=20_000).curve(now=2).verdict()
    open_end = Model().curve(most=8)
    assert open_end.bound is Bound.CREDITS
    assert "No knee up to 8 credits: each doubling brought 5% or more." in open_end.verdict()
    assert "More credits may bring more" in open_end.verdict()


def test_without_times_nothing_is_claimed():
    curve = Model(sink=5_000).curve()
    mute = replace(curve, steps=tuple(replace(step, flow={}) for step in curve.steps))
    assert mute.bound is Bound.UNKNOWN
    assert "is unknown" in mute.verdict()


def test_the_gate_is_named_where_it_held_ranges_back():
    curve = Model(fitting=2).curve()
    held = replace(curve, steps=tuple(replace(step, held=step.held and "connections") for step in curve.steps))
    assert held.bound is Bound.GATE
    assert "connections held ranges back at 2.0 in flight" in held.verdict()


def test_the_size_of_ranges_is_told_where_it_matters():
    curve = Model(sink=20_000).curve()
    better = replace(curve.knee, range_rows=4000, seconds=curve.knee.seconds / 1.5)
    worse = replace(curve.knee, range_rows=250, seconds=curve.knee.seconds * 2, in_flight=4.0)
    told = replace(curve, sizes=(better, worse))
    assert "Ranges of 4,000 rows instead of 1,000 bring 50% more." in told.verdict()
    assert told.bounds()[-2:] == (Bound.UNKNOWN, Bound.DRIVER)
    assert "Other sizes than 1,000 rows a range bring less than 5% more." in replace(curve, sizes=(worse,)).verdict()


def test_a_curve_comes_back_as_it_was_kept():
    curve = replace(Model(sink=20_000).curve(), sizes=(Model().step(1),))
    assert Curve.from_json(curve.to_json()) == curve


def records(*times: tuple[float, float]) -> list[RangeRecord]:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    return [
        RangeRecord(
            hydration_id="h",
            plan_id="p",
            seq=seq,
            bounds=KeyBounds.of_column(column="id", start=None, end=None),
            state=RangeState.COMMITTED,
            planned_rows=10,
            planned_bytes=10,
            rows=10,
            admitted_at=start + timedelta(seconds=admitted),
            committed_at=start + timedelta(seconds=committed),
        )
        for seq, (admitted, committed) in enumerate(times)
    ]


def test_neither_beginning_nor_end_of_a_step_is_counted():
    """Two credits: the first two ranges start the workers; from the last admission on fewer are in flight."""
    found = records((0, 5), (0, 5), (5, 6), (5, 6), (6, 7), (6, 7), (7, 8), (7, 30))
    step = measure_step(found, credits=2, range_rows=10, flow={}, slots=2, held=None)
    assert step is not None
    assert (step.rows, step.seconds, step.rate, step.in_flight) == (40, 2.0, 20.0, 2.0)
    assert measure_step(found[:2], credits=2, range_rows=10, flow={}, slots=2, held=None) is None
