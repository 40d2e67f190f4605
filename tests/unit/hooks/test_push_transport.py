"""Which channel a ledger has, by its connection and Airflow's setting."""

import json
import os

import pytest
from sqlalchemy import make_url

from airflow_provider_backpressure.channels.in_process import LocalChannel
from airflow_provider_backpressure.channels.kafka import KafkaChannel
from airflow_provider_backpressure.channels.postgres import PostgresChannel
from airflow_provider_backpressure.exceptions import InvalidDeclaration
from airflow_provider_backpressure.hooks.backpressure import BackpressureHook
from airflow_provider_backpressure.hooks.push_transport import push_at

POSTGRES = {"conn_type": "backpressure", "host": "db", "schema": "airflow", "login": "b", "password": "secret"}
SQLITE = {"conn_type": "backpressure", "extra": {"path": "/tmp/nowhere.sqlite"}}
MYSQL = {**POSTGRES, "extra": {"dialect": "mysql"}}
BROKER = {"conn_type": "kafka", "extra": {"bootstrap.servers": "broker:9092"}}


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch):
    """Return this process's end of the channel of a ledger with this connection."""
    monkeypatch.setenv("AIRFLOW_CONN_BROKER", json.dumps(BROKER))

    def open_(connection: dict, **extra: str):
        found = {**connection, "extra": {**connection.get("extra", {}), **extra}}
        monkeypatch.setenv("AIRFLOW_CONN_BACKPRESSURE_DEFAULT", json.dumps(found))
        ledger, push = BackpressureHook().open_ledger_and_push()
        ledger.close()
        return push

    return open_


@pytest.mark.statement("P3")
def test_a_ledger_on_postgresql_has_its_own_way(opened):
    """P3: unless told otherwise, by the connection or for all of Airflow."""
    push = opened(POSTGRES)
    assert isinstance(push.channel, PostgresChannel)
    assert push.transport == "postgres"
    assert opened(POSTGRES, push="none") is None
    assert isinstance(opened(POSTGRES, push="local").channel, LocalChannel)


@pytest.mark.statement("P3")
def test_other_ledgers_have_none_or_a_topic(opened, monkeypatch):
    """P3: MySQL and SQLite have no channel of their own."""
    assert opened(MYSQL) is None
    assert opened(SQLITE) is None
    assert isinstance(opened(MYSQL, push="kafka", push_conn_id="broker").channel, KafkaChannel)
    monkeypatch.setenv("AIRFLOW__BACKPRESSURE__PUSH", "local")
    local = opened(SQLITE)
    assert isinstance(local.channel, LocalChannel)
    assert not local.channel.healthy, "tasks are other processes"


def test_a_process_has_one_end_and_a_fork_none(opened):
    """Threads and connections stay with the parent."""
    assert opened(POSTGRES) is opened(POSTGRES)
    assert opened(POSTGRES) is not opened({**POSTGRES, "password": "changed"})
    mine = opened(POSTGRES)
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.write(writing, b"other" if opened(POSTGRES) is not mine else b"same")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 9) == b"other"
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize(
    ("connection", "extra", "named"),
    [
        (POSTGRES, {"push": "pigeons"}, "pigeons"),
        (SQLITE, {"push": "postgres"}, "not on PostgreSQL"),
        (MYSQL, {"push": "kafka"}, "push_conn_id"),
        (MYSQL, {"push": "kafka", "push_conn_id": "nobody"}, "nobody"),
    ],
)
def test_what_cannot_be_meant_is_refused(opened, connection, extra, named):
    with pytest.raises(InvalidDeclaration, match=named):
        opened(connection, **extra)


@pytest.mark.parametrize(
    ("address", "setting", "transport"),
    [
        ("postgresql+psycopg2://b:secret@db:5433/airflow?sslmode=require&application_name=x", "auto", "postgres"),
        ("postgresql://b@db/airflow", "postgres", "postgres"),
        ("postgresql://b@db/airflow", "none", None),
        ("postgresql:///airflow", "auto", None),
        ("sqlite:////tmp/airflow.db", "auto", None),
        ("mysql://b@db/airflow", "auto", None),
    ],
)
def test_a_ledger_that_no_connection_names_is_heard_by_its_address(
    monkeypatch: pytest.MonkeyPatch, address: str, setting: str, transport: str | None
):
    """As the API server opens the tables in Airflow's own database."""
    monkeypatch.setenv("AIRFLOW__BACKPRESSURE__PUSH", setting)
    push = push_at(make_url(address))
    assert (push and push.transport) == transport
    if push is not None and "sslmode" in address:
        place = push.channel._endpoint
        assert (place.address, place.user, place.password) == ("db:5433/airflow", "b", "secret")
        assert place.options == {"sslmode": "require"}
