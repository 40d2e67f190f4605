"""The statistics as Airflow's own metrics: gauges, sent to StatsD, Datadog or OpenTelemetry as Airflow is set up."""

import math

from airflow.sdk import conf
from airflow.sdk.observability import stats
from airflow.sdk.observability.metrics import stats_utils

from airflow_provider_backpressure.core.gate.hydration import Hydration
from airflow_provider_backpressure.core.ports.ledger import LedgerReader
from airflow_provider_backpressure.core.progress.lag import Course, Verdict
from airflow_provider_backpressure.core.progress.statistics import total_progress

PREFIX = "backpressure"
MEMORY_SECONDS = 60.0
"""How old a reading of the executors' memory may be."""


def prepare() -> None:
    """Let metrics leave this process: Airflow does that itself for tasks, but not for what runs in a trigger."""
    stats.initialize(
        factory=stats_utils.get_stats_factory(),
        export_legacy_names=conf.getboolean("metrics", "legacy_names_on", fallback=True),
    )


def send(ledger: LedgerReader, hydration: Hydration, course: Course | None) -> None:
    """Send every figure that is known; what is not known is not sent, never as 0."""
    name = stats.normalize_name_for_stats(_target(hydration).replace(".", "_"), log_warning=False)
    tags = {"hydration": hydration.id, "environment": hydration.environment, "dag_id": hydration.owner}
    for figure, value in figures(ledger, hydration, course).items():
        if value is not None and math.isfinite(value):
            stats.gauge(f"{PREFIX}.{name}.{figure}", value, tags=tags)


def figures(ledger: LedgerReader, hydration: Hydration, course: Course | None) -> dict[str, float | None]:
    """Return every figure by the last part of its metric's name."""
    progress, gate = total_progress(ledger.statistics(hydration.id)), ledger.gate(hydration.id)
    samples = ledger.samples(hydration.id, seconds=MEMORY_SECONDS)
    memory = next((sample for sample in reversed(samples) if sample.memory_used is not None), None)
    return {
        "snapshot_total": progress.total,
        "snapshot_progress": progress.committed,
        "snapshot_read": progress.read,
        "snapshot_percent": progress.percent,
        "upstream_rate": progress.upstream_rate,
        "process_rate": progress.process_rate,
        "offset_known": progress.offset_known,
        "offset_committed": progress.offset_committed,
        "lag": course.lag if course else None,
        "catch_up_seconds": course.catch_up_seconds if course else None,
        "not_keeping_up": float(course.verdict is Verdict.NOT_KEEPING_UP) if course else None,
        "messages_received": progress.messages,
        "bytes_received": progress.bytes,
        "in_flight": gate.in_flight,
        "credits": gate.credits,
        "memory_used": memory.memory_used if memory else None,
        "memory_limit": memory.memory_limit if memory else None,
    }


def _target(hydration: Hydration) -> str:
    """Return the last part of the target's name: its table, or the last folder of its path."""
    return hydration.sink_identity.rstrip("/").rpartition("/")[2]
