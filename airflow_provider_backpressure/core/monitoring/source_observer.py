"""Looking at a source beside the work: one question per source and interval, however many ask."""

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta

from airflow_provider_backpressure.core.delayed_calls import Timer, start_timer
from airflow_provider_backpressure.core.gate.hydration_record import Hydration
from airflow_provider_backpressure.core.monitoring.committed_frontier import (
    complete,
    follows,
    moves_with_ranges,
    read_committed_frontier,
)
from airflow_provider_backpressure.core.ports import Source
from airflow_provider_backpressure.core.ports.ledger import Ledger
from airflow_provider_backpressure.core.progress.lag import Course, Sight
from airflow_provider_backpressure.core.progress.source_position import Seen, whose
from airflow_provider_backpressure.exceptions import BackpressureError

log = logging.getLogger(__name__)

LOOK_SECONDS = 10.0
"""Least seconds between two questions to a source, of all who look at it."""
MOMENT = timedelta(microseconds=1)
"""By how much a sight is newer that has only the sink's figures: one counts where it is newer."""
PRUNE_SECONDS = 600.0
"""Seconds between two times that old samples are looked for."""


@dataclass(frozen=True, kw_only=True)
class Kept:
    """For how long samples are kept, and how many of a hydration."""

    seconds: float = 7 * 86400.0
    rows: int = 100_000


@dataclass(kw_only=True)
class Observer:
    """Keeps the statistics of one hydration up with its source. For one thread."""

    ledger: Ledger
    hydration_id: str
    open: Callable[[], Source]
    """Opens the source, for the time of a look."""
    interval: float = LOOK_SECONDS
    tell: Callable[[Hydration, Course | None], None] | None = None
    """Called after each look, also one that failed."""

    def look(self) -> Course | None:
        """Ask the source where nobody has for a while, and return the course; ``None`` where nothing is known yet."""
        hydration = self.ledger.hydration(self.hydration_id)
        course = self.ledger.course(self.hydration_id)
        try:
            if hydration.plan is not None:
                course = self._observe(hydration, course)
        finally:
            if self.tell is not None:
                self.tell(hydration, course)
        return course

    def settle(self) -> None:
        """See what is committed now beside where the source was last: who has ended is not behind by what he brought.

        The source is not asked. No rate follows, since both frontiers are of different moments.
        """
        before = self.ledger.course(self.hydration_id)
        if before is None:
            return
        hydration = self.ledger.hydration(self.hydration_id)
        seen = self.ledger.upstream(whose(hydration.source_identity))
        if hydration.plan is not None and seen is not None:
            sight = sight_of(hydration, self.ledger, seen, before)
            newest = replace(sight, at=max(seen.at, before.latest.at) + MOMENT)
            self.ledger.record_sight(self.hydration_id, newest, least_seconds=math.inf)

    def _observe(self, hydration: Hydration, before: Course | None) -> Course | None:
        asked = whose(hydration.source_identity)
        if self.ledger.claim_look(asked, seconds=self.interval):
            with closing(self.open()) as source:
                self.ledger.keep_upstream(asked, source.upstream())
        seen = self.ledger.upstream(asked)
        if seen is None or (before is not None and seen.at <= before.latest.at):
            return before
        sight = sight_of(hydration, self.ledger, seen, before)
        return self.ledger.record_sight(self.hydration_id, sight, least_seconds=self._apart(hydration))

    def _apart(self, hydration: Hydration) -> float:
        """Return how far two sights have to be apart for a rate: as long as a range takes to its commit."""
        return max(0.9 * self.interval, self.ledger.gate(hydration.id).commit_seconds or 0.0)


def sight_of(hydration: Hydration, ledger: Ledger, seen: Seen, before: Course | None) -> Sight:
    """Return what is to be seen of a hydration beside its source's frontier."""
    known = before.latest.committed if before is not None else None
    return Sight(
        at=seen.at,
        unit=seen.upstream.unit,
        known=seen.upstream.at,
        committed=read_committed_frontier(hydration, ledger, before=known),
        open=seen.upstream.open,
        working=hydration.holder is not None,
        settled=moves_with_ranges(hydration.plan) or complete(hydration, ledger),
        follows=follows(hydration.plan),
    )


@dataclass(kw_only=True)
class Observation:
    """Looks again and again, in a thread of its own, as long as it is open. A look that fails is nobody's error."""

    observer: Observer
    kept: Kept = field(default_factory=Kept)
    delay: float = 0.0
    """Seconds before the first look: what is over by then needs none."""
    _over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread = field(init=False)
    _timer: Timer | None = None
    _next_prune: float = 0.0

    def __enter__(self) -> "Observation":
        """Begin to look."""
        self._thread = threading.Thread(target=self._run, name="backpressure-observer", daemon=True)
        if self.delay:
            self._timer = start_timer(self.delay, self._thread.start)
        else:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End after the look that is under way, but do not wait long for it: a source may be frozen."""
        self._over.set()
        if self._timer is not None:
            self._timer.cancel()
        if self._thread.ident is not None:
            self._thread.join(self.observer.interval / 5)
        with nobodys_error("What is committed is not seen now"):
            self.observer.settle()

    def _run(self) -> None:
        while True:
            with nobodys_error("The source's frontier is not seen now"):
                self.observer.look()
            with nobodys_error("Old samples are not forgotten now"):
                self._prune()
            if self._over.wait(self.observer.interval):
                return

    def _prune(self) -> None:
        now = time.monotonic()
        if now >= self._next_prune:
            prune(self.observer.ledger, self.observer.hydration_id, self.kept)
            self._next_prune = now + PRUNE_SECONDS


def prune(ledger: Ledger, hydration_id: str, kept: Kept) -> None:
    """Forget a hydration's old samples, some at a time, so that no statement takes long."""
    while ledger.prune_samples(hydration_id, seconds=kept.seconds, rows=kept.rows):
        pass


@contextmanager
def nobodys_error(what: str) -> Iterator[None]:
    """Log what fails, and continue: statistics are no reason for anything else to fail."""
    try:
        yield
    except BackpressureError as error:
        log.warning("%s: %s", what, error)
    except Exception:
        log.exception("%s.", what)
