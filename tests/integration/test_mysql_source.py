"""MySQL tables as a source: each row in exactly one range, streamed, and one sentence where it cannot be."""

import logging
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest

from airflow_provider_backpressure.cli.doctor import CHECKS, REACHES
from airflow_provider_backpressure.connectors.mysql import server_versions
from airflow_provider_backpressure.connectors.mysql.connect import Session
from airflow_provider_backpressure.connectors.mysql.source.change_log import ERRORS
from airflow_provider_backpressure.core.config import Consistency
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.ports import Source
from airflow_provider_backpressure.core.snapshot.bounds import KeyBounds, NullBounds
from airflow_provider_backpressure.core.snapshot.plan import Snapshot
from airflow_provider_backpressure.core.snapshot.ranges import PlannedRange, attempt_tag
from airflow_provider_backpressure.core.snapshot.spark_messages import Slice, Window
from airflow_provider_backpressure.core.verification.verifier import Verify
from airflow_provider_backpressure.exceptions import SinkRefused, SourceRefused, SourceUnavailable
from airflow_provider_backpressure.sources import MySQLSource
from airflow_provider_backpressure.spark.readers_and_writers import reader
from tests.support.composed import Composed
from tests.support.mysql import new_role, run
from tests.support.postgres import run as run_postgres

pytestmark = [pytest.mark.integration, pytest.mark.in_process]

Open = Callable[..., Source]
MANY_BYTES = 2**40
NUMBERS = "WITH RECURSIVE g (g) AS (SELECT 1 UNION ALL SELECT g + 1 FROM g WHERE g < {}) SELECT {} FROM g"
DEEP = "SET SESSION cte_max_recursion_depth = 10000000"


@pytest.fixture
def opened(mysql_database: Endpoint) -> Iterator[Open]:
    """Open sources over ``t`` unless told otherwise; all are closed in the end."""
    with ExitStack() as stack:

        def open_(endpoint: Endpoint = mysql_database, **declared: Any) -> Source:
            source = MySQLSource(**{"conn_id": "test", "table": "t", **declared}).open(endpoint)
            return stack.enter_context(closing(source))

        yield open_


def filled(database: Endpoint, columns: str, rows: int, values: str, *more: str) -> None:
    """Make ``t`` of these columns, with rows of expressions over ``g``."""
    run(database, DEEP, f"CREATE TABLE t ({columns})", f"INSERT INTO t {NUMBERS.format(rows, values)}", *more)


def rows_by_range(
    database: Endpoint, source: Source, snapshot: Snapshot, ranges: list[PlannedRange]
) -> list[list[dict[str, Any]]]:
    """Read every range as a task does and return the rows of each."""
    read = source.read_spec(snapshot)
    slices = [source.slice(read, piece.bounds, f"{piece.seq}.0") for piece in ranges]
    return [
        [row for batch in reader("mysql").read(database, read, piece, "test") for row in batch.to_pylist()]
        for piece in slices
    ]


def assert_covered(
    database: Endpoint, source: Source, *, rows: int, count: int, bytes: int = MANY_BYTES
) -> tuple[list[int], Snapshot, list[PlannedRange]]:
    """Cut and read: as many distinct rows as there are, none in two ranges, none of those too big."""
    snapshot = source.snapshot()
    ranges = list(source.ranges(snapshot, rows=rows, bytes=bytes))
    assert [piece.seq for piece in ranges] == list(range(len(ranges)))
    pieces = rows_by_range(database, source, snapshot, ranges)
    found = [repr(row) for piece in pieces for row in piece]
    assert len(found) == len(set(found)) == count
    sizes = [len(piece) for piece in pieces]
    assert max(sizes, default=0) <= rows
    if sizes:
        assert_cut(database, source, snapshot, ranges[sizes.index(max(sizes))])
    return sizes, snapshot, ranges


def assert_cut(database: Endpoint, source: Source, snapshot: Snapshot, whole: PlannedRange) -> None:
    """Cut one of the ranges in three: the same rows in the same order."""
    bounds = source.cut(source.read_spec(snapshot), whole.bounds, parts=3)
    cut = [replace(whole, seq=seq, bounds=piece) for seq, piece in enumerate(bounds)]
    (before,), pieces = (rows_by_range(database, source, snapshot, ranges) for ranges in ([whole], cut))
    assert sorted(map(repr, (row for piece in pieces for row in piece))) == sorted(map(repr, before))


# --- keys


@pytest.mark.parametrize(
    ("columns", "values"),
    [
        ("id int PRIMARY KEY", "g * 3"),
        ("id bigint unsigned PRIMARY KEY", "18446744073709551615 - g"),
        ("id decimal(30,3) PRIMARY KEY", "g * 1.5"),
        ("id datetime(6) PRIMARY KEY", "TIMESTAMP'2024-01-01 00:00:00' + INTERVAL g * g SECOND"),
        ("a int, b varchar(20) COLLATE utf8mb4_0900_ai_ci, PRIMARY KEY (a, b)", "g % 7, CONCAT('Ä', g)"),
        ("a date, b int, c bigint unsigned, PRIMARY KEY (a, b, c)", "DATE'2024-01-01' + INTERVAL g % 3 DAY, g % 5, g"),
        (
            "id varchar(30) COLLATE utf8mb4_0900_ai_ci PRIMARY KEY",
            "CONCAT(ELT(g % 4 + 1, 'a', 'B', 'é', '😀\\'\\\\'), g)",
        ),
        (
            "id varchar(30) CHARACTER SET latin1 COLLATE latin1_swedish_ci PRIMARY KEY",
            "CONCAT(ELT(g % 3 + 1, 'ö', 'Z', 'a'), g)",
        ),
        ("id int, PRIMARY KEY (id DESC)", "g * 3"),
        ("a int, b int, PRIMARY KEY (a DESC, b DESC)", "g % 7, g"),
        ("id binary(16) PRIMARY KEY", "UNHEX(MD5(g))"),
        ("id char(36) CHARACTER SET ascii PRIMARY KEY", "MD5(g)"),
    ],
)
def test_a_key_of_any_kind(mysql_database: Endpoint, opened: Open, columns: str, values: str) -> None:
    """Half-open in the key's own order, and read through its index."""
    filled(mysql_database, columns, 5000, values)
    sizes, snapshot, ranges = assert_covered(mysql_database, opened(), rows=400, count=5000)
    assert len(sizes) == 13
    assert snapshot.split == snapshot.key
    assert snapshot.unique
    run(mysql_database, "ANALYZE TABLE t")
    source = opened()
    query = source.slice(source.read_spec(snapshot), ranges[5].bounds, "x").query
    plan, *_ = run(mysql_database, f"EXPLAIN {query}")
    assert "range" in plan, f"a slice goes through the index: {plan}"


def test_a_key_whose_characters_do_not_come_back_ends_in_one_sentence(mysql_database: Endpoint, opened: Open) -> None:
    """Doubled characters of cp932: their boundaries led back to where the walk had been, for ever."""
    doubled = "ELT(1 + g % 8, X'879B', X'81BE', X'8794', X'EEF9', X'FA54', X'81CA', X'8782', X'FA59')"
    value = f"CONVERT(CONCAT({doubled}, CONVERT(g USING cp932)) USING cp932), g"
    filled(mysql_database, "k varchar(20) CHARACTER SET cp932 PRIMARY KEY, v int UNIQUE", 5000, value)
    source = opened()
    with pytest.raises(SourceRefused, match=r"cannot be cut by k: '.*' has characters .* Name another column as split"):
        list(islice(source.ranges(source.snapshot(), rows=100, bytes=MANY_BYTES), 1000))
    assert_covered(mysql_database, opened(split_column="v"), rows=400, count=5000)


def test_spellings_of_one_value_are_no_boundaries_of_their_own(mysql_database: Endpoint, opened: Open) -> None:
    """A collation that ignores case: a value with more rows than fit may come back in another spelling."""
    spelled = "ELT(1 + g % 3, 'Berlin', 'berlin', 'BERLIN')"
    city = f"IF(g % 10 < 8, {spelled}, CONCAT('Z', g))"
    columns = "id int PRIMARY KEY, city varchar(20) COLLATE utf8mb4_0900_ai_ci NOT NULL, KEY (city)"
    filled(mysql_database, columns, 400, f"g, {city}")
    source = opened(split_column="city")
    ranges = list(source.ranges(source.snapshot(), rows=21, bytes=MANY_BYTES))
    pieces = [piece for piece in ranges if isinstance(piece.bounds, KeyBounds)]
    assert len(pieces) == 5, "what one value holds is a piece, and the others are cut"


def test_a_generated_invisible_key_is_taken_only_where_no_other_arrives(mysql_database: Endpoint, opened: Open) -> None:
    """MySQL makes it where a table has no primary key; a target could not be upserted by it."""
    generate = "SET SESSION sql_generate_invisible_primary_key = ON"
    run(mysql_database, generate, "CREATE TABLE t (code varchar(9) NOT NULL UNIQUE)", "CREATE TABLE bare (v int)")
    assert opened().snapshot().key == ("code",)
    assert opened(columns=("my_row_id", "code")).snapshot().key == ("my_row_id",)
    assert opened(table="bare").snapshot().key == ("my_row_id",)


def test_a_dense_integer_key_is_cut_without_a_look_at_its_rows(
    mysql_database: Endpoint, opened: Open, caplog: pytest.LogCaptureFixture
) -> None:
    """Equal strides, also with some gaps; of a key with many it is walked, and each range is full."""
    caplog.set_level(logging.INFO)
    filled(mysql_database, "id int PRIMARY KEY, v int", 10_000, "g, g", "DELETE FROM t WHERE id % 5 = 0")
    sizes, _, ranges = assert_covered(mysql_database, opened(), rows=100, count=8000)
    assert set(sizes) == {80}
    assert ranges[0].bounds == KeyBounds.of_column(column="id", start=None, end="101")
    assert "t is cut by id (strides)" in caplog.text
    run(mysql_database, "UPDATE t SET id = id + 1000000000 WHERE id > 5000 ORDER BY id DESC")
    sizes, _, _ = assert_covered(mysql_database, opened(), rows=100, count=8000)
    assert set(sizes) == {100}


@pytest.mark.parametrize(("index", "lacking"), [("", True), (", KEY (id, shop)", True), (", KEY (shop DESC)", False)])
def test_a_missing_index_is_told_where_it_is_missing(
    mysql_database: Endpoint, opened: Open, caplog: pytest.LogCaptureFixture, index: str, lacking: bool
) -> None:
    """An index that begins with the column is one, whichever way it is sorted."""
    filled(mysql_database, f"id int PRIMARY KEY, shop int{index}", 10, "g, g % 3")
    opened(split_column="shop").snapshot()
    assert "t is cut by shop, which is not its unique key" in caplog.text
    assert ("it has no index on it" in caplog.text) is lacking


def test_a_key_that_falls_and_rises_is_a_key(mysql_database: Endpoint, opened: Open) -> None:
    """It is cut as any other; the walk sorts."""
    filled(mysql_database, "a int, b int, PRIMARY KEY (a DESC, b)", 1000, "g % 7, g")
    _, snapshot, _ = assert_covered(mysql_database, opened(), rows=100, count=1000)
    assert (snapshot.key, snapshot.unique) == (("a", "b"), True)


def test_rows_that_are_not_committed_are_never_read(mysql_database: Endpoint) -> None:
    """A server may be set to show them; the log never has those that are rolled back."""
    (before,) = run(mysql_database, "SELECT @@GLOBAL.transaction_isolation")[0]
    run(mysql_database, "SET GLOBAL transaction_isolation = 'READ-UNCOMMITTED'")
    try:
        with closing(Session(mysql_database, errors=ERRORS)) as opened_session:
            assert opened_session.value("SELECT @@transaction_isolation") == "READ-COMMITTED"
    finally:
        run(mysql_database, f"SET GLOBAL transaction_isolation = '{before}'")


@pytest.mark.parametrize("setting", ["autocommit = 0", "init_connect = 'SET autocommit = 0'"])
def test_a_session_that_has_read_a_table_lets_it_be_altered(mysql_database: Endpoint, setting: str) -> None:
    """A server may be set to begin a transaction with the first statement; nothing of a session would ever end it."""
    run(mysql_database, "CREATE TABLE t (id int PRIMARY KEY)")
    name = setting.partition(" ")[0]
    (before,) = run(mysql_database, f"SELECT @@GLOBAL.{name}")[0]
    with new_role(mysql_database) as role:
        run(mysql_database, f"GRANT SELECT ON t TO '{role.user}'@'%'", f"SET GLOBAL {setting}")
        try:
            with closing(Session(role, errors=ERRORS)) as session:
                assert session.rows("SELECT * FROM t") == []
                run(mysql_database, "SET lock_wait_timeout = 2", "ALTER TABLE t ADD COLUMN v int")
        finally:
            run(mysql_database, f"SET GLOBAL {name} = {before!r}")


def test_nulls_and_repeats_in_a_chosen_column(mysql_database: Endpoint, opened: Open) -> None:
    """Rows without a value are a range of their own, and what shares a value stays together."""
    filled(
        mysql_database,
        "id int PRIMARY KEY, shop varchar(20), KEY (shop)",
        6000,
        "g, IF(g <= 500, NULL, IF(g <= 3000, 'big', CONCAT('Shop ', g % 500)))",
    )
    source = opened(split_column="shop")
    snapshot = source.snapshot()
    assert (snapshot.key, snapshot.split, snapshot.unique) == (("id",), ("shop",), False)
    ranges = list(source.ranges(snapshot, rows=600, bytes=MANY_BYTES))
    pieces = rows_by_range(mysql_database, source, snapshot, ranges)
    assert ranges[-1].bounds == NullBounds(column="shop")
    assert sorted(row["id"] for piece in pieces for row in piece) == list(range(1, 6001))
    sizes = [len(piece) for piece in pieces]
    assert sizes[-1] == 500
    assert sorted(sizes)[-1] == 2500, "what one value holds is a range of its own"
    assert sorted(sizes)[-2] <= 600


def test_rows_without_a_key_are_read_once_where_one_range_is_all_of_the_table(
    mysql_database: Endpoint, opened: Open
) -> None:
    """It has no condition, so it holds them too; cut in the middle of a plan they are a range of their own."""
    filled(mysql_database, "id int PRIMARY KEY, v int NULL, KEY (v)", 90, "g, IF(g % 5 < 3, g, NULL)")
    source = opened(split_column="v")
    snapshot = source.snapshot()
    (whole,) = source.ranges(snapshot, rows=1000, bytes=MANY_BYTES)
    cuts = [source.cut(source.read_spec(snapshot), whole.bounds, parts=parts) for parts in range(2, 11)]
    pieces = [[replace(whole, seq=seq, bounds=bounds) for seq, bounds in enumerate(cut)] for cut in cuts]
    for ranges in ([whole], *pieces):
        rows = [row["id"] for piece in rows_by_range(mysql_database, source, snapshot, ranges) for row in piece]
        assert sorted(rows) == list(range(1, 91))


def test_wide_rows_that_lie_together_do_not_make_a_range_larger(mysql_database: Endpoint, opened: Open) -> None:
    """Ranges hold no more bytes than asked for, however the rows differ."""
    filled(
        mysql_database,
        "id int PRIMARY KEY, doc longtext",
        2000,
        "g, REPEAT('x', IF(g BETWEEN 900 AND 1000, 100000, 10))",
    )
    source = opened()
    snapshot = source.snapshot()
    ranges = list(source.ranges(snapshot, rows=1000, bytes=2_000_000))
    pieces = rows_by_range(mysql_database, source, snapshot, ranges)
    assert sum(map(len, pieces)) == 2000
    assert max(sum(len(row["doc"]) for row in piece) for piece in pieces) <= 2_000_000
    assert len(ranges) <= 10


def test_thousands_of_ranges_are_planned_in_seconds(mysql_database: Endpoint, opened: Open) -> None:
    """A key of two columns, walked."""
    filled(mysql_database, "a int, b int, PRIMARY KEY (a, b)", 60_000, "g % 100, g")
    source = opened()
    ranges = list(source.ranges(source.snapshot(), rows=20, bytes=MANY_BYTES))
    assert len(ranges) == 3000


def test_a_table_without_a_key_is_refused_or_read_whole(mysql_database: Endpoint, opened: Open) -> None:
    """In one range, if the user says so; a view too, which may be cut by a column instead."""
    filled(mysql_database, "id int, v int NULL, UNIQUE (v)", 1000, "g, g", "CREATE VIEW seen AS SELECT * FROM t")
    for table, why in (("t", "neither a primary key nor another unique key"), ("seen", "it is a view")):
        with pytest.raises(SourceRefused, match=rf"{table} cannot be cut [^\n]*{why}[^\n]* whole=True\.$"):
            opened(table=table).snapshot()
        sizes, _, ranges = assert_covered(mysql_database, opened(table=table, whole=True), rows=1000, count=1000)
        assert sizes == [1000]
        assert ranges[0].bounds == KeyBounds(columns=(), start=None, end=None)
    assert_covered(mysql_database, opened(table="seen", split_column="id"), rows=100, count=1000)


def test_chosen_columns_a_condition_and_an_empty_table(mysql_database: Endpoint, opened: Open) -> None:
    """Only what is asked for; the condition cannot leave its brackets."""
    filled(mysql_database, "`odd ``name` int PRIMARY KEY, v varchar(9), w int", 100, "g, IF(g % 2, 'a', NULL), g")
    source = opened(columns=("v", "odd `name"), where="v IS NULL -- only those")
    _, snapshot, _ = assert_covered(mysql_database, source, rows=10, count=50)
    assert [column.name for column in snapshot.columns] == ["v", "odd `name"]
    assert (snapshot.total, snapshot.total_exact) == (50, True)
    assert snapshot.source_identity != opened().identity
    for condition in ("w = ", "1) OR (1", "nowhere = 1"):
        with pytest.raises(SourceRefused, match=r"^The condition '[^\n]+$"):
            opened(where=condition).snapshot()
    for condition in ("w < UNIX_TIMESTAMP()", "v < now(6)", "v < current_date", "rand() < 0.5", "v < utc_timestamp"):
        with pytest.raises(SourceRefused, match=r"^The condition .* asks for \w+, [^\n]* write the value itself\.$"):
            opened(where=condition).snapshot()
    assert opened(where="\"it's\" <> 'rand()' AND v IS NULL -- not now()").snapshot().total == 50
    empty = opened(where="w < 0")
    assert list(empty.ranges(empty.snapshot(), rows=10, bytes=MANY_BYTES)) == []


@pytest.mark.statement("M3")
def test_totals_are_exact_where_counting_is_quick(
    mysql_database: Endpoint, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M3: and flagged as an estimate where it is not."""
    filled(mysql_database, "id int PRIMARY KEY", 5000, "g", "ANALYZE TABLE t")
    found = opened().snapshot()
    assert (found.total, found.total_exact, found.frontier) == (5000, True, {f"{mysql_database.database}.t": 5000})
    monkeypatch.setattr("airflow_provider_backpressure.connectors.mysql.source.query.COUNTABLE_ROWS", 1000)
    guessed = opened().snapshot()
    assert not guessed.total_exact
    assert guessed.total == pytest.approx(5000, rel=0.2)
    assert opened(where="id > 10").snapshot().total is None, "unknown is not 0"
    none = opened(where="id > 5000").snapshot()
    assert (none.total, none.total_exact) == (0, True)


def test_what_nobody_asks_for_is_not_counted(mysql_database: Endpoint, opened: Open) -> None:
    """All else is said just the same."""
    filled(mysql_database, "id int PRIMARY KEY", 5000, "g", "ANALYZE TABLE t")
    source = opened()
    found, counted = source.snapshot(counted=False), source.snapshot()
    assert (found.total, found.frontier, counted.total) == (None, {}, 5000)
    assert (found.columns, found.key, found.split) == (counted.columns, counted.key, counted.split)


# --- what a plan says, and reading


def test_the_plan_has_the_position_in_the_log(mysql_database: Endpoint, opened: Open) -> None:
    """A GTID set from before anything is read."""
    filled(mysql_database, "id int PRIMARY KEY", 10, "g")
    before = "".join(run(mysql_database, "SELECT @@GLOBAL.gtid_executed")[0][0].split())
    assert opened().snapshot().position == before
    with pytest.raises(SourceRefused, match="MySQL has no snapshot"):
        opened().snapshot(Consistency.SNAPSHOT)


def test_columns_are_known_of_which_many_rows_have_one_value(mysql_database: Endpoint, opened: Open) -> None:
    """Its times have whole seconds unless they are declared with more digits."""
    columns = "d date, y year, s datetime, t timestamp NULL, c datetime(2), m datetime(3), u timestamp(6) NULL"
    run(mysql_database, f"CREATE TABLE t (id int PRIMARY KEY, {columns})")
    assert opened().snapshot().coarse == ("d", "y", "s", "t", "c")


@pytest.mark.parametrize(
    ("type_", "value", "last"),
    [
        ("int", "g", "1000"),
        ("datetime(3)", "TIMESTAMP '2024-01-01 00:00:00' + INTERVAL g MINUTE", "2024-01-01 16:40:00.000"),
        ("varchar(9)", "LPAD(g, 5, '0')", "01000"),
    ],
)
def test_a_window_never_ends_below_its_beginning(
    mysql_database: Endpoint, opened: Open, type_: str, value: str, last: str
) -> None:
    """Rows at the top were deleted, or a replica lags."""
    filled(mysql_database, f"id int PRIMARY KEY, at {type_}", 1000, f"g, {value}")
    source = opened(increment_column="at")
    first = source.snapshot().window
    assert first is not None
    assert first.upto == last
    run(mysql_database, "DELETE FROM t WHERE id > 900")
    assert source.snapshot(after=last).window == Window(column="at", after=last, upto=last)
    run(mysql_database, "DELETE FROM t")
    assert source.snapshot(after=last).window == Window(column="at", after=last, upto=last)


@pytest.mark.statement("X4")
def test_it_arrives_and_is_verified_on_both_sides(
    mysql_database: Endpoint, database: Endpoint, hydration: Composed
) -> None:
    """A binary key, range by range; another run brings what has come above the rising column."""
    filled(mysql_database, "id binary(16) PRIMARY KEY, n int, v double", 3000, "UNHEX(MD5(g)), g, 1/g")
    composed = replace(
        hydration,
        source=mysql_database,
        kind="mysql",
        table="t",
        target="raw.t",
        reading={"increment_column": "n"},
    )
    composed = replace(composed, budget=replace(composed.budget, range_rows=1000))
    planned = composed.plan()
    assert (planned.ranges, planned.plan.path) == (3, "frame")
    assert planned.plan.position
    assert type(planned.plan).from_json(planned.plan.to_json()) == planned.plan
    with composed.open() as ports:
        ports.hydrator().run()
        report = ports.verifier().verify(ports.ledger.ranges(planned.plan.plan_id), Verify.FULL)
        assert report.equal, report.mismatches
        assert (report.ranges, report.rows) == (3, 3000)
        run_postgres(database, "UPDATE raw.t SET v = 0 WHERE n = 7")
        assert not ports.verifier().verify(ports.ledger.ranges(planned.plan.plan_id), Verify.FULL).equal
        run_postgres(database, "UPDATE raw.t SET v = 1/7.0::float8 WHERE n = 7")
        ports.ledger.finish(ports.hydration.id)
    run(mysql_database, "INSERT INTO t VALUES (X'00', 3001, 1), (X'01', 3002, NULL)")
    composed.plan()
    composed.run()
    assert run_postgres(database, "SELECT count(*), max(n) FROM raw.t") == [(3002, 3002)]


def test_later_runs_are_not_upserted_by_a_key_that_is_equal_without_case(
    mysql_database: Endpoint, database: Endpoint, hydration: Composed
) -> None:
    """A collation of bytes takes no two for one, and an append has no key."""
    filled(mysql_database, "id varchar(16) PRIMARY KEY, n int", 10, "g, g")
    composed = replace(hydration, source=mysql_database, kind="mysql", table="t", target="raw.t", mode="upsert")
    rising = replace(composed, reading={"increment_column": "n"})
    with pytest.raises(SinkRefused, match=r"cannot be upserted by id in later runs[^\n]*consistency='catch_up'"):
        rising.plan()
    run(mysql_database, "ALTER TABLE t MODIFY id varchar(16) COLLATE utf8mb4_bin")
    rising.plan()


@pytest.mark.statement("X6")
@pytest.mark.parametrize(
    ("before", "after"), [("timestamp", "datetime"), ("datetime", "timestamp"), ("float", "double")]
)
def test_a_column_that_gets_another_type_stops_the_next_range(
    before: str, after: str, mysql_database: Endpoint, opened: Open
) -> None:
    """X6: what has been written down of the table would make other values of it, also where the range has no row."""
    value = "1.5" if before == "float" else "TIMESTAMP('2024-06-01')"
    filled(mysql_database, f"id int PRIMARY KEY, v {before}", 10, f"g, {value}")
    source = opened()
    snapshot = source.snapshot()
    spec, (whole,) = source.read_spec(snapshot), source.ranges(snapshot, rows=100, bytes=MANY_BYTES)
    pieces = [
        source.slice(spec, bounds, "0.0")
        for bounds in (whole.bounds, KeyBounds(columns=("id",), start=("50",), end=("60",)))
    ]
    rows = [sum(batch.num_rows for batch in reader("mysql").read(mysql_database, spec, piece, "t")) for piece in pieces]
    assert rows == [10, 0]
    run(mysql_database, f"ALTER TABLE t MODIFY v {after}")
    for piece in pieces:
        with pytest.raises(SourceRefused, match="a column has another type"):
            list(reader("mysql").read(mysql_database, spec, piece, "t"))


@pytest.mark.statement("X6")
def test_a_column_that_may_be_null_since_the_plan_stops_the_next_range(mysql_database: Endpoint, opened: Open) -> None:
    """X6: the plan has no range for rows without a value, whether the lane has looked at the table since or not."""
    filled(mysql_database, "id int PRIMARY KEY, v int NOT NULL, KEY (v)", 10, "g, g")
    source = opened(split_column="v")
    snapshot = source.snapshot()
    spec, bounds = source.read_spec(snapshot), KeyBounds(columns=("v",), start=None, end=("5",))
    piece = source.slice(spec, bounds, "0.0")
    run(mysql_database, "ALTER TABLE t MODIFY v int NULL", "INSERT INTO t VALUES (99, NULL)")
    with pytest.raises(SourceRefused, match="may be NULL by now"):
        list(reader("mysql").read(mysql_database, spec, piece, "t"))
    with pytest.raises(SourceRefused, match="may be NULL by now"):
        opened(split_column="v").slice(spec, bounds, "0.0")


@pytest.mark.statement("R1")
def test_memory_does_not_grow_with_the_table(mysql_database: Endpoint, opened: Open) -> None:
    """Ten times the rows of 370 bytes in one slice need no more of the process that reads them."""
    filled(
        mysql_database,
        "id int PRIMARY KEY, v char(120), w varbinary(120)",
        300_000,
        "g, REPEAT('x', 120), REPEAT('y', 120)",
    )
    peaks = []
    for rows in (30_000, 300_000):
        source = opened(where=f"id <= {rows}")
        snapshot = source.snapshot()
        read = source.read_spec(snapshot)
        piece = source.slice(read, KeyBounds(columns=("id",), start=None, end=None), "0.0")
        command = [sys.executable, "-c", _PEAK, mysql_database.host, str(mysql_database.port), mysql_database.user]
        told = {"password": mysql_database.password, "query": piece.query, "database": mysql_database.database}
        done = subprocess.run(command, input=repr(told), capture_output=True, text=True, timeout=120, check=True)
        count, peak = done.stdout.split()
        assert int(count) == rows
        peaks.append(int(peak))
    assert peaks[1] - peaks[0] < 16 * 2**20


def test_a_newer_attempt_ends_the_statement_of_an_older_one(mysql_database: Endpoint, opened: Open) -> None:
    """The older reads no further: it is told so, and another slice's attempt goes on."""
    filled(mysql_database, "id int PRIMARY KEY, v char(200)", 100_000, "g, REPEAT('x', 200)")
    source = opened()
    snapshot = source.snapshot()
    read = source.read_spec(snapshot)
    piece = source.slice(read, KeyBounds(columns=("id",), start=None, end=None), "0.0")
    begun = [
        reader("mysql").read(mysql_database, read, piece, attempt_tag("a" * 32, slice_id, attempt))
        for slice_id, attempt in (("0.0", 1), ("1.0", 1), ("0.0", 2))
    ]
    late, other, new = begun
    assert next(late).num_rows
    assert next(other).num_rows
    assert next(new).num_rows
    with pytest.raises(SourceUnavailable):
        list(late)
    assert sum(batch.num_rows for batch in other) > 90_000
    assert sum(batch.num_rows for batch in new) > 90_000


def test_a_row_that_is_longer_than_a_packet_of_the_server_is_refused(mysql_database: Endpoint, opened: Open) -> None:
    """MySQL itself would give NULL for it; one of many megabytes arrives."""
    limit = run(mysql_database, "SELECT @@max_allowed_packet")[0][0]
    filled(
        mysql_database, "id int PRIMARY KEY, v longtext", 2, f"g, REPEAT('\"', IF(g = 1, 17000000, {limit // 2 + 9}))"
    )
    source = opened()
    snapshot = source.snapshot()
    ranges = list(source.ranges(snapshot, rows=1, bytes=MANY_BYTES))
    (row,) = rows_by_range(mysql_database, source, snapshot, ranges[:1])[0]
    assert row["v"] == '"' * 17_000_000
    with pytest.raises(SourceRefused, match="max_allowed_packet"):
        rows_by_range(mysql_database, source, snapshot, ranges[1:])


# --- refusals


@pytest.mark.statement("X5")
def test_what_is_missing_is_named_in_one_sentence(
    mysql_database: Endpoint, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X5: table, database, column, right, password, host, version, driver; and no password in any of them."""
    run(mysql_database, "CREATE TABLE t (id int PRIMARY KEY, secret int)")
    name = mysql_database.database
    cases: list[tuple[type[Exception], str, Endpoint, dict[str, Any]]] = [
        (SourceRefused, rf"There is no table {name}\.nowhere in ", mysql_database, {"table": "nowhere"}),
        (SourceRefused, r"There is no table no_such_db\.t in ", mysql_database, {"table": "no_such_db.t"}),
        (SourceRefused, r"has no column nothing\.$", mysql_database, {"columns": ("id", "nothing")}),
        (SourceRefused, "does not let root in", replace(mysql_database, password="hunter2"), {}),
        (SourceUnavailable, "cannot be reached", replace(mysql_database, port=_free_port()), {}),
        (SourceUnavailable, "cannot be reached", replace(mysql_database, host="nowhere.invalid"), {}),
        (SourceRefused, "does not let root in", replace(mysql_database, database="no_such_db"), {}),
        (SourceRefused, "with the encryption", replace(mysql_database, options={"ssl_mode": "REQUIRED"}), {}),
    ]
    with new_role(mysql_database) as role:
        run(mysql_database, f"GRANT SELECT (id) ON `{name}`.t TO '{role.user}'@'%'")
        run(mysql_database, "CREATE TABLE hidden (id int PRIMARY KEY)")
        cases += [
            (SourceRefused, rf"{role.user} has no SELECT right on {name}\.hidden\.$", role, {"table": "hidden"}),
            (
                SourceRefused,
                rf"{role.user} has no SELECT right on all [^\n]* for table 't'\.$",
                role,
                {},
            ),
            (SourceRefused, r" column 'secret' in table 't'\.$", role, {"columns": ("secret",)}),
        ]
        for kind, pattern, endpoint, declared in cases:
            with pytest.raises(kind, match=pattern) as raised:
                opened(endpoint, **declared).snapshot()
            sentence = str(raised.value)
            assert "\n" not in sentence
            assert not any(word in sentence for word in ("hunter2", role.password, mysql_database.password))
        assert opened(role, columns=("id",)).snapshot().total == 0
    monkeypatch.setattr(server_versions, "OLDEST", (99, 0))
    with pytest.raises(SourceRefused, match=r"is of version 8\.\d+; a source needs 99\.0 or later\.$"):
        opened().snapshot()
    monkeypatch.setattr("airflow_provider_backpressure.connectors.mysql.source.config.find_spec", lambda name: None)
    with pytest.raises(SourceRefused, match=r"airflow-provider-backpressure\[mysql\]"):
        opened()


@pytest.mark.statement("X5")
def test_a_server_that_breaks_off_in_mid_read_is_a_passing_loss(mysql_database: Endpoint, opened: Open) -> None:
    """X5: no end of rows is taken for one that did not come."""
    filled(mysql_database, "id int PRIMARY KEY, v char(200)", 100_000, "g, REPEAT('x', 200)")
    source = opened()
    read = source.read_spec(source.snapshot())
    piece = source.slice(read, KeyBounds(columns=("id",), start=None, end=None), "0.0")
    rows = reader("mysql").read(mysql_database, read, piece, "test")
    assert next(rows).num_rows
    for number, *_, statement in run(mysql_database, "SHOW FULL PROCESSLIST"):
        if str(statement).startswith("/* test */"):
            run(mysql_database, f"KILL {number}")
    with pytest.raises(SourceUnavailable, match="lost"):
        list(rows)


def test_doctor_looks_at_the_server_from_here_and_from_the_executors(mysql_database: Endpoint) -> None:
    """Version, encryption, and a row that a task reads."""
    answers, encrypted = CHECKS["mysql"](mysql_database)
    assert answers.startswith("MySQL 8.")
    assert encrypted == "The connection is not encrypted."
    asked = REACHES["mysql"]("test")
    assert asked.read is not None
    piece = Slice(slice_id="", query=asked.query, bounds={})
    (batch,) = reader("mysql").read(mysql_database, asked.read, piece, "bp-checksum")
    assert batch.to_pylist() == [{"one": 1}]
    with pytest.raises(SourceUnavailable):
        list(CHECKS["mysql"](replace(mysql_database, port=_free_port())))


def test_a_statement_is_read_only(mysql_database: Endpoint, opened: Open) -> None:
    """Whatever a condition says, nothing is written."""
    filled(mysql_database, "id int PRIMARY KEY", 3, "g")
    source = opened()
    read = source.read_spec(source.snapshot())
    piece = Slice(slice_id="0.0", query="DELETE FROM t", bounds={})
    with pytest.raises(SourceRefused, match="READ ONLY"):
        list(reader("mysql").read(mysql_database, read, piece, "test"))


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


_PEAK = """
import ast, sys
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.snapshot.spark_messages import Column, ReadSpec, Slice
from airflow_provider_backpressure.spark.task import peak_bytes, reset_peak
from airflow_provider_backpressure.connectors.mysql.tasks.read import read
told = ast.literal_eval(sys.stdin.read())
host, port, user = sys.argv[1:]
endpoint = Endpoint(
    conn_id="m", host=host, port=int(port), user=user, password=told["password"], database=told["database"]
)
columns = [Column(name="id", type="integer"), Column(name="v", type="text"), Column(name="w", type="bytea")]
spec = ReadSpec(kind="mysql", conn_id="m", columns=tuple(columns))
reset_peak()
rows = read(endpoint, spec, Slice(slice_id="0.0", query=told["query"], bounds={}), "test")
print(sum(batch.num_rows for batch in rows), peak_bytes())
"""
