"""Debian's MariaDB as the source: static, with every type."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest

from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.verification.verifier import Verify
from airflow_provider_backpressure.exceptions import SourceRefused
from airflow_provider_backpressure.sources import MySQLSource
from tests import types_mariadb as typed
from tests import types_mysql
from tests.support import mysql, type_page
from tests.support.composed import Composed
from tests.support.mysql import batches
from tests.support.postgres import run

pytestmark = [pytest.mark.integration, pytest.mark.in_process, pytest.mark.statement("V5")]


@pytest.fixture
def source(mariadb: Endpoint) -> Iterator[Endpoint]:
    """A fresh database of its own on MariaDB."""
    with mysql.fresh_database(mariadb) as endpoint:
        yield endpoint


def hydrate(composed: Composed) -> int:
    """Plan, drain, and verify both sides in full; return the number of ranges."""
    planned = composed.plan()
    with composed.open() as ports:
        ports.hydrator().run()
        report = ports.verifier().verify(ports.ledger.ranges(planned.plan.plan_id), Verify.FULL)
    assert report.equal, report.mismatches
    return planned.ranges


def test_every_type_arrives_as_it_left(
    source: Endpoint, database: Endpoint, hydration: Composed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """V5: planned, created, copied through Spark, and read back on both sides: each value is the one written down."""
    monkeypatch.setattr(types_mysql, "COLUMNS", typed.COLUMNS)
    mysql.run(source, *types_mysql.statements("every"))
    hydrate(replace(hydration, source=source, kind="mysql", table="every", target="raw.every"))
    types = dict(
        run(
            database,
            "SELECT attname::text, format_type(atttypid, atttypmod) FROM pg_attribute"
            " WHERE attrelid = 'raw.every'::regclass AND attnum > 0",
        )
    )
    found, differing = {}, {}
    for name, (type_, shown) in types_mysql.expected().items():
        there = [value for (value,) in run(database, f'SELECT "{name}"::text FROM raw.every ORDER BY id')]
        found[name] = there == shown
        differing |= {} if there == shown else {name: (there, shown)}
        assert types[name] == type_, name
    assert differing == {}
    columns = {name: (*typed.COLUMNS[name][:2], equal) for name, equal in found.items() if name in typed.COLUMNS}
    text = type_page.mariadb_page(columns, [type_ for type_, *_ in typed.ONLY_HERE.values()])
    assert type_page.keep(text, type_page.MARIADB) == text, f"the page is another one: set {type_page.WRITE}=1"


def test_types_of_mariadb_alone_are_read_as_text(source: Endpoint) -> None:
    """V5: refused by the column's name until they are named."""
    columns = ", ".join(f"{name} {type_}" for name, (type_, *_) in typed.ONLY_HERE.items())
    said = ", ".join(said for _, said, _ in typed.ONLY_HERE.values())
    mysql.run(source, f"CREATE TABLE o (id int PRIMARY KEY, {columns})", f"INSERT INTO o VALUES (1, {said})")
    refusal = r"uuid_ \(uuid\), inet4_ \(inet4\), inet6_ \(inet6\)"
    with (
        closing(MySQLSource(conn_id="m", table="o").open(source)) as opened,
        pytest.raises(SourceRefused, match=refusal),
    ):
        opened.snapshot()
    with closing(MySQLSource(conn_id="m", table="o", as_text=tuple(typed.ONLY_HERE)).open(source)) as opened:
        (row,) = batches(opened, source)[0].to_pylist()
    assert row == {"id": 1, **{name: shown for name, (_, _, shown) in typed.ONLY_HERE.items()}}


def test_columns_whose_names_differ_by_an_accent_are_two(source: Endpoint) -> None:
    """V5: MariaDB compares names in its catalogue without accents, and the columns are two all the same."""
    mysql.run(source, "CREATE TABLE o (id int PRIMARY KEY, ano int, `año` int)", "INSERT INTO o VALUES (1, 2, 3)")
    for columns in (("id", "ano"), ("id", "año"), ("id", "ano", "año")):
        with closing(MySQLSource(conn_id="m", table="o", columns=columns).open(source)) as opened:
            (row,) = batches(opened, source)[0].to_pylist()
        assert row == {name: {"id": 1, "ano": 2, "año": 3}[name] for name in columns}


def test_a_table_that_keeps_its_history_is_a_table(source: Endpoint) -> None:
    """V5: a pattern finds it, and its rows are those of now, whatever moment the server shows otherwise."""
    mysql.run(
        source,
        "CREATE TABLE kept (id int PRIMARY KEY) WITH SYSTEM VERSIONING",
        "INSERT INTO kept VALUES (1), (2)",
        "DELETE FROM kept WHERE id = 1",
    )
    database = source.database
    assert [found.spelled for found in MySQLSource(conn_id="m", tables=f"{database}.*").found(source)] == [
        f"{database}.kept"
    ]
    (was,) = mysql.run(source, "SELECT @@GLOBAL.system_versioning_asof")
    mysql.run(source, "SET GLOBAL system_versioning_asof = '2000-01-01'")
    try:
        with closing(MySQLSource(conn_id="m", table="kept").open(source)) as opened:
            assert [row["id"] for batch in batches(opened, source) for row in batch.to_pylist()] == [2]
    finally:
        mysql.run(source, f"SET GLOBAL system_versioning_asof = {was[0]}")


def test_ranges_cover_a_table(source: Endpoint, database: Endpoint, hydration: Composed) -> None:
    """V5: in ranges of its key; the log of MariaDB is refused in one sentence."""
    mysql.run(
        source,
        "CREATE TABLE t (id int PRIMARY KEY, code char(32) NOT NULL)",
        "INSERT INTO t SELECT seq, md5(seq) FROM seq_1_to_20000",
    )
    declared = replace(hydration, source=source, kind="mysql", table="t", budget=Budget(credits=2, range_rows=5_000))
    assert hydrate(declared) == 4
    expected = "SELECT i, md5(i::text) FROM generate_series(1, 20000) i"
    assert run(database, f"SELECT count(*) FROM ({expected} EXCEPT SELECT id, code::text FROM raw.t) x") == [(0,)]
    assert run(database, "SELECT count(*) FROM raw.t") == [(20_000,)]
    with pytest.raises(SourceRefused, match=r"^Changes are replayed from MySQL's binlog by its GTIDs, and MariaDB has"):
        replace(declared, target="raw.u", consistency="catch_up", mode="upsert").plan()
