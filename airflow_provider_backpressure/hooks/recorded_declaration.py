"""What a hydration was declared to do, kept in the ledger and read from it: for commands, which need no DAG."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import fields, is_dataclass, replace
from datetime import datetime
from enum import Enum
from typing import Any

from airflow_provider_backpressure.core.admission.health_measurements import HealthWatch
from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.endpoints import NOWHERE
from airflow_provider_backpressure.core.gate.hydration_record import Hydration
from airflow_provider_backpressure.core.health_signal_declarations import KINDS
from airflow_provider_backpressure.core.json_codec import from_dict
from airflow_provider_backpressure.core.monitoring.committed_frontier import unread
from airflow_provider_backpressure.core.planning.catch_up_windows import SUFFIX
from airflow_provider_backpressure.core.ports import Source
from airflow_provider_backpressure.core.ports.ledger import LedgerReader
from airflow_provider_backpressure.core.ports.sink import Sink
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.core.snapshot.spark_messages import ReadSpec, Transform, WriteSpec
from airflow_provider_backpressure.exceptions import InvalidDeclaration, LedgerRefused, RunnerRefused
from airflow_provider_backpressure.hooks.backpressure import DEFAULT_CONN_ID
from airflow_provider_backpressure.hooks.hydration_session import Declaration, SinkDeclaration, SourceDeclaration
from airflow_provider_backpressure.hooks.metrics import Places
from airflow_provider_backpressure.hooks.source_and_sink_connections import endpoint, with_related

_PART = re.compile(r"#[0-9a-f]{12}$")


def declaration_of(hydration: Hydration, backpressure_conn_id: str = DEFAULT_CONN_ID) -> Declaration:
    """Return what the hydration was declared to do, as the ledger keeps it since its latest plan.

    Of a hydration that an earlier release has planned, and of a source or sink of another package, the plan alone is
    known: that is fit for reading what was written, and nothing can be planned by it.
    """
    plan = get_recorded_plan(hydration)
    if hydration.declaration is not None:
        kept: Declaration = from_plain(json.loads(hydration.declaration))
        # Its owner and its cluster may be others since.
        owner, cluster = hydration.owner, hydration.cluster
        return replace(kept, owner=owner, spark_conn_id=cluster, backpressure_conn_id=backpressure_conn_id)
    source, sink = SOURCES.get(plan.read.kind.removesuffix(SUFFIX)), SINKS.get(plan.write.kind)
    if source is None or sink is None:
        raise LedgerRefused(f"This version cannot open a {plan.read.kind} source with a {plan.write.kind} sink.")
    return Declaration(
        source=source(plan.read, hydration.source_identity),
        sink=sink(plan.write, hydration.sink_identity),
        spark_conn_id=hydration.cluster,
        backpressure_conn_id=backpressure_conn_id,
        budget=Budget(credits=hydration.credits_max),
        mode=plan.mode,
        transform=plan.transform,
        owner=hydration.owner,
    )


def to_json(declared: Declaration) -> str | None:
    """Return a declaration as JSON for the ledger; ``None`` where source or sink is of another package.

    A Python transform is kept by its name, where it can be imported.
    """
    from airflow_provider_backpressure.runners.code_shipping import reference

    name = None
    with suppress(RunnerRefused):
        name = reference(declared.load_function())
    try:
        kept = json.dumps(plain(replace(declared, function=name)))
        from_plain(json.loads(kept))
    except (InvalidDeclaration, TypeError):
        return None
    return kept


def check_transform(declared: Declaration) -> None:
    """Raise :class:`LedgerRefused` where the Python transform is needed and cannot be imported here."""
    if declared.transform is not None and declared.transform.python == "" and declared.load_function() is None:
        raise LedgerRefused(
            f"The transform into {declared.sink.table} cannot be imported outside of its DAG: move the function to the "
            "top of a module that can be imported, and run the DAG's plan_snapshot task once."
        )


def open_recorded_health(hydration: Hydration, ledger: LedgerReader, budget: Budget) -> HealthWatch:
    """Return what a budget watches of the hydration's source and sink; these are opened for it as they are needed."""
    declared = declaration_of(hydration)

    def source() -> Source:
        return declared.source.open(endpoint(declared.source.conn_id, *declared.source.conn_types))

    def sink() -> Sink:
        conn_id = declared.sink.conn_id
        return declared.sink.open(endpoint(conn_id, *declared.sink.conn_types) if conn_id else NOWHERE)

    places = Places(source=source, sink=sink, unread=lambda: unread(hydration.plan, ledger))
    return HealthWatch(budget=budget, open=places.open)


@contextmanager
def open_recorded_source(hydration: Hydration) -> Iterator[Source]:
    """Open a hydration's source; it connects at the first question."""
    declared = declaration_of(hydration).source
    found = with_related(endpoint(declared.conn_id, *declared.conn_types), declared)
    with closing(declared.open(found)) as source:
        yield source


@contextmanager
def open_recorded_sink(hydration: Hydration) -> Iterator[Sink]:
    """Give a hydration's target, open; it connects at the first question."""
    declared = declaration_of(hydration).sink
    found = endpoint(declared.conn_id, *declared.conn_types) if declared.conn_id else NOWHERE
    with closing(declared.open(found)) as sink:
        yield sink


def get_recorded_plan(hydration: Hydration) -> Plan:
    """Return a hydration's plan; ``LedgerRefused`` where there is none yet."""
    if hydration.plan is None:
        raise LedgerRefused(f"{hydration.sink_identity} has no plan yet.")
    return hydration.plan


def _postgres_source(read: ReadSpec, identity: str) -> SourceDeclaration:
    from airflow_provider_backpressure.sources import PostgresSource

    return PostgresSource(conn_id=read.conn_id, table=_whole_table(table_of(identity)))


def _kafka_source(read: ReadSpec, identity: str) -> SourceDeclaration:
    from airflow_provider_backpressure.connectors.kafka.source.topic_identity import rebuild_source

    topic = _whole_table(identity.split("/", 3)[3])
    suffix = _PART.search(identity)
    return rebuild_source(read.conn_id, topic, read.columns, suffix[0] if suffix else "")


def _mysql_source(read: ReadSpec, identity: str) -> SourceDeclaration:
    from airflow_provider_backpressure.sources import MySQLSource

    return MySQLSource(conn_id=read.conn_id, table=_whole_table(identity.split("/", 3)[3]))


def _rebuild_lake_source(read: ReadSpec, identity: str) -> SourceDeclaration:
    from airflow_provider_backpressure.connectors.lake.source.config import Lake, LandedSource
    from airflow_provider_backpressure.sinks import DeltaSink, IcebergSink, ParquetSink

    kind, address = read.parts
    lakes: dict[str, Callable[..., Lake]] = {"parquet": ParquetSink, "delta": DeltaSink, "iceberg": IcebergSink}
    return LandedSource(lake=lakes[kind](conn_id=read.conn_id, **json.loads(address)))


def _spark_source(read: ReadSpec, identity: str) -> SourceDeclaration:
    from airflow_provider_backpressure.sources import SparkSource

    table = _whole_table(identity.split("/", 3)[3])
    return SparkSource(table=table, spark_conn_id=read.conn_id, whole=True, tasks=read.tasks)


def _postgres_sink(write: WriteSpec, identity: str) -> SinkDeclaration:
    from airflow_provider_backpressure.connectors.postgres.identifiers import QualifiedName
    from airflow_provider_backpressure.sinks import PostgresSink

    schema = QualifiedName.parse(write.commit_table).schema
    most = write.most_bad or None
    return PostgresSink(conn_id=write.conn_id, table=table_of(identity), system_schema=schema, quarantine=most)


def _parquet_sink(write: WriteSpec, identity: str) -> SinkDeclaration:
    from airflow_provider_backpressure.sinks import ParquetSink

    return ParquetSink(conn_id=write.conn_id, quarantine=write.most_bad or None, **json.loads(write.plan_table))


def _delta_sink(write: WriteSpec, identity: str) -> SinkDeclaration:
    from airflow_provider_backpressure.sinks import DeltaSink

    return DeltaSink(conn_id=write.conn_id, quarantine=write.most_bad or None, **json.loads(write.plan_table))


def _iceberg_sink(write: WriteSpec, identity: str) -> SinkDeclaration:
    from airflow_provider_backpressure.sinks import IcebergSink

    return IcebergSink(conn_id=write.conn_id, quarantine=write.most_bad or None, **json.loads(write.plan_table))


def _spark_table_sink(write: WriteSpec, identity: str) -> SinkDeclaration:
    from airflow_provider_backpressure.sinks import SparkTableSink

    place = json.loads(write.plan_table)
    return SparkTableSink(
        table=write.target,
        spark_conn_id=write.conn_id,
        format=place["format"],
        tasks=write.tasks,
        maintain_every=place.get("maintain_every", 0),
    )


SINKS: Mapping[str, Callable[[WriteSpec, str], SinkDeclaration]] = {
    "postgres": _postgres_sink,
    "parquet": _parquet_sink,
    "delta": _delta_sink,
    "iceberg": _iceberg_sink,
    "spark_table": _spark_table_sink,
}
SOURCES: Mapping[str, Callable[[ReadSpec, str], SourceDeclaration]] = {
    "kafka": _kafka_source,
    "landed": _rebuild_lake_source,
    "mysql": _mysql_source,
    "postgres": _postgres_source,
    "spark_catalog": _spark_source,
}
"""How to declare what a plan names, by its kind."""


def _whole_table(name: str) -> str:
    """Return the name without what an identity adds where only a part of the table is read."""
    return _PART.sub("", name)


def table_of(identity: str) -> str:
    """Return the table of an identity: what follows ``postgres://host:port/database/``."""
    return identity.split("/", 4)[4]


CLASS = "class"


def classes() -> dict[str, type]:
    """Return every declaration that may travel, by its name."""
    from airflow_provider_backpressure import sinks, sources
    from airflow_provider_backpressure.connectors.lake.spark.config import SparkTableStreamSink
    from airflow_provider_backpressure.connectors.mysql.source.config import MySQLStreamSource
    from airflow_provider_backpressure.connectors.postgres.sink.config import PostgresStreamSink
    from airflow_provider_backpressure.connectors.postgres.source.config import PostgresStreamSource

    declared = {name: getattr(place, name) for place in (sources, sinks) for name in place.__all__}
    streams = (PostgresStreamSource, MySQLStreamSource, PostgresStreamSink, SparkTableStreamSink)
    return declared | {each.__name__: each for each in (Declaration, Budget, Transform, *KINDS.values(), *streams)}


def plain(declared: Any) -> dict[str, Any]:
    """Return a declaration's fields, each as JSON has it, and the name of its class."""
    values = {field.name: _plain(getattr(declared, field.name)) for field in fields(declared) if field.init}
    return {CLASS: type(declared).__name__, **values}


def text(declared: Any) -> str:
    """Return :func:`plain` as JSON; empty for a declaration of another package, which cannot travel."""
    return json.dumps(plain(declared)) if classes().get(type(declared).__name__) is type(declared) else ""


def from_plain(value: Mapping[str, Any]) -> Any:
    """Return the declaration that :func:`plain` was given; :class:`InvalidDeclaration` for a class of others."""
    known = classes().get(value[CLASS])
    if known is None:
        raise InvalidDeclaration(f"{value[CLASS]} is no declaration of a source or sink that can travel.")
    return from_dict(known, {name: _from_plain(part) for name, part in value.items() if name != CLASS})


def _plain(value: Any) -> Any:
    match value:
        case Enum():
            return value.value
        case datetime():
            return value.isoformat()
        case tuple() | list():
            return [_plain(each) for each in value]
        case Mapping():
            return {str(key): _plain(each) for key, each in value.items()}
    return plain(value) if is_dataclass(value) else value


def _from_plain(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_from_plain(each) for each in value)
    return from_plain(value) if isinstance(value, Mapping) and CLASS in value else value
