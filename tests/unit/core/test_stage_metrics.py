"""Flow accounting: clocks of stages, and what earlier releases wrote of them."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from airflow_provider_backpressure.core.snapshot.spark_messages import SliceResult
from airflow_provider_backpressure.core.stage_metrics import (
    Meter,
    Stage,
    StageClock,
    StageTime,
    State,
    flow_of,
    times_of,
    total,
)
from airflow_provider_backpressure.spark import reader_timings as meter


class Clock:
    """A clock that is moved by hand."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.statement("F4")
def test_a_clock_adds_up_to_the_time_that_has_gone_by():
    """F4: each state by itself, and together the whole second."""
    clock = Clock()
    stage = StageClock(clock=clock)
    for state, seconds in ((State.BUSY, 0.3), (State.BACKPRESSURED, 0.6), (State.BUSY, 0.05), (State.IDLE, 0.05)):
        stage.to(state)
        clock.now += seconds
    spent = stage.take()
    assert (spent.busy, spent.backpressured, spent.idle) == pytest.approx((0.35, 0.6, 0.05))
    assert spent.seconds == pytest.approx(1.0)
    clock.now += 2.0
    assert stage.take().idle == pytest.approx(2.0)
    assert stage.take() == StageTime()


def test_reader_and_writer_take_turns():
    clock = Clock()
    meter = Meter(read=StageClock(clock=clock), sink=StageClock(clock=clock))
    for turn, seconds in (
        (meter.start_end, 1.0),
        (meter.start_read, 2.0),
        (meter.start_write, 5.0),
        (meter.start_end, 1.0),
    ):
        turn()
        clock.now += seconds
    flow = meter.take()
    assert flow[Stage.READ] == StageTime(busy=2.0, idle=2.0, backpressured=5.0)
    assert flow[Stage.SINK] == StageTime(busy=7.0, idle=2.0)
    assert flow_of(times_of(flow)) == flow
    assert total(flow, flow)[Stage.SINK].busy == 14.0


@pytest.mark.statement("F4")
def test_a_source_that_is_slow_to_answer_is_the_one_at_work(monkeypatch: pytest.MonkeyPatch):
    """F4: it may sort for long before the first row; the target waits meanwhile."""
    clock = Clock()
    monkeypatch.setattr(
        meter, "Meter", lambda before: Meter(before=before, read=StageClock(clock=clock), sink=StageClock(clock=clock))
    )

    @contextmanager
    def slow() -> Iterator[str]:
        clock.now += 5.0
        yield "rows"

    def work() -> SliceResult:
        clock.now += 1.0
        with meter.time_open(slow()) as rows:
            clock.now += 0.5
            assert rows == "rows"
            for _ in meter.time_handovers(["block"]):
                clock.now += 2.0
        return SliceResult(slice_id="0.0", rows=1, bytes=1, checksum="")

    for result, before in (
        (meter.time_slice(work), Stage.READ),
        (meter.time_slice(work, Stage.READ_AND_TRANSFORM), Stage.READ_AND_TRANSFORM),
    ):
        flow = flow_of(result.times)
        assert set(flow) == {before, Stage.SINK}
        assert flow[before] == StageTime(busy=5.0, idle=1.5, backpressured=2.0)
        assert flow[Stage.SINK] == StageTime(busy=3.5, idle=5.0)


def test_what_earlier_releases_wrote_is_read():
    assert set(flow_of({"admit": (1, 2, 3), "read": (4, 5, 6), "sink": (7, 8, 9)})) == {
        Stage.ADMIT,
        Stage.READ,
        Stage.SINK,
    }
