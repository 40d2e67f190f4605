"""The asset that a hydration is: other DAGs are scheduled on its commits."""

from airflow.sdk import Asset

from airflow_provider_backpressure import settings
from airflow_provider_backpressure.hooks.hydration import SinkDeclaration, SourceDeclaration


def hydration_asset(source: SourceDeclaration, sink: SinkDeclaration) -> Asset:
    """Return the asset of a hydration, named after connections (files without one: their kind) and tables, not hosts.

    Its events carry hydration, plan, rows and the committed frontier by table.
    """
    place = sink.conn_id or type(sink).__name__.removesuffix("Sink").lower()
    return Asset(f"backpressure://{settings.environment()}/{source.conn_id}/{source.table}->{place}/{sink.table}")


def has_asset(source: SourceDeclaration, sink: SinkDeclaration) -> bool:
    """Whether the names are known when the DAG is parsed; those from templates and mapping are not."""
    names = (source.conn_id, source.table, sink.conn_id, sink.table)
    return all(isinstance(name, str) and "{{" not in name and "{%" not in name for name in names)
