"""A declaration in the ledger: every field comes back, without secrets, for whatever can be declared."""

import json
from dataclasses import fields, replace
from datetime import UTC, datetime
from typing import Any
from unittest.mock import Mock

import pytest

from airflow_provider_backpressure.core.config import Budget, Consistency, Mode, NewColumn, Query, Refresh, ReplicaLag
from airflow_provider_backpressure.core.snapshot.spark_messages import Transform
from airflow_provider_backpressure.exceptions import LedgerRefused
from airflow_provider_backpressure.hooks.hydration_session import Declaration
from airflow_provider_backpressure.hooks.recorded_declaration import (
    check_transform,
    declaration_of,
    from_plain,
    text,
    to_json,
)
from airflow_provider_backpressure.sinks import DeltaSink, IcebergSink, ParquetSink, PostgresSink, SparkTableSink
from airflow_provider_backpressure.sources import (
    Debezium,
    KafkaSource,
    LandedSource,
    MySQLSource,
    PostgresSource,
    SparkSource,
)
from tests.support.world import MemoryTable

DELTA = DeltaSink(conn_id="lake", path="s3://lake/orders")
DECLARED = Declaration(
    source=PostgresSource(conn_id="shop_db", table="public.orders", columns=("id", "code"), where="id > 7"),
    sink=PostgresSink(conn_id="warehouse", table="raw.orders", key=("id",), quarantine=5),
    spark_conn_id="spark",
    backpressure_conn_id="ledger",
    budget=Budget(
        credits=3,
        signals=(
            ReplicaLag(on="source", seconds=5),
            Query(conn_id="shop_db", sql="SELECT 1", most=3.0, name="backlog"),
        ),
    ),
    mode=Mode.UPSERT,
    consistency=Consistency.STATIC,
    on_new_column=NewColumn.ADD,
    refresh=Refresh.EACH_RUN,
    transform=Transform(sql="SELECT * FROM source"),
    function="json:dumps",
    owner="dag",
    task_id="shop.plan_snapshot",
    run="dag/manual",
)


def read(declared: Declaration) -> Any:
    """Return the declaration after its way through the ledger."""
    kept = to_json(declared)
    assert kept is not None
    return from_plain(json.loads(kept))


def test_every_field_comes_back():
    """Another value than the default in each, so that none is lost unseen."""
    defaults = Declaration(source=DECLARED.source, sink=DECLARED.sink, spark_conn_id="", owner="")
    own = [field.name for field in fields(Declaration) if field.name not in ("source", "sink")]
    assert [name for name in own if getattr(DECLARED, name) == getattr(defaults, name)] == []
    again = read(replace(DECLARED, function=json.dumps))
    assert again == DECLARED
    assert {type(getattr(again, name)) for name in ("mode", "consistency")} == {Mode, Consistency}


@pytest.mark.parametrize(
    "side",
    [
        {"source": MySQLSource(conn_id="shop_db", table="shop.orders")},
        {"source": KafkaSource(conn_id="events", topic="orders", start={0: 12})},
        {"source": KafkaSource(conn_id="c", topic="t", fields={"id": "int"}, envelope=Debezium(flattened=True))},
        {"source": LandedSource(lake=DELTA)},
        {"source": SparkSource(spark_conn_id="spark", table="lake.raw.orders", split_column="id", tasks=4)},
        {"sink": DELTA},
        {"sink": ParquetSink(conn_id="lake", path="s3://lake/orders")},
        {"sink": IcebergSink(conn_id="catalog", table="raw.orders")},
        {"source": PostgresSource(conn_id="c", tables=("a", "b"), wal_limit=7).declare_stream("1f", ("a", "b"))},
        {"source": MySQLSource(conn_id="c", tables=("a", "b"), zero_dates="null").declare_stream("1f", ("a", "b"))},
        {"sink": PostgresSink(conn_id="c", table='"Odd".t', quarantine=3).declare_stream("1f")},
        {"sink": SparkTableSink(spark_conn_id="spark", table="lake.raw.orders", format="iceberg", tasks=4)},
    ],
    ids=lambda side: type(next(iter(side.values()))).__name__,
)
def test_every_source_and_sink_comes_back(side: dict[str, Any]):
    declared = replace(DECLARED, **side)
    again = read(declared)
    assert to_json(again) == to_json(declared)
    assert (type(again.source), type(again.sink)) == (type(declared.source), type(declared.sink))
    assert getattr(again.source, "envelope", None) == getattr(declared.source, "envelope", None)


def test_the_log_of_several_tables_is_declared_beside_them():
    """Where its windows are replayed has the plan tables of its tables, and no rows of its own to keep aside."""
    tables = PostgresSource(conn_id="shop", tables=("public.a", "public.b"), columns=("id",), wal_limit=7)
    source = tables.declare_stream("1f", ("public.a", "public.b"))
    assert (source.table, source.members, source.wal_limit, source.columns) == (
        "backpressure_1f",
        ("public.a", "public.b"),
        7,
        None,
    )
    sink = PostgresSink(conn_id="warehouse", table='"Odd".t', key=("id",), quarantine=3).declare_stream("1f")
    assert (sink.table, sink.system_schema, sink.key, sink.quarantine) == ('"Odd".backpressure_1f', "Odd", None, None)


def test_a_time_to_begin_with_comes_back():
    start = datetime(2026, 2, 3, tzinfo=UTC)
    again = read(replace(DECLARED, source=KafkaSource(conn_id="events", topic="orders", start=start)))
    assert datetime.fromisoformat(again.source.start) == start


def test_a_lake_that_was_landed_travels_to_a_trigger():
    """A task that waits at the gate hands its source to the trigger."""
    source = LandedSource(lake=DELTA)
    assert from_plain(json.loads(text(source))) == source


def test_of_another_package_nothing_is_kept():
    """Then the plan alone is known, as before."""
    assert to_json(replace(DECLARED, source=MemoryTable(conn_id="c", table="t"))) is None


def test_a_transform_is_kept_by_its_name_where_it_can_be_imported():
    python = replace(DECLARED, transform=Transform(python=""))
    kept = read(replace(python, function=json.dumps))
    assert kept.load_function() is json.dumps
    check_transform(kept)
    for function in (lambda frame: frame, "no_such_module:function"):
        again = read(replace(python, function=function))
        assert again.function is None
        with pytest.raises(LedgerRefused, match=r"raw\.orders cannot be imported outside of its DAG"):
            check_transform(again)


def test_owner_and_cluster_are_those_of_now():
    """They may have changed since the declaration was kept: the DAG was renamed."""
    hydration = Mock(plan=Mock(), declaration=to_json(DECLARED), owner="renamed", cluster="other")
    found = declaration_of(hydration, "ledger")
    assert found == replace(DECLARED, owner="renamed", spark_conn_id="other")
