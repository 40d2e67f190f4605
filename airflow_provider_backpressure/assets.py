"""Assets: what a hydration is, for DAGs scheduled on its commits; and the one that brings its next run."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from airflow.sdk import Asset, AssetAlias, AssetWatcher

from airflow_provider_backpressure import settings
from airflow_provider_backpressure.airflow_compat import Callback
from airflow_provider_backpressure.core.config import Consistency
from airflow_provider_backpressure.core.gate.hydration_record import Hydration
from airflow_provider_backpressure.core.health_signal_declarations import Watched
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.exceptions import InvalidDeclaration
from airflow_provider_backpressure.hooks.backpressure import DEFAULT_CONN_ID
from airflow_provider_backpressure.hooks.hydration_session import SinkDeclaration, SourceDeclaration
from airflow_provider_backpressure.hooks.recorded_declaration import plain
from airflow_provider_backpressure.triggers import UnreadTrigger
from airflow_provider_backpressure.triggers.event_callbacks import as_callbacks
from airflow_provider_backpressure.triggers.new_data_event import Subject


def hydration_asset(source: SourceDeclaration, sink: SinkDeclaration) -> Asset:
    """Return the asset of a hydration, named after connections (files without one: their kind) and tables, not hosts.

    Its events carry hydration, plan, rows and the committed frontier by table.
    """
    return Asset(f"backpressure://{_name(source, sink)}")


def hydrations_of(dag_id: str) -> AssetAlias:
    """Return the alias of a DAG's hydrations whose names only a run knows, by templates or mapping: schedule on it.

    Its events are those of the assets, each as :func:`hydration_asset` gives it for the names that the run has found.
    """
    return AssetAlias(f"backpressure://{settings.environment()}/{dag_id}")


def watch_source(
    source: SourceDeclaration,
    sink: SinkDeclaration,
    *,
    signals: Sequence[Watched] = (),
    on_event: Callback | Sequence[Callback] | None = None,
    backpressure_conn_id: str = DEFAULT_CONN_ID,
) -> Asset:
    """Return the asset whose event says that the source has what the sink does not have: schedule the DAG on it.

    Its watcher looks after the hydration between runs: the source's policy at the limit of its log acts, and
    ``on_event`` is called for what goes wrong, as of the ``signals`` of the source that warn. It runs in the
    triggerer, so it is an ``AsyncCallback`` (or ``SyncCallback``) of a notifier's class and plain arguments.

    ``InvalidDeclaration`` for names from templates, which the triggerer could not render, for signals that close a
    gate, and for what cannot travel to the triggerer.
    """
    if not source.table:
        raise InvalidDeclaration("watch_source watches one table: give each table of the source a DAG of its own.")
    if not has_asset(source, sink):
        raise InvalidDeclaration("watch_source needs names that are known when the DAG is parsed, not templates.")
    strange = next((each for each in signals if not each.warns or each.on != "source"), None)
    if strange is not None:
        raise InvalidDeclaration(
            f"watch_source looks at signals of the source that warn, and {type(strange).__name__} is none: those that "
            "close a gate belong in the budget."
        )
    subject = Subject(
        source=plain(source),
        sink=plain(sink),
        signals=[asdict(each) for each in signals],
        on_event=as_callbacks(on_event),
    )
    trigger = UnreadTrigger(subject=subject.to_json(), backpressure_conn_id=backpressure_conn_id)
    name = f"backpressure-unread://{_name(source, sink)}"
    return Asset(name, watchers=[AssetWatcher(name=name, trigger=trigger)])


def _name(source: SourceDeclaration, sink: SinkDeclaration) -> str:
    place = sink.conn_id or type(sink).__name__.removesuffix("Sink").lower()
    return f"{settings.environment()}/{source.conn_id}/{source.table}->{place}/{sink.table}"


def has_asset(source: SourceDeclaration, sink: SinkDeclaration) -> bool:
    """Whether the names are known when the DAG is parsed; those from templates and mapping are not."""
    names = (source.conn_id, source.table, sink.conn_id, sink.table)
    return all(isinstance(name, str) and "{{" not in name and "{%" not in name for name in names)


def make_event_extra(hydration: Hydration, plan: Plan, *, rows: int, verified: str, state: str) -> dict[str, Any]:
    """Return what the event of a run carries. ``rows``: those that the target has received by the plan, in all.

    The frontier is what is committed: of a single table its rows, of several and of a log what was planned.
    """
    frontier = plan.frontier
    if len(plan.frontier) == 1 and not plan.replays and plan.consistency is not Consistency.OFFSETS:
        frontier = dict.fromkeys(plan.frontier, rows)
    return {
        "hydration_id": hydration.id,
        "plan_id": plan.plan_id,
        "phase": hydration.phase.value,
        "state": state,
        "rows": rows,
        "frontier": {str(key): position for key, position in frontier.items()},
        "verified": verified,
    }
