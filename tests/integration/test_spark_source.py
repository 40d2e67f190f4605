"""Tables of the cluster's catalogs as sources, over a real Spark Connect server: Iceberg, Delta, MariaDB and Derby."""

import json
import re
import signal
import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests

from airflow_provider_backpressure.cli import login_leaks
from airflow_provider_backpressure.connectors.lake.spark.sql_session import SqlSession
from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.endpoints import NOWHERE, Endpoint
from airflow_provider_backpressure.core.failpoints import VARIABLE, Step
from airflow_provider_backpressure.core.planning.plan_result import Verdict
from airflow_provider_backpressure.core.snapshot.bounds import NullBounds
from airflow_provider_backpressure.core.verification.verifier import Report, Verify
from airflow_provider_backpressure.exceptions import RunnerRefused, SinkRefused, SourceRefused
from airflow_provider_backpressure.runners.connect_runner import ConnectRunner
from airflow_provider_backpressure.sources import SparkSource
from dev.downloads import Downloads, default_folder
from dev.lake_connectors import make_connector_conf
from dev.services import Services
from tests.integration.test_tls import everything_in
from tests.support import lakes, mysql
from tests.support.composed import Composed
from tests.support.postgres import run

pytestmark = [pytest.mark.integration, pytest.mark.statement("K5")]

SECRET = f"canary-catalog-{uuid.uuid4().hex}"
"""The password of the catalog: it stands in the server's settings alone."""


@dataclass(frozen=True, kw_only=True)
class Catalogs:
    """A server that knows tables of Iceberg (``lake``), Delta, MariaDB (``erp``) and Derby (``books``)."""

    url: str
    ui_url: str
    folder: Path
    erp: Endpoint
    session: SqlSession

    def run(self, *statements: str) -> list[Any]:
        """Run statements of Spark's SQL and return the rows of the last."""
        found: list[Any] = []
        for statement in statements:
            found = self.session.get().sql(statement).collect()
        return found

    def open(self, table: str, **reading: Any) -> Any:
        """Open a table as a source."""
        declared = SparkSource(table=table, spark_conn_id="source", **reading)
        return closing(declared.open(replace(NOWHERE, conn_id="source", password=self.url)))


@pytest.fixture(scope="module")
def catalogs(services: Services, mariadb: Endpoint) -> Iterator[Catalogs]:
    """One server for the module, with an account of MariaDB of its own."""
    folder, name = services.guest("catalogs"), "connect:catalogs"
    (folder / "events").mkdir(parents=True, exist_ok=True)
    with mysql.fresh_database(mariadb) as database, mysql.new_role(database) as role:
        mysql.run(database, f"ALTER USER '{role.user}'@'%' IDENTIFIED BY '{SECRET}'")
        mysql.run(database, f"GRANT ALL ON `{database.database}`.* TO '{role.user}'@'%'")
        conf = make_conf(folder, replace(role, password=SECRET))
        server = services.up(name, jars=(), driver_memory="1500m", spark_conf=conf)[name]
        session = SqlSession(replace(NOWHERE, password=server.url))
        with closing(session):
            yield Catalogs(url=server.url, ui_url=server.ui_url, folder=folder, erp=database, session=session)
        services.down(name)


def make_conf(folder: Path, erp: Endpoint) -> dict[str, str]:
    """Return the server's settings."""
    jdbc = "org.apache.spark.sql.execution.datasources.v2.jdbc.JDBCTableCatalog"
    conf = make_connector_conf(folder)
    jars = [str(file) for file in Downloads(folder=default_folder()).group("jars-mysql")]
    paths = {f"spark.{side}.extraClassPath" for side in ("driver", "executor")}
    return {
        **{name: ":".join([value, *jars]) if name in paths else value for name, value in conf.items()},
        "spark.sql.catalog.erp": jdbc,
        "spark.sql.catalog.erp.url": f"jdbc:mysql://{erp.host}:{erp.port}/",
        "spark.sql.catalog.erp.driver": "com.mysql.cj.jdbc.Driver",
        "spark.sql.catalog.erp.user": erp.user,
        "spark.sql.catalog.erp.password": erp.password,
        "spark.sql.catalog.books": jdbc,
        "spark.sql.catalog.books.url": f"jdbc:derby:{folder}/derby;create=true",
        "spark.sql.catalog.books.driver": "org.apache.derby.jdbc.EmbeddedDriver",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": (folder / "events").as_uri(),
    }


@pytest.fixture(scope="module")
def runner(catalogs: Catalogs, logins: dict[str, Endpoint]) -> Iterator[ConnectRunner]:
    """One session for all tests of the module, as a lane has one for all ranges."""
    with closing(ConnectRunner(catalogs.url, logins, ui_url=catalogs.ui_url)) as runner:
        yield runner


@pytest.fixture
def composed(catalogs: Catalogs, database: Endpoint, ledger_url: str, logins: dict[str, Endpoint]) -> Composed:
    """A table of 2,500 rows into PostgreSQL, in ranges of 1,000; a test names the table."""
    logins["source"] = replace(NOWHERE, conn_id="source", password=catalogs.url)
    logins["sink"] = replace(database, conn_id="sink")
    return Composed(
        source=replace(NOWHERE, conn_id="source", password=catalogs.url),
        sink=database,
        ledger_url=ledger_url,
        remote=catalogs.url,
        ui_url=catalogs.ui_url,
        kind="spark_catalog",
        budget=Budget(credits=2, range_rows=1_000),
        reading={"split_column": "id"},
    )


@pytest.fixture
def name() -> str:
    """A name that no table has yet."""
    return f"t_{uuid.uuid4().hex[:8]}"


def hydrate(composed: Composed, runner: ConnectRunner, verify: Verify = Verify.FULL) -> tuple[Verdict, Report]:
    """Plan, drain, verify range by range against the source, and finish."""
    with composed.open(runner) as ports:
        planned = ports.planner().plan(restart=composed.restart)
        ports.hydrator().run()
        plan = ports.plan
        report = ports.verifier().verify(ports.ledger.ranges(plan.plan_id), verify)
        ports.sink.complete(plan)
        ports.sink.publish(plan)
        ports.ledger.finish(ports.hydration.id)
        return planned.verdict, report


ROWS = """
SELECT id, CAST(id % 10 AS TINYINT) AS shop, md5(CAST(id AS STRING)) AS code, CAST(id * 1.5 AS DECIMAL(12, 2)) AS price,
       id / 3.0D AS gap, CAST(id / 4.0 AS FLOAT) AS small, id % 2 = 0 AS even,
       timestampadd(MICROSECOND, id * 1234567, TIMESTAMP '2024-01-01 00:00:00+00:00') AS at,
       timestampadd(MICROSECOND, id * 1234567, TIMESTAMP_NTZ '1969-12-31 23:00:00') AS local,
       date_add(DATE '1999-12-31', CAST(id AS INT)) AS day, CAST(CAST(id AS STRING) AS BINARY) AS raw,
       CASE WHEN id % 3 = 0 THEN NULL ELSE array(id, NULL) END AS list,
       named_struct('n', id, 'nothing', CAST(NULL AS STRING),
                    'at', timestampadd(MICROSECOND, id, TIMESTAMP '2024-01-01 00:00:00+00:00')) AS note
"""
INTO = """
SELECT id, shop, code, price, gap::text, small::text, even, at at time zone 'UTC', local, day, raw, list::text,
       note::text FROM raw.t ORDER BY id
"""
EXPECTED = """
SELECT i, (i % 10)::smallint, md5(i::text), (i * 1.5)::numeric(12, 2), (i / 3.0::double precision)::text,
       (i / 4.0)::real::text, i % 2 = 0, timestamp '2024-01-01' + i * interval '1.234567 second',
       timestamp '1969-12-31 23:00' + i * interval '1.234567 second', date '1999-12-31' + i,
       convert_to(i::text, 'UTF8'), CASE WHEN i % 3 = 0 THEN NULL ELSE '[' || i || ',null]' END,
       '{"n":' || i || ',"nothing":null,"at":"'
       || to_char(timestamp '2024-01-01' + i * interval '1 microsecond', 'YYYY-MM-DD"T"HH24:MI:SS.US') || 'Z"}'
FROM generate_series(1, 2500) i
"""


@pytest.mark.long
@pytest.mark.parametrize("format_", ["iceberg", "delta"])
def test_a_lake_arrives_with_its_values_at_one_version(
    format_: str, catalogs: Catalogs, composed: Composed, runner: ConnectRunner, database: Endpoint, name: str
) -> None:
    """K5: every type; rows that are written after the plan are not read, and the counts are exact."""
    table = {"iceberg": f"lake.raw.{name}", "delta": f"spark_catalog.default.{name}"}[format_]
    catalogs.run(f"CREATE TABLE {table} USING {format_} AS {ROWS} FROM range(1, 2501)")
    composed = replace(composed, table=table)
    planned = composed.plan()
    assert (planned.ranges, planned.plan.total, planned.plan.total_exact) == (4, 2500, True)
    catalogs.run(
        f"INSERT INTO {table} {ROWS} FROM range(2501, 2600)",
        f"DELETE FROM {table} WHERE id < 100",
        f"UPDATE {table} SET price = 0",
    )
    verdict, report = hydrate(composed, runner)
    assert (verdict, report.ranges, report.rows, report.mismatches) == (Verdict.RESUMED, 4, 2500, ())
    assert run(database, INTO) == run(database, EXPECTED + " ORDER BY i")

    assert composed.plan().verdict is Verdict.MOVED
    verdict, report = hydrate(replace(composed, restart=True, target="raw.later"), runner)
    assert (report.rows, report.mismatches) == (2500, ())
    assert run(database, "SELECT count(*), min(id), max(id), sum(price) FROM raw.later") == [(2500, 100, 2599, 0)]


def test_a_database_behind_a_catalog_is_read_by_several_tasks(
    catalogs: Catalogs, composed: Composed, runner: ConnectRunner, database: Endpoint, name: str
) -> None:
    """K5: MariaDB, whose login only the cluster has; uneven values, rows without one, and three tasks a range."""
    mysql.run(
        catalogs.erp,
        f"CREATE TABLE {name} (id int, code varchar(40), price decimal(12, 2), `a.b``c` int, day date, raw blob)",
        f"INSERT INTO {name} SELECT IF(seq <= 2000, seq, seq * 1000), md5(seq), seq / 4, seq, '2024-01-31', "
        "unhex(md5(seq)) FROM seq_1_to_2500",
        f"INSERT INTO {name} SELECT NULL, 'none', 1, seq, NULL, NULL FROM seq_1_to_7",
    )
    table = f"erp.{catalogs.erp.database}.{name}"
    composed = replace(composed, table=table, reading={"split_column": "id", "tasks": 3})
    verdict, report = hydrate(composed, runner)
    assert (verdict, report.ranges, report.rows, report.mismatches) == (Verdict.PLANNED, 4, 2507, ())
    with composed.open(runner) as ports:
        records = list(ports.ledger.ranges(ports.plan.plan_id))
        assert [record.rows for record in records if isinstance(record.bounds, NullBounds)] == [7]
        assert max(record.rows or 0 for record in records) < 1_100
    expected = (
        "SELECT CASE WHEN i <= 2000 THEN i ELSE i * 1000 END, md5(i::text), (i / 4.0)::numeric(12, 2), i,"
        " date '2024-01-31', decode(md5(i::text), 'hex') FROM generate_series(1, 2500) i"
    )
    there = 'SELECT id, code, price, "a.b`c", day, raw FROM raw.t WHERE id IS NOT NULL'
    assert run(database, f"({there} EXCEPT ALL {expected}) UNION ALL ({expected} EXCEPT ALL {there})") == []
    assert run(database, "SELECT count(*) FROM raw.t WHERE id IS NULL AND code = 'none'") == [(7,)]

    mysql.run(catalogs.erp, f"INSERT INTO {name} (id) VALUES (-1)")
    planned = composed.plan()
    assert planned.verdict is Verdict.MOVED
    assert "holds 2508 rows" in planned.note


@pytest.mark.long
def test_an_embedded_database_behind_a_catalog_is_upserted(
    catalogs: Catalogs, composed: Composed, runner: ConnectRunner, database: Endpoint, name: str
) -> None:
    """K5: Derby, ranges of decimals, a condition, names that need quotes; then the same rows again by key."""
    table = f"books.APP.`{name}.x`"
    catalogs.run(
        f"CREATE TABLE {table} (`Id` DECIMAL(10, 2), `of` VARCHAR(20), skipped BINARY)",
        f"INSERT INTO {table} SELECT CAST(id AS DECIMAL(10, 2)) / 2, CAST(id AS STRING), NULL FROM range(0, 2500)",
    )
    run(database, "CREATE SCHEMA raw", 'CREATE TABLE raw.t ("Id" numeric(10, 2) PRIMARY KEY, "of" varchar(20))')
    reading = {"split_column": "Id", "columns": ("Id", "of"), "where": "`of` <> '7' -- not this one"}
    composed = replace(composed, table=table, mode="upsert", reading=reading)
    with pytest.raises(SinkRefused, match="declare key= of the sink"):
        hydrate(replace(composed, target="raw.t"), runner)
    for target in ("raw.t", "raw.t"):
        _, report = hydrate(replace(composed, target=target, key=("Id",), restart=True), runner)
        assert (report.rows, report.mismatches) == (2499, ())
    assert run(database, 'SELECT count(*), sum("Id") FROM raw.t') == [(2499, 2500 * 2499 / 4 - 3.5)]


@pytest.mark.long
def test_texts_and_times_cut_a_lake(
    catalogs: Catalogs, composed: Composed, runner: ConnectRunner, database: Endpoint, name: str
) -> None:
    """K5: a text of any characters, in the order of its bytes; timestamps with and without a zone; dates."""
    table = f"lake.raw.`{name}`"
    odd = "concat(chr(CAST(id % 70 AS INT) + 33), '\\'\\\\', chr(8364 + CAST(id % 9 AS INT)), id)"
    catalogs.run(
        f"CREATE TABLE {table} USING iceberg AS SELECT id, {odd} AS word, "
        "timestampadd(MICROSECOND, id * 61234567, TIMESTAMP '2024-10-26 22:00:00+00:00') AS at, "
        "timestampadd(MICROSECOND, id * 61234567, TIMESTAMP_NTZ '2024-10-26 22:00:00') AS local, "
        "CASE WHEN id % 5 > 0 THEN date_add(DATE '2024-01-01', CAST(id AS INT)) END AS day FROM range(2500)"
    )
    for column in ("word", "at", "local", "day"):
        target = f"raw.by_{column}"
        one = replace(composed, table=table, target=target, reading={"split_column": column})
        _, report = hydrate(one, runner, Verify.TARGET)
        assert (report.rows, report.mismatches) == (2500, ()), column
        assert run(database, f"SELECT count(DISTINCT id), count(DISTINCT word), max(id) FROM {target}") == [
            (2500, 2500, 2499)
        ]
        with one.open(runner) as ports:
            assert len(list(ports.ledger.ranges(ports.plan.plan_id))) >= 3, column


@pytest.mark.long
def test_a_lake_goes_into_a_lake(catalogs: Catalogs, composed: Composed, runner: ConnectRunner, name: str) -> None:
    """K5: several tasks read, and the cluster's own connector writes."""
    table = f"lake.raw.{name}"
    catalogs.run(f"CREATE TABLE {table} USING iceberg AS {ROWS} FROM range(1, 2501)")
    cluster = lakes.Cluster(url=catalogs.url, ui_url=catalogs.ui_url, folder=catalogs.folder)
    into = cluster.place("delta", f"{name}_d", tasks=2)
    verdict, report = hydrate(replace(composed, table=table, into=into), runner, Verify.TARGET)
    assert (verdict, report.rows, report.mismatches) == (Verdict.PLANNED, 2500, ())
    left, right = (f"SELECT id, code, price, at, local, day, raw FROM {each}" for each in (table, into["table"]))
    assert catalogs.run(f"({left} EXCEPT ALL {right}) UNION ALL ({right} EXCEPT ALL {left})") == []


@pytest.mark.long
@pytest.mark.parametrize("kind", ["parquet", "delta", "iceberg"])
def test_a_database_goes_into_files(
    kind: str, catalogs: Catalogs, composed: Composed, runner: ConnectRunner, name: str, tmp_path: Path
) -> None:
    """K5: the task-written lakes."""
    mysql.run(
        catalogs.erp,
        f"CREATE TABLE {name} (id int PRIMARY KEY, code varchar(40))",
        f"INSERT INTO {name} SELECT seq, md5(seq) FROM seq_1_to_2500",
    )
    into = lakes.place(kind, tmp_path)
    composed = replace(composed, table=f"erp.{catalogs.erp.database}.{name}", into=into)
    verdict, report = hydrate(composed, runner)
    assert (verdict, report.rows, report.mismatches) == (Verdict.PLANNED, 2500, ())
    assert lakes.rows(into) == sorted(mysql.run(catalogs.erp, f"SELECT id, code FROM {name}"))


def test_what_cannot_be_carried_is_refused_by_name(catalogs: Catalogs, name: str) -> None:
    """K5: at the plan, in one sentence that says what to do."""
    table = f"lake.raw.{name}"
    catalogs.run(
        f"CREATE TABLE {table} USING iceberg AS SELECT id, map(id, 1) AS m, array(CAST('x' AS BINARY)) AS b, "
        "CAST(id AS STRING) AS word, id / 2.0D AS half FROM range(3)"
    )
    mysql.run(catalogs.erp, f"CREATE TABLE {name} (id int, word varchar(9))", f"INSERT INTO {name} VALUES (1, 'x')")
    foreign = f"erp.{catalogs.erp.database}.{name}"
    refusals: list[tuple[str, dict[str, Any], str]] = [
        (table, {"split_column": "id"}, r"m \(map<bigint,int>\), b \(array<binary>\).*by columns="),
        (table, {"split_column": "half", "columns": ("id", "half")}, r"half: its type is double"),
        (table, {"split_column": "nothing", "columns": ("id",)}, r"has no column nothing to be split by"),
        (table, {"split_column": "id", "columns": ("no",)}, r"has no column no\."),
        (table, {"columns": ("id",)}, r"name a split_column, or read it in one range with whole=True"),
        (table, {"split_column": "id", "columns": ("id",), "where": "rand() < 0.5"}, r"asks for rand"),
        (table, {"split_column": "id", "columns": ("id",), "where": "nope = 1"}, r"Spark refuses a statement"),
        (table, {"split_column": "id", "columns": ("id",), "where": "id > 1) OR (id < 1"}, r"closes brackets"),
        (
            table,
            {"split_column": "id", "columns": ("id",), "where": "id > 1 OR DATE 'today' > now"},
            r"asks for 'today'",
        ),
        (foreign, {"split_column": "word"}, r"the database behind the catalog may order in its own way"),
        ("lake.raw.missing", {"split_column": "id"}, r"lake\.raw\.missing"),
    ]
    for of, reading, sentence in refusals:
        with catalogs.open(of, **reading) as source, pytest.raises(SourceRefused, match=sentence):
            source.snapshot()


@pytest.mark.long
def test_a_transform_that_moves_the_condition_to_another_zone_is_refused(
    catalogs: Catalogs, composed: Composed, name: str
) -> None:
    """K5: rows of five hours more would arrive than were counted, and verification would find them all."""
    table = f"lake.raw.{name}"
    times = "timestampadd(HOUR, CAST(id AS INT), TIMESTAMP '2024-01-01 00:00:00+00:00') AS at"
    catalogs.run(f"CREATE TABLE {table} USING iceberg AS SELECT id, {times} FROM range(100)")
    reading = {"split_column": "id", "where": "at < '2024-01-02 00:00:00'"}
    moved = replace(composed, table=table, reading=reading, function="tests.integration.transforms:move_zone")
    with pytest.raises(RunnerRefused, match=r"America/New_York.*UTC"):
        moved.plan()


@pytest.mark.long
def test_a_version_that_is_gone_stops_its_plan(
    catalogs: Catalogs, composed: Composed, runner: ConnectRunner, name: str
) -> None:
    """K5: rows of another moment are not mixed in."""
    table = f"lake.raw.{name}"
    catalogs.run(f"CREATE TABLE {table} USING iceberg AS SELECT id FROM range(2500)")
    composed = replace(composed, table=table)
    composed.plan()
    catalogs.run(
        f"INSERT OVERWRITE {table} SELECT id FROM range(10)",
        f"CALL lake.system.expire_snapshots(table => 'raw.{name}', older_than => now(), retain_last => 1)",
    )
    with composed.open(runner) as ports, pytest.raises(SourceRefused, match="restart"):
        ports.hydrator().run()


@pytest.mark.long
@pytest.mark.parametrize(
    "changes",
    [
        ("RENAME COLUMN a TO c", "RENAME COLUMN b TO a", "RENAME COLUMN c TO b"),
        ("DROP COLUMN b", "ADD COLUMN b STRING COMMENT 'another one'"),
        ("ADD COLUMN c STRING",),
        ("ALTER COLUMN nested.x TYPE BIGINT",),
    ],
)
def test_columns_of_iceberg_that_were_altered_without_a_commit_are_refused_until_one(
    changes: tuple[str, ...], catalogs: Catalogs, composed: Composed, runner: ConnectRunner, name: str
) -> None:
    """K5: a version is read with the columns of its commit, which are others than those of the table by now."""
    table = f"lake.raw.{name}"
    catalogs.run(
        f"CREATE TABLE {table} (id INT, nested STRUCT<x: INT>, a STRING, b STRING) USING iceberg",
        f"INSERT INTO {table} VALUES (1, named_struct('x', 1), 'a1', 'b1'), (2, NULL, 'a2', 'b2')",
    )
    composed = replace(composed, table=table)
    composed.plan()
    before = catalogs.run(f"SELECT id, a, b FROM {table} ORDER BY id")
    catalogs.run(*(f"ALTER TABLE {table} {change}" for change in changes))
    # What is planned is read as the table was then, and a later run refuses to say that nothing has changed.
    with composed.open(runner) as ports:
        ports.hydrator().run()
        ports.ledger.finish(ports.hydration.id)
    assert run(composed.sink, "SELECT id, a, b FROM raw.t ORDER BY id") == [tuple(row) for row in before]
    refused = pytest.raises(SourceRefused, match="altered after its last commit")
    with refused:
        composed.plan()
    later = replace(composed, target="raw.later", restart=True)
    with refused as caught:
        later.plan()
    (remedy,) = re.findall(r"INSERT INTO .* WHERE false", str(caught.value))
    catalogs.run(remedy)
    _, report = hydrate(later, runner)
    assert (report.rows, report.mismatches) == (2, ())
    now = catalogs.run(f"SELECT * FROM {table} ORDER BY id")
    columns = [each for each in now[0].asDict() if each != "nested"]
    there = run(composed.sink, f"SELECT {', '.join(columns)} FROM raw.later ORDER BY id")
    assert there == [tuple(row[each] for each in columns) for row in now]
    named = "SELECT column_name FROM information_schema.columns WHERE table_name = 'later' ORDER BY ordinal_position"
    assert [each for (each,) in run(composed.sink, named)][: len(now[0])] == list(now[0].asDict())


@pytest.mark.long
def test_what_changes_no_value_of_an_iceberg_table_is_no_alteration(catalogs: Catalogs, name: str) -> None:
    """K5: a comment that comes after each load asks for no commit; a version of before an alteration does."""
    table = f"lake.raw.{name}"
    catalogs.run(
        f"CREATE TABLE {table} (id INT NOT NULL, a STRING) USING iceberg", f"INSERT INTO {table} VALUES (1, 'a')"
    )
    with catalogs.open(table, whole=True) as source:
        first = source.snapshot()
        for change in (
            "ALTER COLUMN a COMMENT 'a letter'",
            "SET TBLPROPERTIES ('x' = 'y')",
            "SET IDENTIFIER FIELDS id",
            "DROP IDENTIFIER FIELDS id",
            "ALTER COLUMN id DROP NOT NULL",
            "ADD COLUMN b STRING",
            "DROP COLUMN b",
        ):
            catalogs.run(f"ALTER TABLE {table} {change}")
            if not change.startswith("ADD"):
                assert source.snapshot().version == first.version, change
        catalogs.run(
            f"ALTER TABLE {table} ADD COLUMN b STRING",
            f"INSERT INTO {table} VALUES (2, 'a', 'b')",
            f"CALL lake.system.rollback_to_snapshot('raw.{name}', {first.version})",
        )
        with pytest.raises(SourceRefused, match="altered after its last commit"):
            source.snapshot()


def test_names_that_a_database_takes_for_texts_are_refused(catalogs: Catalogs, name: str) -> None:
    """K5: a dialect of the wrong kind would give each row its columns' names for texts."""
    table = f"{catalogs.erp.database}.{name}"
    mysql.run(catalogs.erp, f"CREATE TABLE {name} (word varchar(9))", f"INSERT INTO {name} VALUES ('word'), ('word')")
    with catalogs.open(f"erp.{table}", whole=True) as source, pytest.raises(SourceRefused, match="jdbc:mysql://"):
        source.snapshot()


@pytest.mark.long
def test_no_password_is_shown(
    catalogs: Catalogs, composed: Composed, runner: ConnectRunner, database: Endpoint, name: str
) -> None:
    """K5: neither the catalog's nor ours, in plan, marker, event log or page."""
    mysql.run(catalogs.erp, f"CREATE TABLE {name} (id int)", f"INSERT INTO {name} VALUES (1), (2)")
    composed = replace(composed, table=f"erp.{catalogs.erp.database}.{name}")
    hydrate(composed, runner)
    with composed.open(runner) as ports:
        kept = [repr(ports.plan), *map(repr, ports.ledger.ranges(ports.plan.plan_id))]
    kept.append(everything_in(composed.ledger_url, database))
    events = [file.read_bytes() for file in (catalogs.folder / "events").rglob("*") if file.is_file()]
    assert any(name.encode() in each for each in events), "the log of this very session"
    pages = read_pages(catalogs)
    assert any(name in page for page in pages.values())
    for secret in (SECRET, database.password):
        assert not any(secret in each for each in kept)
        assert not any(secret.encode() in each for each in events)
        assert [path for path, page in pages.items() if secret in page] == []


@pytest.mark.statement("X5")
def test_doctor_looks_for_logins_on_the_pages(catalogs: Catalogs, monkeypatch: pytest.MonkeyPatch) -> None:
    """K5, X5: a canary goes with a job, and no page shows it; a statement that holds it is found."""
    address = urlsplit(catalogs.url)
    place = {"conn_type": "spark_connect", "host": address.hostname, "port": address.port}
    monkeypatch.setenv("AIRFLOW_CONN_CATALOGS", json.dumps({**place, "extra": {"ui_url": catalogs.ui_url}}))
    assert list(login_leaks.check_pages("catalogs")) == [
        f"A login that was sent with a job is on none of Spark's {len(login_leaks.REST + login_leaks.PAGES)} pages.",
        "They show no login of the catalogs books, erp, lake, spark_catalog.",
    ]
    secret = login_leaks.make_secret()
    monkeypatch.setattr(login_leaks, "make_secret", lambda: secret)
    catalogs.run(f"SELECT '{secret}' AS password")
    with pytest.raises(RunnerRefused, match=r"Spark shows the logins that jobs carry, on its pages .*sql"):
        list(login_leaks.check_pages("catalogs"))


def read_pages(catalogs: Catalogs) -> dict[str, str]:
    """Return Spark's own pages, and what its REST interface says of every statement, by their paths."""
    (app,) = (each["id"] for each in requests.get(f"{catalogs.ui_url}/api/v1/applications", timeout=30).json())
    api = f"api/v1/applications/{app}"
    paths = ("jobs/", "SQL/", "environment/", "connect/", f"{api}/environment")
    statements = f"{api}/sql?details=true&planDescription=true&length=100000"
    return {path: requests.get(f"{catalogs.ui_url}/{path}", timeout=60).text for path in (*paths, statements)}


@pytest.mark.long
@pytest.mark.parametrize("step", [Step.BEFORE_LEDGER_COMMIT, Step.AFTER_SUBMIT])
@pytest.mark.statement("X2")
def test_a_killed_lane_goes_on_exactly_once(
    step: Step, catalogs: Catalogs, composed: Composed, database: Endpoint, name: str, tmp_path: Path
) -> None:
    """K5, X2: by a signal that nothing can catch, in the second of four ranges; rows are in once."""
    table = f"lake.raw.{name}"
    catalogs.run(f"CREATE TABLE {table} USING iceberg AS {ROWS} FROM range(1, 2501)")
    composed = replace(composed, table=table)
    composed.plan()
    catalogs.run(f"DELETE FROM {table}")
    (tmp_path / "points").write_text(f"{step.value}=kill@2")
    assert composed.process(tmp_path, **{VARIABLE: str(tmp_path)}).wait(timeout=120) == -signal.SIGKILL
    (there,) = run(database, "SELECT count(*) FROM raw.t")[0]
    assert there < 2500
    assert composed.process(tmp_path).wait(timeout=120) == 0, (tmp_path / "lane.log").read_text()[-2000:]
    composed.finish()
    assert run(database, INTO) == run(database, EXPECTED + " ORDER BY i")
