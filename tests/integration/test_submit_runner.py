"""The runner over a real spark-submit: applications on this host and on a standalone cluster.

Each application costs some ten seconds, so there are few, and each is looked at from several sides.
"""

import json
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_backpressure.core.config import MEBIBYTE, Budget
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.ports import Runner
from airflow_provider_backpressure.core.snapshot.spark_messages import ZONE, RangeSpec, Transform
from airflow_provider_backpressure.exceptions import PlanSuperseded
from airflow_provider_backpressure.hooks.backpressure import BackpressureHook
from airflow_provider_backpressure.hooks.spark_and_yarn import open_runner
from airflow_provider_backpressure.ledger.migration import migrate
from airflow_provider_backpressure.operators import HydrateOperator, PlanSnapshotOperator, VerifyHydrationOperator
from airflow_provider_backpressure.runners import driver_process_and_files as processes
from airflow_provider_backpressure.runners.executor_memory import safe
from airflow_provider_backpressure.sinks import PostgresSink
from airflow_provider_backpressure.sources import PostgresSource
from dev.services import Services
from tests.integration.attempts import Begun, backends, begin, columns_of, difference, execute
from tests.support.kept import stands_in
from tests.support.processes import Processes
from tests.support.waiting import until
from tests.support.world import context

pytestmark = pytest.mark.integration

SMALL = {"spark.driver.memory": "512m", "spark.executor.memory": "512m", "spark.ui.enabled": False}
SLOW = "SELECT id, code FROM t WHERE id <> 15000 OR pg_sleep(600) IS NOT NULL"
Open = Callable[..., Runner]


@pytest.fixture
def begun(database: Endpoint) -> Begun:
    """A source of 20,000 rows and an empty target under a plan."""
    execute(database, "CREATE TABLE t AS SELECT i AS id, md5(i::text) AS code FROM generate_series(1, 20000) i")
    return begin(database, database, table="raw.t", columns=columns_of(database, "t"))


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for temporary files of its own."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", None)
    return folder


@pytest.fixture
def submit(monkeypatch: pytest.MonkeyPatch, temporary: Path, begun: Begun) -> Iterator[Open]:
    """Opens runners of a connection of type ``spark``; they are closed in the end."""
    opened: list[Runner] = []

    def open_one(master: str, *, endpoints: dict[str, Endpoint] | None = None, **conf: Any) -> Runner:
        connection = {"conn_type": "spark", "host": master, "extra": {"conf": {**SMALL, **conf}}}
        monkeypatch.setenv("AIRFLOW_CONN_SPARK_SUBMIT", json.dumps(connection))
        opened.append(open_runner("spark_submit", endpoints=endpoints or begun.endpoints))
        return opened[-1]

    yield open_one
    for runner in opened:
        runner.close()


@pytest.mark.statement("X5")
def test_a_range_is_an_application_and_its_password_is_nowhere(
    submit: Open,
    begun: Begun,
    temporary: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Two slices arrive. X5: the password stands in no command line, environment, log or event log, and in no file."""
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", json.dumps({"conn_type": "postgres", "password": begun.sink.password}))
    events = tmp_path / "events"
    events.mkdir()
    logged = {"spark.eventLog.enabled": True, "spark.eventLog.dir": events.as_uri(), "spark.eventLog.compress": False}
    runner = submit("local[2]", **logged)
    spec = begun.spec("SELECT * FROM t WHERE id <> 7 OR pg_sleep(2) IS NOT NULL", "SELECT * FROM t WHERE false")
    with Processes().looking() as shown:
        job = runner.run(spec)
        until(lambda: job.done() or backends(begun.sink, spec.tag), timeout=300)
        running = processes.find_processes(safe(spec.tag))
        kept = [path for path in temporary.rglob("*.json") if begun.sink.password in path.read_text()]
        result = job.result(300)
    assert (result.plan_id, result.seq, result.attempt, result.rows) == (spec.plan_id, 0, 1, 20000)
    assert result.peak_memory_bytes > 0
    assert difference(begun.source, "SELECT * FROM t", begun.sink, "SELECT * FROM raw.t") == (20000, 20000, 0)
    assert {marker.attempt for marker in begun.markers().values()} == {1}
    assert len(running) >= 2, "spark-submit and the driver are found by the attempt's tag"
    assert kept == [], "the logins' file is gone before the first row moves"
    seen = {"log": capsys.readouterr().out.encode()}
    assert b"Spark-Submit cmd" in seen["log"]
    seen["events"] = b"".join(path.read_bytes() for path in events.rglob("*") if path.is_file())
    assert spec.tag.encode() in seen["events"], "the event log does name the application"
    assert [where for where, text in seen.items() if stands_in(begun.sink.password, text)] == []
    assert shown.leaks({"password": begun.sink.password}) == {}
    assert shown.commands(safe(spec.tag)) > 10, "from the start of spark-submit to the end of the driver"
    root = temporary / f"backpressure-{os.getuid()}"
    assert root.stat().st_mode & 0o777 == 0o700
    assert list(root.iterdir()) == []


@pytest.fixture
def standalone(services: Services) -> Iterator[str]:
    """The address of a standalone master with one worker."""
    servers = services.up("standalone", workers=1, worker_memory="1g")
    yield next(server.url for server in servers.values() if server.url.startswith("spark://"))
    services.down("standalone")


@pytest.mark.long
def test_a_transform_runs_on_a_standalone_cluster(
    submit: Open, begun: Begun, standalone: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The frame path with SQL; columns by analysis, hours in UTC, the probe once a day."""
    zone = {"spark.driver.extraJavaOptions": "-Duser.timezone=Asia/Tokyo"}
    runner = submit(standalone, **{"spark.pyspark.python": sys.executable, "spark.cores.max": "2", **zone})
    query = "SELECT id, upper(code) AS code, hour(timestamp_seconds(id)) AS hour FROM source"
    transform = Transform(sql=query, zone=ZONE)
    columns = runner.describe(begun.plan.read, transform)
    assert [(column.name, column.type) for column in columns] == [
        ("id", "integer"),
        ("code", "text"),
        ("hour", "integer"),
    ]
    environment = runner.probe(["psycopg", "pyarrow", "xxhash"])
    assert environment.modules["psycopg"]
    assert submitted(capsys) == 2
    assert runner.probe(["psycopg", "pyarrow", "xxhash"]) == environment
    assert submitted(capsys) == 0, "what was found well is not asked again"
    target = begin(
        begun.source,
        begun.sink,
        table="raw.upper",
        columns=columns,
        read=begun.plan.read.columns,
        path="frame",
        transform=transform,
    )
    result = runner.run(target.spec("SELECT * FROM t")).result(120)
    assert result.rows == 20000
    hour = "extract(hour FROM to_timestamp(id) AT TIME ZONE 'UTC')::int"
    expected = f"SELECT id, upper(code) AS code, {hour} AS hour FROM t"
    assert difference(begun.source, expected, begun.sink, "SELECT * FROM raw.upper") == (20000, 20000, 0)


def submitted(capsys: pytest.CaptureFixture[str]) -> int:
    """Applications that were submitted since the last look, by what the Spark provider says of each."""
    return capsys.readouterr().out.count("Spark-Submit cmd")


@pytest.mark.long
@pytest.mark.statement("X2", "X5")
@pytest.mark.fault(3)
def test_a_killed_lanes_application_is_ended_by_another_process(submit: Open, begun: Begun, temporary: Path) -> None:
    """X2: it runs on after kill -9 of its lane; session id and tag are enough to end it. X5: one sentence each."""
    spec = begun.spec(SLOW)
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    runner = submit("local[2]")
    lane = context.Process(target=_lane, args=(there, begun, spec))
    lane.start()
    session_id = here.recv()
    until(lambda: backends(begun.sink, spec.tag), timeout=120)
    lane.kill()
    lane.join()
    assert processes.find_processes(safe(spec.tag))
    runner.interrupt(session_id, spec.tag)
    assert processes.find_processes(safe(spec.tag)) == []
    until(lambda: not backends(begun.sink, spec.tag))
    assert begun.markers() == {}
    assert list((temporary / f"backpressure-{os.getuid()}").iterdir()) == []
    begun.superseded()
    with pytest.raises(PlanSuperseded, match=r"^Plan \w+ \(epoch 1\) no longer holds [^\n]*$"):
        runner.run(begun.spec("SELECT * FROM t", attempt=2)).result(120)


@pytest.mark.statement("X1", "X2")
@pytest.mark.long
def test_a_hydration_runs_through_the_operators(
    submit: Open,
    database: Endpoint,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Plan, two ranges at once, verification: as a DAG has it, but for the connection's type nothing is different."""
    execute(
        database,
        "CREATE TABLE orders (id bigint PRIMARY KEY, code text)",
        "INSERT INTO orders SELECT i, md5(i::text) FROM generate_series(1, 5000) i",
        "ANALYZE orders",
    )
    ledger = tmp_path / "ledger.sqlite"
    migrate(f"sqlite:///{ledger}")
    login = {"host": database.host, "port": database.port, "schema": database.database, "login": database.user}
    postgres = {"conn_type": "postgres", **login, "password": database.password}
    connections = {"SHOP_DB": postgres, "WAREHOUSE": postgres}
    connections["BACKPRESSURE_DEFAULT"] = {"conn_type": "backpressure", "extra": {"path": str(ledger)}}
    for name, values in connections.items():
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", json.dumps(values))
    submit("local[1]")
    flow: dict[str, Any] = {
        "source": PostgresSource(conn_id="shop_db", table="public.orders"),
        "sink": PostgresSink(conn_id="warehouse", table="public.copied"),
        "spark_conn_id": "spark_submit",
        "budget": Budget(credits=2, range_rows=2500),
    }
    planned = PlanSnapshotOperator(task_id="plan_snapshot", consistency="static", **flow).execute(context())
    assert planned["ranges"] == 2
    assert submitted(capsys) == 0, "on this host nothing is asked by an application"
    assert HydrateOperator(task_id="hydrate_ranges", **flow).execute(context())["committed"] == 2
    assert submitted(capsys) == 2
    verified = VerifyHydrationOperator(task_id="verify_hydration", **flow).execute(context())
    assert (verified["rows"], verified["verified"]) == (5000, "target")
    assert submitted(capsys) == 1, "the checksums of all ranges share an application"
    assert difference(database, "SELECT * FROM orders", database, "SELECT * FROM copied") == (5000, 5000, 0)
    with closing(BackpressureHook().ledger()) as opened:
        ranges = opened.ranges(planned["plan_id"])
        gate = opened.gate(planned["hydration_id"])
    assert all(record.session_id.startswith("submit:") for record in ranges)
    assert gate.range_memory_bytes > 10 * MEBIBYTE, "what a range takes is learned"


def _lane(pipe: Any, begun: Begun, spec: RangeSpec) -> None:
    runner = open_runner("spark_submit", endpoints=begun.endpoints)
    pipe.send(runner.session_id)
    runner.run(spec).result()
