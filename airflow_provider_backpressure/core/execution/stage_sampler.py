"""What the stages of ranges in flight do: sampled at the servers while they work, exact once a range has ended.

A task reports its times with its result. Until then the target shows whether it waits for the range's rows, takes
them, or brings them to an end; sampled once a second that is what each stage did, for every runner. Beside files a task
writes its times down while it works. Where there is neither, the source's server shows a reader that is not read from:
it waits for the target.
"""

import logging
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from airflow_provider_backpressure.core.ports import Source
from airflow_provider_backpressure.core.ports.sink import Activity, KeepsTimes, ShowsReaders, Sink
from airflow_provider_backpressure.core.stage_metrics import Flow, Stage, StageTime, State, total
from airflow_provider_backpressure.exceptions import Transient

log = logging.getLogger(__name__)

SAMPLE_SECONDS = 1.0
"""Seconds between two samples."""
SAMPLED_AFTER = 2.0
"""Seconds after which a range is sampled: one that ends sooner reports its own times in time."""
READER = {
    Activity.WAITING: (State.BUSY, State.IDLE),
    Activity.LOADING: (State.BACKPRESSURED, State.BUSY),
    Activity.ENDING: (State.IDLE, State.BUSY),
}
"""What the stage before the sink and the sink do, by what the target does."""


@dataclass(kw_only=True)
class StageSampler:
    """Times of one lane's ranges."""

    before: Stage
    """The stage before the sink."""
    _flow: Flow = field(default_factory=dict)
    _sampled: dict[str, Flow] = field(default_factory=dict)
    """Of slices in flight: what was counted already."""
    _seen: dict[str, float] = field(default_factory=dict)
    """When a slice was sampled last."""
    _next: float = 0.0

    def is_due(self, began: Collection[float], *, now: float) -> bool:
        """Whether it is time for a sample. ``began``: when the ranges in flight were submitted."""
        if now < self._next or not began or now - min(began) < SAMPLED_AFTER:
            return False
        self._next = now + SAMPLE_SECONDS
        return True

    def look(self, source: Source, sink: Sink, plan_id: str, jobs: Mapping[str, float], *, now: float) -> None:
        """Ask the servers, if it is time, what they do for these slices. ``jobs``: when each was submitted."""
        if self.is_due(jobs.values(), now=now):
            with suppress(Transient):
                if isinstance(sink, KeepsTimes):
                    long = [key for key, began in jobs.items() if now - began >= SAMPLED_AFTER]
                    self.follow(sink.read_times(plan_id, long))
                    return
                found = sink.activities(plan_id)
                if found is None:
                    found = self._ask(source, plan_id)
                self.sample({key: each for key, each in found.items() if key in jobs}, now=now)

    def _ask(self, source: Source, plan_id: str) -> dict[str, Activity]:
        """Return what the source shows. A reader that was seen and is gone has read all rows."""
        if not isinstance(source, ShowsReaders):
            return {}
        return dict.fromkeys(self._seen, Activity.ENDING) | source.activities(plan_id)

    def sample(self, found: Mapping[str, Activity], *, now: float) -> None:
        """Count the time since the sample before for what each slice does now; a slice's first sample begins it."""
        for key, activity in found.items():
            before, self._seen[key] = self._seen.get(key), now
            if before is not None:
                reader, sink = READER[activity]
                spent = {self.before: _spend(reader, now - before), Stage.SINK: _spend(sink, now - before)}
                self._sampled[key] = total(self._sampled.get(key, {}), spent)
                self._flow = total(self._flow, spent)

    def follow(self, found: Mapping[str, Flow]) -> None:
        """Count what slices have measured themselves so far, less what was counted; a new attempt adds to it."""
        for key, measured in found.items():
            counted = self._sampled.get(key, {})
            if _seconds(measured) < _seconds(counted):
                counted = {}
            self._add(measured, counted)
            self._sampled[key] = measured

    def settle(self, slice_id: str, measured: Flow | None) -> None:
        """Add what a range that has ended measured itself, less what was sampled; ``None`` where it reports nothing."""
        counted = self._sampled.pop(slice_id, {})
        self._seen.pop(slice_id, None)
        self._add(measured or {}, counted)

    def _add(self, measured: Flow, counted: Flow) -> None:
        for stage, spent in measured.items():
            self._flow = total(self._flow, {stage: _rest(spent, counted.get(stage, StageTime()))})

    def take(self) -> Flow:
        """Return what was counted since it was asked last."""
        flow, self._flow = self._flow, {}
        return flow


def _spend(state: State, seconds: float) -> StageTime:
    return StageTime(**{state.value: seconds})


def _seconds(flow: Flow) -> float:
    return sum(spent.seconds for spent in flow.values())


def _rest(measured: StageTime, counted: StageTime) -> StageTime:
    """Return what is left of a measured time; no state gets less than nothing, and the whole stays what it is."""
    left = measured - counted
    parts = {state.value: max(0.0, getattr(left, state.value)) for state in State}
    whole = sum(parts.values())
    scale = max(0.0, left.seconds) / whole if whole else 0.0
    return StageTime(**{name: seconds * scale for name, seconds in parts.items()})


def count_rows(sink: Sink, plan_id: str, slice_ids: Collection[str]) -> int | None:
    """Return how many rows of these slices are on their way; ``None`` where the target does not say now."""
    try:
        rows = sink.rows_in_flight(plan_id)
    except Transient as error:
        log.warning("Rows on their way are not known: %s", error)
        return None
    return sum(rows.get(each, 0) for each in slice_ids)
