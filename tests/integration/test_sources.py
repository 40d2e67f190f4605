"""The module that docker-compose.yml runs fills the sources that the example DAGs read."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_backpressure.core.endpoints import Endpoint
from dev import erp, events, sources, tpch
from dev.databases import open_database
from dev.services import Server
from tests.conftest import fresh_database

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
ROWS = 1_000


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
            assert tpch.fingerprint(connection, *sources.SOURCES["shop_db"].split("."))[0] == ROWS
    server = sources.server_of(connections["ERP"])
    assert erp.fingerprint(server, table=sources.SOURCES["erp"])[0] == ROWS
    assert events.fingerprint(kafka.url, topic=sources.SOURCES["events"])[0] == ROWS
