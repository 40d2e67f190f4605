"""A hydration as plain values: the one shape that API, page and command line show."""

from datetime import datetime
from math import isfinite
from typing import Any

from airflow_provider_backpressure.core.progress.displayed_state import follows
from airflow_provider_backpressure.core.progress.lag import sentence
from airflow_provider_backpressure.core.progress.summary import HydrationSummary


def to_dict(now: HydrationSummary) -> dict[str, Any]:
    """Return the figures by name. Times are ISO texts in UTC, rates per second; ``None`` is unknown, never 0.

    Rate, ETA and memory are there only while ranges are moved: figures of the past would look like those of now.
    """
    return {**_names(now), **_state(now), **_snapshot(now), **_gate(now), **_lag(now)}


def _names(now: HydrationSummary) -> dict[str, Any]:
    hydration = now.hydration
    return {
        "id": hydration.id,
        "source": hydration.source_identity,
        "target": hydration.sink_identity,
        "owner": hydration.owner,
        "cluster": hydration.cluster,
    }


def _state(now: HydrationSummary) -> dict[str, Any]:
    hydration, activity = now.hydration, now.hydration.activity
    return {
        "state": now.state.value,
        "state_note": now.state_note,
        "phase": hydration.phase.value,
        "heard_at": _time(hydration.heard_at),
        "failure": hydration.failure,
        "failed_at": _time(hydration.failed_at),
        "paused_by": hydration.paused_by,
        "paused_why": hydration.paused_why,
        "verified_ranges": activity.done if activity else None,
        "begun": hydration.plan is not None,
        "created_at": _time(hydration.created_at),
        "started_at": _time(now.started_at),
        "hydrated_at": _time(hydration.hydrated_at),
        "duration_seconds": now.duration_seconds,
        "updated_at": _time(hydration.updated_at),
    }


def _snapshot(now: HydrationSummary) -> dict[str, Any]:
    progress, left, moving = now.progress, now.eta, now.moving
    return {
        "percent": now.percent,
        "unit": now.unit,
        "rows": progress.committed,
        "read": progress.read,
        "total": progress.total,
        "total_exact": progress.total_exact,
        "rows_per_second": round(now.speed, 1) if moving and now.speed is not None else None,
        "eta_seconds": round(left.seconds, 1) if left else None,
        "eta_soonest_seconds": round(left.soonest, 1) if left and left.soonest is not None else None,
        # JSON has no infinity.
        "eta_latest_seconds": round(left.latest, 1) if left and left.latest and isfinite(left.latest) else None,
        "memory_used": now.memory_used if moving else None,
        "memory_limit": now.memory_limit if moving else None,
        "messages_received": progress.messages,
        "bytes_received": progress.bytes,
    }


def _gate(now: HydrationSummary) -> dict[str, Any]:
    reasons = now.reasons
    return {
        "credits_now": now.credits,
        "credits_max": now.hydration.credits_max,
        "in_flight": now.in_flight,
        "failed": now.failed if now.hydration.plan else None,
        "open": now.open,
        "reasons": reasons,
        "bottleneck": now.bottleneck.value if now.bottleneck else None,
        "queue_position": now.place.position or None,
        "starts_in_seconds": None if now.starts_in_seconds is None else round(now.starts_in_seconds, 1),
    }


def _lag(now: HydrationSummary) -> dict[str, Any]:
    """Return what is known beside the source; a lag only where later runs bring what the source gets."""
    course, progress = now.course, now.progress
    latest = course.latest if course else None
    return {
        "followed": follows(now),
        "keeping_up": course.verdict.value if course else None,
        "keeping_up_sentence": sentence(course),
        "lag": course.lag if course else None,
        "lag_age_seconds": None if now.lag_age_seconds is None else round(now.lag_age_seconds, 1),
        "log_unit": latest.unit.value if latest else None,
        "upstream_rate": _round(course.upstream_rate if course else None),
        "process_rate": _round(course.process_rate if course else None),
        "offset_known": progress.offset_known,
        "offset_committed": progress.offset_committed,
        "open_transactions": latest.open if latest else None,
        "seen_at": _time(latest.at) if latest else None,
        "trouble": (course.trouble or None) if course else None,
    }


def _time(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()


def _round(figure: float | None) -> float | None:
    return None if figure is None else round(figure, 3)
