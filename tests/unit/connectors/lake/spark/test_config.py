"""The declaration of a table that Spark's own connector writes."""

from dataclasses import replace
from typing import Any, cast

import pytest
from airflow.sdk import Connection

from airflow_provider_backpressure.connectors.lake.spark.delta import DeltaTable
from airflow_provider_backpressure.connectors.lake.spark.table import check_columns
from airflow_provider_backpressure.core.endpoints import NOWHERE, endpoints_from_json, endpoints_to_json
from airflow_provider_backpressure.core.snapshot.spark_messages import Column
from airflow_provider_backpressure.exceptions import InvalidDeclaration, SinkRefused, SinkUnavailable
from airflow_provider_backpressure.hooks.source_and_sink_connections import BUILDERS
from airflow_provider_backpressure.sinks import SparkTableSink

AT = replace(NOWHERE, conn_id="spark", password="sc://127.0.0.1:1/;token=s3cret")
COLUMNS = (Column(name="id", type="bigint"),)


def declare(**values: Any) -> SparkTableSink:
    return SparkTableSink(**{"table": "lake.raw.t", "spark_conn_id": "spark", **values})


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"format": "hudi"}, "SparkTableSink.format must be delta or iceberg, not 'hudi'."),
        ({"tasks": 0}, "SparkTableSink.tasks must be from 1 to 64, not 0."),
        ({"maintain_every": -1}, "SparkTableSink.maintain_every must not be negative: -1."),
    ],
)
def test_what_cannot_be_meant_is_refused_as_the_dag_is_parsed(values: dict[str, Any], sentence: str) -> None:
    """The sentence names the field."""
    with pytest.raises(InvalidDeclaration) as refused:
        declare(**values)
    assert str(refused.value) == sentence


@pytest.mark.parametrize("table", ["raw.t", "lake.raw.`t`", "lake..t", "lake.raw.t; DROP TABLE x"])
def test_a_table_is_named_by_catalog_schema_and_table(table: str) -> None:
    """The name goes into SQL, so that nothing but letters, digits, hyphens and underscores is taken."""
    with pytest.raises(InvalidDeclaration, match=r"SparkTableSink.table must be catalog\.schema\.table"):
        declare(table=table).open(AT)


def test_nothing_is_asked_of_the_cluster_before_the_first_question() -> None:
    """Neither the identity nor an error has the token."""
    sink = declare().open(AT)
    assert sink.identity == "spark://127.0.0.1:1/lake.raw.t"
    with pytest.raises(SinkUnavailable) as refused:
        sink.held()
    assert str(refused.value) == "Spark Connect at sc://127.0.0.1:1 cannot be reached: Connection refused."


def test_replace_is_refused_before_the_cluster_is_asked() -> None:
    """In a sentence that says which sinks have the mode."""
    with pytest.raises(SinkRefused, match="takes append, upsert and mirror, not"):
        declare().open(AT).fit(COLUMNS, mode="replace", key=("id",))


def test_an_airflow_connection_leads_to_the_server_with_its_token() -> None:
    """The token is where an endpoint has its secret: in no text of it."""
    found = Connection(conn_id="spark", conn_type="spark_connect", host="spark.example", port=15002, password="s3cret")
    endpoint = BUILDERS["spark_connect"](found, {})
    assert endpoint.password == "sc://spark.example:15002/;token=s3cret"
    assert "s3cret" not in repr(endpoint)


@pytest.mark.parametrize(
    ("host", "port", "identity"),
    [
        ("local[4]", None, "spark://local/lake.raw.t"),
        ("spark://master", 7077, "spark://master:7077/lake.raw.t"),
        ("k8s://https://k", 6443, "spark://k:6443/lake.raw.t"),
        ("yarn", None, "spark://yarn/lake.raw.t"),
    ],
)
def test_a_connection_for_applications_names_the_master(host: str, port: int | None, identity: str) -> None:
    """It starts nothing before the first question, and nothing of what starts one leaves this process."""
    found = Connection(conn_id="spark", conn_type="spark", host=host, port=port)
    endpoint = BUILDERS["spark"](found, {})
    assert declare().open(endpoint).identity == identity
    assert endpoint.serve is not None
    assert endpoints_from_json(endpoints_to_json({"spark": endpoint}))["spark"].serve is None
    assert endpoint.for_executors().serve is None


@pytest.mark.statement("X5")
def test_cluster_mode_is_refused() -> None:
    """X5: in a sentence that names two ways out."""
    found = Connection(conn_id="spark", conn_type="spark", host="yarn")
    with pytest.raises(InvalidDeclaration, match="use deploy-mode client, or a connection of type spark_connect"):
        BUILDERS["spark"](found, {"deploy-mode": "cluster", "secrets_file": "/s"})


def test_names_that_the_cluster_takes_for_one_are_refused() -> None:
    """Spark's catalogs do not distinguish case."""
    columns = (Column(name="Id", type="bigint"), Column(name="id", type="bigint"))
    with pytest.raises(SinkRefused, match="differ by case alone"):
        check_columns(DeltaTable(cast("Any", None), "lake.raw.t"), None, columns)
