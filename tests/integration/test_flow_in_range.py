"""What the stages do is known while a long range runs, from what a server shows of its attempt."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from airflow_provider_backpressure.connectors.lake.tasks import parquet_writer
from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.poll_policy import PollPolicy, SystemClock
from airflow_provider_backpressure.core.ports import Runner
from airflow_provider_backpressure.core.progress.bottleneck import Level, find_bottleneck, find_level
from airflow_provider_backpressure.core.stage_metrics import Flow, Meter, Stage
from airflow_provider_backpressure.hooks.spark_and_yarn import open_runner
from airflow_provider_backpressure.spark import reader_timings
from tests.support import lakes, mysql
from tests.support.composed import Composed, warm_runner
from tests.support.kafka import Topic, endpoint_of
from tests.support.local_runner import LocalRunner
from tests.support.postgres import run

pytestmark = pytest.mark.integration

ROW_SECONDS = 0.02
MANY = 100
"""Rows of a file in the time of one of a table."""
SLOW = f"""
    CREATE FUNCTION raw.wait() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN PERFORM pg_sleep({ROW_SECONDS}); RETURN NEW; END $$
"""
FRESH_SECONDS = 5.0
FIRST_SECONDS = 60.0
"""Within which the first figure is there: an application has to start."""
SMALL = {"spark.driver.memory": "512m", "spark.executor.memory": "512m", "spark.ui.enabled": False}


@pytest.fixture
def runner(request: pytest.FixtureRequest, database: Endpoint, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runner]:
    """One of them, which knows the logins of source and sink."""
    logins = {name: replace(database, conn_id=name) for name in ("source", "sink")}
    with ExitStack() as stack:
        if request.param == "connect":
            server = request.getfixturevalue("connect")
            yield stack.enter_context(warm_runner(server.url, server.ui_url, logins))
            return
        if request.param == "submit":
            connection = {"conn_type": "spark", "host": "local[2]", "extra": {"conf": SMALL}}
            monkeypatch.setenv("AIRFLOW_CONN_SPARK_SUBMIT", json.dumps(connection))
            made: Runner = open_runner("spark_submit", endpoints=logins)
        else:
            made = LocalRunner(logins=logins)
        stack.callback(made.close)
        yield made


@pytest.mark.parametrize(
    ("runner", "seconds"),
    [
        ("local", 12),
        pytest.param("connect", 120, marks=pytest.mark.long),
        pytest.param("submit", 120, marks=pytest.mark.long),
    ],
    indirect=["runner"],
)
def test_a_range_that_is_half_way_shows_what_its_stages_do(
    runner: Runner, seconds: int, database: Endpoint, ledger_url: str
) -> None:
    """F5, L9: figures are never older than five seconds, from the first one to the range's end, on both runners."""
    rows = int(seconds / ROW_SECONDS)
    run(
        database,
        f"CREATE TABLE t AS SELECT i AS id, md5(i::text) AS code FROM generate_series(1::bigint, {rows}) i",
        "ALTER TABLE t ADD PRIMARY KEY (id)",
        "CREATE SCHEMA raw",
        "CREATE TABLE raw.t (LIKE t)",
        SLOW,
        "CREATE TRIGGER slow BEFORE INSERT ON raw.t FOR EACH ROW EXECUTE FUNCTION raw.wait()",
    )
    budget = Budget(credits=1, range_rows=rows)
    composed = Composed(source=database, sink=database, ledger_url=ledger_url, remote="", budget=budget)
    check_flow(composed, runner, seconds)


class SlowWriter(parquet_writer.CountingWriter):
    """Takes its time over each row."""

    def write_table(self, table: pyarrow.Table, *arguments: Any, **options: Any) -> None:
        time.sleep(table.num_rows * ROW_SECONDS / MANY)
        super().write_table(table, *arguments, **options)


@pytest.mark.parametrize("runner", ["local"], indirect=True)
@pytest.mark.parametrize(
    ("fill", "kind"),
    [
        ("fill_postgres", "parquet"),
        ("fill_kafka", "delta"),
        pytest.param("fill_mysql", "iceberg", marks=pytest.mark.long),
    ],
)
def test_a_range_into_files_shows_what_its_stages_do(
    fill: str,
    kind: str,
    runner: LocalRunner,
    database: Endpoint,
    ledger_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    """F5: a table of files has no server, so the task writes its times down beside it, from whatever source."""
    seconds = 12
    rows = int(seconds / ROW_SECONDS) * MANY
    monkeypatch.setattr(parquet_writer, "CountingWriter", SlowWriter)
    monkeypatch.setattr(parquet_writer, "GROUP_BYTES", 2**19)
    # A process of Spark's begins anew with each range; the threads of this process keep what an earlier test measured.
    monkeypatch.setattr(reader_timings, "_meter", Meter())
    (tmp_path / "lake").mkdir()
    source = globals()[fill](request, rows)
    runner.logins["source"] = replace(source["source"], conn_id="source")
    composed = Composed(
        **source,
        sink=database,
        ledger_url=ledger_url,
        remote="",
        budget=Budget(credits=1, range_rows=rows),
        into=lakes.place(kind, tmp_path),
    )
    check_flow(composed, runner, seconds)
    assert not list(tmp_path.rglob("times/*/*.json")), "nothing is left of them"


def fill_postgres(request: pytest.FixtureRequest, rows: int) -> dict[str, Any]:
    """Return a table of PostgreSQL with so many rows."""
    database = request.getfixturevalue("database")
    run(
        database,
        f"CREATE TABLE t AS SELECT i AS id, repeat(md5(i::text), 8) AS code FROM generate_series(1::bigint, {rows}) i",
        "ALTER TABLE t ADD PRIMARY KEY (id)",
    )
    return {"source": database}


def fill_mysql(request: pytest.FixtureRequest, rows: int) -> dict[str, Any]:
    """Return a table of MySQL with so many rows."""
    database = request.getfixturevalue("mysql_database")
    mysql.run(
        database,
        "SET SESSION cte_max_recursion_depth = 10000000",
        "CREATE TABLE t (id bigint PRIMARY KEY, code text)",
        f"INSERT INTO t WITH RECURSIVE s (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM s WHERE i < {rows}) "
        "SELECT i, repeat(md5(i), 8) FROM s",
    )
    return {"source": database, "kind": "mysql", "table": "t"}


def fill_kafka(request: pytest.FixtureRequest, rows: int) -> dict[str, Any]:
    """Return a topic with so many records."""
    server = request.getfixturevalue("kafka")
    topic = Topic(servers=server.url).create(1)
    topic.send(0, *[f"{number:08}" * 32 for number in range(rows)])
    return {"source": endpoint_of(server), "kind": "kafka", "consistency": "offsets", "table": topic.name}


def check_flow(composed: Composed, runner: Runner, seconds: int) -> None:
    """Run one range of so many seconds, and check what is seen of it meanwhile: its target is slow."""
    with composed.open(runner) as ports:
        assert ports.planner().plan().ranges == 1
        hydration_id, plan_id = ports.hydration.id, ports.plan.plan_id
        lane = threading.Thread(target=ports.hydrator().run)
        lane.start()

        def look() -> Flow | None:
            flow = ports.ledger.flow(hydration_id, seconds=FRESH_SECONDS)
            return flow if Stage.SINK in flow and flow[Stage.SINK].seconds else None

        try:
            seen = [PollPolicy().until(look, timeout=FIRST_SECONDS, clock=SystemClock())]
            while ports.ledger.counts(plan_id).admitted:
                seen.append(look())
                time.sleep(0.5)
        finally:
            lane.join()
        assert len(seen) > seconds * 0.5, "most of the range was seen"
        assert None not in seen, "a figure was older than five seconds"
        middle = seen[len(seen) // 2] or {}
        assert find_level(middle[Stage.READ]) is Level.HIGH, "the target is slow in the middle of it"
        assert find_bottleneck(middle) is Stage.SINK
        assert ports.ledger.counts(plan_id).committed == 1
