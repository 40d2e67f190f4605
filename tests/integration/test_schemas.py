"""Many tables by one task group: real PostgreSQL, Spark Connect, and Airflow's own run of a DAG."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.ledger.migration import migrate
from airflow_provider_backpressure.ledger.repository import SqlLedger
from dev.airflow import Airflow
from dev.services import Server
from tests.conftest import fresh_database
from tests.support.postgres import connected, new_role, run

pytestmark = [pytest.mark.integration, pytest.mark.long]

TABLES, ROWS = 50, 300
BROKEN = ("t02", "t05", "t09")
DAGS = """
from datetime import timedelta

from airflow.sdk import DAG

from airflow_provider_backpressure.sinks import PostgresSink
from airflow_provider_backpressure.sources import PostgresSource
from airflow_provider_backpressure.task_groups import hydrate

HERE = {"sink": PostgresSink(conn_id="warehouse", table="raw.{table}"), "spark_conn_id": "spark_connect_default"}
with DAG("schema", schedule=None, default_args={"retries": 0}):
    hydrate(PostgresSource(conn_id="shop_db", tables="public.t*"), group_id="all", **HERE)
"""
GROUP = ("all.plan_snapshot", "all.hydrate_ranges", "all.verify_hydration")


class Installed:
    """An Airflow without any process, whose DAG is run by ``airflow dags test``."""

    def __init__(self, home: Path, shop: Endpoint, reader: Endpoint, own: Endpoint, connect: Server) -> None:
        self.shop, self.reader, self.own = shop, reader.user, own
        (home / "dags").mkdir(parents=True)
        (home / "dags" / "schema.py").write_text(DAGS)
        spark = {"conn_type": "spark_connect", "host": connect.host, "port": connect.port}
        self.airflow = Airflow(
            home=home / "airflow",
            dags=home / "dags",
            metadata_url=_url(own),
            connections={
                "shop_db": _connection(reader),
                "warehouse": _connection(shop),
                "backpressure_default": {**_connection(own), "conn_type": "backpressure"},
                "spark_connect_default": {**spark, "extra": json.dumps({"ui_url": connect.ui_url})},
            },
        )
        self.airflow.command("db", "migrate")
        migrate(_url(own))

    def run(self, when: str) -> tuple[dict[str, str], str]:
        """Run the DAG at a logical date, again where it was run at it, and return the states of its tasks, and the log.

        A run that is repeated is the same run for the ledger, as one that was cleared.
        """
        done = subprocess.run(
            [sys.executable, "-m", "airflow", "dags", "test", "schema", when],
            env={**self.airflow.environment, "PYTHONPATH": os.getcwd()},
            capture_output=True,
            text=True,
            check=False,
            timeout=900,
        )
        with connected(self.own) as link:
            states = dict(link.execute("SELECT task_id, state FROM task_instance WHERE dag_id = 'schema'").fetchall())
        return states, done.stdout + done.stderr


def _connection(place: Endpoint) -> dict[str, object]:
    return {
        "conn_type": "postgres",
        "host": place.host,
        "port": place.port,
        "login": place.user,
        "password": place.password,
        "schema": place.database,
    }


def _url(place: Endpoint) -> str:
    return f"postgresql+psycopg://{place.user}:{place.password}@{place.address}"


@pytest.fixture
def installed(tmp_path: Path, postgres: Server, connect: Server, database: Endpoint) -> Iterator[Installed]:
    """Fifty tables, of which one may not be read, one has a type that is refused, and one has another target."""
    with fresh_database(postgres) as own, new_role(database) as reader:
        yield Installed(tmp_path, database, reader, own, connect)


def fill(place: Endpoint, reader: str) -> None:
    """Make the tables."""
    with connected(place) as link:
        link.autocommit = True
        link.execute("CREATE SCHEMA raw")
        for number in range(TABLES):
            link.execute(
                f"CREATE TABLE t{number:02} AS SELECT i AS id, md5(i::text) AS code "
                f"FROM generate_series(1::bigint, {ROWS}) i"
            )
            link.execute(f"ALTER TABLE t{number:02} ADD PRIMARY KEY (id)")
        link.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {reader}")


def break_(place: Endpoint, reader: str) -> None:
    """Break three of them."""
    run(
        place,
        f"REVOKE SELECT ON t02 FROM {reader}",
        f"GRANT SELECT (id) ON t02 TO {reader}",
        "CREATE TABLE raw.t05 (id bigint PRIMARY KEY, code integer)",
        "CREATE TABLE raw.t09 (id bigint PRIMARY KEY, code text)",
        "INSERT INTO raw.t09 VALUES (-1, 'of others')",
    )


def mend(place: Endpoint, reader: str) -> None:
    """Mend them."""
    run(place, f"GRANT SELECT ON t02 TO {reader}", "DROP TABLE raw.t05", "DELETE FROM raw.t09")


def arrived(place: Endpoint) -> set[str]:
    """Return the tables whose rows are in their targets."""
    found = set()
    with connected(place) as link:
        for name in (f"t{number:02}" for number in range(TABLES)):
            query = f"SELECT count(*) FROM (TABLE public.{name} INTERSECT TABLE raw.{name}) q"
            try:
                (rows,) = link.execute(query).fetchone() or (0,)
            except psycopg.Error:
                link.rollback()
                continue
            if rows == ROWS:
                found.add(name)
    return found


def test_tables_that_fail_stop_alone_and_a_retry_touches_only_those(installed: Installed) -> None:
    """L7 and L4: more hydrations than tokens; 3 of 50 tables are broken in different ways, and 47 arrive."""
    place, when = installed.shop, "2026-02-03T00:00:00+00:00"
    fill(place, installed.reader)
    break_(place, installed.reader)
    states, log = installed.run(when)
    assert states == dict.fromkeys(GROUP, "failed"), log[-4000:]
    every = {f"t{number:02}" for number in range(TABLES)}
    assert arrived(place) == every - set(BROKEN)
    assert f"3 of {TABLES} tables have failed:" in log
    named = set(re.findall(r"- public\.t\d\d: [^\n]*", log))
    for name, cause in (("t02", "code"), ("t05", "raw.t05"), ("t09", "already holds rows")):
        assert any(name in line and cause in line for line in named), (name, named)
    with closing(SqlLedger(_url(installed.own))) as ledger:
        before = {one.sink_identity: one.plan.plan_id for one in ledger.hydrations() if one.plan is not None}
        assert len(before) == TABLES - len(BROKEN)

        mend(place, installed.reader)
        states, log = installed.run(when)
        assert states == dict.fromkeys(GROUP, "success"), log[-4000:]
        assert arrived(place) == every
        after = {one.sink_identity: one.plan.plan_id for one in ledger.hydrations() if one.plan is not None}
    assert before.items() <= after.items(), "tables that had arrived were planned again"
    drained = set(re.findall(r"public\.(t\d\d): \[", log))
    assert drained == set(BROKEN), "only these were drained again"
