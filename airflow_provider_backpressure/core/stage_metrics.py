"""Flow accounting: for each stage of a range's way, how long it was busy, idle, or held back by the stage behind it.

A stage's clock is switched where it yields and where it takes: at the boundary between two stages. Each state is
clocked by itself, none is what is left of the others.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum


class Stage(StrEnum):
    """The stages, in the order in which rows pass them."""

    ADMIT = "admit"
    """The gate: ranges that wait for a permit."""
    READ = "read"
    """The source, where there is no transform."""
    READ_AND_TRANSFORM = "read+transform"
    """The source and the user's transform: the writer waits for both alike, and only it can be timed."""
    TRANSFORM = "transform"
    """The transform alone: only in ledgers of earlier releases, which timed it by itself."""
    SINK = "sink"
    """The target, up to its commit."""
    MAINTENANCE = "maintenance"
    """The target behind some commits: its files are compacted, and old versions removed, under the same permit."""


class State(StrEnum):
    """What a stage does at a moment."""

    BUSY = "busy"
    IDLE = "idle"
    """It has nothing to do: what is before it gives nothing."""
    BACKPRESSURED = "backpressured"
    """It has something, and what is behind it does not take it."""


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
    """Return the flow with reader and transform apart, as an earlier release, or together if more time was."""
    apart, both = (flow.get(stage, StageTime()).seconds for stage in (Stage.TRANSFORM, Stage.READ_AND_TRANSFORM))
    left_out = {Stage.READ, Stage.TRANSFORM} if both > apart else {Stage.READ_AND_TRANSFORM}
    return {stage: spent for stage, spent in flow.items() if stage not in left_out}


@dataclass(kw_only=True)
class StageClock:
    """Clocks one stage in one thread; others may look."""

    state: State = State.IDLE
    clock: Callable[[], float] = time.perf_counter
    _spent: dict[State, float] = field(default_factory=lambda: dict.fromkeys(State, 0.0))
    _since: float | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def to(self, state: State) -> None:
        """Enter a state, which ends the one before."""
        with self._lock:
            now = self.clock()
            if self._since is not None:
                self._spent[self.state] += now - self._since
            self.state, self._since = state, now

    def peek(self) -> StageTime:
        """Return what was spent since the last time, for another thread: it never returns less than before."""
        with self._lock:
            spent = dict(self._spent)
            if self._since is not None:
                spent[self.state] += self.clock() - self._since
        return StageTime(**{state.value: seconds for state, seconds in spent.items()})

    def take(self) -> StageTime:
        """Return what was spent since the last time, and continue in the same state."""
        self.to(self.state)
        spent, self._spent = self._spent, dict.fromkeys(State, 0.0)
        return StageTime(**{state.value: seconds for state, seconds in spent.items()})


@dataclass(kw_only=True)
class Meter:
    """Clocks a slice in the writer's thread: the rows before it and the writer take turns."""

    before: Stage = Stage.READ
    """What the writer takes its rows from."""
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

    def peek(self) -> dict[Stage, StageTime]:
        """Return the times up to now, for another thread."""
        return {self.before: self.read.peek(), Stage.SINK: self.sink.peek()}

    def take(self) -> dict[Stage, StageTime]:
        """Return the times up to now."""
        return {self.before: self.read.take(), Stage.SINK: self.sink.take()}
