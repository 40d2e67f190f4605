"""Alerts: each event once, when it has lasted long enough, and again after it was over."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from airflow_provider_backpressure.core.gate.hydration_record import GateState, Hydration
from airflow_provider_backpressure.core.progress.lag import Course, Verdict, sentence


class Kind(StrEnum):
    """What may happen."""

    GATE_CLOSED = "gate_closed"
    """Nothing was admitted for too long, though something waits."""
    NOT_KEEPING_UP = "not_keeping_up"
    """Less is committed than the source makes."""
    DATA_AT_RISK = "data_at_risk"
    """A signal warns that data will be lost, as by a topic's retention."""
    SOURCE_TROUBLE = "source_trouble"
    """The source's log went back."""
    QUARANTINE_FULL = "quarantine_full"
    """More rows were refused than may be kept aside: the hydration has stopped."""
    LOG_LOST = "log_lost"
    """The source no longer keeps the log that was to be replayed: it was given up, as declared, or lost."""


KEY = "backpressure_event"
"""Key of the event in the context that a notifier is given."""


@dataclass(frozen=True, kw_only=True)
class Event:
    """One occurrence."""

    kind: str
    sentence: str
    hydration_id: str
    source: str
    target: str

    def to_json(self) -> dict[str, str]:
        """Return its fields."""
        return asdict(self)


def event(kind: Kind, sentence: str, hydration: Hydration) -> Event:
    """Return the event of a hydration."""
    return Event(
        kind=kind.value,
        sentence=sentence,
        hydration_id=hydration.id,
        source=hydration.source_identity,
        target=hydration.sink_identity,
    )


def conditions(
    hydration: Hydration, gate: GateState, course: Course | None, *, closed_seconds: float
) -> dict[Kind, str]:
    """Return what holds now, each with its sentence."""
    found: dict[Kind, str] = {}
    signals = (hydration.decision or {}).get("signals", ())
    warnings = [signal["sentence"] for signal in signals if signal.get("warning")]
    if warnings:
        found[Kind.DATA_AT_RISK] = "; ".join(warnings)
    reasons = _explain_closed(hydration, gate, closed_seconds)
    if reasons:
        found[Kind.GATE_CLOSED] = reasons
    return {**found, **of_course(course)}


def of_course(course: Course | None) -> dict[Kind, str]:
    """Return what holds beside the source, by the statistics alone: also while no run is under way."""
    found: dict[Kind, str] = {}
    if course is not None and course.trouble:
        found[Kind.SOURCE_TROUBLE] = course.trouble
    if course is not None and course.verdict is Verdict.NOT_KEEPING_UP:
        found[Kind.NOT_KEEPING_UP] = sentence(course)
    return found


def _explain_closed(hydration: Hydration, gate: GateState, seconds: float) -> str:
    """Return why nothing moves; empty where something does: a full gate whose ranges are committed is no event."""
    stuck = not gate.in_flight or (gate.oldest_seconds or 0.0) >= seconds
    if not gate.waiting or not stuck:
        return ""
    if gate.paused_by is not None:
        return f"paused by {gate.paused_by}" + (f": {gate.paused_why}" if gate.paused_why else "")
    decision = hydration.decision or {"open": True}
    return "" if decision["open"] else "; ".join(each["sentence"] for each in decision["signals"] if each["closed"])


@dataclass(frozen=True, kw_only=True)
class Notice:
    """What to report now, and what may be due later."""

    due: tuple[str, ...] = ()
    later: float | None = None
    """Seconds until the next condition that lasts already is due, if it lasts."""


Occurring = Mapping[str, Mapping[str, Any]]
"""Conditions that last, by kind: ``{"since": time, "told": bool}``."""


def note_alerts(
    occurring: Occurring, present: Mapping[str, float], looked: frozenset[str], now: datetime
) -> tuple[Occurring, Notice]:
    """Return the conditions that last from now on, and what is to be reported.

    ``present``: seconds for which each kind has to last, of those that hold; ``looked``: those looked for, of which
    what does not hold is over.
    """
    after = {kind: dict(each) for kind, each in occurring.items() if kind in present or kind not in looked}
    due, later = [], []
    for kind, patience in present.items():
        each = after.setdefault(kind, {"since": now.isoformat(), "told": False})
        left = patience - (now - datetime.fromisoformat(each["since"])).total_seconds()
        if each["told"]:
            continue
        if left > 0:
            later.append(left)
            continue
        each["told"] = True
        due.append(kind)
    return after, Notice(due=tuple(due), later=min(later, default=None))


def to_json(occurring: Occurring) -> str:
    """Return it as JSON."""
    return json.dumps(occurring)


def from_json(text: str | None) -> Occurring:
    """Read what :func:`to_json` wrote; nothing lasts where nothing was written."""
    value: Occurring = json.loads(text or "{}")
    return value
