"""Connections of tables of files: buckets and catalogs, without a secret where one could be read."""

import json

import pytest

from airflow_provider_backpressure.connectors.lake.iceberg.catalog_properties import (
    catalog_properties,
    check_catalog,
    place_of,
)
from airflow_provider_backpressure.core.endpoints import NOWHERE
from airflow_provider_backpressure.exceptions import InvalidDeclaration
from airflow_provider_backpressure.hooks.source_and_sink_connections import endpoint
from airflow_provider_backpressure.sinks import DeltaSink, IcebergSink, ParquetSink

SECRET = "s3cret-word"


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch):
    def add(conn_id: str, **values) -> None:
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(values))

    return add


@pytest.mark.statement("X7")
def test_a_bucket_s_login_goes_into_its_endpoint(connect):
    """X7: and not into its text."""
    extra = {"region_name": "eu-central-1", "endpoint_url": "http://minio:9000", "role_arn": "ignored"}
    connect("bucket", conn_type="aws", login="key", password=SECRET, extra=extra)
    found = endpoint("bucket", *ParquetSink.conn_types)
    assert (found.user, found.password) == ("key", SECRET)
    assert found.options == {"region_name": "eu-central-1", "endpoint_url": "http://minio:9000"}
    assert SECRET not in repr(found)
    assert catalog_properties(found) == {
        "s3.region": "eu-central-1",
        "s3.endpoint": "http://minio:9000",
        "s3.access-key-id": "key",
        "s3.secret-access-key": SECRET,
    }


def test_machines_may_have_their_own_rights(connect):
    connect("bucket", conn_type="aws")
    assert catalog_properties(endpoint("bucket", "aws")) == {}


def test_half_a_login_is_refused(connect):
    connect("bucket", conn_type="aws", login="key")
    with pytest.raises(InvalidDeclaration, match="needs both a key id"):
        endpoint("bucket", "aws")
    connect("catalog", conn_type="iceberg", host="http://catalog", login="client")
    with pytest.raises(InvalidDeclaration, match="and no secret"):
        endpoint("catalog", "iceberg")
    connect("catalog", conn_type="iceberg", password=SECRET)
    with pytest.raises(InvalidDeclaration, match="names no host"):
        endpoint("catalog", "iceberg")


@pytest.mark.parametrize(
    ("login", "secret"), [("client", {"credential": f"client:{SECRET}"}), (None, {"token": SECRET})]
)
def test_a_rest_catalog_comes_with_its_connection(connect, login, secret):
    connect("catalog", conn_type="iceberg", host="https://catalog/api", login=login, password=SECRET)
    found = endpoint("catalog", *IcebergSink.conn_types)
    assert catalog_properties(found) == {"type": "rest", "uri": "https://catalog/api", **secret}
    assert place_of({"name": "lake"}, found) == "catalog/api/lake"


def test_a_catalog_in_postgresql_comes_with_its_connection(connect):
    connect(
        "catalog",
        conn_type="postgres",
        host="db",
        schema="ice",
        login="a@b",
        password="p/w",
        extra={"sslmode": "require"},
    )
    found = endpoint("catalog", *IcebergSink.conn_types)
    assert catalog_properties(found) == {
        "type": "sql",
        "uri": "postgresql+psycopg://a%40b:p%2Fw@db:5432/ice?sslmode=require",
    }
    assert place_of({}, found) == "db:5432/ice/default"


@pytest.mark.statement("X7")
@pytest.mark.parametrize(
    "catalog",
    [
        {"s3.secret-access-key": SECRET},
        {"token": SECRET},
        {"header.X-Api-Key": SECRET},
        {"header.Authorization": f"Bearer {SECRET}"},
        {"adls.account-key": SECRET},
        {"adls.connection-string": f"AccountName=a;AccountKey={SECRET}"},
        {"uri": f"postgresql://me:{SECRET}@db/ice"},
        {"uri": f"postgresql://db/ice?user=me&password={SECRET}"},
        {"retries": 3},
    ],
)
def test_a_catalog_is_declared_without_secrets(catalog):
    """X7: what is declared stands in the ledger."""
    with pytest.raises(InvalidDeclaration) as refused:
        check_catalog(catalog)
    assert SECRET not in str(refused.value)


def test_declarations_that_cannot_be_meant_are_refused():
    for sink in (DeltaSink, ParquetSink):
        with pytest.raises(InvalidDeclaration, match="absolute path or s3://bucket/prefix"):
            sink(path="somewhere").open(NOWHERE)
    with pytest.raises(InvalidDeclaration, match=r"namespace\.table"):
        IcebergSink(table="t").open(NOWHERE)
    with pytest.raises(InvalidDeclaration, match="tuple of names"):
        DeltaSink(path="/t", key="id")  # type: ignore[arg-type]
    with pytest.raises(InvalidDeclaration, match="at least one column"):
        IcebergSink(table="n.t", key=())
    assert DeltaSink(path="/t", key=["id"]).key == ("id",)  # type: ignore[arg-type]
    assert [DeltaSink(path="/t").table, ParquetSink(path="/p").table] == ["/t", "/p"]


@pytest.mark.parametrize("kind", ["delta", "iceberg", "parquet"])
def test_a_plan_in_the_ledger_leads_back_to_its_target(kind, tmp_path):
    """Commands have no DAG at hand: what the plan says of the target opens the same one."""
    from airflow_provider_backpressure.core.snapshot.spark_messages import Column
    from airflow_provider_backpressure.hooks.recorded_declaration import SINKS

    catalog = {"name": "lake", "type": "sql", "uri": f"sqlite:///{tmp_path}/lake.db", "warehouse": f"file://{tmp_path}"}
    declared = {
        "delta": DeltaSink(path=f"{tmp_path}/t", quarantine=7),
        "iceberg": IcebergSink(table="raw.t", catalog=catalog, quarantine=8),
        "parquet": ParquetSink(path=f"{tmp_path}/t"),
    }[kind]
    sink = declared.open(NOWHERE)
    write = sink.fit([Column(name="id", type="bigint")], mode="append", key=())
    assert SINKS[kind](write, sink.identity) == declared
    sink.close()
