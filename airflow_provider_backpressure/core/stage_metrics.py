"""Flow accounting: for each stage of a range's way, how long it was busy, idle, or held back by the stage behind it.

A stage's clock is switched where it yields and where it takes: at the boundary between two stages. Each state is
clocked by itself, none is what is left of the others.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum


class Stage(StrEnum):
    """The stages, in the order in which rows pass them."""

    ADMIT = "admit"
    """The gate: ranges that wait for a permit."""
    READ = "read"
    """The source. In ledgers of earlier releases with the transform, where there is one."""
    READ_AND_TRANSFORM = "read+transform"
    """Both together, where they could not be separated: a shuffle lies between reader and writer."""
    TRANSFORM = "transform"
    """The user's transform, with Spark's own way to it and on to the target."""
    SINK = "sink"
    """The target, up to its commit."""


class State(StrEnum):
    """What a stage does at a moment."""

    BUSY = "busy"
    IDLE = "idle"
    """It has nothing to do: what is before it gives nothing."""
    BACKPRESSURED = "backpressured"
    """It has something, and what is behind it does not take it."""


class Level(StrEnum):
    """How much a stage is held back."""

    OK = "OK"
    LOW = "LOW"
    HIGH = "HIGH"


LOW_ABOVE, HIGH_ABOVE = 0.1, 0.5
"""Shares of time above which a stage counts as held back a little, and much."""


@dataclass(frozen=True, kw_only=True)
class StageTime:
    """Seconds that a stage has spent in each state, over all of its tasks."""

    busy: float = 0.0
    idle: float = 0.0
    backpressured: float = 0.0

    def __add__(self, other: "StageTime") -> "StageTime":
        """Return the sum."""
        return StageTime(
            busy=self.busy + other.busy,
            idle=self.idle + other.idle,
            backpressured=self.backpressured + other.backpressured,
        )

    def __sub__(self, other: "StageTime") -> "StageTime":
        """Return the difference to ``other``."""
        return StageTime(
            busy=self.busy - other.busy,
            idle=self.idle - other.idle,
            backpressured=self.backpressured - other.backpressured,
        )

    @property
    def seconds(self) -> float:
        """All of them."""
        return self.busy + self.idle + self.backpressured

    def share(self, state: State) -> float:
        """Return a state's share of the time, 0 to 1; 0 where there was none."""
        part: float = getattr(self, state.value)
        return part / self.seconds if self.seconds > 0 else 0.0

    @property
    def level(self) -> Level:
        """How much the stage is held back."""
        share = self.share(State.BACKPRESSURED)
        return Level.OK if share <= LOW_ABOVE else Level.LOW if share <= HIGH_ABOVE else Level.HIGH


Flow = Mapping[Stage, StageTime]
"""The time of each stage that is known."""


def total(*flows: Flow) -> dict[Stage, StageTime]:
    """Return the sum, stage by stage."""
    found: dict[Stage, StageTime] = {}
    for flow in flows:
        for stage, spent in flow.items():
            found[stage] = found.get(stage, StageTime()) + spent
    return found


def flow_of(times: Mapping[str, Sequence[float]]) -> dict[Stage, StageTime]:
    """Read what :func:`times_of` gave."""
    return {
        Stage(stage): StageTime(busy=busy, idle=idle, backpressured=held) for stage, (busy, idle, held) in times.items()
    }


def times_of(flow: Flow) -> dict[str, tuple[float, float, float]]:
    """Return the times as plain values: seconds busy, idle and held back by the name of the stage."""
    return {stage.value: (spent.busy, spent.idle, spent.backpressured) for stage, spent in flow.items()}


def unify_stages(flow: Flow) -> Flow:
    """Return the flow with reader and transform apart, or together where more time was measured so."""
    apart, both = (flow.get(stage, StageTime()).seconds for stage in (Stage.TRANSFORM, Stage.READ_AND_TRANSFORM))
    left_out = {Stage.READ, Stage.TRANSFORM} if both > apart else {Stage.READ_AND_TRANSFORM}
    return {stage: spent for stage, spent in flow.items() if stage not in left_out}


def bottleneck(flow: Flow) -> Stage | None:
    """Return the stage that holds the others up: busy most of its time, not held back, one before it held back.

    ``None`` where nothing is held up.
    """
    found, held_back = [], False
    flow = unify_stages(flow)
    for stage in Stage:
        own = flow.get(stage, StageTime())
        if held_back and own.level is Level.OK and own.share(State.BUSY) > own.share(State.IDLE):
            found.append(stage)
        held_back = held_back or own.level is not Level.OK
    return max(found, key=lambda stage: flow[stage].share(State.BUSY), default=None)


@dataclass(kw_only=True)
class StageClock:
    """Clocks one stage in one thread."""

    state: State = State.IDLE
    clock: Callable[[], float] = time.perf_counter
    _spent: dict[State, float] = field(default_factory=lambda: dict.fromkeys(State, 0.0))
    _since: float | None = None

    def to(self, state: State) -> None:
        """Enter a state, which ends the one before."""
        now = self.clock()
        if self._since is not None:
            self._spent[self.state] += now - self._since
        self.state, self._since = state, now

    def take(self) -> StageTime:
        """Return what was spent since the last time, and continue in the same state."""
        self.to(self.state)
        spent, self._spent = self._spent, dict.fromkeys(State, 0.0)
        return StageTime(**{state.value: seconds for state, seconds in spent.items()})


@dataclass(kw_only=True)
class Meter:
    """Clocks the reader and the writer of a slice, who take turns in one thread."""

    read: StageClock = field(default_factory=StageClock)
    sink: StageClock = field(default_factory=StageClock)

    def start_write(self) -> None:
        """The sink is at work, and the reader has to wait for it."""
        self.read.to(State.BACKPRESSURED)
        self.sink.to(State.BUSY)

    def start_read(self) -> None:
        """The reader is at work, and the sink waits for rows."""
        self.sink.to(State.IDLE)
        self.read.to(State.BUSY)

    def start_end(self) -> None:
        """Everything is read; the sink brings it to its end."""
        self.read.to(State.IDLE)
        self.sink.to(State.BUSY)

    def take(self) -> dict[Stage, StageTime]:
        """Return the times up to now."""
        return {Stage.READ: self.read.take(), Stage.SINK: self.sink.take()}


AT_ONCE = 0.25
"""Rows are taken, or given, at once where that takes no more than this share of the work before: a moment it takes."""


@dataclass(frozen=True, kw_only=True)
class Ahead:
    """What the reader has done up to a moment. Seconds, and moments by a clock that the writer shares."""

    busy: float = 0.0
    held: float = 0.0
    begun: float | None = None
    """When it began; ``None`` where it has not."""
    busy_since: float | None = None
    """Since when it reads; ``None`` where it is held back, has not begun, or has ended."""
    blocked: float = 0.0
    """How much of ``busy`` went into rows that were then not taken at once."""
    open: float = 0.0
    """How much of ``busy`` went into rows of which that is not known yet."""


@dataclass(frozen=True, kw_only=True)
class _Moment:
    at: float
    ahead: Ahead


def _spent() -> dict[State, float]:
    return dict.fromkeys(State, 0.0)


@dataclass(kw_only=True)
class TransformClock:
    """Clocks reader and transform of a range, in the writer's thread; it receives the writer's turns as a ``Meter`` is.

    ``look`` gives what the reader has done up to a moment of ``clock``.
    """

    look: Callable[[float], Ahead]
    clock: Callable[[], float] = time.monotonic
    _read: dict[State, float] = field(default_factory=_spent)
    _transform: dict[State, float] = field(default_factory=_spent)
    _unsettled: dict[State, float] = field(default_factory=_spent)
    """Of the transform's idle time what may turn out to be none, by what it is then."""
    _got: _Moment | None = None
    """When the writer began to work on what it has."""
    _asked: _Moment | None = None
    """When it asked for more; ``None`` while it works."""
    _over: bool = False

    def start_read(self) -> None:
        """The writer waits for rows."""
        self._asked = self._now()

    def start_write(self) -> None:
        """It has got some."""
        now = self._now()
        # What came out was yielded before the reader continued: since then the transform had it.
        self._turn(now, had_since=now.ahead.busy_since)

    def start_end(self) -> None:
        """It has not begun to ask, or there are no more rows."""
        now = self._now()
        if self._asked is not None:
            self._over = True
            self._turn(now)
        self._got = now

    def take(self) -> dict[Stage, StageTime]:
        """Return what reader and transform did from the first turn to now, each second once."""
        now = self._now()
        if self._over:
            spent = now.at - (self._got or now).at
            self._read[State.IDLE] += spent
            self._transform[State.IDLE] += spent
        else:
            self._turn(now)
        self._got = now
        return {
            stage: StageTime(**{state.value: seconds for state, seconds in spent.items()})
            for stage, spent in ((Stage.READ, self._read), (Stage.TRANSFORM, self._transform))
        }

    def _now(self) -> _Moment:
        at = self.clock()
        return _Moment(at=at, ahead=self.look(at))

    def _turn(self, got: _Moment, had_since: float | None = None) -> None:
        """Count from one time that the writer got rows to the next: work on the ones, and the wait for the others."""
        before = self._got or got
        asked = self._asked or got
        at_once = got.at - asked.at <= AT_ONCE * (asked.at - before.at)
        self._count(before, asked, had_since, State.BACKPRESSURED if at_once else State.BUSY)
        self._count(asked, got, had_since, State.BUSY)
        self._settle(before.ahead, got.ahead)
        self._got, self._asked = got, None

    def _count(self, start: _Moment, end: _Moment, had_since: float | None, having: State) -> None:
        """Count a stretch; ``having`` is what the transform does where it has something."""
        length = end.at - start.at
        busy = max(0.0, end.ahead.busy - start.ahead.busy)
        held = max(0.0, end.ahead.held - start.ahead.held)
        if busy + held > length:
            # A reader that is seen late has done some of it before, and of several at once there may be too much.
            busy, held = (part * length / (busy + held) for part in (busy, held))
        self._read[State.BUSY] += busy
        self._read[State.BACKPRESSURED] += held
        self._read[State.IDLE] += length - busy - held
        begun = end.at if end.ahead.begun is None else min(max(end.ahead.begun, start.at), end.at)
        if had_since is not None:
            busy = max(0.0, busy - max(0.0, end.at - max(start.at, had_since)))
        nothing = min(begun - start.at + busy, length)
        self._transform[State.IDLE] += nothing
        self._transform[having] += length - nothing
        self._unsettled[having] += min(busy, nothing)

    def _settle(self, before: Ahead, now: Ahead) -> None:
        """Take back idle time in which the reader worked on rows for which there was no room, as it shows later."""
        total = sum(self._unsettled.values())
        known = max(0.0, total - now.open)
        blocked = max(0.0, now.blocked - before.blocked)
        settled = max(0.0, (now.busy - now.open) - (before.busy - before.open))
        share = min(1.0, blocked / settled) if settled else 0.0
        for state, seconds in self._unsettled.items():
            part = seconds * known / total if total else 0.0
            self._unsettled[state] -= part
            self._transform[State.IDLE] -= part * share
            self._transform[state] += part * share
