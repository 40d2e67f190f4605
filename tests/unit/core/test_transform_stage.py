"""F4: what the transform does, by both of its ends: the times add up, and the slowest of three in a row is named."""

import itertools
import random
from dataclasses import dataclass, field

import pytest

from airflow_provider_backpressure.core.stage_metrics import (
    AT_ONCE,
    Ahead,
    Flow,
    Stage,
    StageTime,
    State,
    TransformClock,
    bottleneck,
)

pytestmark = pytest.mark.statement("F4")

WAITING = StageTime(backpressured=1)
"""A gate with ranges behind it."""


@dataclass
class Reader:
    """What a reader did: stretches of time with a state, in their order."""

    stretches: list[tuple[float, float, State]] = field(default_factory=list)

    def ahead(self, at: float) -> Ahead:
        """What of it was seen at a moment."""
        seen = [(start, min(end, at), state) for start, end, state in self.stretches if start <= at]
        spent = {state: sum(end - start for start, end, what in seen if what is state) for state in State}
        blocked, undecided = 0.0, 0.0
        for (start, end, state), after in itertools.zip_longest(seen, seen[1:]):
            waited = after[1] - after[0] if after is not None and after[2] is State.BACKPRESSURED else 0.0
            first = start == seen[0][0]
            if state is State.BUSY and not first and waited > AT_ONCE * (end - start):
                blocked += end - start
            elif state is State.BUSY and not first and (after is None or after[1] == at):
                undecided += end - start
        last = next(((start, end, state) for start, end, state in self.stretches if start <= at < end), None)
        return Ahead(
            busy=spent[State.BUSY],
            held=spent[State.BACKPRESSURED],
            begun=seen[0][0] if seen else None,
            busy_since=last[0] if last is not None and last[2] is State.BUSY else None,
            blocked=blocked,
            open=undecided,
        )


@dataclass
class Hand:
    """A clock that is moved by hand, and a reader by the same clock."""

    reader: Reader
    now: float = 0.0

    def between(self) -> TransformClock:
        """The clocks to be tried."""
        return TransformClock(look=self.reader.ahead, clock=lambda: self.now)


@dataclass(frozen=True, kw_only=True)
class Line:
    """Reader, transform and sink in a row, each with its seconds for a batch, and room for some between two."""

    read: float
    transform: float
    sink: float
    batches: int = 60
    room: int = 3
    handing: float = 0.0005
    """Seconds until a batch that is there is in the sink's hands."""

    def run(self) -> tuple[Flow, StageTime]:
        """What is told of reader and transform, with the sink; and what the transform really did."""
        reader = Reader()
        took, gave, got, asked = ([0.0] * self.batches for _ in range(4))
        free = transform_free = sink_free = held = 0.0
        for number in range(self.batches):
            made = free + self.read
            free = max(made, took[number - self.room] if number >= self.room else 0.0)
            reader.stretches += [(made - self.read, made, State.BUSY), (made, free, State.BACKPRESSURED)]
            took[number] = max(transform_free, free)
            done = took[number] + self.transform
            transform_free = max(done, got[number - self.room] if number >= self.room else 0.0)
            gave[number], held = transform_free, held + transform_free - done
            asked[number] = sink_free
            got[number] = max(sink_free, transform_free) + self.handing
            sink_free = got[number] + self.sink
        hand = Hand(reader)
        between = hand.between()
        between.start_end()
        for number in range(self.batches):
            hand.now = asked[number]
            between.start_read()
            hand.now = got[number]
            between.start_write()
        hand.now = sink_free
        between.start_read()
        between.start_end()
        busy = self.sink * self.batches
        told = {**between.take(), Stage.SINK: StageTime(busy=busy, idle=sink_free - busy)}
        worked = self.transform * self.batches
        return told, StageTime(busy=worked, backpressured=held, idle=sink_free - worked - held)


def test_the_three_add_up_whatever_happens():
    """F4: 1,000 ms a second for each stage, over any course, also of readers that are seen late or overlap."""
    for seed in range(300):
        adds_up(seed)


def adds_up(seed: int) -> None:
    """Try one course."""
    dice = random.Random(seed)
    reader, at = Reader(), dice.choice([-1.0, 0.0, 2.0])
    for _ in range(dice.randrange(12)):
        length, state = dice.expovariate(2), dice.choice(list(State))
        if state is not State.IDLE:
            reader.stretches.append((at, at + length * dice.choice([1, 1, 1, 2]), state))
        at += length
    hand = Hand(reader)
    between = hand.between()
    between.start_end()
    for _ in range(dice.randrange(20)):
        hand.now += dice.expovariate(3)
        between.start_read()
        hand.now += dice.expovariate(3)
        between.start_write()
    if dice.random() < 0.8:
        hand.now += dice.random()
        between.start_read()
        hand.now += dice.random()
        between.start_end()
    hand.now += dice.random()
    told = between.take()
    assert set(told) == {Stage.READ, Stage.TRANSFORM}
    for spent in told.values():
        assert spent.seconds == pytest.approx(hand.now), seed
        assert min(spent.busy, spent.idle, spent.backpressured) > -1e-9, seed
    assert told[Stage.READ].busy <= hand.reader.ahead(hand.now).busy + 1e-9


@pytest.mark.statement("F6")
@pytest.mark.parametrize("slowest", [Stage.READ, Stage.TRANSFORM, Stage.SINK])
def test_the_slowest_in_a_row_is_the_bottleneck(slowest: Stage):
    """F6: with any room between them, and the others up to three quarters as slow."""
    for seed in range(20):
        dice = random.Random(seed)
        seconds = {stage.value: dice.uniform(0.005, 0.075) for stage in (Stage.READ, Stage.TRANSFORM, Stage.SINK)}
        line = Line(**{**seconds, slowest.value: 0.1}, room=dice.choice([1, 2, 5]))
        told, _ = line.run()
        assert bottleneck({Stage.ADMIT: WAITING, **told}) is slowest, (line, told)


@pytest.mark.parametrize(
    ("line", "state"),
    [
        (Line(read=0.01, transform=0.1, sink=0.01), State.BUSY),
        (Line(read=0.01, transform=0.01, sink=0.1), State.BACKPRESSURED),
        (Line(read=0.1, transform=0.01, sink=0.01), State.IDLE),
        (Line(read=0.07, transform=0.1, sink=0.02), State.BUSY),
    ],
)
def test_a_transform_is_told_as_it_is(line: Line, state: State):
    """F4: slow, before a slow sink, behind a slow source; and where the reader is nearly as slow as it is."""
    told, real = line.run()
    spent = told[Stage.TRANSFORM]
    assert max(State, key=spent.share) is max(State, key=real.share) is state
    assert spent.share(state) > 0.5


def test_a_small_range_that_is_read_at_once_waits_for_its_transform():
    """Its rows fit into the room between the two: the reader has ended, and nothing holds it back."""
    told, _ = Line(read=0.001, transform=0.1, sink=0.001, batches=10, room=100).run()
    assert told[Stage.READ].share(State.IDLE) > 0.95
    assert told[Stage.TRANSFORM].share(State.BUSY) > 0.95


def test_a_range_that_is_there_already_asks_for_no_row():
    """A marker of an earlier attempt: reader and transform have filled what room there is."""
    hand = Hand(Reader([(1.0, 2.0, State.BUSY), (2.0, 60.0, State.BACKPRESSURED)]))
    between = hand.between()
    between.start_end()
    hand.now = 10.0
    told = between.take()
    assert told[Stage.READ] == StageTime(idle=1.0, busy=1.0, backpressured=8.0)
    assert told[Stage.TRANSFORM] == StageTime(idle=2.0, backpressured=8.0)


def test_a_reader_at_work_for_a_writer_that_never_asks_shows_nothing_of_the_transform():
    """Nothing came out, so nothing is known to be in it."""
    hand = Hand(Reader([(1.0, 60.0, State.BUSY)]))
    between = hand.between()
    between.start_end()
    hand.now = 10.0
    told = between.take()
    assert told[Stage.READ] == StageTime(idle=1.0, busy=9.0)
    assert told[Stage.TRANSFORM] == StageTime(idle=10.0)
