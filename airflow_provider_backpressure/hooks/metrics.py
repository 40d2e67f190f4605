"""The statistics as Airflow's own metrics: gauges, sent to StatsD, Datadog or OpenTelemetry as Airflow is set up."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from airflow_provider_backpressure.airflow_compat import send_gauge
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.gate.hydration_record import Hydration
from airflow_provider_backpressure.core.health_signal_declarations import Query, Watched
from airflow_provider_backpressure.core.ports import Health, Source, Unread
from airflow_provider_backpressure.core.ports.ledger import LedgerReader
from airflow_provider_backpressure.core.ports.sink import Sink
from airflow_provider_backpressure.core.progress.lag import Course, Verdict
from airflow_provider_backpressure.core.progress.rates_and_eta import total_progress
from airflow_provider_backpressure.core.push.channel_counters import NAMES, merge_recorded, quantile
from airflow_provider_backpressure.core.stage_metrics import Stage, State, unify_stages
from airflow_provider_backpressure.exceptions import InvalidDeclaration, SourceRefused, SourceUnavailable
from airflow_provider_backpressure.hooks.connection_types_and_fields import connection
from airflow_provider_backpressure.hooks.source_and_sink_connections import BUILDERS

PREFIX = "backpressure"
FLOW_SECONDS = 60.0
"""How far back the shares of the stages' time look."""
MEMORY_SECONDS = 60.0
"""How old a reading of the executors' memory may be."""


def send(ledger: LedgerReader, hydration: Hydration, course: Course | None) -> None:
    """Send every figure that is known; what is not known is not sent, never as 0."""
    name = re.sub(r"[^A-Za-z0-9_-]", "_", _target(hydration))
    tags = {"hydration": hydration.id, "environment": hydration.environment, "dag_id": hydration.owner}
    for figure, value in figures(ledger, hydration, course).items():
        if value is not None and math.isfinite(value):
            send_gauge(f"{PREFIX}.{name}.{figure}", value, tags)


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
        **_flow(ledger, hydration.id),
        "queue_position": gate.place.position,
        **_push(ledger),
    }


def _flow(ledger: LedgerReader, hydration_id: str) -> dict[str, float | None]:
    """Return each stage's shares of its time in the last minute; unknown of a stage that did nothing then."""
    found = unify_stages(ledger.flow(hydration_id, seconds=FLOW_SECONDS))
    read = found.get(Stage.READ_AND_TRANSFORM) or found.get(Stage.READ)
    stages = {Stage.ADMIT: found.get(Stage.ADMIT), Stage.READ: read, Stage.SINK: found.get(Stage.SINK)}
    shares = {
        f"{stage.value}_{state.value}": spent.share(state) if spent is not None and spent.seconds else None
        for stage, spent in stages.items()
        for state in State
    }
    kept = found.get(Stage.MAINTENANCE)
    return {**shares, "maintenance_busy": kept.share(State.BUSY) if kept is not None and kept.seconds else None}


def _push(ledger: LedgerReader) -> dict[str, float | None]:
    """Return what the channels of all processes together have done within the last hour; unknown without push."""
    counts = ledger.push_counts()
    merged = merge_recorded(counts)
    known = {f"push_{name}": merged[name] if counts else None for name in NAMES}
    return {**known, "push_observed_p99": quantile(merged["observed"], 0.99)}


def _target(hydration: Hydration) -> str:
    """Return the last part of the target's name: its table, or the last folder of its path."""
    return hydration.sink_identity.rstrip("/").rpartition("/")[2]


def _postgres(endpoint: Endpoint, watched: Sequence[Watched], seconds: float) -> Health:
    from airflow_provider_backpressure.connectors.postgres.errors import Errors
    from airflow_provider_backpressure.connectors.postgres.health import PostgresHealth

    errors = Errors(refused=SourceRefused, unavailable=SourceUnavailable)
    return PostgresHealth(endpoint, watched, errors=errors, seconds=seconds)


def _mysql(endpoint: Endpoint, watched: Sequence[Watched], seconds: float) -> Health:
    if find_spec("pymysql") is None:
        raise InvalidDeclaration(
            f"Queries on connection {endpoint.conn_id} need the Python package pymysql: "
            "`pip install 'airflow-provider-backpressure[mysql]'`."
        )
    from airflow_provider_backpressure.connectors.mysql.errors import Errors
    from airflow_provider_backpressure.connectors.mysql.health import MySQLHealth

    errors = Errors(refused=SourceRefused, unavailable=SourceUnavailable)
    return MySQLHealth(endpoint, watched, errors=errors, seconds=seconds)


DATABASES: dict[str, Callable[[Endpoint, Sequence[Watched], float], Health]] = {"mysql": _mysql, "postgres": _postgres}
"""What looks at a database that is neither source nor sink, by the type of its connection."""


@dataclass(frozen=True, kw_only=True)
class Places:
    """Opens what looks at each place that a budget names."""

    source: Callable[[], Source]
    sink: Callable[[], Sink]
    unread: Callable[[], Unread | None] = lambda: None
    """How far the source's log has been committed, where there is a plan."""

    def open(self, watched: Sequence[Watched], seconds: float) -> Health:
        """Return what looks at signals of one place; terminal errors name what cannot be watched."""
        first = watched[0]
        if isinstance(first, Query) and first.conn_id is not None:
            return open_database(first.conn_id, watched, seconds)
        if first.on == "sink":
            return self.sink().health(watched, seconds=seconds)
        return self.source().health(watched, seconds=seconds, unread=self.unread())


def open_database(conn_id: str, watched: Sequence[Watched], seconds: float) -> Health:
    """Return what looks at a database by its Airflow connection."""
    found = connection(conn_id, *DATABASES)
    kind = str(found.conn_type)
    return DATABASES[kind](BUILDERS[kind](found, found.extra_dejson), watched, seconds)
