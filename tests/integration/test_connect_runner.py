"""The runner over a real Spark Connect server."""

import json
import multiprocessing
import socket
import time
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_backpressure.core.config import MEBIBYTE
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.snapshot.spark_messages import ZONE, ChecksumSpec, RangeSpec, Transform
from airflow_provider_backpressure.exceptions import (
    PlanSuperseded,
    RangeFailed,
    RunnerRefused,
    RunnerUnavailable,
    SinkRefused,
    SourceRefused,
)
from airflow_provider_backpressure.runners.connect_runner import ConnectRunner
from dev.services import Server, Services
from tests.integration.attempts import Begun, backends, begin, columns_of, difference, execute
from tests.support.kept import stands_in
from tests.support.processes import Processes
from tests.support.waiting import until

pytestmark = pytest.mark.integration


@pytest.fixture
def begun(database: Endpoint) -> Begun:
    """A source of 20,000 rows and an empty target under a plan."""
    execute(database, "CREATE TABLE t AS SELECT i AS id, md5(i::text) AS code FROM generate_series(1, 20000) i")
    return begin(database, database, table="raw.t", columns=columns_of(database, "t"))


@pytest.fixture
def runner(connect: Server, begun: Begun) -> Iterator[ConnectRunner]:
    """A runner on the session's server."""
    with closing(ConnectRunner(connect.url, begun.endpoints, ui_url=connect.ui_url)) as runner:
        yield runner


def test_a_range_is_run_and_verified(runner: ConnectRunner, begun: Begun) -> None:
    """Two slices in one range arrive; the executors read the same checksum back."""
    spec = begun.spec("SELECT * FROM t WHERE id <= 9000", "SELECT * FROM t WHERE id > 9000")
    result = runner.run(spec).result(120)
    assert (result.plan_id, result.seq, result.attempt, result.rows) == (spec.plan_id, 0, 1, 20000)
    assert [piece.slice_id for piece in result.slices] == ["0.0", "0.1"]
    assert result.peak_memory_bytes > 0
    assert difference(begun.source, "SELECT * FROM t", begun.sink, "SELECT * FROM raw.t") == (20000, 20000, 0)
    read_back = runner.checksum(ChecksumSpec(kind="postgres", conn_id="sink", query="SELECT * FROM raw.t")).result(60)
    total = sum(int(piece.checksum.partition(":")[2], 16) for piece in result.slices) % 2**64
    assert read_back.checksum == f"pgcopy-xxh3:{total:016x}"


def test_the_probe_sees_the_executors_python(runner: ConnectRunner) -> None:
    """Version of Python and of what tasks import."""
    environment = runner.probe(["psycopg", "pyarrow", "xxhash"])
    assert environment.python.count(".") == 1
    assert all(environment.modules[name] for name in ("psycopg", "pyarrow", "xxhash"))


def test_the_server_keeps_no_plans(runner: ConnectRunner) -> None:
    """Each holds all of our code: a few hundred would fill the heap of a small server."""
    assert runner._open().conf.get("spark.connect.session.planCache.enabled") == "false"


def test_an_error_of_ours_comes_back_as_itself(runner: ConnectRunner, begun: Begun) -> None:
    """What a task raised arrives with its class and its one sentence."""
    begun.superseded()
    with pytest.raises(PlanSuperseded, match=r"^Plan \w+ \(epoch 1\) no longer holds [^\n]*$"):
        runner.run(begun.spec("SELECT * FROM t")).result(60)


@pytest.mark.statement("X5")
def test_an_unreachable_server_is_one_sentence(begun: Begun) -> None:
    """X5: within seconds, not after Spark's own ten minutes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = time.monotonic()
    with (
        closing(ConnectRunner(f"sc://127.0.0.1:{port}/;token=canary", begun.endpoints)) as runner,
        pytest.raises(RunnerUnavailable) as raised,
    ):
        runner.run(begun.spec("SELECT * FROM t")).result(60)
    assert str(raised.value) == f"Spark Connect at sc://127.0.0.1:{port} cannot be reached: Connection refused."
    assert time.monotonic() - started < 15


@pytest.mark.statement("X5")
def test_a_module_missing_on_the_executors_is_named(
    runner: ConnectRunner, begun: Begun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X5: found by the probe, and refused in one sentence where a range is run all the same."""
    # Workers of its own: what hides the module must reach no other session.
    monkeypatch.setattr("airflow_provider_backpressure.runners.connect_session.SHARED", {})
    hidden = tmp_path / "psycopg.py"
    hidden.write_text("raise ModuleNotFoundError(\"No module named 'psycopg'\", name='psycopg')")
    runner._open().addArtifacts(str(hidden), pyfile=True)
    assert runner.probe(["psycopg"]).modules["psycopg"] is None
    with pytest.raises(RunnerRefused) as raised:
        runner.run(begun.spec("SELECT * FROM t")).result(60)
    assert str(raised.value) == "The executors' Python has no module psycopg: install it where Spark runs."


@pytest.mark.statement("X5")
def test_another_python_on_the_executors_is_refused(
    runner: ConnectRunner, begun: Begun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X5: with both versions."""
    monkeypatch.setattr("pyspark.sql.connect.plan.get_python_ver", lambda: "3.99", raising=False)
    monkeypatch.setattr("pyspark.sql.connect.udf.sys.version_info", (3, 99, 0), raising=False)
    with pytest.raises(RunnerRefused, match=r"executors run Python 3\.\d+ and Airflow Python 3\.99, which"):
        runner.probe()


@pytest.mark.statement("X5")
def test_a_wrong_password_is_one_sentence_without_it(connect: Server, begun: Begun) -> None:
    """X5: named by user and address."""
    wrong = {name: replace(each, password="canary-in-the-mine") for name, each in begun.endpoints.items()}
    with closing(ConnectRunner(connect.url, wrong)) as runner, pytest.raises(SinkRefused) as raised:
        runner.run(begun.spec("SELECT * FROM t")).result(60)
    assert "does not let postgres in" in str(raised.value)
    assert "canary" not in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_session_that_the_server_forgot_is_opened_anew(runner: ConnectRunner, begun: Begun) -> None:
    """One attempt fails as transient, the next goes well under another session id."""
    first = runner.session_id
    other = runner._address.open(first)
    runner.probe()
    other.stop()
    with pytest.raises(RunnerUnavailable, match="no longer knows this session"):
        runner.probe()
    assert runner.run(begun.spec("SELECT * FROM t")).result(60).rows == 20000
    assert runner.session_id != first


SLOW = "SELECT id, code FROM t WHERE id <> 15000 OR pg_sleep(600) IS NOT NULL"


def test_a_running_job_is_interrupted_by_its_tag(runner: ConnectRunner, begun: Begun) -> None:
    """The future ends with an error, the others go on, and nothing is left in the sink."""
    spec, other = begun.spec(SLOW), begun.spec("SELECT * FROM t", seq=1)
    job = runner.run(spec)
    until(lambda: backends(begun.sink, spec.tag), timeout=60)
    runner.interrupt(runner.session_id, spec.tag)
    with pytest.raises(RangeFailed, match="cancelled"):
        job.result(30)
    assert runner.run(other).result(60).rows == 20000
    until(lambda: not backends(begun.sink, spec.tag))
    assert set(begun.markers()) == {"1.0"}


@pytest.mark.statement("T1", "X2")
@pytest.mark.fault(3)
def test_a_killed_lanes_job_is_interrupted_by_another_process(connect: Server, begun: Begun) -> None:
    """T1, X2: after kill -9 of the client the server runs on; session id and tag are enough to stop it."""
    session_id, spec = str(uuid.uuid4()), begun.spec(SLOW)
    context = multiprocessing.get_context("spawn")
    lane = context.Process(target=_lane, args=(connect.url, session_id, begun, spec))
    lane.start()
    until(lambda: backends(begun.sink, spec.tag), timeout=90)
    lane.kill()
    lane.join()
    assert active_stages(connect)
    with closing(ConnectRunner(connect.url, begun.endpoints)) as runner:
        runner.interrupt(session_id, spec.tag)
        until(lambda: not active_stages(connect))
        until(lambda: not backends(begun.sink, spec.tag))
        assert begun.markers() == {}
        assert runner.run(begun.spec("SELECT * FROM t", attempt=2)).result(60).rows == 20000


def _lane(url: str, session_id: str, begun: Begun, spec: RangeSpec) -> None:
    ConnectRunner(url, begun.endpoints, session_id=session_id).run(spec).result()


def active_stages(connect: Server) -> list[Any]:
    """Stages that run on the server now."""
    pages = f"{connect.ui_url}/api/v1/applications"
    app = json.loads(read_page(pages))[0]["id"]
    return json.loads(read_page(f"{pages}/{app}/stages?status=active"))


def _readings(runner: ConnectRunner, number: int) -> list[Any]:
    """Return so many readings that Spark's page gave one after another."""
    found = [runner.memory()]
    while len(found) < number:
        until(lambda: runner.memory() is not found[-1])
        found.append(runner.memory())
    return found


@pytest.mark.statement("T6")
def test_memory_is_seen_while_a_stage_runs_and_not_after(connect: Server, runner: ConnectRunner, begun: Begun) -> None:
    """T6: process-tree memory of JVM and Python on the real server; a past peak is nothing."""
    job = runner.run(begun.spec(SLOW))
    seen = [runner.memory()]
    until(lambda: seen.append(runner.memory()) or (seen[-1] and seen[-1].used_bytes), timeout=60)
    # Before the first heartbeat of the stage Spark answers 0: no figure, and from the first one on no gap.
    assert {one.used_bytes for one in seen[:-1] if one} <= {None}
    following = [seen[-1], *_readings(runner, 3)]
    assert all(one.used_bytes for one in following)
    reading = following[-1]
    assert 200 * MEBIBYTE < reading.used_bytes < 8 * 1024 * MEBIBYTE
    assert reading.limit_bytes > 1024 * MEBIBYTE
    runner.interrupt(runner.session_id, begun.spec(SLOW).tag)
    with pytest.raises(RangeFailed):
        job.result(30)
    until(lambda: runner.memory().idle)
    assert runner.memory().used_bytes is None
    assert ConnectRunner(connect.url, {}, ui_url="http://127.0.0.1:9").memory() is None
    with closing(ConnectRunner(connect.url, {})) as other:
        assert other.memory().idle, "the page is found without being told"


@pytest.mark.statement("X5")
def test_no_secret_is_shown_by_spark(services: Services, begun: Begun, tmp_path: Path) -> None:
    """X5: a login's password stands in no page, no answer of the REST interface, no event log, no process."""
    events = tmp_path / "events"
    events.mkdir()
    options = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.compress": "false",
    }
    server = services.up("connect:logged", spark_conf=options)["connect:logged"]
    password = begun.sink.password
    try:
        with Processes().looking() as processes, closing(ConnectRunner(server.url, begun.endpoints)) as runner:
            job = runner.run(begun.spec(SLOW))
            until(lambda: backends(begun.sink, "bp:"), timeout=60)
            runner.interrupt(runner.session_id, begun.spec(SLOW).tag)
            with pytest.raises(RangeFailed) as raised:
                job.result(30)
            assert runner.run(begun.spec("SELECT * FROM t", attempt=2)).result(60).rows == 20000
        app = json.loads(read_page(f"{server.ui_url}/api/v1/applications"))[0]["id"]
        api = f"{server.ui_url}/api/v1/applications/{app}"
        pages = [f"{api}/{page}" for page in ("jobs", "stages?details=true", "environment", "executors")]
        pages += [f"{api}/sql?details=true&planDescription=true&length=100"]
        pages += [f"{server.ui_url}/{page}/" for page in ("connect", "SQL", "jobs", "stages", "environment")]
        seen = {page: read_page(page) for page in pages}
    finally:
        services.down("connect:logged")
    seen["events"] = b"".join(path.read_bytes() for path in events.rglob("*") if path.is_file())
    seen["error"] = str(raised.value).encode()
    assert begun.plan.plan_id.encode() in seen["events"] + seen[pages[0]], "the pages do show the job's tag"
    assert [where for where, text in seen.items() if stands_in(password, text)] == []
    assert processes.leaks({"password": password}) == {}
    assert processes.commands("pyspark.daemon") > 1, "they were looked at while the job ran"


def read_page(url: str) -> bytes:
    """A page as a browser gets it; the first one of a server takes seconds."""
    with urllib.request.urlopen(url, timeout=60) as response:
        return response.read()


@pytest.mark.long
def test_a_transforms_hours_are_those_of_its_plans_zone_wherever_the_server_is(
    services: Services, begun: Begun
) -> None:
    """F4: another cluster in another zone makes the same rows; a plan of an earlier release keeps the server's zone."""
    zone = {"spark.driver.extraJavaOptions": "-Duser.timezone=Asia/Tokyo"}
    server = services.up("connect:tokyo", spark_conf=zone)["connect:tokyo"]
    zones = {"earlier": (None, "Asia/Tokyo"), "hours": (ZONE, "UTC")}
    try:
        with closing(ConnectRunner(server.url, begun.endpoints)) as runner:
            read = begun.plan.read
            for table, (given, _) in zones.items():
                transform = Transform(sql="SELECT id, hour(timestamp_seconds(id)) AS hour FROM source", zone=given)
                columns = runner.describe(read, transform)
                options = {"read": read.columns, "path": "frame", "transform": transform}
                target = begin(begun.source, begun.sink, table=f"raw.{table}", columns=columns, **options)
                assert runner.run(target.spec("SELECT * FROM t")).result(120).rows == 20000
    finally:
        services.down("connect:tokyo")
    for table, (_, name) in zones.items():
        expected = f"SELECT id, extract(hour FROM to_timestamp(id) AT TIME ZONE '{name}')::int AS hour FROM t"
        assert difference(begun.source, expected, begun.sink, f"SELECT * FROM raw.{table}") == (20000, 20000, 0)


def test_an_interrupt_of_nothing_is_nothing(runner: ConnectRunner) -> None:
    """Neither an unknown tag nor an unknown session is an error."""
    runner.interrupt(runner.session_id, "bp:none:0.0:1")
    runner.interrupt(str(uuid.uuid4()), "bp:none:0.0:1")


def count_jobs(connect: Server) -> int:
    """How many jobs Spark has begun."""
    pages = f"{connect.ui_url}/api/v1/applications"
    with urllib.request.urlopen(pages) as answer:
        application = json.load(answer)[0]["id"]
    with urllib.request.urlopen(f"{pages}/{application}/jobs") as answer:
        return len(json.load(answer))


@pytest.mark.statement("L3", "L4")
def test_small_ranges_share_jobs_and_one_that_fails_fails_alone(connect: Server, begun: Begun) -> None:
    """Twelve ranges take a few jobs; what one cannot read keeps none of the others from its commit."""
    pieces = {number: f"SELECT * FROM t WHERE id % 12 = {number}" for number in range(12)}
    pieces[7] = "SELECT id / 0 AS id, code FROM t WHERE id % 12 = 7"
    with closing(ConnectRunner(connect.url, begun.endpoints, ui_url=connect.ui_url, shares=True)) as runner:
        runner.probe()
        runner.memory()
        before = count_jobs(connect)
        futures = {number: runner.run(begun.spec(query, seq=number, small=True)) for number, query in pieces.items()}
        with pytest.raises(SourceRefused, match="division by zero"):
            futures.pop(7).result(120)
        results = {number: future.result(120) for number, future in futures.items()}
        jobs = count_jobs(connect) - before
    assert jobs <= 6, f"{jobs} jobs for 12 ranges"
    assert {number: result.slices[0].slice_id for number, result in results.items()} == {
        number: f"{number}.0" for number in results
    }
    assert begun.markers().keys() == {f"{number}.0" for number in results}
    read = "SELECT * FROM t WHERE id % 12 <> 7"
    assert difference(begun.source, read, begun.sink, "SELECT * FROM raw.t")[2] == 0


@pytest.mark.statement("L3")
def test_ranges_that_may_be_large_have_jobs_of_their_own(connect: Server, begun: Begun) -> None:
    """The others of a job would wait for them."""
    with closing(ConnectRunner(connect.url, begun.endpoints, ui_url=connect.ui_url, shares=True)) as runner:
        runner.probe()
        before = count_jobs(connect)
        futures = [
            runner.run(begun.spec(f"SELECT * FROM t WHERE id % 6 = {number}", seq=number)) for number in range(6)
        ]
        assert sum(future.result(120).rows for future in futures) == 20_000
        assert count_jobs(connect) - before == 6
