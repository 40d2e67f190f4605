"""From Airflow connections to endpoints, ledger addresses and runners: key by key, one sentence where they fail."""

import json

import pytest

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.exceptions import InvalidDeclaration
from airflow_provider_backpressure.hooks.backpressure import BackpressureHook, url
from airflow_provider_backpressure.hooks.connection_types_and_fields import connection
from airflow_provider_backpressure.hooks.source_and_sink_connections import endpoint
from airflow_provider_backpressure.hooks.spark_and_yarn import memory_url, open_runner, remote
from airflow_provider_backpressure.ledger.migration import migrate


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch):
    def add(conn_id: str, **values) -> None:
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(values))

    return add


POSTGRES = {"conn_type": "postgres", "host": "db", "schema": "shop", "login": "reader", "password": "s3cret-word"}
LEDGER = {"conn_type": "backpressure", "host": "meta", "schema": "airflow", "login": "bp", "password": "s3cret-word"}


def test_an_endpoint_reads_extras_by_their_names(connect):
    connect(
        "shop_db",
        **POSTGRES,
        port=6543,
        extra={
            "sslmode": "require",
            "executor_host": "10.0.0.7",
            "executor_port": "5432",
            "iam": True,
            "options": "-c x",
        },
    )
    found = endpoint("shop_db")
    assert found == Endpoint(
        conn_id="shop_db",
        host="db",
        port=6543,
        database="shop",
        user="reader",
        password="s3cret-word",
        options={"sslmode": "require"},
        executor_host="10.0.0.7",
        executor_port=5432,
    )
    assert "s3cret-word" not in repr(found)


@pytest.mark.statement("X5")
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"host": ""}, "names no host"),
        ({"schema": ""}, "names no database"),
        ({"login": ""}, "names no login"),
        ({"conn_type": "mysql"}, "is of type 'mysql'; type postgres is needed here"),
        ({"conn_type": "generic"}, "type postgres is needed here. Airflow makes a connection generic where"),
        ({"extra": {"executor_port": "http"}}, "executor_port of connection 'shop_db' is no port number: 'http'"),
    ],
)
def test_a_connection_that_cannot_be_meant_is_refused(connect, change, sentence):
    """X5: one sentence, without the password."""
    connect("shop_db", **{**POSTGRES, **change})
    with pytest.raises(InvalidDeclaration, match=sentence) as refused:
        endpoint("shop_db")
    assert "s3cret-word" not in str(refused.value)


@pytest.mark.statement("X5")
def test_a_missing_connection_is_named(connect):
    """X5."""
    with pytest.raises(InvalidDeclaration, match="no Airflow connection 'nowhere': create one of type postgres"):
        connection("nowhere", "postgres")


def test_a_ledger_on_postgresql(connect):
    connect("backpressure_default", **LEDGER, extra={"sslmode": "verify-full"})
    found = connection("backpressure_default", "backpressure")
    address = url(found, found.extra_dejson)
    assert str(address) == "postgresql+psycopg://bp:***@meta:5432/airflow?sslmode=verify-full"
    assert address.password == "s3cret-word"


@pytest.mark.parametrize(
    ("values", "spelled"),
    [
        ({"extra": {"dialect": "postgresql"}}, "postgresql+psycopg://bp:***@meta:5432/airflow"),
        ({"extra": {"dialect": ""}}, "postgresql+psycopg://bp:***@meta:5432/airflow"),
        ({"extra": {"dialect": "mysql"}}, "mysql://bp:***@meta:3306/airflow"),
        (
            {"port": 3307, "extra": {"dialect": "mysql", "ssl_ca": "/ca.pem"}},
            "mysql://bp:***@meta:3307/airflow?ssl_ca=%2Fca.pem",
        ),
    ],
)
def test_a_ledger_of_a_named_dialect(connect, values, spelled):
    connect("backpressure_default", **{**LEDGER, **values})
    found = connection("backpressure_default", "backpressure")
    address = url(found, found.extra_dejson)
    assert str(address) == spelled
    assert address.password == "s3cret-word"


def test_a_ledger_in_a_file(connect, tmp_path):
    file = tmp_path / "ledger.sqlite"
    connect("backpressure_default", conn_type="backpressure", extra={"path": str(file)})
    hook = BackpressureHook()
    assert hook.test_connection() == (
        False,
        f"The ledger's tables are missing in {file}: run `airflow db migrate`.",
    )
    migrate(f"sqlite:///{file}")
    assert hook.test_connection() == (True, "The ledger answers; it knows 0 hydrations.")


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({**LEDGER, "extra": {"path": "/l.sqlite"}}, "names both a host and a SQLite file"),
        ({"conn_type": "backpressure", "extra": {"path": "l.sqlite"}}, "must be absolute"),
        ({"conn_type": "backpressure"}, "names no host"),
        ({"conn_type": "backpressure", "extra": {"dialect": "mysql"}}, "names no host"),
        ({**LEDGER, "extra": {"dialect": "oracle"}}, "dialect .* must be postgresql or mysql, not 'oracle'"),
        ({**LEDGER, "extra": {"dialect": "mysql", "sslmode": "require"}}, "its extra sslmode is PostgreSQL's"),
        (
            {"conn_type": "backpressure", "extra": {"path": "/l.sqlite", "dialect": "mysql"}},
            "names both a dialect and a SQLite file",
        ),
    ],
)
def test_a_ledger_that_cannot_be_meant_is_refused(connect, values, sentence):
    connect("backpressure_default", **values)
    with pytest.raises(InvalidDeclaration, match=sentence):
        BackpressureHook().ledger()


@pytest.mark.parametrize(
    ("values", "address"),
    [
        ({"host": "spark", "port": 15002}, "sc://spark:15002/"),
        ({"host": "sc://spark", "port": 15002}, "sc://spark:15002/"),
        ({"host": "spark:15002", "login": "ada"}, "sc://spark:15002/;user_id=ada"),
        (
            {"host": "spark", "password": "a;b/c", "extra": {"use_ssl": True}},
            "sc://spark/;token=a%3Bb%2Fc;use_ssl=true",
        ),
        ({"host": "spark", "extra": {"use_ssl": "false"}}, "sc://spark/"),
        (
            {"host": "spark", "extra": {"use_ssl": True, "headers": {"x-databricks-cluster-id": "0123-abc;d"}}},
            "sc://spark/;use_ssl=true;x-databricks-cluster-id=0123-abc%3Bd",
        ),
    ],
)
def test_the_address_of_spark_connect(connect, values, address):
    connect("spark", conn_type="spark_connect", **values)
    found = connection("spark", "spark_connect")
    assert remote(found, found.extra_dejson) == address


@pytest.mark.parametrize(
    ("headers", "sentence"),
    [
        ("a=b", "must be an object of texts"),
        ({"token": "canary"}, "has 'token'"),
        ({"X-Cluster": "canary"}, "small letters"),
        ({"a;token": "canary"}, "has 'a;token'"),
    ],
)
def test_headers_that_cannot_be_sent_are_refused_without_their_values(connect, headers, sentence):
    connect("spark", conn_type="spark_connect", host="spark", extra={"headers": headers})
    with pytest.raises(InvalidDeclaration, match=sentence) as raised:
        open_runner("spark", endpoints={})
    assert "canary" not in str(raised.value)


def test_spark_connect_without_a_host_is_refused(connect):
    connect("spark", conn_type="spark_connect")
    with pytest.raises(InvalidDeclaration, match="names no host of a Spark Connect server"):
        open_runner("spark", endpoints={})


def test_where_memory_is_read(connect):
    connect("spark", conn_type="spark_connect", host="spark", extra={"ui_url": "http://spark:4040"})
    assert memory_url("spark") == "http://spark:4040"
    connect("other", conn_type="spark_connect", host="spark")
    assert memory_url("other") is None


MYSQL = {"conn_type": "mysql", "host": "erp", "login": "reader", "password": "s3cret-word"}


def test_a_mysql_endpoint_reads_extras_by_their_names(connect):
    connect(
        "erp",
        **MYSQL,
        schema="shop",
        extra={
            "charset": "latin1",
            "ssl": {"ca": "/ca.pem", "cert": "/c.pem", "key": "/k.pem"},
            "ssl_mode": "verify-identity",
            "connect_timeout": 5,
            "executor_host": "10.0.0.7",
            "executor_port": "3307",
        },
    )
    found = endpoint("erp", "mysql")
    assert (found.host, found.port, found.database, found.user) == ("erp", 3306, "shop", "reader")
    assert found.options == {
        "connect_timeout": "5",
        "ssl_ca": "/ca.pem",
        "ssl_cert": "/c.pem",
        "ssl_key": "/k.pem",
        "ssl_mode": "VERIFY_IDENTITY",
    }
    assert (found.for_executors().host, found.for_executors().port) == ("10.0.0.7", 3307)
    assert "s3cret-word" not in repr(found)


def test_a_mysql_connection_needs_no_schema(connect):
    connect("erp", **MYSQL, extra={"ssl": '{"ca": "/ca.pem"}'})
    found = endpoint("erp", "mysql")
    assert (found.database, found.options) == ("", {"ssl_ca": "/ca.pem"})


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"host": None}, "names no host"),
        ({"login": None}, "names no login"),
        ({"extra": {"ssl_mode": "maybe"}}, "must be one of DISABLED"),
        ({"extra": {"ssl": "yes"}}, "no object of ca, cert and key"),
        ({"extra": {"connect_timeout": "soon"}}, "no number of seconds"),
        ({"extra": {"executor_port": "x"}}, "no port number"),
    ],
)
def test_a_mysql_connection_that_cannot_be_meant_is_refused(connect, changes, sentence):
    connect("erp", **{**MYSQL, **changes})
    with pytest.raises(InvalidDeclaration, match=sentence) as raised:
        endpoint("erp", "mysql")
    assert "s3cret-word" not in str(raised.value)
