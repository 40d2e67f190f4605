"""Signals: measured pressures from 0 to 1 and above, each with its figures, and the gate's decision over them.

Sensors, lanes, triggers and the command line call these same pure functions.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from airflow_provider_backpressure.core.gate.cluster_queue import QueuePlace, may_start
from airflow_provider_backpressure.core.health_signal_declarations import Watched

GIBIBYTE = 1024**3
QUEUE = "queue"
CONNECTIONS = "connections"
CREDITS = "credits"
SINK_COMMIT = "sink commit"
"""Name of the signal that grows with the number of ranges in flight."""


@dataclass(frozen=True, kw_only=True)
class Signal:
    """One pressure. ``utilisation`` of 1.0 and above closes the gate."""

    name: str
    utilisation: float
    sentence: str
    """The reason with its figures, as shown to people."""
    learned: bool = False
    """Known only from finished work: neutral while idle, so it cannot lock the gate shut."""
    measured: bool = True
    """Counts as pressure. A manual pause and spent credits close the gate but measure nothing."""

    declared: bool = False
    """One of the budget's own: the health of source or sink, or a query."""
    warns: bool = False
    """Never closes the gate, however high: that would bring about what it warns of."""

    @property
    def closed(self) -> bool:
        """Whether this signal alone closes the gate."""
        return self.utilisation >= 1.0 and not self.warns

    @property
    def warning(self) -> bool:
        """Whether it has something to warn of."""
        return self.utilisation >= 1.0 and self.warns

    def to_json(self) -> dict[str, Any]:
        """Return the signal as a JSON object."""
        return {
            "name": self.name,
            "utilisation": round(self.utilisation, 4) if math.isfinite(self.utilisation) else None,
            "sentence": self.sentence,
            "closed": self.closed,
            "warning": self.warning,
        }


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The gate's answer: open or closed, by all signals, not just the first."""

    open: bool
    pressure: float
    """The highest measured utilisation."""
    signals: tuple[Signal, ...]

    @property
    def closing(self) -> frozenset[str]:
        """Names of every signal that closes the gate; empty when open."""
        return frozenset() if self.open else frozenset(signal.name for signal in self.signals if signal.closed)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Sentences of every signal that closes the gate, the strongest first; empty when open."""
        if self.open:
            return ()
        closing = sorted((signal for signal in self.signals if signal.closed), key=lambda signal: -signal.utilisation)
        return tuple(signal.sentence for signal in closing)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences of every signal that warns."""
        return tuple(signal.sentence for signal in self.signals if signal.warning)


def decide(signals: Iterable[Signal], *, in_flight: int) -> Decision:
    """Return the gate's decision.

    With nothing in flight only signals that are observed, not learned, may close it: one probe range goes through,
    so the gate cannot lock itself shut by a reading that only a range could renew.
    """
    every = tuple(signals)
    binding = [signal for signal in every if in_flight > 0 or not signal.learned]
    return Decision(
        open=not any(signal.closed for signal in binding),
        pressure=max((signal.utilisation for signal in every if signal.measured), default=0.0),
        signals=every,
    )


@dataclass(frozen=True, kw_only=True)
class MemoryReading:
    """Resident memory of the fullest executor (JVM and Python, whole process tree) at one moment."""

    used_bytes: int | None
    """``None`` where no executor has reported it: never 0 for that."""
    limit_bytes: int
    """Heap and overhead."""
    age_seconds: float
    """How long ago an executor reported it; without a figure, how long stages have run without one."""
    executor: str = "driver"
    slots: int | None = None
    """Tasks that the cluster runs at once; ``None`` where it does not say."""
    slots_each: int | None = None
    """Most of them on one executor."""
    jvm_bytes: int = 0
    """Of the largest JVM among the executors, which the slots of one share; 0 where it is not known, and where the
    driver is the executor."""
    cores: tuple[int, ...] = ()
    """Of each executor, where a task may ask for more of them than usual; empty where it cannot."""
    isolated: bool = False
    """Each range gets executors of its own: neither what is used now nor what is in flight takes from the next."""
    idle: bool = False
    """No stage runs, so there is nothing to report; ``age_seconds`` is that of the last figure."""

    def with_task_cpus(self, cpus: int) -> "MemoryReading":
        """Return the reading of a cluster whose tasks take so many cores each; as it is where they cannot."""
        if not self.cores:
            return self
        slots = [cores // cpus for cores in self.cores]
        return replace(self, slots=sum(slots), slots_each=max(slots))


def snapshot_age(seconds: float | None, *, most: float | None) -> tuple[Signal, ...]:
    """Return how old the lane's snapshot is, where one is kept and may not grow older than ``most``."""
    if seconds is None or most is None:
        return ()
    sign = ">=" if seconds >= most else "<"
    sentence = f"snapshot {seconds:.0f} s old {sign} {most:g} s"
    # It grows with time, however few ranges are in flight: credits do not follow it.
    return (Signal(name="snapshot age", utilisation=seconds / most, sentence=sentence, measured=False),)


def live_memory(reading: MemoryReading | None, *, high: float, low: float, was_closed: bool, deadline: float) -> Signal:
    """Return the second line: closed at ``high``, open again only below ``low``, closed when unseen for ``deadline``.

    ``was_closed`` is whether the last decision was closed by this signal: between the marks it keeps its state.
    """
    name = "executor memory"
    if reading is None or (reading.age_seconds > deadline and not reading.idle):
        seen = "never seen" if reading is None else f"not seen for {reading.age_seconds:.0f} s"
        return Signal(name=name, utilisation=1.0, sentence=f"executor memory {seen}, deadline {deadline:g} s")
    if reading.isolated:
        size = f"{reading.limit_bytes / GIBIBYTE:.1f} GiB"
        sentence = f"executor memory not watched: each range has executors of its own, of {size}"
        return Signal(name=name, utilisation=0.0, sentence=sentence, measured=False)
    if reading.used_bytes is None:
        return _without_figure(reading, name=name, was_closed=was_closed, deadline=deadline)
    share = reading.used_bytes / reading.limit_bytes if reading.limit_bytes > 0 else math.inf
    mark = low if was_closed else high
    sentence = (
        f"executor memory {share:.0%} of {reading.limit_bytes / GIBIBYTE:.1f} GiB on {reading.executor} "
        f"{'>=' if share >= mark else '<'} {mark:.0%}"
    )
    return Signal(name=name, utilisation=share / mark, sentence=sentence)


def _without_figure(reading: MemoryReading, *, name: str, was_closed: bool, deadline: float) -> Signal:
    """Return the signal of a reading that has no figure: it measures nothing, and leaves the gate as it is.

    A gate that was closed stays so while ranges are in flight, until the last figure is as old as the deadline.
    """
    held = was_closed and reading.age_seconds <= deadline
    why = "no stage runs" if reading.idle else "running stages have reported none yet"
    sentence = f"executor memory not known: {why}" + (", and it was too high before" if held else "")
    return Signal(name=name, utilisation=1.0 if held else 0.0, sentence=sentence, learned=True, measured=False)


def predict_memory(
    *,
    baseline_bytes: int,
    reserved_bytes: int,
    next_bytes: int | None,
    limit_bytes: int | None,
    high: float,
    shared: bool = False,
) -> Signal:
    """Return the first line: would baseline, what is in flight and the next range fit the budget?

    ``next_bytes`` is what finished ranges of that size took, ``None`` before the first; ``limit_bytes`` is one
    executor's heap and overhead, ``None`` where the cluster does not say. ``shared``: others' ranges are in flight on
    the cluster, so its memory is not kept for a hydration that has none itself.
    """
    name = "predicted memory"
    if next_bytes is None or not limit_bytes:
        return Signal(name=name, utilisation=0.0, sentence="predicted memory not learned yet", learned=True)
    budget = limit_bytes * high
    # Below one "would fit exactly" must stay open, so the ratio is taken over the budget plus one byte.
    utilisation = (baseline_bytes + reserved_bytes + next_bytes) / (budget + 1)
    sentence = (
        f"predicted memory {(baseline_bytes + reserved_bytes + next_bytes) / GIBIBYTE:.2f} GiB "
        f"({baseline_bytes / GIBIBYTE:.2f} baseline + {reserved_bytes / GIBIBYTE:.2f} in flight "
        f"+ {next_bytes / GIBIBYTE:.2f} next) {'>' if utilisation >= 1 else '<='} {budget / GIBIBYTE:.2f} GiB budget"
    )
    return Signal(name=name, utilisation=utilisation, sentence=sentence, learned=not shared)


def sink_commit(latency_seconds: float | None, *, oldest_seconds: float | None, threshold: float) -> Signal:
    """Return how the sink keeps up: time from admission to commit of late ranges, or the oldest one still waiting.

    ``latency_seconds`` is a moving mean over committed ranges (``None`` before the first); ``oldest_seconds`` is the
    age of the oldest range in flight (``None`` with none), so that a sink that commits nothing is seen too.
    """
    worst = max(latency_seconds or 0.0, oldest_seconds or 0.0)
    utilisation = worst / threshold
    what = "oldest uncommitted range" if (oldest_seconds or 0.0) > (latency_seconds or 0.0) else "commit latency"
    sentence = f"{what} {worst:.1f} s {'>=' if utilisation >= 1 else '<'} {threshold:g} s"
    return Signal(name=SINK_COMMIT, utilisation=utilisation, sentence=sentence, learned=True)


@dataclass(frozen=True, kw_only=True)
class HealthReading:
    """What was last seen of a declared signal."""

    value: float | None = None
    """``None`` where it was never seen."""
    age_seconds: float = math.inf
    note: str = ""
    """What the look adds to the figure."""
    trouble: str = ""
    """Why the latest look saw nothing."""


NEVER = HealthReading()


def health(watched: Watched, reading: HealthReading, *, deadline: float) -> Signal:
    """Return a declared signal: its value over its threshold, and 1.0 where it was not seen for ``deadline`` seconds.

    One that counts down is the threshold over what is left. One that only warns is 0 where it is not seen: it has
    nothing to report.
    """
    facts: dict[str, Any] = {
        "name": watched.name,
        "declared": True,
        "warns": watched.warns,
        "measured": not watched.warns,
    }
    if reading.value is None or reading.age_seconds > deadline:
        seen = "never seen" if reading.value is None else f"not seen for {reading.age_seconds:.0f} s"
        why = f" ({reading.trouble.rstrip('.')})" if reading.trouble else ""
        sentence = f"{watched.name} {seen}, deadline {deadline:g} s{why}"
        return Signal(utilisation=0.0 if watched.warns else 1.0, sentence=sentence, **facts)
    told = watched.tell(reading.value, reading.note)
    if watched.counts_down:
        return _count_down(watched, reading.value, told, facts)
    utilisation = reading.value / watched.threshold
    sentence = f"{told} {'>=' if utilisation >= 1 else '<'} {watched.mark()}"
    return Signal(utilisation=utilisation, sentence=sentence, **facts)


def _count_down(watched: Watched, left: float, told: str, facts: dict[str, Any]) -> Signal:
    if left == math.inf:
        return Signal(utilisation=0.0, sentence=told, **facts)
    utilisation = watched.threshold / left if left > 0 else math.inf
    return Signal(
        utilisation=utilisation, sentence=f"{told} {'<=' if utilisation >= 1 else '>'} {watched.mark()}", **facts
    )


def manual_pause(paused_by: str | None, why: str | None = None) -> Signal:
    """Return the signal of a manual pause."""
    if paused_by is None:
        return Signal(name="hand", utilisation=0.0, sentence="not paused", measured=False)
    sentence = f"paused by {paused_by}" + (f": {why}" if why else "")
    return Signal(name="hand", utilisation=1.0, sentence=sentence, measured=False)


def credits_taken(in_flight: int, credits: int) -> Signal:
    """Return the credits as a reason. It says whether one is left; it is no measure of pressure below that."""
    taken = in_flight >= credits
    return Signal(
        name=CREDITS,
        utilisation=1.0 if taken else 0.0,
        sentence=f"{in_flight} of {credits} credits in flight",
        measured=False,
    )


def queue_place(place: QueuePlace) -> Signal:
    """Return the place in the cluster's queue as a reason; it measures nothing."""
    if place.granted:
        return Signal(name=QUEUE, utilisation=0.0, sentence="its turn", measured=False)
    sentence = (
        f"number {place.position} in the queue of {place.cluster}: "
        f"{place.running} of {place.concurrency} hydrations under way"
    )
    return Signal(name=QUEUE, utilisation=0.0 if may_start(place) else 1.0, sentence=sentence, measured=False)


def sink_connections(taken: int, most: int | None, before: int = 0) -> Signal:
    """Return the connections that all hydrations into one server of sinks share. ``before``: who gets the next ones."""
    if most is None:
        return Signal(name=CONNECTIONS, utilisation=0.0, sentence="sink connections without limit", measured=False)
    return Signal(
        name=CONNECTIONS,
        utilisation=1.0 if taken + before >= most else 0.0,
        sentence=f"{taken} of {most} connections to the sink's server in use"
        + (f", {before} of the next for others that go first" if before else ""),
        measured=False,
    )
