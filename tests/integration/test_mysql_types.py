"""Every type of MySQL's manual: what is carried arrives in PostgreSQL as it left, the rest is refused by name."""

from contextlib import closing
from dataclasses import replace

import pytest

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.verification.verifier import Verify
from airflow_provider_backpressure.exceptions import SourceRefused
from airflow_provider_backpressure.sources import MySQLSource
from tests import types_mysql as typed
from tests.support import mysql, type_page
from tests.support.composed import Composed
from tests.support.mysql import batches
from tests.support.postgres import run

pytestmark = [pytest.mark.integration, pytest.mark.in_process]

REFUSED = r'^Column odd \([^\n]*zero_dates="null"[^\n]*as_text=\("odd",\)'
ZERO = ("0000-00-00", "2024-00-10", "2024-02-00", "0000-05-05")


@pytest.mark.statement("X4")
def test_every_type_arrives_as_it_left(mysql_database: Endpoint, database: Endpoint, hydration: Composed) -> None:
    """X4: planned, created, copied through Spark, and read back on both sides: each value is the one written down."""
    mysql.run(mysql_database, *typed.statements("every"))
    composed = replace(
        hydration,
        source=mysql_database,
        kind="mysql",
        table="every",
        target="raw.every",
        mode="upsert",
    )
    planned = composed.plan()
    with composed.open() as ports:
        ports.hydrator().run()
        report = ports.verifier().verify(ports.ledger.ranges(planned.plan.plan_id), Verify.FULL)
    assert report.equal, report.mismatches
    assert report.rows == typed.rows()
    types = dict(
        run(
            database,
            "SELECT attname::text, format_type(atttypid, atttypmod) FROM pg_attribute"
            " WHERE attrelid = 'raw.every'::regclass AND attnum > 0",
        )
    )
    found = {}
    for name, (type_, shown) in typed.expected().items():
        there = [value for (value,) in run(database, f'SELECT "{name}"::text FROM raw.every ORDER BY id')]
        found[name] = there == shown
        assert there == shown, name
        assert types[name] == type_, name
    text = type_page.mysql_page(
        {name: (*typed.COLUMNS[name][:2], equal) for name, equal in found.items() if name in typed.COLUMNS}
    )
    assert type_page.keep(text, type_page.MYSQL) == text, f"the page is another one: set {type_page.WRITE}=1"


@pytest.mark.statement("X4")
@pytest.mark.parametrize("type_", ["date", "datetime", "timestamp"])
def test_zero_dates_are_refused_by_column_or_read_as_null_or_as_text(mysql_database: Endpoint, type_: str) -> None:
    """X4: no date of any calendar is made of them."""
    values = ZERO[:1] if type_ == "timestamp" else ZERO
    mysql.run(
        mysql_database,
        "SET sql_mode = 'ALLOW_INVALID_DATES'",
        f"CREATE TABLE zero (id int AUTO_INCREMENT PRIMARY KEY, odd {type_} NOT NULL DEFAULT '2024-02-29')",
        "INSERT INTO zero VALUES ()",
        *(f"INSERT INTO zero (odd) VALUES ('{value}')" for value in values),
    )
    for number, value in enumerate(values, start=2):
        declared = MySQLSource(conn_id="m", table="zero", where=f"id = {number}")
        with closing(declared.open(mysql_database)) as source, pytest.raises(SourceRefused, match=REFUSED):
            batches(source, mysql_database)
        with closing(replace(declared, as_text=("odd",)).open(mysql_database)) as source:
            assert batches(source, mysql_database)[0].to_pylist()[0]["odd"].startswith(value)
    with closing(MySQLSource(conn_id="m", table="zero", zero_dates="null").open(mysql_database)) as source:
        rows = [row["odd"] for batch in batches(source, mysql_database) for row in batch.to_pylist()]
        assert source.snapshot().columns[1].nullable
    assert str(rows[0]).startswith("2024-02-29")
    assert rows[1:] == [None] * len(values)


@pytest.mark.statement("X5", "X6")
@pytest.mark.parametrize("keyed", [{"split_column": "day"}, {}], ids=["split", "key"])
def test_dates_that_become_null_cut_no_table(mysql_database: Endpoint, keyed: dict[str, str]) -> None:
    """X5: a zero date that is NOT NULL answers to IS NULL as well, so that its row would arrive in two ranges."""
    key = "id int PRIMARY KEY, day date NOT NULL, KEY (day)" if keyed else "day date PRIMARY KEY"
    mysql.run(mysql_database, f"CREATE TABLE dated ({key})")
    declared = MySQLSource(conn_id="m", table="dated", zero_dates="null", **keyed)
    with (
        closing(declared.open(mysql_database)) as source,
        pytest.raises(SourceRefused, match="zero dates cannot arriv"),
    ):
        source.snapshot()
    with closing(replace(declared, zero_dates="refuse").open(mysql_database)) as source:
        assert source.snapshot().split == ("day",)


@pytest.mark.statement("X4", "X5")
def test_bytes_are_not_read_as_text(mysql_database: Endpoint) -> None:
    """X4, X5: refused by the column's name."""
    kind = "kind enum('\u00e9') CHARACTER SET binary"
    mysql.run(mysql_database, f"CREATE TABLE t (id int PRIMARY KEY, raw varbinary(9), shape point, {kind})")
    with (
        closing(MySQLSource(conn_id="m", table="t", as_text=("raw", "shape")).open(mysql_database)) as source,
        pytest.raises(SourceRefused, match=r"raw \(varbinary\(9\)\), shape \(point\), kind \(enum"),
    ):
        source.snapshot()
