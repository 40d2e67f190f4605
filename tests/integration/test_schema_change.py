"""X6, fault 14: the source's schema changes between ranges, during one, and in steady state."""

import re
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_backpressure.core.config import Budget, NewColumn
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.planning.plan_result import Planned, Verdict
from airflow_provider_backpressure.exceptions import BackpressureError, SourceRefused
from airflow_provider_backpressure.sources import MySQLSource, PostgresSource
from tests.support import mysql
from tests.support.composed import Composed, difference
from tests.support.postgres import run

pytestmark = [pytest.mark.integration, pytest.mark.in_process, pytest.mark.statement("X6")]

ROWS = 2_000


def change(composed: Composed, *statements: str) -> None:
    (mysql.run if composed.kind == "mysql" else run)(composed.source, *statements)


@pytest.fixture(params=["postgres", pytest.param("mysql", marks=pytest.mark.long)])
def composed(
    request: pytest.FixtureRequest, database: Endpoint, mysql_database: Endpoint, hydration: Composed
) -> Composed:
    """2,000 rows in four ranges."""
    made = replace(
        hydration,
        budget=Budget(credits=1, range_rows=500),
    )
    if request.param == "mysql":
        made = replace(made, source=mysql_database, kind="mysql", table="t")
        series = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000)"
        mysql.run(
            mysql_database,
            "SET SESSION cte_max_recursion_depth = 5000",
            "CREATE TABLE t (id bigint PRIMARY KEY, amount bigint)",
            f"INSERT INTO t {series} SELECT i, i * 10 FROM n",
        )
    else:
        run(
            database,
            f"CREATE TABLE t AS SELECT i AS id, i * 10 AS amount FROM generate_series(1::bigint, {ROWS}) i",
            "ALTER TABLE t ADD PRIMARY KEY (id)",
        )
    return made


def run_until(composed: Composed, commits: int, act: Callable[[], None]) -> None:
    """Drain the plan, and let something happen right after so many commits."""
    done = 0

    def look() -> None:
        nonlocal done
        done += 1
        if done == commits:
            act()

    with composed.open() as ports:
        hydrator = ports.hydrator()
        hydrator.on_commit = look
        hydrator.run()


def plan(composed: Composed, policy: NewColumn = NewColumn.STOP, **changes: Any) -> Planned:
    with replace(composed, **changes).open() as ports:
        return replace(ports.planner(), on_new_column=policy).plan()


def sums(composed: Composed) -> list[tuple[Any, ...]]:
    return run(composed.sink, "SELECT count(*), sum(id), sum(amount) FROM raw.t")


WHOLE = [(ROWS, ROWS * (ROWS + 1) // 2, 10 * ROWS * (ROWS + 1) // 2)]


@pytest.mark.fault(14)
def test_a_column_added_between_ranges_changes_nothing_of_the_plan(composed: Composed):
    """The plan's columns are read to its end; the next run stops, or goes on by policy, and names the column."""
    composed.plan()
    run_until(composed, 2, lambda: change(composed, "ALTER TABLE t ADD COLUMN note varchar(20)"))
    composed.finish()
    assert sums(composed) == WHOLE
    with pytest.raises(SourceRefused, match=r"note was added\. What is committed stays; set on_new_column='add'"):
        plan(composed)
    assert plan(composed, NewColumn.ADD).verdict is Verdict.UNCHANGED


def test_a_plan_that_is_not_complete_ends_with_its_own_columns(composed: Composed):
    """Stopped in mid-snapshot, and resumed after the column was added: by policy it goes on where it was."""
    composed.plan()
    with composed.open() as ports:
        hydrator = ports.hydrator()
        hydrator.on_commit = _interrupt
        with pytest.raises(KeyboardInterrupt):
            hydrator.run()
        hydrator.cancel()
    change(composed, "ALTER TABLE t ADD COLUMN note varchar(20)")
    with pytest.raises(SourceRefused, match="column note was added"):
        plan(composed)
    assert plan(composed, NewColumn.ADD).verdict is Verdict.RESUMED
    composed.run()
    composed.finish()
    assert sums(composed) == WHOLE


@pytest.mark.parametrize(
    ("statement", "named"),
    [
        ("ALTER TABLE t DROP COLUMN amount", "amount"),
        ("ALTER TABLE t {alter} amount {type} double precision", "amount"),
        ("DROP TABLE t", "t"),
    ],
    ids=["dropped", "retyped", "table"],
)
@pytest.mark.fault(14)
def test_what_cannot_go_on_stops_and_what_is_committed_stays(composed: Composed, statement: str, named: str):
    """A column that is gone or of another type, a table that is gone: named, nothing taken for something else."""
    words = {"alter": "MODIFY", "type": ""} if composed.kind == "mysql" else {"alter": "ALTER", "type": "TYPE"}
    composed.plan()
    retyped = "double" in statement
    half = "UPDATE t SET amount = amount + 0.5 WHERE id > 1000"
    values = [half] if composed.kind == "mysql" and retyped else []
    with pytest.raises(BackpressureError, match=named):
        run_until(composed, 2, lambda: change(composed, statement.format(**words), *values))
    with composed.open() as ports:
        counts = ports.ledger.counts(ports.plan.plan_id)
        assert counts.committed == 2
        markers = ports.sink.markers(ports.plan.plan_id)
        rows = sum(marker.rows for marker in markers.values())
    assert run(composed.sink, "SELECT count(*), sum(amount) FROM raw.t") == [(rows, 10 * rows * (rows + 1) // 2)]
    with pytest.raises(BackpressureError, match=rf"{named} (is gone|was bigint and is double)|{named} "):
        plan(composed)


@pytest.mark.fault(14)
def test_a_column_added_in_steady_state_comes_with_the_next_plan(composed: Composed):
    """By policy the target gets it, NULL in the rows of before; without it the run stops before anything is changed."""
    reading = {"increment_column": "id"}
    composed = replace(composed, reading=reading)
    composed.plan()
    composed.run()
    composed.finish()
    change(
        composed,
        "ALTER TABLE t ADD COLUMN note varchar(20)",
        f"INSERT INTO t (id, amount, note) VALUES ({ROWS + 1}, 7, 'new')",
    )
    with pytest.raises(SourceRefused, match="column note was added"):
        plan(composed)
    assert run(
        composed.sink, "SELECT count(*) FROM pg_attribute WHERE attrelid = 'raw.t'::regclass AND attnum > 0"
    ) == [(2,)]
    assert plan(composed, NewColumn.ADD).plan.increment
    composed.run()
    composed.finish()
    assert run(composed.sink, "SELECT id, amount, note FROM raw.t WHERE note IS NOT NULL") == [(ROWS + 1, 7, "new")]
    change(composed, "ALTER TABLE t DROP COLUMN note")
    with pytest.raises(SourceRefused, match=r"column note is gone\. What is committed stays"):
        plan(composed, NewColumn.ADD)


@pytest.mark.parametrize("composed", ["postgres"], indirect=True)
@pytest.mark.fault(19)
def test_a_key_that_moves_under_static_is_found_by_verification(composed: Composed):
    """Declared static, the table moved: the row is doubled or missing, and a full verification names its ranges."""
    from airflow_provider_backpressure.core.verification.verifier import Verify

    composed.plan()
    run_until(composed, 2, lambda: change(composed, "UPDATE t SET id = id + 5000 WHERE id = 7"))
    with composed.open() as ports:
        records = ports.ledger.ranges(ports.plan.plan_id)
        report = ports.verifier().verify(records, Verify.FULL)
        assert [mismatch.seq for mismatch in report.mismatches] == [0]
        assert ports.verifier().verify(records, Verify.TARGET).equal
    assert difference(composed.source, "t", composed.sink, "raw.t") == (0, 1)


def _interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("kind", ["postgres", "mysql"])
def test_text_that_is_ordered_otherwise_is_not_read_by_bounds_of_before(
    kind: str, database: Endpoint, mysql_database: Endpoint
) -> None:
    """X6: a migration of collations between two tries of a plan: rows would be in two ranges, or in none."""
    first, second, kept = ("utf8mb4_0900_bin", "utf8mb4_0900_as_cs", "MODIFY k varchar(9) COLLATE {} NOT NULL")
    declared: MySQLSource | PostgresSource = MySQLSource(conn_id="m", table="t")
    place, act = mysql_database, mysql.run
    if kind == "postgres":
        first, second, kept = '"C"', '"en-x-icu"', "ALTER k TYPE text COLLATE {}"
        declared, place, act = PostgresSource(conn_id="p", table="t"), database, run
    act(place, f"CREATE TABLE t (k varchar(9) COLLATE {first} PRIMARY KEY)", "INSERT INTO t VALUES ('a'), ('B'), ('c')")
    with closing(declared.open(place)) as source:
        snapshot = source.snapshot()
        read = source.read_spec(snapshot)
        bounds = [planned.bounds for planned in source.ranges(snapshot, rows=1, bytes=2**20)]
        assert len(bounds) > 1
        source.slice(read, bounds[1], "1.0")
    act(place, f"ALTER TABLE t {kept.format(second)}")
    with closing(declared.open(place)) as source:
        for ask in (lambda: source.slice(read, bounds[1], "1.0"), lambda: source.cut(read, bounds[1], parts=2)):
            with pytest.raises(SourceRefused, match="its bounds have other rows now"):
                ask()


def test_the_version_of_a_collation_is_the_one_in_use(database: Endpoint) -> None:
    """X6: the catalogue has the version of the day when a collation was made; the libraries may be newer by now."""
    run(database, """CREATE TABLE t (k text COLLATE "en-x-icu" PRIMARY KEY)""")
    planned = _collation(database)
    assert re.fullmatch(r"icu \S+ [\d.]+", planned)
    run(database, "UPDATE pg_collation SET collversion = '1.0' WHERE collname = 'en-x-icu'")
    assert _collation(database) == planned


def test_the_version_of_a_database_is_the_one_in_use(database: Endpoint) -> None:
    """X6: as of a collation of its own."""
    name = f"{database.database}_icu"
    run(database, f"CREATE DATABASE {name} TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE 'en'")
    ordered = replace(database, database=name)
    try:
        run(ordered, "CREATE TABLE t (k text PRIMARY KEY)")
        planned = _collation(ordered)
        assert re.fullmatch(r"icu \S+ [\d.]+", planned)
        run(ordered, f"UPDATE pg_database SET datcollversion = '1.0' WHERE datname = '{name}'")
        assert _collation(ordered) == planned
    finally:
        run(database, f"DROP DATABASE {name} WITH (FORCE)")


def _collation(place: Endpoint) -> str:
    """Return what the key of ``t`` is ordered by."""
    with closing(PostgresSource(conn_id="p", table="t").open(place)) as source:
        return str(source.read_spec(source.snapshot()).columns[0].collation)
