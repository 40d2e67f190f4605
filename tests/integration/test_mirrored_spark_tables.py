"""``mirror`` into tables that Spark's own connectors write: each run makes them equal, and writes only what differs."""

import random
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet
from pyspark.errors import PySparkException

from airflow_provider_backpressure.connectors.lake.spark.commit_notes import CHAIN
from airflow_provider_backpressure.connectors.lake.spark.sql_session import SqlSession
from airflow_provider_backpressure.connectors.lake.spark.table import open_table
from airflow_provider_backpressure.connectors.lake.tasks import spark_mirror
from airflow_provider_backpressure.core.config import Budget, Refresh
from airflow_provider_backpressure.core.endpoints import NOWHERE, Endpoint
from airflow_provider_backpressure.core.failpoints import VARIABLE, Step
from airflow_provider_backpressure.core.planning.range_repair import repair
from airflow_provider_backpressure.core.snapshot.ranges import RangeRecord
from airflow_provider_backpressure.core.verification.completeness_check import Completion
from airflow_provider_backpressure.core.verification.mismatch_report import Report
from airflow_provider_backpressure.core.verification.verifier import Verify
from airflow_provider_backpressure.exceptions import BackpressureError, PlanSuperseded, SinkRefused, SourceRefused
from airflow_provider_backpressure.runners.connect_runner import ConnectRunner
from tests.support import mysql
from tests.support.composed import Composed
from tests.support.lakes import Cluster
from tests.support.ledgers import new_ledger
from tests.support.postgres import run

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(1200), pytest.mark.statement("L2")]

CREATED = (
    "CREATE TABLE t (id bigint PRIMARY KEY, code text, price numeric(10,2), ratio float8, at timestamptz, raw bytea)",
    "INSERT INTO t SELECT i, md5(i::text), i, i / 7.0, '2024-01-01'::timestamptz + i * interval '1 s', "
    "decode(md5(i::text), 'hex') FROM generate_series(1, 1200) i",
    "ANALYZE t",
)
CHANGES = (
    "UPDATE t SET code = NULL WHERE id % 7 = 0 AND id <= 400",
    "DELETE FROM t WHERE id <= 20",
    "INSERT INTO t (id, code) SELECT i, 'new' FROM generate_series(-10, 0) i",
)
READ = "SELECT * FROM t ORDER BY 1"
Rows = list[tuple[Any, ...]]


@dataclass(frozen=True, kw_only=True)
class Run:
    """What one run has done."""

    records: list[RangeRecord]
    written: set[str]
    """Slices that have a marker of the run's own plan."""
    report: Report


@dataclass(frozen=True, kw_only=True)
class Mirrored:
    """A hydration of ``public.t`` under ``mirror``."""

    composed: Composed
    cluster: Cluster
    runner: ConnectRunner

    def source(self, *statements: str) -> Rows:
        """Do things to the source."""
        if self.composed.kind == "mysql":
            return mysql.run(self.composed.source, *statements)
        return run(self.composed.source, "SET TIME ZONE 'UTC'", *statements)

    def sql(self, statement: str) -> list[Any]:
        """Do something to the target, as somebody else does."""
        return self.cluster.sql(statement.format(t=self.composed.into["table"]))

    def go(self, name: str, *, allow_deletes: bool = False, verify: Verify = Verify.TARGET) -> Run:
        """Let one run plan, drain its ranges, verify and end."""
        with self.composed.open(self.runner) as ports:
            planner = replace(ports.planner(), run=name, refresh=Refresh.EACH_RUN, allow_deletes=allow_deletes)
            plan_id = planner.plan().plan.plan_id
            ports.hydrator().run()
            Completion(plan=ports.plan, ledger=ports.ledger, sink=ports.sink).check()
            ports.sink.complete(ports.plan)
            records = ports.ledger.ranges(plan_id)
            report = ports.verifier().verify(records, verify)
            ports.ledger.finish(ports.hydration.id)
            return Run(records=records, written=set(ports.sink.markers(plan_id)), report=report)

    def target(self) -> Rows:
        """Return the target's rows, read without Spark."""
        rows = self.cluster.rows(self.composed.into)
        return rows if self.composed.kind == "mysql" else [tuple(map(as_text, row)) for row in rows]

    def differs(self) -> tuple[int, int]:
        """How many rows only the source and only the target has."""
        ours, theirs = self.source(READ), self.target()
        assert len(theirs) == len(set(theirs)), "a row is there twice"
        return len(set(ours) - set(theirs)), len(set(theirs) - set(ours))

    def list_files(self) -> set[Path]:
        """Return the table's files of rows and of deletes, those of older versions too; not the empty ones of marks."""
        found = self.cluster.find_folder(self.composed.into).rglob("*")
        kinds = (".parquet", ".bin", ".puffin")
        files = {path for path in found if path.suffix in kinds and "_delta_log" not in path.parts}
        return {path for path in files if path.suffix != ".parquet" or parquet.read_metadata(path).num_rows}


def as_text(value: Any) -> Any:
    """Write a date or a moment as ``run`` reads it from PostgreSQL, and leave other values."""
    if not isinstance(value, datetime):
        return str(value) if isinstance(value, date) else value
    moment = value if value.tzinfo is None else value.astimezone(UTC)
    text = f"{moment:%Y-%m-%d %H:%M:%S.%f}".rstrip("0").removesuffix(".")
    return text if value.tzinfo is None else f"{text}+00"


@pytest.fixture(scope="module")
def runner(lake_cluster: Cluster, logins: dict[str, Endpoint]) -> Iterator[ConnectRunner]:
    """One session for all tests of the module, as a lane has one for all ranges."""
    with closing(ConnectRunner(lake_cluster.url, logins, ui_url=lake_cluster.ui_url)) as runner:
        yield runner


@pytest.fixture(params=["delta", "iceberg"])
def mirrored(
    request: pytest.FixtureRequest,
    database: Endpoint,
    ledger_url: str,
    lake_cluster: Cluster,
    logins: dict[str, Endpoint],
    runner: ConnectRunner,
) -> Mirrored:
    """1,200 rows in three ranges, into a new table of each format."""
    logins["source"] = replace(database, conn_id="source")
    composed = Composed(
        source=database,
        sink=database,
        ledger_url=ledger_url,
        remote=lake_cluster.url,
        ui_url=lake_cluster.ui_url,
        mode="mirror",
        into=lake_cluster.place(request.param, f"t_{uuid.uuid4().hex[:8]}"),
        budget=Budget(credits=2, range_rows=400),
    )
    return Mirrored(composed=composed, cluster=lake_cluster, runner=runner)


@pytest.mark.parametrize("consistency", ["static", "snapshot"])
def test_each_run_writes_only_the_ranges_that_differ(mirrored: Mirrored, consistency: str) -> None:
    """L2: an unchanged range leaves no file; rows that are equal are written by no MERGE of their range either."""
    mirrored = replace(mirrored, composed=replace(mirrored.composed, consistency=consistency))
    mirrored.source(*CREATED)
    first = mirrored.go("first")
    assert (len(first.records), len(first.written), first.report.equal) == (3, 3, True)
    assert mirrored.differs() == (0, 0)
    files = mirrored.list_files()
    second = mirrored.go("second")
    assert (len(second.records), second.written, second.report.equal) == (3, set(), True)
    assert mirrored.list_files() == files
    mirrored.source(*CHANGES)
    third = mirrored.go("third", verify=Verify.FULL if consistency == "static" else Verify.TARGET)
    assert (third.written, third.report.equal) == ({"0.0"}, True)
    assert mirrored.differs() == (0, 0)
    files = mirrored.list_files()
    assert mirrored.go("fourth").written == set()
    assert mirrored.list_files() == files


def test_many_random_changes_arrive(mirrored: Mirrored) -> None:
    """L2: equal after each of several runs, with keys that move, and ranges that grow and are split."""
    rng = random.Random(20)
    mirrored.source(*CREATED)
    mirrored.go("first")
    for number in range(4):
        low = rng.randrange(-50, 1200)
        mirrored.source(
            f"DELETE FROM t WHERE id BETWEEN {low} AND {low + rng.randrange(60)}",
            f"UPDATE t SET id = id + 100000 * {number + 1} WHERE id % 97 = {rng.randrange(97)} AND id < 5000",
            f"UPDATE t SET ratio = CASE WHEN id % 2 = 0 THEN '-0' ELSE 'NaN' END::float8 WHERE id % 89 = {number}",
            f"INSERT INTO t (id, code, ratio) SELECT i, 'x', 0 FROM generate_series({5000 + number * 300}, "
            f"{5000 + number * 300 + rng.randrange(300)}) i",
        )
        found = mirrored.go(f"run {number}")
        assert found.report.equal, found.report.mismatches
        theirs = [repr(row) for row in mirrored.target()]
        assert theirs == [repr(row) for row in mirrored.source(READ)]
    assert len(found.records) > 3


KEYS = {
    "text": ('code text COLLATE "C"', "chr(65 + i % 26) || md5(i::text)"),
    "uuid": ("code uuid", "md5(i::text)::uuid"),
    "bytea": ("code bytea", "decode(md5(i::text), 'hex')"),
    "numeric": ("code numeric(12,3)", "i * 1.5 - 300"),
    "date": ("code date", "date '1969-01-01' + i"),
    "timestamp": ("code timestamp", "timestamp '1969-12-31' + i * interval '3.000001 s'"),
    "timestamptz": ("code timestamptz", "timestamptz '1969-12-31Z' + i * interval '3.000001 s'"),
    "two": ("kind smallint, code bigint", "i % 3, i"),
}


@pytest.mark.parametrize("kind", KEYS)
def test_keys_of_every_type_bound_the_deletes(mirrored: Mirrored, kind: str) -> None:
    """L2: rows vanish and come within and beside every boundary; all ranges but those that differ are left alone."""
    columns, values = KEYS[kind]
    names = ", ".join(each.split()[0] for each in columns.split(", "))
    mirrored.source(
        f"CREATE TABLE t ({columns}, v int, PRIMARY KEY ({names}))",
        f"INSERT INTO t SELECT {values}, i FROM generate_series(1, 900) i",
        "ANALYZE t",
    )
    mirrored = replace(mirrored, composed=replace(mirrored.composed, budget=Budget(credits=2, range_rows=300)))
    assert len(mirrored.go("first").written) == 3
    mirrored.source("DELETE FROM t WHERE v % 10 = 0", "UPDATE t SET v = -v WHERE v % 10 = 1")
    assert mirrored.go("second").report.equal
    order = f"SELECT * FROM t ORDER BY {names}"
    theirs = sorted(tuple(row) for row in mirrored.target())
    ours = sorted(
        tuple(str(each) if kind == "uuid" and n == 0 else each for n, each in enumerate(row))
        for row in mirrored.source(order)
    )
    assert theirs == ours


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ('code text COLLATE "und-x-icu" PRIMARY KEY', "text in code is ordered by"),
        ("code numeric PRIMARY KEY", r"files keep code \(numeric\) in a form that is ordered otherwise"),
        ("code char(9) PRIMARY KEY", r"files keep code \(character\(9\)\) in a form"),
    ],
)
def test_a_key_of_another_order_is_refused_at_plan(mirrored: Mirrored, columns: str, words: str) -> None:
    mirrored.source(f"CREATE TABLE t ({columns}, v int)", "INSERT INTO t VALUES ('1', 1)", "ANALYZE t")
    with pytest.raises(SinkRefused, match=words):
        mirrored.go("first")


def test_rows_of_others_are_corrected(mirrored: Mirrored) -> None:
    """X3: the next run notices their commit and compares every range. A compaction is no such commit."""
    mirrored.source(*CREATED)
    mirrored.go("first")
    mirrored.sql("INSERT INTO {t} (id, code) VALUES (5000, 'foreign'), (-5000, 'foreign')")
    mirrored.sql("DELETE FROM {t} WHERE id = 600")
    again = mirrored.go("second")
    assert (len(again.written), again.report.equal) == (3, True)
    assert mirrored.differs() == (0, 0)
    table, catalog = mirrored.composed.into["table"], mirrored.composed.into["table"].partition(".")[0]
    if mirrored.composed.into["format"] == "delta":
        mirrored.sql("OPTIMIZE {t}")
    else:
        mirrored.sql(
            f"CALL {catalog}.system.rewrite_data_files(table => '{table}', options => map('rewrite-all', 'true'))"
        )
    assert mirrored.go("third").written == set()
    mirrored.sql("INSERT INTO {t} SELECT * FROM {t} WHERE id = 7")
    with pytest.raises(SinkRefused, match=r"several rows with the key {'id': 7}"):
        mirrored.go("fourth")


def test_columns_that_others_exchange_are_noticed(mirrored: Mirrored) -> None:
    """L2: a column that is dropped and added again is NULL in every row, and no commit of rows shows it."""
    mirrored.source(*CREATED)
    mirrored.go("first")
    if mirrored.composed.into["format"] == "delta":
        mirrored.sql("ALTER TABLE {t} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    mirrored.sql("ALTER TABLE {t} DROP COLUMN code")
    mirrored.sql("ALTER TABLE {t} ADD COLUMN code string")
    if mirrored.composed.into["format"] == "iceberg":
        with pytest.raises(SinkRefused, match="its columns were changed"):
            mirrored.go("second")
        with mirrored.composed.open(mirrored.runner) as ports:
            replace(ports.planner(), run="third", refresh=Refresh.EACH_RUN).plan(restart=True)
    assert len(mirrored.go("third").written) == 3
    columns = [tuple(row) for row in mirrored.sql("SELECT id, code FROM {t} ORDER BY id")]
    assert columns == mirrored.source("SELECT id, code FROM t ORDER BY id")


def test_a_range_is_repaired_alone(mirrored: Mirrored, tmp_path: Path) -> None:
    """L2, X3: verification names the range whose rows were changed; it is written again, without the ledger too."""
    mirrored.source(*CREATED)
    mirrored.go("first")
    mirrored.go("second")
    for _ in ("once", "twice"):
        with mirrored.composed.open(mirrored.runner) as ports:
            plan, ledger = ports.plan, ports.ledger
            assert ports.verifier().verify(ledger.ranges(plan.plan_id), Verify.TARGET).equal
            repair(ledger, ports.source, ports.sink, plan, ledger.ranges(plan.plan_id)[2], who="me")
            ports.hydrator().run()
            assert set(ports.sink.markers(plan.plan_id)) == {"2.0"}
            Completion(plan=plan, ledger=ledger, sink=ports.sink).check()
            ports.sink.complete(plan)
            assert ports.verifier().verify(ledger.ranges(plan.plan_id), Verify.TARGET).equal
            ledger.finish(ports.hydration.id)
        assert mirrored.differs() == (0, 0)
    mirrored.sql("UPDATE {t} SET code = 'wrong' WHERE id = 900")
    with mirrored.composed.open(mirrored.runner) as ports:
        plan, ledger = ports.plan, ports.ledger
        report = ports.verifier().verify(ledger.ranges(plan.plan_id), Verify.TARGET)
        assert [each.seq for each in report.mismatches] == [2]
        repair(ledger, ports.source, ports.sink, plan, ledger.ranges(plan.plan_id)[2], who="me")
        ports.hydrator().run()
        # Others may have changed more than was found: a restart, or the next run, compares every range.
        with pytest.raises(SinkRefused, match="Others have committed"):
            Completion(plan=plan, ledger=ledger, sink=ports.sink).check()
    assert mirrored.differs() == (0, 0)
    lost = replace(mirrored, composed=replace(mirrored.composed, ledger_url=new_ledger(tmp_path / "fresh.db")))
    assert lost.go("third").report.equal
    mirrored.source(*CHANGES)
    assert lost.go("fourth").report.equal
    assert mirrored.differs() == (0, 0)


def test_the_brake_on_deletes(mirrored: Mirrored) -> None:
    """FINEPRINT 36: a source that shrank, and one whose keys were all exchanged, stop before they pass the limit."""
    mirrored.source(*CREATED)
    mirrored.go("first")
    mirrored.source("DELETE FROM t WHERE id <= 400")
    with pytest.raises(SourceRefused, match=r"would delete at least 400, more than Budget\(max_deletes=0.2\)"):
        mirrored.go("second")
    mirrored.go("second", allow_deletes=True)
    assert mirrored.differs() == (0, 0)
    mirrored.source("UPDATE t SET id = id + 100000")
    with pytest.raises(SinkRefused, match=r"would delete .* more than Budget"):
        mirrored.go("third")
    assert len([row for row in mirrored.target() if row[0] < 100000]) >= 640
    with mirrored.composed.open(mirrored.runner) as ports:
        ports.ledger.retry_failed(ports.plan.plan_id)
    mirrored.go("fourth", allow_deletes=True)
    assert mirrored.differs() == (0, 0)


def test_a_transform_may_filter_and_not_move_the_key(mirrored: Mirrored) -> None:
    mirrored.source(*CREATED)
    transform = "SELECT * FROM source WHERE id % 2 = 0"
    kept = replace(mirrored, composed=replace(mirrored.composed, transform=transform))
    kept.go("first")
    mirrored.source("UPDATE t SET code = 'x' WHERE id < 100")
    kept.go("second")
    ours = mirrored.source("SELECT * FROM t WHERE id % 2 = 0 ORDER BY 1")
    assert mirrored.target() == ours
    moved = replace(kept.composed, transform="SELECT id + 1500 AS id, code, price, ratio, at, raw FROM source")
    with pytest.raises(SinkRefused, match="has rows outside its bounds"):
        replace(kept, composed=moved).go("third")


@pytest.mark.statement("K1", "X1", "X2")
@pytest.mark.parametrize("step", [Step.BEFORE_SINK_COMMIT, Step.AFTER_SINK_COMMIT])
def test_a_killed_lane_leaves_a_range_in_or_out(mirrored: Mirrored, tmp_path: Path, step: Step) -> None:
    """K1, X1, X2: kill -9 of the lane: the next one finds it committed, or makes the same of it."""
    mirrored.source(*CREATED)
    mirrored.go("first")
    mirrored.source(*CHANGES, "UPDATE t SET price = -1 WHERE id > 500")
    with mirrored.composed.open(mirrored.runner) as ports:
        replace(ports.planner(), run="second", refresh=Refresh.EACH_RUN).plan()
    points = tmp_path / "points"
    points.mkdir()
    (points / "points").write_text(f"{step.value}=kill@1")
    assert mirrored.composed.process(tmp_path, **{VARIABLE: str(points)}).wait(timeout=300) == -9
    found = mirrored.go("second")
    assert (found.written, found.report.equal) == ({"0.0", "1.0", "2.0"}, True)
    assert mirrored.differs() == (0, 0)


@pytest.mark.statement("X1")
@pytest.mark.parametrize("late", ["commits first", "commits last"])
def test_of_two_attempts_one_is_in(mirrored: Mirrored, monkeypatch: pytest.MonkeyPatch, late: str) -> None:
    """X1: an attempt whose commit ended in an error, and one that wakes up when its range was written again."""
    mirrored.source(*CREATED)
    mirrored.go("first")
    mirrored.source(*CHANGES)
    publish, held = spark_mirror._Mirror.publish, list[Callable[[], Any]]()

    def fail_once(self: Any) -> Any:
        if held:
            return publish(self)
        held.append(lambda: publish(self))
        if late == "commits first":
            publish(self)
        raise PySparkException("the connection was lost")

    monkeypatch.setattr(spark_mirror._Mirror, "publish", fail_once)
    found = mirrored.go("second")
    assert (found.written, found.report.equal) == ({"0.0"}, True)
    with closing(SqlSession(replace(NOWHERE, password=mirrored.cluster.url))) as session:
        table = open_table(session.get(), mirrored.composed.into["format"], mirrored.composed.into["table"])
        before = table.state().marks
        mirrored.source("UPDATE t SET code = 'newer' WHERE id <= 400")
        mirrored.go("third")
        with suppress(BackpressureError, PySparkException):
            held[0]()
        assert len(table.state().marks) == len(before) + 1
    assert mirrored.differs() == (0, 0)


def test_what_proves_a_range_outlives_the_tables_log(mirrored: Mirrored) -> None:
    """FINEPRINT 33: after pruning and expiry a range is skipped by the mark of a run long before."""
    mirrored.source(*CREATED)
    mirrored.go("first")
    mirrored.source(*CHANGES)
    mirrored.go("second")
    mirrored.source("UPDATE t SET code = 'a' WHERE id = 300")
    mirrored.go("third")
    into = mirrored.composed.into
    with mirrored.composed.open(mirrored.runner) as ports:
        plans = [ports.sink.find_holder()]  # type: ignore[attr-defined]
        ids = {mark.plan_id for mark in ports.sink._state().marks.values()}  # type: ignore[attr-defined]
        assert ports.sink.prune(ports.plan, sorted(ids)) >= 1
        assert plans[0] is not None
    if into["format"] == "iceberg":
        catalog = into["table"].partition(".")[0]
        mirrored.sql(
            f"CALL {catalog}.system.expire_snapshots(table => '{into['table']}', retain_last => 1, "
            "older_than => TIMESTAMP '2999-01-01 00:00:00')"
        )
        assert mirrored.sql("SELECT count(*) FROM {t}.snapshots")[0][0] == 1
    with closing(SqlSession(replace(NOWHERE, password=mirrored.cluster.url))) as session:
        assert CHAIN in open_table(session.get(), into["format"], into["table"]).properties()
    assert mirrored.go("fourth").written == set()


def test_a_table_of_mysql_is_mirrored(
    mysql_database: Endpoint, mirrored: Mirrored, logins: dict[str, Endpoint]
) -> None:
    """L2: with deletes, and a range that stays as it is."""
    logins["source"] = replace(mysql_database, conn_id="source")
    composed = replace(mirrored.composed, source=mysql_database, kind="mysql", table="t")
    mirrored = replace(mirrored, composed=composed)
    numbers = "WITH RECURSIVE g (g) AS (SELECT 1 UNION ALL SELECT g + 1 FROM g WHERE g < 900) SELECT"
    mirrored.source(
        "CREATE TABLE t (id bigint unsigned PRIMARY KEY, code varchar(20), price decimal(10,2), at datetime)",
        f"INSERT INTO t {numbers} g, CONCAT('c', g), g / 3, '2024-01-01' FROM g",
        "ANALYZE TABLE t",
    )
    mirrored.go("first")
    mirrored.source("UPDATE t SET price = 9.99 WHERE id = 301", "DELETE FROM t WHERE id = 310")
    found = mirrored.go("second")
    assert len(found.written) == 1
    assert found.report.equal
    assert mirrored.differs() == (0, 0)


def test_refused_by_name(mirrored: Mirrored) -> None:
    """A target that another source holds, and one with rows from before where the source has a condition."""
    mirrored.source(*CREATED)
    mirrored.go("first")
    other = replace(mirrored.composed, reading={"columns": ("id", "code", "price", "ratio", "at", "raw")})
    with pytest.raises(SinkRefused, match=r"is held by plan .* mirror would delete its rows"):
        replace(mirrored, composed=other).go("second")
    with pytest.raises((SinkRefused, PlanSuperseded)), mirrored.composed.open(mirrored.runner) as ports:
        ports.sink.mirror().check_rewrites(ports.plan.write, ("id",), ("id",))
