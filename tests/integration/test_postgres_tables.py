"""Every kind of table as a source: each row in exactly one range, on a real server."""

import logging
from dataclasses import replace

import pytest

from airflow_provider_backpressure.connectors.postgres.source import query as size
from airflow_provider_backpressure.core.config import Consistency
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.snapshot.bounds import BlockBounds, KeyBounds, NullBounds
from airflow_provider_backpressure.core.snapshot.spark_messages import Window
from airflow_provider_backpressure.exceptions import SourceRefused
from tests.support.marks import mark_long
from tests.support.postgres import new_role, run
from tests.support.reading import MANY_BYTES, Open, assert_covered, keys_by_range

pytestmark = pytest.mark.integration

MEBIBYTE = 1024 * 1024


# --- keys


@pytest.mark.parametrize(
    ("columns", "values"),
    [
        ("a int, b int", "g % 7, g"),
        ("a text, b timestamptz", "'shop ' || g % 40, timestamptz '2024-01-01' + g * interval '1 s'"),
        ('"a b" uuid, b numeric, "C" bigint', "md5((g % 3)::text)::uuid, g / 3.0, -g"),
    ],
)
@pytest.mark.parametrize("rows", mark_long([300, 12_000], quick=[12_000]))
def test_a_key_of_several_columns(database: Endpoint, opened: Open, columns: str, values: str, rows: int) -> None:
    names = ", ".join(column.rsplit(" ", 1)[0] for column in columns.split(", "))
    run(
        database,
        f"CREATE TABLE t ({columns}, v text, PRIMARY KEY ({names}))",
        f"INSERT INTO t SELECT {values}, 'v' || g FROM generate_series(1, 120000) g",
        "ANALYZE t",
    )
    source = opened()
    sizes, snapshot = assert_covered(database, source, rows=rows, query="TABLE t")
    assert len(sizes) >= 120_000 // rows
    assert snapshot.split == snapshot.key
    ranges = list(source.ranges(snapshot, rows=rows, bytes=MANY_BYTES))
    plan = run(database, "EXPLAIN " + source.slice(source.read_spec(snapshot), ranges[1].bounds, "x").query)
    assert rows > 300 or "t_pkey" in str(plan), "a slice goes through the index"


def test_nulls_and_repeats_in_a_chosen_column(database: Endpoint, opened: Open) -> None:
    """Rows without a value are a range of their own, and what shares a value stays together."""
    run(
        database,
        "CREATE TABLE t (id int PRIMARY KEY, shop text)",
        "INSERT INTO t SELECT g, CASE WHEN g % 10 > 0 THEN 'shop ' || g % 500 END FROM generate_series(1, 10000) g",
        "CREATE INDEX ON t (shop)",
    )
    source = opened(split_column="shop")
    sizes, snapshot = assert_covered(database, source, rows=1000, query="TABLE t")
    assert (snapshot.key, snapshot.split, snapshot.unique) == (("id",), ("shop",), False)
    ranges = [piece.bounds for piece in source.ranges(snapshot, rows=1000, bytes=MANY_BYTES)]
    assert ranges[-1] == NullBounds(column="shop")
    assert sizes[-1] == 1000
    assert 10 <= len(ranges) <= 12


def test_a_column_that_may_be_null_has_a_range_for_it_before_any_is(database: Endpoint, opened: Open) -> None:
    """Such a row may come after the plan and before its ranges are read."""
    run(database, "CREATE TABLE t (shop int)", "INSERT INTO t SELECT generate_series(1, 1000)")
    source = opened(split_column="shop")
    snapshot = source.snapshot()
    ranges = [piece.bounds for piece in source.ranges(snapshot, rows=100, bytes=MANY_BYTES)]
    assert ranges[-1] == NullBounds(column="shop")
    run(database, "ALTER TABLE t ALTER shop SET NOT NULL")
    ranges = [piece.bounds for piece in source.ranges(source.snapshot(), rows=100, bytes=MANY_BYTES)]
    assert ranges[-1] != NullBounds(column="shop")


@pytest.mark.statement("X1")
def test_a_table_that_inherits_may_hold_rows_without_a_value(database: Endpoint, opened: Open) -> None:
    """X1: its parent says NOT NULL of its own rows alone; with the constraint there too no range is made for them."""
    run(
        database,
        "CREATE TABLE t (shop int, CONSTRAINT filled NOT NULL shop NO INHERIT)",
        "CREATE TABLE child () INHERITS (t)",
        "CREATE TABLE grandchild () INHERITS (child)",
        "INSERT INTO t SELECT generate_series(1, 1000)",
        "INSERT INTO grandchild SELECT NULL FROM generate_series(1, 3)",
        "ALTER TABLE child ADD CONSTRAINT filled NOT NULL shop NO INHERIT",
    )
    source = opened(split_column="shop")
    sizes, snapshot = assert_covered(database, source, rows=100, query="TABLE t")
    ranges = [piece.bounds for piece in source.ranges(snapshot, rows=100, bytes=MANY_BYTES)]
    assert (ranges[-1], sizes[-1]) == (NullBounds(column="shop"), 3)
    run(database, "DELETE FROM grandchild", "ALTER TABLE grandchild ALTER shop SET NOT NULL")
    ranges = [piece.bounds for piece in source.ranges(source.snapshot(), rows=100, bytes=MANY_BYTES)]
    assert ranges[-1] != NullBounds(column="shop")


@pytest.mark.statement("X1")
@pytest.mark.parametrize("parts", range(2, 11))
def test_an_open_range_with_rows_without_a_key_is_cut_to_its_end(database: Endpoint, opened: Open, parts: int) -> None:
    """X1: two in five rows have none; every row is in one piece."""
    run(
        database,
        "CREATE TABLE t (id int PRIMARY KEY, k int)",
        "INSERT INTO t SELECT g, CASE WHEN g < 60 THEN g END FROM generate_series(0, 99) g",
    )
    source = opened(split_column="k")
    snapshot = source.snapshot()
    (whole,) = source.ranges(snapshot, rows=1000, bytes=MANY_BYTES)
    pieces = source.cut(source.read_spec(snapshot), whole.bounds, parts=parts)
    assert pieces[-1] == NullBounds(column="k")
    assert len(pieces) == parts + 1
    ranges = [replace(whole, seq=seq, bounds=bounds) for seq, bounds in enumerate(pieces)]
    rows = [row for piece in keys_by_range(database, source, snapshot, ranges) for row in piece]
    assert sorted(number for number, _ in rows) == list(range(100))


@pytest.mark.fault(20)
def test_a_value_that_most_rows_share_is_not_cut(database: Endpoint, opened: Open, caplog: object) -> None:
    """It is the one range that is larger than asked for; the others are not made smaller for it."""
    run(
        database,
        "CREATE TABLE t (id int PRIMARY KEY, kind int NOT NULL)",
        "INSERT INTO t SELECT g, CASE WHEN g % 10 = 0 THEN g ELSE 5001 END FROM generate_series(1, 10000) g",
    )
    source = opened(split_column="kind")
    snapshot = source.snapshot()
    ranges = list(source.ranges(snapshot, rows=200, bytes=MANY_BYTES))
    sizes = sorted(map(len, keys_by_range(database, source, snapshot, ranges)))
    assert sum(sizes) == 10000
    assert sizes[-1] >= 9000
    assert sizes[-2] <= 200
    assert len(sizes) <= 2 * 1000 / 100 + 2


def test_views_are_cut_by_a_chosen_column(database: Endpoint, opened: Open) -> None:
    run(
        database,
        "CREATE TABLE base (id int PRIMARY KEY, v text)",
        "INSERT INTO base SELECT g * 3, md5(g::text) FROM generate_series(1, 5000) g",
        "CREATE VIEW t AS SELECT id AS number, upper(v) AS v FROM base WHERE id % 2 = 0",
        "CREATE MATERIALIZED VIEW m AS TABLE t",
    )
    for table in ("public.t", "public.m"):
        source = opened(table=table, split_column="number")
        sizes, snapshot = assert_covered(database, source, rows=100, query="TABLE t")
        assert 25 <= len(sizes) <= 27
        assert (snapshot.key, snapshot.total) == ((), 2500)


# --- blocks


def test_a_table_without_a_key_is_cut_by_blocks(database: Endpoint, opened: Open) -> None:
    """Equal rows too: each is one."""
    run(
        database,
        "CREATE TABLE t (a int, b text)",
        "INSERT INTO t SELECT g % 10, repeat('x', 100) FROM generate_series(1, 20000) g",
        "DELETE FROM t WHERE a = 3",
    )
    source = opened()
    sizes, snapshot = assert_covered(database, source, rows=1000, query="TABLE t")
    assert (snapshot.key, snapshot.split, snapshot.consistency) == ((), (), Consistency.SNAPSHOT)
    assert 18 <= len(sizes) <= 22
    ranges = [piece.bounds for piece in source.ranges(snapshot, rows=1000, bytes=MANY_BYTES)]
    assert all(isinstance(bounds, BlockBounds) and bounds.table == "public.t" for bounds in ranges)
    plan = str(run(database, "EXPLAIN " + source.slice(source.read_spec(snapshot), ranges[3], "x").query))
    assert "Tid Range Scan" in plan
    run(database, "INSERT INTO t SELECT 77, 'late' FROM generate_series(1, 20000)")
    read = keys_by_range(database, source, snapshot, list(source.ranges(snapshot, rows=1000, bytes=MANY_BYTES)))
    assert sum(map(len, read)) == 38000, "the last range is open"


def test_no_blocks_no_ranges(database: Endpoint, opened: Open) -> None:
    run(database, "CREATE TABLE t (a int)")
    assert assert_covered(database, opened(), rows=10, query="TABLE t")[0] == []


def test_partitions_and_children_have_blocks_of_their_own(database: Endpoint, opened: Open) -> None:
    """Partitioned over two levels, columns in another order, and a table that others inherit from."""
    run(
        database,
        "CREATE TABLE t (a int, b text) PARTITION BY RANGE (a)",
        "CREATE TABLE low PARTITION OF t FOR VALUES FROM (MINVALUE) TO (100)",
        "CREATE TABLE high (b text, dropped int, a int)",
        "ALTER TABLE high DROP COLUMN dropped",
        "ALTER TABLE t ATTACH PARTITION high FOR VALUES FROM (100) TO (900)",
        "CREATE TABLE top PARTITION OF t FOR VALUES FROM (900) TO (MAXVALUE) PARTITION BY LIST (b)",
        'CREATE TABLE "T op" PARTITION OF top DEFAULT',
        "INSERT INTO t SELECT g % 1000, repeat('y', 50) FROM generate_series(1, 10000) g",
        "CREATE TABLE parent (a int PRIMARY KEY, b text)",
        "CREATE TABLE child (c int) INHERITS (parent)",
        "INSERT INTO parent SELECT g, 'p' FROM generate_series(1, 2000) g",
        "INSERT INTO child SELECT g, 'c', g FROM generate_series(1, 2000) g",
    )
    partitioned, parent = opened(), opened(table="parent")
    sizes, snapshot = assert_covered(database, partitioned, rows=500, query="TABLE t")
    assert len(sizes) >= 20
    assert partitioned.read_spec(snapshot).parts == ('public."T op"', "public.high", "public.low")
    sizes, snapshot = assert_covered(database, parent, rows=500, query="TABLE parent")
    assert len(sizes) >= 8
    assert snapshot.key == (), "the key of the parent says nothing of its children"
    # By a column it can be read at any time, and then the children are read with it.
    assert_covered(database, opened(table="parent", split_column="a"), rows=500, query="TABLE parent")


def test_a_partition_that_is_empty_has_a_range_too(database: Endpoint, opened: Open) -> None:
    """Its first rows may come before the ranges are read."""
    run(
        database,
        "CREATE TABLE t (a int) PARTITION BY RANGE (a)",
        "CREATE TABLE now PARTITION OF t FOR VALUES FROM (0) TO (1000)",
        "CREATE TABLE soon PARTITION OF t FOR VALUES FROM (1000) TO (2000)",
        "INSERT INTO t SELECT g FROM generate_series(1, 999) g",
    )
    source = opened()
    snapshot = source.snapshot()
    ranges = list(source.ranges(snapshot, rows=500, bytes=MANY_BYTES))
    run(database, "INSERT INTO t SELECT g FROM generate_series(1000, 1009) g")
    assert sum(map(len, keys_by_range(database, source, snapshot, ranges))) == 1009


def test_blocks_that_our_role_may_not_read_are_named(database: Endpoint, opened: Open) -> None:
    run(
        database,
        "CREATE TABLE t (a int) PARTITION BY LIST (a)",
        "CREATE TABLE t1 PARTITION OF t DEFAULT",
    )
    with new_role(database) as reader:
        run(database, f'GRANT SELECT ON t TO "{reader.user}"')
        source = opened(reader)
        with pytest.raises(SourceRefused, match=r"no SELECT right on public\.t1, whose blocks make up public\.t"):
            source.read_spec(source.snapshot())


# --- bytes


@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.fault(20)
def test_rows_of_very_different_size_stay_within_the_bytes(
    database: Endpoint, opened: Open, keyed: bool, packed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """T1: a range is bounded in bytes too, also where 2 MB rows lie side by side among small ones."""
    caplog.set_level(logging.INFO)
    wide = (
        "repeat('w', 2000000)"
        if packed
        else "(SELECT string_agg(md5((g * i)::text), '') FROM generate_series(1, 62500) i)"
    )
    run(
        database,
        f"CREATE TABLE t (id int {'PRIMARY KEY' if keyed else ''}, body text)",
        f"INSERT INTO t SELECT g, CASE WHEN g BETWEEN 4000 AND 4030 THEN {wide} ELSE 'small' END"
        " FROM generate_series(1, 10000) g",
        "ANALYZE t",
    )
    source = opened()
    snapshot = source.snapshot()
    assert snapshot.widest_bytes >= 2_000_000
    ranges = list(source.ranges(snapshot, rows=2500, bytes=8 * MEBIBYTE))
    pieces = keys_by_range(database, source, snapshot, ranges)
    assert sum(map(len, pieces)) == 10000
    assert max(map(len, pieces)) <= 2500
    assert max(sum(len(body) for _, body in piece) for piece in pieces) <= 8 * MEBIBYTE
    assert len(ranges) <= 18, "small rows are not cut into crumbs"


# --- increments


def test_increments_are_windows_of_a_rising_column(database: Endpoint, opened: Open) -> None:
    run(
        database,
        "CREATE TABLE t (id int PRIMARY KEY, at timestamptz, v text)",
        "INSERT INTO t SELECT g, timestamptz '2024-01-01' + g * interval '1 min', 'v' FROM generate_series(1, 1000) g",
        "INSERT INTO t VALUES (0, NULL, 'never')",
    )
    source = opened(increment_column="at")
    assert source.increments
    sizes, first = assert_covered(database, source, rows=100, query="TABLE t")
    assert (first.split, first.total, len(sizes)) == (("id",), 1001, 11)
    assert first.window is not None
    assert first.window.after is None
    run(
        database,
        "INSERT INTO t SELECT g, timestamptz '2024-02-01' + (g / 2) * interval '1 min', 'w'"
        " FROM generate_series(2000, 2499) g",
    )
    later = source.snapshot(after=first.window.upto)
    assert (later.total, later.split, later.consistency) == (500, ("at",), Consistency.STATIC)
    read = keys_by_range(database, source, later, list(source.ranges(later, rows=100, bytes=MANY_BYTES)))
    assert sorted(row[0] for piece in read for row in piece) == list(range(2000, 2500))
    assert 5 <= len(read) <= 7
    assert later.window is not None
    nothing = source.snapshot(after=later.window.upto)
    assert (nothing.total, nothing.window) == (
        0,
        type(later.window)(column="at", after=later.window.upto, upto=later.window.upto),
    )


def test_columns_are_known_of_which_many_rows_have_one_value(database: Endpoint, opened: Open) -> None:
    run(
        database,
        "CREATE TABLE t (id int PRIMARY KEY, d date, s timestamp(0), c timestamptz(2), m timestamp(3), u timestamptz)",
    )
    assert opened().snapshot().coarse == ("d", "s", "c")


@pytest.mark.parametrize(
    ("type_", "value", "last"),
    [
        ("numeric", "g", "1000"),
        ("timestamptz", "timestamptz '2024-01-01' + g * interval '1 min'", "2024-01-01 16:40:00+00"),
        ('text COLLATE "C"', "to_char(g, 'FM0000')", "1000"),
        ("uuid", "lpad(to_hex(g), 32, '0')::uuid", "00000000-0000-0000-0000-0000000003e8"),
        ("bytea", "decode(lpad(to_hex(g), 8, '0'), 'hex')", "\\x000003e8"),
    ],
)
def test_a_window_never_ends_below_its_beginning(
    database: Endpoint, opened: Open, monkeypatch: pytest.MonkeyPatch, type_: str, value: str, last: str
) -> None:
    """Rows at the top were deleted, or a replica lags; the table is too large to be counted, so an estimate says 1."""
    monkeypatch.setattr(size, "COUNTABLE_ROWS", 10)
    run(
        database,
        f"CREATE TABLE t (id int PRIMARY KEY, at {type_})",
        f"INSERT INTO t SELECT g, {value} FROM generate_series(1, 1000) g",
        "ANALYZE t",
    )
    source = opened(increment_column="at")
    first = source.snapshot().window
    assert first is not None
    assert first.upto == last
    run(database, "DELETE FROM t WHERE id > 900")
    below = source.snapshot(after=last)
    assert (below.window, below.total_exact) == (Window(column="at", after=last, upto=last), False)
    assert list(source.ranges(below, rows=100, bytes=MANY_BYTES)) == []
    run(database, "DELETE FROM t")
    assert source.snapshot(after=last).window == below.window


def test_bounds_say_what_they_are() -> None:
    assert str(KeyBounds(columns=("a", "b"), start=("1", "x"), end=None)) == "(a, b) [(1, x), )"
    assert str(NullBounds(column="a")) == "a is NULL"
    assert str(BlockBounds(table="public.t", file=1, start=(0, 0), end=(7, 3))) == "public.t blocks [0, 7.3)"
