"""Looking at the health of source and sink beside the work: once per side and interval in a process."""

import logging
import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from airflow_provider_backpressure.core.admission.permits_and_reservations import Readings
from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.gate.signals import HealthReading
from airflow_provider_backpressure.core.health_signal_declarations import Figure, Watched
from airflow_provider_backpressure.core.poll_policy import Clock, SystemClock
from airflow_provider_backpressure.core.ports import Health
from airflow_provider_backpressure.exceptions import BackpressureError, Terminal

log = logging.getLogger(__name__)

LOOK_SECONDS = 5.0
"""Longest that one look may take."""
Open = Callable[[Sequence[Watched], float], Health]
"""Opens what looks at signals of one place, each look for so many seconds."""


def look_seconds(budget: Budget) -> float:
    """Return how long one look may take: well below the deadline after which it counts as not seen."""
    return min(LOOK_SECONDS, budget.signal_deadline / 3)


@dataclass(kw_only=True)
class _Seen:
    """What was seen of one signal."""

    value: float | None = None
    at: float = 0.0
    note: str = ""
    trouble: str = ""
    samples: deque[tuple[float, float]] = field(default_factory=deque)
    """Of a counter: times and values, one further back than its window."""


class Lookout:
    """Looks at one side in a thread of its own. What it saw last may be asked for from any thread, without waiting.

    A look that fails is no error of anybody: its signals are just not seen.
    """

    def __init__(
        self, health: Health, watched: Sequence[Watched], *, interval: float, clock: Clock | None = None
    ) -> None:
        self._health = health
        self._interval = max(interval, *(each.least_interval for each in watched))
        self._clock = clock or SystemClock()
        self._seen = {each: _Seen() for each in watched}
        self._changed = threading.Condition()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="backpressure-health", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def readings(self) -> dict[Watched, HealthReading]:
        """Return what was last seen of each signal, and how long ago."""
        now = self._clock.monotonic()
        with self._changed:
            return {
                each: HealthReading(value=seen.value, age_seconds=now - seen.at, note=seen.note, trouble=seen.trouble)
                for each, seen in self._seen.items()
            }

    def settle(self, seconds: float) -> None:
        """Wait until something is known of every signal, be it trouble, but no longer than this."""
        with self._changed:
            self._changed.wait_for(
                lambda: all(seen.value is not None or seen.trouble for seen in self._seen.values()), timeout=seconds
            )

    def look(self) -> None:
        """Look once."""
        # A reading is as old as the moment it was asked for.
        at, found, trouble = self._clock.monotonic(), {}, ""
        try:
            found = dict(self._health.look())
        except BackpressureError as error:
            trouble = str(error)
        except Exception as error:
            # Whatever it is, the thread has to live and the gate to close.
            log.exception("A look at the health of %s failed.", next(iter(self._seen)).place)
            trouble = f"{type(error).__name__} at a look"
        with self._changed:
            for watched, seen in self._seen.items():
                _take(watched, seen, found.get(watched), at, trouble)
            self._changed.notify_all()

    def end(self) -> None:
        """Let the thread end after the look that it is at; it gives the connection back itself."""
        self._over.set()

    def join(self, seconds: float) -> None:
        """Wait until it has ended, but no longer than this: a server may be frozen. Do not wait where it continues."""
        if self._over.is_set():
            self._thread.join(seconds)

    def _run(self) -> None:
        with closing(self._health):
            while not self._over.is_set():
                began = self._clock.monotonic()
                self.look()
                self._over.wait(max(0.0, began + self._interval - self._clock.monotonic()))


def _take(watched: Watched, seen: _Seen, found: Figure | BackpressureError | None, at: float, trouble: str) -> None:
    """Keep what a look found; where it found nothing, what was seen before grows old."""
    if not isinstance(found, Figure):
        seen.trouble = trouble or str(found or "")
        return
    value = found.value if watched.window is None else _growth(watched, seen.samples, at, found.value)
    if value is not None:
        seen.value, seen.at, seen.note, seen.trouble = value, at, found.note, ""


def _growth(watched: Watched, samples: deque[tuple[float, float]], at: float, count: float) -> float | None:
    """Return the value of a counter, ``None`` at the first sample and after it went back, as after a restart."""
    if samples and count < samples[-1][1]:
        samples.clear()
    samples.append((at, count))
    while len(samples) > 2 and samples[1][0] <= at - (watched.window or 0.0):
        samples.popleft()
    before, from_ = samples[0]
    return watched.grown(count - from_, at - before) if at > before else None


@dataclass(kw_only=True)
class _Shared:
    lookout: Lookout
    users: int = 0


_shared: dict[Hashable, _Shared] = {}
_sharing = threading.Lock()


def _share(health: Health, watched: tuple[Watched, ...], interval: float) -> tuple[Hashable, Lookout]:
    """Return the process's lookout for these signals, begun where there is none."""
    key = (health.key, watched, interval)
    with _sharing:
        known = _shared.get(key)
        if known is None:
            known = _shared[key] = _Shared(lookout=Lookout(health, watched, interval=interval))
            known.lookout.start()
        known.users += 1
        return key, known.lookout


def _leave(key: Hashable) -> None:
    """Let the lookout end with the last of its users."""
    with _sharing:
        known = _shared[key]
        known.users -= 1
        if not known.users:
            del _shared[key]
            known.lookout.end()


@dataclass(kw_only=True)
class HealthWatch:
    """Everything that one budget watches. Where it declares no signals, nothing is opened and nothing asked."""

    budget: Budget
    open: Open
    asked: tuple[Watched, ...] | None = None
    """What a person has declared of it: the others may be refused, and are not watched then; ``None``: all."""
    _held: list[tuple[Hashable, Lookout]] = field(default_factory=list)

    def check(self) -> None:
        """Look once at each side, and raise what it refuses. What may pass is left to the gate, and logged."""
        for watched in self._places():
            with closing(self.open(watched, look_seconds(self.budget))) as health:
                try:
                    found = health.look()
                except BackpressureError as error:
                    if isinstance(error, Terminal) and (self.asked is None or set(watched) & set(self.asked)):
                        raise
                    log.warning("%s is not seen now: %s", watched[0].place.capitalize(), error)
                    continue
                for signal, figure in found.items():
                    if isinstance(figure, Terminal) and (self.asked is None or signal in self.asked):
                        raise figure
                    if isinstance(figure, BackpressureError):
                        log.warning("%s is not seen now: %s", signal.name, figure)

    def start(self) -> None:
        """Begin to look at each side, or at none where one cannot be opened; nothing where that was done."""
        if self._held:
            return
        opened = [(self.open(watched, look_seconds(self.budget)), watched) for watched in self._places()]
        self._held = [_share(health, watched, self.budget.signal_interval) for health, watched in opened]

    def settle(self) -> None:
        """Wait for the first looks, so that a gate is not closed by figures that are not read yet."""
        for _, lookout in self._held:
            lookout.settle(look_seconds(self.budget))

    def readings(self) -> Readings:
        """Return what was last seen. Does not wait."""
        return {watched: reading for _, lookout in self._held for watched, reading in lookout.readings().items()}

    def close(self) -> None:
        """End the watches that no other user in the process shares; return at once. Idempotent."""
        while self._held:
            _leave(self._held.pop()[0])

    def close_and_wait(self) -> None:
        """End, and wait a moment for connections to be released."""
        lookouts = [lookout for _, lookout in self._held]
        self.close()
        for lookout in lookouts:
            lookout.join(look_seconds(self.budget))

    def _places(self) -> list[tuple[Watched, ...]]:
        """Return the signals by the place that is asked."""
        places = dict.fromkeys(each.place for each in self.budget.signals)
        return [tuple(each for each in self.budget.signals if each.place == place) for place in places]
