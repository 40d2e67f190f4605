"""The stage between two that clock themselves: Spark's own way from reader to writer, with the user's transform. Pure.

Nobody can ask inside of it, but both of its ends are seen. It *has something*

- while the reader is held back: what lies between them is full;
- while the reader works on rows that then are not taken at once: it was full before them, and stayed so;
- after the reader's end;
- for as long as rows come out that the reader has handed over before.

It is *held back* where it has something, and the writer is at work and finds its next rows there as soon as it asks. It
is *busy* where it has something and the writer waits, or will have to. Otherwise it is *idle*.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from airflow_provider_backpressure.core.stage_metrics import Stage, StageTime, State

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
