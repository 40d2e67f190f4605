"""A login stands in no error: not in its text or its causes', and in no variable of a frame that raised one of them.

Some loggers print what each frame held: structlog on a terminal, as ``airflow standalone`` has it, or Sentry.
"""

import socket
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
import sqlalchemy as sa

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.exceptions import BackpressureError
from airflow_provider_backpressure.ledger.repository import SqlLedger
from airflow_provider_backpressure.runners.connect_runner import ConnectRunner
from airflow_provider_backpressure.sinks import DeltaSink, IcebergSink, ParquetSink, PostgresSink
from airflow_provider_backpressure.sources import KafkaSource, MySQLSource, PostgresSource
from tests.support.kept import stands_in

CANARY = "canary-in-the-mine"
KEYS = {"region_name": "eu-west-1"}


@pytest.fixture
def port() -> Iterator[int]:
    """A port where nobody answers: it is taken, and not listened to."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


def at(port: int, **changes: object) -> Endpoint:
    values = {"conn_id": "c", "host": "127.0.0.1", "port": port, "database": "d", "user": "u", "password": CANARY}
    return Endpoint(**{**values, **changes})  # type: ignore[arg-type]


def postgres_source(port: int) -> None:
    with closing(PostgresSource(conn_id="c", table="t").open(at(port))) as source:
        source.snapshot()


def postgres_sink(port: int) -> None:
    with closing(PostgresSink(conn_id="c", table="t").open(at(port))) as sink:
        sink.holds_rows()


def postgres_option(port: int) -> None:
    with closing(PostgresSink(conn_id="c", table="t").open(at(port, options={"sslmode": "nonsense"}))) as sink:
        sink.holds_rows()


def mysql_source(port: int) -> None:
    with closing(MySQLSource(conn_id="c", table="t").open(at(port))) as source:
        source.snapshot()


def kafka_settings(port: int) -> None:
    wrong = at(0, host=f"127.0.0.1:{port}", options={"security.protocol": "nonsense"})
    with closing(KafkaSource(conn_id="c", topic="t").open(wrong)) as source:
        source.snapshot()


def ledger(kind: str) -> Callable[[int], None]:
    def look(port: int) -> None:
        address = sa.URL.create(kind, username="u", password=CANARY, host="127.0.0.1", port=port, database="d")
        with closing(SqlLedger(address)) as opened:
            opened.hydrations()

    return look


def bucket(kind: type[ParquetSink] | type[DeltaSink]) -> Callable[[int], None]:
    def look(port: int) -> None:
        there = at(0, host="", database="", options={**KEYS, "endpoint_url": f"http://127.0.0.1:{port}"})
        with closing(kind(path="s3://bucket/t", conn_id="c").open(there)) as sink:
            sink.holds_rows()

    return look


def rest_catalog(port: int) -> None:
    there = at(0, host="", database="", options={"catalog_uri": f"http://127.0.0.1:{port}"})
    catalog = {"oauth2-server-uri": f"http://127.0.0.1:{port}/login"}
    with closing(IcebergSink(table="n.t", catalog=catalog, conn_id="c").open(there)) as sink:
        sink.holds_rows()


def sql_catalog(port: int) -> None:
    with closing(IcebergSink(table="n.t", catalog={"warehouse": "/w"}, conn_id="c").open(at(port))) as sink:
        sink.holds_rows()


def spark(port: int) -> None:
    with closing(ConnectRunner(f"sc://127.0.0.1:{port}/;token={CANARY}", {"c": at(port)})) as runner:
        runner.probe()


@pytest.mark.statement("X5")
@pytest.mark.parametrize(
    "attempt",
    [
        pytest.param(postgres_source, id="postgres source"),
        pytest.param(postgres_sink, id="postgres sink"),
        pytest.param(postgres_option, id="postgres option"),
        pytest.param(mysql_source, id="mysql source"),
        pytest.param(kafka_settings, id="kafka settings"),
        pytest.param(ledger("postgresql"), id="ledger on postgres"),
        pytest.param(ledger("mysql"), id="ledger on mysql"),
        pytest.param(bucket(ParquetSink), id="parquet in a bucket"),
        pytest.param(bucket(DeltaSink), id="delta in a bucket"),
        pytest.param(rest_catalog, id="iceberg by REST"),
        pytest.param(sql_catalog, id="iceberg by SQL"),
        pytest.param(spark, id="spark connect"),
    ],
)
def test_no_frame_of_an_error_holds_a_login(attempt: Callable[[int], None], port: int) -> None:
    """X5: nobody answers, or a setting is wrong, at each kind of door."""
    with pytest.raises(BackpressureError) as raised:
        attempt(port)
    told = "".join(traceback.TracebackException.from_exception(raised.value, capture_locals=True).format())
    # This file's own constant is no variable of a frame.
    assert not stands_in(CANARY, told), [line for line in told.splitlines() if stands_in(CANARY, line)]
