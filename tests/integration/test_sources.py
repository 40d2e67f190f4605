"""The module that docker-compose.yml runs fills the sources that the example DAGs read."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from airflow_provider_backpressure.core.endpoints import Endpoint
from dev import erp, events, sources, stock, tpch
from dev.databases import open_database
from dev.services import Server
from tests.conftest import fresh_database
from tests.support.mysql import run
from tests.support.waiting import until

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
ROWS = 1_000


@pytest.fixture
def emptied(mysql: Endpoint, kafka: Server) -> Iterator[None]:
    """Servers without the table and the topic: others fill them with rows of their own, where they are missing."""

    def remove() -> None:
        run(mysql, f"DROP DATABASE IF EXISTS {erp.DATABASE}")
        admin = AdminClient({"bootstrap.servers": kafka.url})
        if events.TOPIC in admin.list_topics(timeout=30).topics:
            admin.delete_topics([events.TOPIC])[events.TOPIC].result(30)
        until(lambda: events.TOPIC not in admin.list_topics(timeout=30).topics, 30)

    remove()
    yield
    remove()


@pytest.mark.long
@pytest.mark.usefixtures("emptied")
@pytest.mark.long
def test_the_sources_are_filled_once(postgres: Server, mysql: Endpoint, kafka: Server) -> None:
    """By connections in the environment alone; a second run leaves everything as it is."""
    login = {"host": postgres.host, "port": postgres.port, "login": postgres.user, "password": postgres.password}
    theirs = {"host": mysql.host, "port": mysql.port, "login": mysql.user, "password": mysql.password}
    with fresh_database(postgres) as shop:
        connections = {
            "SHOP_DB": {"conn_type": "postgres", **login, "schema": shop.database},
            "ERP": {"conn_type": "mysql", **theirs, "schema": erp.DATABASE},
            "EVENTS": {"conn_type": "kafka", "extra": {"bootstrap.servers": kafka.url}},
        }
        given = {f"AIRFLOW_CONN_{conn_id}": json.dumps(fields) for conn_id, fields in connections.items()}
        command = [sys.executable, "-m", sources.__name__, "--rows", str(ROWS)]
        for _ in range(2):
            done = subprocess.run(
                command, cwd=ROOT, env={**os.environ, **given}, capture_output=True, text=True, timeout=120
            )
            assert done.returncode == 0, done.stderr
        with open_database(postgres, shop.database) as connection:
            assert tpch.fingerprint(connection, "public", sources.TABLE)[0] == ROWS
            assert connection.execute(f"SELECT count(*) FROM {stock.TABLE}").fetchone() == (ROWS,)
    server = sources.server_of(connections["ERP"])
    assert erp.fingerprint(server, table=sources.TABLE)[0] == ROWS
    assert events.fingerprint(kafka.url, topic=events.TOPIC)[0] == ROWS
