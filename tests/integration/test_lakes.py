"""PostgreSQL into every table of files, through planner, hydrator and a real Spark Connect server."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.planning.plan_result import Verdict
from airflow_provider_backpressure.core.verification.verifier import Report, Verify
from airflow_provider_backpressure.exceptions import SinkRefused
from airflow_provider_backpressure.runners.connect_runner import ConnectRunner
from dev.services import Server
from tests.support import lakes
from tests.support.composed import Composed
from tests.support.marks import mark_long
from tests.support.postgres import run

pytestmark = pytest.mark.integration

Rows = list[tuple[Any, ...]]
SALES = """
CREATE TABLE sales (
    id bigint PRIMARY KEY, shop smallint, code text, price numeric(12, 2), gap double precision, small real, ref uuid,
    even boolean, at timestamptz, local timestamp, day date, raw bytea, note json
);
INSERT INTO sales
SELECT i, (i % 10)::smallint, md5(i::text), (i * 1.5)::numeric(12, 2), NULLIF(i % 7, 0) / 3.0, i / 4.0,
       gen_random_uuid(), i % 2 = 0, timestamptz '2024-01-01 00:00+00' + i * interval '1 minute',
       timestamp '1969-12-31 23:00' + i * interval '1 second', date '1999-12-31' + i, int8send(i),
       CASE WHEN i % 3 = 0 THEN NULL ELSE json_build_object('n', i) END
FROM generate_series(1, 2500) i;
ANALYZE sales
"""
READ = (
    "SELECT id, shop, code, price, gap, small, ref::text, even, at, local, day, raw, note::text FROM sales ORDER BY id"
)


def compose(
    database: Endpoint,
    ledger_url: str,
    logins: dict[str, Endpoint],
    server: Server | lakes.Cluster,
    into: dict[str, Any],
) -> Composed:
    """2,500 rows of many types, to go into a table of files in ranges of 1,000, and what comes later too."""
    run(database, *SALES.split(";"))
    logins["source"] = replace(database, conn_id="source")
    return Composed(
        source=database,
        sink=database,
        ledger_url=ledger_url,
        remote=server.url,
        ui_url=server.ui_url,
        table="public.sales",
        budget=Budget(credits=2, range_rows=1_000),
        into=into,
        reading={"increment_column": "id"},
    )


@pytest.fixture(params=lakes.KINDS)
def composed(
    request: pytest.FixtureRequest,
    database: Endpoint,
    ledger_url: str,
    connect: Server,
    logins: dict[str, Endpoint],
    tmp_path: Path,
) -> Composed:
    """The hydration into a table of each kind that tasks write."""
    return compose(database, ledger_url, logins, connect, lakes.place(request.param, tmp_path))


def source_rows(database: Endpoint) -> Rows:
    """The source as Python's driver reads it."""
    with psycopg.connect(
        host=database.host,
        port=database.port,
        user=database.user,
        password=database.password,
        dbname=database.database,
        options="-c timezone=UTC",
    ) as connection:
        return connection.execute(READ).fetchall()


def hydrate(composed: Composed, runner: ConnectRunner, verify: Verify = Verify.FULL) -> tuple[Verdict, Report]:
    """Plan, drain, verify, by default range by range against the source, and finish."""
    with composed.open(runner) as ports:
        planned = ports.planner().plan()
        ports.hydrator().run()
        plan = ports.plan
        report = ports.verifier().verify(ports.ledger.ranges(plan.plan_id), verify)
        ports.sink.complete(plan)
        ports.sink.publish(plan)
        ports.ledger.finish(ports.hydration.id)
        return planned.verdict, report


@pytest.mark.statement("X1", "X3", "X4")
def test_every_row_arrives_with_its_values(composed: Composed, runner: ConnectRunner, database: Endpoint) -> None:
    """X1, X3, X4: by count and checksum of each range against the source, and by value with the format's own reader."""
    verdict, report = hydrate(composed, runner)
    assert (verdict, report.ranges, report.rows, report.mismatches) == (Verdict.PLANNED, 3, 2500, ())
    assert lakes.rows(composed.into) == source_rows(database)

    run(database, "INSERT INTO sales (id, code) SELECT i, 'later' FROM generate_series(2501, 2600) i", "ANALYZE sales")
    verdict, report = hydrate(composed, runner)
    assert (verdict, report.rows, report.mismatches) == (Verdict.PLANNED, 100, ())
    assert lakes.rows(composed.into) == source_rows(database)


def upsert_changes(composed: Composed, runner: ConnectRunner, database: Endpoint, read: Callable[[], Rows]) -> None:
    """Hydrate, change rows and add one, and bring both by a later run; ``read``: what the target holds."""
    run(database, "ALTER TABLE sales ADD changed bigint", "UPDATE sales SET changed = id", "ANALYZE sales")
    merging = replace(composed, mode="upsert", reading={"increment_column": "changed", "split_column": "id"})
    _, report = hydrate(merging, runner)
    assert report.equal
    run(
        database,
        "UPDATE sales SET changed = 10000 + id, code = 'changed' WHERE id % 100 = 0",
        "INSERT INTO sales (id, code, changed) VALUES (3000, 'new', 13000)",
        "ANALYZE sales",
    )
    _, report = hydrate(merging, runner)
    assert (report.rows, report.mismatches) == (26, ())
    assert [row[:13] for row in read()] == source_rows(database)


@pytest.mark.parametrize("composed", ["delta", "iceberg"], indirect=True)
def test_changed_rows_are_merged(composed: Composed, runner: ConnectRunner, database: Endpoint) -> None:
    """Under ``upsert`` a later run brings rows with keys that are there and with new ones."""
    upsert_changes(composed, runner, database, lambda: lakes.rows(composed.into))


@pytest.mark.parametrize("composed", mark_long(["delta", "iceberg"], quick=["delta"]), indirect=True)
def test_increments_by_text_are_merged_where_files_order_it_as_the_source_does(
    composed: Composed, runner: ConnectRunner, database: Endpoint, tmp_path: Path
) -> None:
    """Dates as text compare by bytes under "C"; under another collation no window could be found in the files again."""
    date = "to_char(date '2024-01-01' + id::int, 'YYYY-MM-DD')"
    run(database, 'ALTER TABLE sales ADD at_day text COLLATE "C"', f"UPDATE sales SET at_day = {date}", "ANALYZE sales")
    merging = replace(composed, mode="upsert", reading={"increment_column": "at_day", "split_column": "id"})
    assert hydrate(merging, runner)[1].equal
    run(database, f"INSERT INTO sales (id, code, at_day) SELECT id, 'new', {date} FROM (SELECT 3000 AS id) AS new")
    _, report = hydrate(merging, runner)
    assert (report.rows, report.mismatches) == (1, ())

    run(database, 'ALTER TABLE sales ALTER at_day TYPE text COLLATE "und-x-icu"')
    (tmp_path / "other").mkdir()
    other = replace(merging, into=lakes.place(composed.into["kind"], tmp_path / "other"))
    with other.open(runner) as ports, pytest.raises(SinkRefused, match=r"Increments by at_day .* ordered by icu"):
        ports.planner().plan()
