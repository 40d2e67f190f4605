"""The course of a hydration beside its source: rates, whether it keeps up, and for how long it has to catch up.

Pure functions over what was seen. A sight is what one look finds of both frontiers; looks are seconds apart.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from airflow_provider_backpressure.core.default_limits import SLOWER_SAMPLES
from airflow_provider_backpressure.core.health_signal_declarations import size
from airflow_provider_backpressure.core.json_codec import from_dict
from airflow_provider_backpressure.core.progress.rates_and_eta import duration
from airflow_provider_backpressure.core.progress.source_position import Unit, to_json_keys
from airflow_provider_backpressure.core.snapshot.topic_offsets import Frontier, rate


class Verdict(StrEnum):
    """Whether a hydration keeps up with its source."""

    UNKNOWN = "unknown"
    """There are too few samples, or no frontier to compare."""
    KEEPING_UP = "keeping up"
    NOT_KEEPING_UP = "not keeping up"
    IDLE = "idle"
    """No run is under way, and there is new data since the last one."""
    CAUGHT_UP = "caught up"
    """Everything that the source has is committed."""


@dataclass(frozen=True, kw_only=True)
class Sight:
    """What one look finds."""

    at: datetime
    unit: Unit
    known: Frontier
    """The source's position."""
    committed: Frontier | None
    """How far the sink has committed; ``None`` while that is not known."""
    open: int = 0
    """Of the known positions, those that cannot be read yet: transactions that are not over."""
    working: bool = False
    """Whether a run of the hydration is under way."""
    settled: bool = True
    """Whether the committed frontier could have moved: that of a bounded window moves when the window is complete."""
    follows: bool = True
    """Whether the hydration brings what comes later at all; a snapshot does not."""

    def __post_init__(self) -> None:
        """Name the keys as the ledger does, so that sights can be compared."""
        object.__setattr__(self, "known", to_json_keys(self.known))
        object.__setattr__(self, "committed", None if self.committed is None else to_json_keys(self.committed))

    @property
    def lag(self) -> dict[str, int] | None:
        """What the source has and the sink has not committed, by key; ``None`` where that is not known.

        A snapshot, which does not follow its source, is not behind it: it has no lag.
        """
        return self.unread if self.follows else None

    @property
    def unread(self) -> dict[str, int] | None:
        """What another run would read, by key; ``None`` where that is not known."""
        if self.committed is None:
            return None
        return {str(key): max(0, position - self.committed.get(key, 0)) for key, position in self.known.items()}


@dataclass(frozen=True, kw_only=True)
class Course:
    """What follows from the sights so far."""

    latest: Sight
    base: Sight
    """The sight before, from which the rates are taken."""
    upstream_rate: float | None = None
    """Units per second."""
    process_rate: float | None = None
    behind: int = 0
    """Samples in a row in which the hydration was slower than its source."""
    trouble: str = ""
    """What is wrong with the source's frontier, as a sentence."""

    @property
    def lag(self) -> int | None:
        """What the source has and the sink has not committed, in all."""
        return None if self.latest.lag is None else sum(self.latest.lag.values())

    @property
    def unread(self) -> int | None:
        """What another run would read, in all; of a snapshot too, which has no lag."""
        return None if self.latest.unread is None else sum(self.latest.unread.values())

    @property
    def verdict(self) -> Verdict:
        """Whether it keeps up."""
        if self.lag is None or not self.latest.follows:
            return Verdict.UNKNOWN
        if self.behind >= SLOWER_SAMPLES:
            return Verdict.NOT_KEEPING_UP
        if self.lag == 0:
            return Verdict.CAUGHT_UP
        if not self.latest.working:
            return Verdict.IDLE
        return Verdict.UNKNOWN if self.process_rate is None else Verdict.KEEPING_UP

    @property
    def catch_up_seconds(self) -> float | None:
        """Seconds until everything is committed at these rates; infinite for never, ``None`` where unknown."""
        if self.lag is None or not self.latest.follows:
            return None
        if self.lag == 0:
            return 0.0
        if self.upstream_rate is None or self.process_rate is None or not self.latest.working:
            return None
        gain = self.process_rate - self.upstream_rate
        return self.lag / gain if gain > 0 else math.inf

    def to_json(self) -> str:
        """Return it as JSON."""
        own = {name: getattr(self, name) for name in ("upstream_rate", "process_rate", "behind", "trouble")}
        return json.dumps({**own, "latest": _to_json(self.latest), "base": _to_json(self.base)})

    @classmethod
    def from_json(cls, text: str) -> "Course":
        """Read what :meth:`to_json` wrote."""
        return from_dict(cls, json.loads(text))


def advance(course: Course | None, sight: Sight, *, least_seconds: float) -> Course:
    """Return the course after another sight; the same where that is no newer.

    Rates are taken from the two latest sights that are ``least_seconds`` apart: of ranges that take minutes each,
    nothing is seen for minutes, which is no standstill. A log that went back gives no rate, but a sentence.
    """
    if course is None or course.latest.unit is not sight.unit:
        return Course(latest=sight, base=sight)
    if sight.at <= course.latest.at:
        return course
    # A source that is where it was may not have been asked again: what was committed meanwhile is no sign of trouble.
    trouble = course.trouble if sight.known == course.latest.known else went_back(course.latest, sight)
    if trouble and sight.unit.is_log_of_server:
        return Course(latest=sight, base=sight, trouble=trouble)
    seconds = (sight.at - course.base.at).total_seconds()
    if seconds < least_seconds or not sight.settled:
        return replace(course, latest=sight, trouble=trouble)
    return replace(_measure(course, sight, seconds), trouble=trouble)


def _measure(course: Course, sight: Sight, seconds: float) -> Course:
    base, process = course.base, None
    upstream = rate(sight.known, base.known, seconds)
    if sight.committed is not None and base.committed is not None:
        process = rate(sight.committed, base.committed, seconds)
    behind = course.behind
    # Between two runs nothing is expected to move: that proves nothing.
    if process is not None and (sight.working or process > 0):
        behind = behind + 1 if process < upstream else 0
    return Course(latest=sight, base=sight, upstream_rate=upstream, process_rate=process, behind=behind)


def went_back(before: Sight, now: Sight) -> str:
    """Return the sentence for a source that has less than it had, or less than was committed; otherwise an empty text.

    What was committed is compared as of the sight before: it was there when the source was asked this time.
    """
    for what, then in (("was seen at", before.known), ("was committed up to", before.committed or {})):
        for key in sorted(then.keys() & now.known.keys(), key=str):
            if now.known[key] < then[key]:
                return _gone(now.unit, str(key), what, then[key], now.known[key])
    return ""


def _gone(unit: Unit, key: str, what: str, before: int, now: int) -> str:
    if unit is Unit.OFFSETS:
        return (
            f"Partition {key} {what} offset {before} and ends at offset {now} now: the log was cut off, or the topic "
            'was created again. Trigger the DAG with {"backpressure": "restart"} to read it from the start.'
        )
    if unit is Unit.BYTES:
        return (
            f"The source's log {what} {_lsn(before)} and is at {_lsn(now)} now: the server was restored, or is another "
            'one. Trigger the DAG with {"backpressure": "restart"} to read it again.'
        )
    return (
        f"The source {what} {before} {unit} of {key} and has {now} now: the server was restored, or is another one. "
        'Trigger the DAG with {"backpressure": "restart"} to read it again.'
    )


def _lsn(position: int) -> str:
    return f"{position >> 32:X}/{position & 0xFFFFFFFF:X}"


def _to_json(sight: Sight) -> Mapping[str, object]:
    return {
        "at": sight.at.isoformat(),
        "unit": sight.unit.value,
        "known": sight.known,
        "committed": sight.committed,
        "open": sight.open,
        "working": sight.working,
        "settled": sight.settled,
        "follows": sight.follows,
    }


NAMED = 6
"""Most partitions that are named with their lag, the furthest behind first."""


def amount(number: float, unit: Unit) -> str:
    """Return a number of units: ``1,200 offsets``, ``3.0 MiB``."""
    if unit is Unit.BYTES:
        return size(number)
    return f"{number:,.0f} {unit}"


def format_rate(rate: float, unit: Unit) -> str:
    """Return a rate: ``1,200 offsets/s``, ``3.0 MiB/s``."""
    return f"{amount(rate, unit)}/s" if rate == 0 or rate >= 10 or unit is Unit.BYTES else f"{rate:.1f} {unit}/s"


def catch_up(seconds: float | None) -> str | None:
    """Return the time until everything is committed, or ``never``; ``None`` where unknown."""
    if seconds is None:
        return None
    return "never" if math.isinf(seconds) else duration(seconds)


def sentence(course: Course | None) -> str:
    """Return the answer to "is it keeping up?" in one line, with its figures."""
    if course is None:
        return "not known yet: the source was not looked at"
    if course.trouble:
        return course.trouble
    unit, lag = course.latest.unit, course.lag
    if not course.latest.follows:
        return "a snapshot, which does not follow its source"
    if lag is None:
        return "not known before the snapshot is in"
    parts = [_rates(course), f"{amount(lag, unit)} behind" if lag else ""]
    time = catch_up(course.catch_up_seconds)
    if time is not None and lag:
        parts.append("never catches up at this rate" if time == "never" else f"catches up in {time}")
    if course.verdict is Verdict.IDLE:
        parts.append("the next run brings it")
    return f"{_SAID[course.verdict]}: {_join(parts)}" if any(parts) else _SAID[course.verdict]


_SAID = {
    Verdict.UNKNOWN: "not known yet",
    Verdict.KEEPING_UP: "yes",
    Verdict.NOT_KEEPING_UP: "NO",
    Verdict.IDLE: "no run is under way",
    Verdict.CAUGHT_UP: "yes, caught up",
}


def lags(course: Course) -> str:
    """Return the lag by partition, or by what else the source counts; empty where there is none, or only one."""
    if not course.latest.follows:
        return ""
    by_key = course.latest.lag or {}
    behind = sorted(((key, lag) for key, lag in by_key.items() if lag), key=lambda each: -each[1])
    shown = [f"{key}: {amount(lag, course.latest.unit)}" for key, lag in behind[:NAMED]] if len(by_key) > 1 else []
    if shown and len(behind) > NAMED:
        shown.append(f"and {len(behind) - NAMED} more")
    if course.latest.open:
        shown.append(f"{amount(course.latest.open, course.latest.unit)} held back by open transactions")
    return ", ".join(shown)


def _rates(course: Course) -> str:
    if course.upstream_rate is None:
        return ""
    upstream = f"the source makes {format_rate(course.upstream_rate, course.latest.unit)}"
    if course.process_rate is None:
        return upstream
    return f"{format_rate(course.process_rate, course.latest.unit)} committed, {upstream}"


def _join(parts: list[str]) -> str:
    return ", ".join(part for part in parts if part)
