"""A PostgreSQL table as a source, on a real server: what it says of itself, what it refuses, how it is cut."""

import logging
import statistics
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from psycopg.sql import SQL

from airflow_provider_backpressure.connectors.postgres.source import query as postgres_size
from airflow_provider_backpressure.connectors.postgres.tasks.read import read as read_rows
from airflow_provider_backpressure.core.config import Consistency
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.ports import Source
from airflow_provider_backpressure.exceptions import InvalidDeclaration, SourceRefused, SourceUnavailable
from tests.support.marks import mark_long
from tests.support.postgres import PASSWORD, new_role, run
from tests.support.reading import MANY_BYTES, Open, assert_covered, keys_by_range
from tests.support.waiting import until

pytestmark = pytest.mark.integration


@pytest.fixture
def reader(database: Endpoint) -> Iterator[Endpoint]:
    """A role without any right of its own."""
    with new_role(database) as endpoint:
        yield endpoint


def refusal(source: Source, consistency: Consistency | None = None) -> str:
    """Return the sentence by which a source refuses to be planned."""
    with pytest.raises(SourceRefused) as raised:
        source.snapshot(consistency)
    sentence = str(raised.value)
    assert PASSWORD not in sentence
    assert sentence.endswith(".")
    assert "\n" not in sentence
    return sentence


# --- what there is


def test_a_snapshot_says_what_there_is(database: Endpoint, opened: Open) -> None:
    """M3, M2: rows are counted, per table."""
    run(
        database,
        "CREATE TABLE t (id bigint PRIMARY KEY, name varchar(20) NOT NULL, price numeric(15,2), tags text[])",
        "INSERT INTO t SELECT g, 'n' || g, g / 7.0, ARRAY['a'] FROM generate_series(1, 1000) g",
        "ANALYZE t",
    )
    source = opened()
    snapshot = source.snapshot()
    assert snapshot.source_identity == source.identity == f"postgres://{database.address}/public.t"
    assert [(column.name, column.type, column.nullable) for column in snapshot.columns] == [
        ("id", "bigint", False),
        ("name", "character varying(20)", False),
        ("price", "numeric(15,2)", True),
        ("tags", "text[]", True),
    ]
    assert snapshot.key == ("id",)
    assert (snapshot.total, snapshot.total_exact) == (1000, True)
    assert snapshot.frontier == {"public.t": 1000}
    assert 20 < snapshot.row_bytes < 100
    assert snapshot.consistency is Consistency.SNAPSHOT


@pytest.mark.parametrize("partitioned", [False, True], ids=["foreign", "partition"])
def test_not_null_of_a_foreign_table_is_not_believed(database: Endpoint, opened: Open, partitioned: bool) -> None:
    """M3: PostgreSQL does not enforce it, and rows without a value in the split column need a range too."""
    run(
        database,
        "CREATE TABLE far (id int, u int)",
        "INSERT INTO far SELECT CASE WHEN g % 10 > 0 THEN g END, g FROM generate_series(1, 500) g",
        "CREATE EXTENSION postgres_fdw",
        f"CREATE SERVER s FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host '{database.host}', port '{database.port}', "
        f"dbname '{database.database}')",
        f"CREATE USER MAPPING FOR {database.user} SERVER s OPTIONS (user '{database.user}', "
        f"password '{database.password}')",
    )
    table = "(id int NOT NULL, u int NOT NULL)"
    if partitioned:
        run(
            database,
            f"CREATE TABLE t {table} PARTITION BY LIST (u)",
            "CREATE TABLE upper PARTITION OF t DEFAULT PARTITION BY LIST (u)",
            "CREATE FOREIGN TABLE part PARTITION OF upper DEFAULT SERVER s OPTIONS (table_name 'far')",
        )
    else:
        run(database, f"CREATE FOREIGN TABLE t {table} SERVER s OPTIONS (table_name 'far')")
    source = opened(split_column="id", increment_column="u")
    snapshot = source.snapshot()
    assert [column.nullable for column in snapshot.columns] == [True, True]
    bounds = [planned.bounds.to_json() for planned in source.ranges(snapshot, rows=100, bytes=MANY_BYTES)]
    assert {"kind": "null", "column": "id"}.items() <= bounds[-1].items()


def test_columns_and_a_condition_are_pushed_down(database: Endpoint, opened: Open) -> None:
    run(
        database,
        "CREATE TABLE t (id bigint PRIMARY KEY, a text, b date, c text)",
        "INSERT INTO t SELECT g, 'a' || g, date '2024-01-01' + g::int, 'c' FROM generate_series(1, 100) g",
    )
    source = opened(columns=("b", "a"), where="a LIKE '%5' -- odd ones out", as_text=("b",))
    snapshot = source.snapshot()
    assert [(column.name, column.type) for column in snapshot.columns] == [("b", "text"), ("a", "text")]
    assert snapshot.total == 10
    assert "#" in snapshot.source_identity
    pieces = keys_by_range(database, source, snapshot, list(source.ranges(snapshot, rows=3, bytes=MANY_BYTES)))
    rows = [row for piece in pieces for row in piece]
    assert rows == run(database, "SELECT b::text, a FROM t WHERE a LIKE '%5' ORDER BY id")
    assert [len(piece) for piece in pieces] == [3, 3, 3, 1]


@pytest.mark.parametrize(
    ("index", "lacking"),
    [
        ("", True),
        ("CREATE INDEX ON t (id, shop)", True),
        ("CREATE INDEX ON t (shop) WHERE id > 5", True),
        ("CREATE INDEX ON t USING hash (shop)", True),
        ("CREATE INDEX ON t (shop DESC, id)", False),
    ],
)
def test_a_missing_index_is_told_where_it_is_missing(
    database: Endpoint, opened: Open, caplog: pytest.LogCaptureFixture, index: str, lacking: bool
) -> None:
    """An index of all rows that begins with the column is one, whichever way it is sorted."""
    run(database, "CREATE TABLE t (id int PRIMARY KEY, shop int)", *([index] if index else []))
    opened(split_column="shop").snapshot()
    assert "public.t is cut by shop, which is not its unique key" in caplog.text
    assert ("it has no index on it" in caplog.text) is lacking


def test_a_key_that_falls_is_a_key(database: Endpoint, opened: Open) -> None:
    """A unique index of descending columns is read backwards."""
    run(
        database,
        "CREATE TABLE t (a int NOT NULL, b int NOT NULL)",
        "CREATE UNIQUE INDEX ON t (a DESC, b)",
        "INSERT INTO t SELECT g % 7, g FROM generate_series(1, 1000) g",
    )
    source = opened()
    snapshot = source.snapshot()
    assert (snapshot.key, snapshot.unique) == (("a", "b"), True)
    pieces = keys_by_range(database, source, snapshot, list(source.ranges(snapshot, rows=100, bytes=MANY_BYTES)))
    assert sum(map(len, pieces)) == len({row for piece in pieces for row in piece}) == 1000


def test_a_condition_that_is_blank_is_none(database: Endpoint, opened: Open) -> None:
    run(database, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    assert opened(where=" \n ").snapshot().total == 1


def test_a_condition_is_read_in_utc_whatever_the_role_has_set(database: Endpoint, opened: Open) -> None:
    run(
        database,
        "CREATE TABLE t (id timestamptz PRIMARY KEY)",
        "INSERT INTO t VALUES ('2024-01-01 00:30+00')",
        f"ALTER DATABASE \"{database.database}\" SET timezone = 'America/New_York'",
        f"ALTER DATABASE \"{database.database}\" SET datestyle = 'SQL, DMY'",
    )
    source = opened(where="id >= '2024-01-01'")
    snapshot = source.snapshot()
    assert snapshot.total == 1
    assert list(source.ranges(snapshot, rows=1, bytes=MANY_BYTES))


def test_a_condition_finds_every_row_whatever_limit_the_role_has_set(database: Endpoint, opened: Open) -> None:
    """Where an index finds them, the server would cut their number to about that."""
    run(
        database,
        "CREATE TABLE t (id int PRIMARY KEY, tags text[])",
        "INSERT INTO t SELECT g, CASE WHEN g % 20 = 0 THEN '{a}'::text[] ELSE ARRAY['b' || g] END"
        " FROM generate_series(1, 60000) g",
        "CREATE INDEX ON t USING gin (tags) WITH (fastupdate = off)",
        "VACUUM ANALYZE t",
        f'ALTER DATABASE "{database.database}" SET gin_fuzzy_search_limit = 100',
    )
    source = opened(where="tags @> '{a}'")
    snapshot = source.snapshot()
    read = source.read_spec(snapshot)
    (whole,) = source.ranges(snapshot, rows=10**6, bytes=MANY_BYTES)
    piece = source.slice(read, whole.bounds, "0.0")
    assert sum(batch.num_rows for batch in read_rows(database, read, piece, "test")) == 3000


def test_beyond_what_is_counted_the_total_is_an_estimate(
    database: Endpoint, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M3: an estimate is flagged; unknown is NULL, never 0."""
    monkeypatch.setattr(postgres_size, "COUNTABLE_ROWS", 10)
    run(database, "CREATE TABLE t (id int PRIMARY KEY) WITH (autovacuum_enabled = off)")
    run(database, "INSERT INTO t SELECT generate_series(1, 5000)")
    unknown = opened().snapshot()
    assert (unknown.total, unknown.total_exact, unknown.frontier) == (None, False, {})
    run(database, "ANALYZE t")
    estimated = opened().snapshot()
    assert (estimated.total, estimated.total_exact, estimated.frontier) == (5000, False, {"public.t": 5000})
    source = opened()
    assert (
        sum(
            map(
                len, keys_by_range(database, source, unknown, list(source.ranges(unknown, rows=1000, bytes=MANY_BYTES)))
            )
        )
        == 5000
    )
    assert opened(where="id > 5000").snapshot().total == 0
    run(database, "DELETE FROM t")
    emptied = opened().snapshot()
    assert (emptied.total, emptied.total_exact) == (0, True), "statistics still say 5000"


def test_long_values_count_with_their_size(database: Endpoint, opened: Open) -> None:
    run(
        database,
        "CREATE TABLE t (id int PRIMARY KEY, doc text)",
        "ALTER TABLE t ALTER doc SET STORAGE EXTERNAL",
        "INSERT INTO t SELECT g, repeat('x', 50000) FROM generate_series(1, 200) g",
        "ANALYZE t",
    )
    assert 40_000 < opened().snapshot().row_bytes < 80_000


def test_generated_columns_are_read_as_values(database: Endpoint, opened: Open) -> None:
    """X4: generated columns."""
    run(
        database,
        "CREATE TABLE t (id int PRIMARY KEY, s int GENERATED ALWAYS AS (id * 2) STORED,"
        " v text GENERATED ALWAYS AS ('v' || id) VIRTUAL)",
        "INSERT INTO t VALUES (1)",
    )
    source = opened()
    snapshot = source.snapshot()
    assert keys_by_range(database, source, snapshot, list(source.ranges(snapshot, rows=10, bytes=MANY_BYTES))) == [
        [(1, 2, "v1")]
    ]


def test_a_partitioned_table_is_one_source(database: Endpoint, opened: Open) -> None:
    run(
        database,
        "CREATE TABLE t (id int PRIMARY KEY) PARTITION BY HASH (id)",
        *(f"CREATE TABLE t{i} PARTITION OF t FOR VALUES WITH (MODULUS 3, REMAINDER {i})" for i in range(3)),
        "INSERT INTO t SELECT g * g FROM generate_series(1, 20000) g",
    )
    assert_covered(database, opened(), rows=5000, query="SELECT id FROM t")


@pytest.mark.parametrize(
    ("definition", "declared", "key"),
    [
        ("id int PRIMARY KEY, u uuid UNIQUE NOT NULL", {}, "id"),
        ("id int PRIMARY KEY, u uuid UNIQUE NOT NULL", {"split_column": "u"}, "id"),
        ("a int, b int NOT NULL UNIQUE, PRIMARY KEY (a, b)", {}, "a, b"),
        ("a int NOT NULL, b int NOT NULL, c text NOT NULL UNIQUE, UNIQUE (a, b)", {}, "c"),
        ("a text, b int, PRIMARY KEY (b, a)", {"split_column": "a"}, "b, a"),
        ("a int UNIQUE, b double precision NOT NULL UNIQUE", {"split_column": "a"}, ""),
        ("a text NOT NULL UNIQUE, b int NOT NULL UNIQUE", {}, "b"),
        ("a jsonb PRIMARY KEY, b text NOT NULL UNIQUE", {}, "b"),
        ("a int UNIQUE, b int NOT NULL UNIQUE", {}, "b"),
        ("a int PRIMARY KEY, b text, UNIQUE (b) INCLUDE (a)", {}, "a"),
    ],
)
def test_the_key_is_the_best_that_there_is(
    database: Endpoint, opened: Open, definition: str, declared: dict[str, str], key: str
) -> None:
    run(database, f"CREATE TABLE t ({definition})")
    assert ", ".join(opened(**declared).snapshot().key) == key


def test_the_same_table_has_the_same_place_by_another_address(database: Endpoint, opened: Open) -> None:
    run(database, "CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE u (id int PRIMARY KEY)")

    def place(endpoint: Endpoint, table: str) -> str | None:
        source = opened(endpoint, table=table)
        return source.read_spec(source.snapshot()).place

    assert place(database, "t") == place(replace(database, host="localhost"), "public.t") is not None
    assert place(database, "t") != place(database, "u")


# --- what is refused


@pytest.mark.statement("X5")
@pytest.mark.parametrize(
    ("setup", "declared", "words"),
    [
        ([], {}, "There is no table public.t in "),
        ([], {"table": "nix.t"}, "There is no table nix.t in "),
        (['CREATE TABLE "T" (id int PRIMARY KEY)'], {}, 'there is public."T", to be written with its double quotes'),
        (["CREATE VIEW t AS SELECT 1 AS id"], {}, "public.t is a view and has no key: name a split_column"),
        (["CREATE MATERIALIZED VIEW t AS SELECT 1 AS id"], {}, "public.t is a materialized view and has no key"),
        (["CREATE SEQUENCE t"], {}, "public.t is a sequence, which has no rows to be read"),
        (
            ["CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE child () INHERITS (t)"],
            {"static": True},
            "other tables inherit from it, and its key does not cover their rows",
        ),
        (
            ["CREATE TABLE t (id int PRIMARY KEY)"],
            {"columns": ("id", "nix", "Id")},
            'public.t has no column nix and "Id"',
        ),
        (["CREATE TABLE t (id int PRIMARY KEY)"], {"as_text": ("nix",)}, "public.t has no column nix"),
        (["CREATE TABLE t (id int PRIMARY KEY)"], {"columns": ("id", "id")}, "is asked for twice"),
        (["CREATE TABLE t (id int PRIMARY KEY, a int)"], {"columns": ("id",), "as_text": ("a",)}, "as_text names a"),
        (["CREATE TABLE t (id int PRIMARY KEY)"], {"as_text": ("id",)}, "cut by id, which cannot be read as text too"),
        (["CREATE TABLE t (id int PRIMARY KEY)"], {"split_column": "nix"}, "no column nix to be split by"),
        (["CREATE TABLE t (id int)"], {"static": True}, "neither a primary key nor another unique key"),
        (["CREATE TABLE t (id int UNIQUE)"], {"static": True}, "or read it by blocks with consistency='snapshot'"),
        (
            ["CREATE TABLE t (id double precision PRIMARY KEY)"],
            {"static": True},
            "of its primary key id, the type of id is double precision, and only smallint, integer, bigint",
        ),
        (
            ["CREATE TABLE t (id double precision PRIMARY KEY)"],
            {"split_column": "id"},
            "public.t cannot be split by id: its type is double precision",
        ),
        (
            ["CREATE TABLE t (id int NOT NULL)", "CREATE UNIQUE INDEX ON t (id) WHERE id > 0"],
            {"static": True},
            "neither a primary key nor another unique key",
        ),
        (["CREATE TABLE t (id int)"], {"increment_column": "nix"}, "public.t has no column nix to read increments by"),
        (
            ["CREATE TABLE t (id int, at float4)"],
            {"increment_column": "at"},
            "Increments of public.t cannot be read by at: its type is real",
        ),
        (
            ["CREATE TABLE t (id int PRIMARY KEY, at date)", "INSERT INTO t VALUES (1, 'infinity')"],
            {"increment_column": "at"},
            "a row has infinity there, and no later row is above that",
        ),
        (
            ["CREATE TABLE t (id int PRIMARY KEY, at date)"],
            {"increment_column": "at", "columns": ("id",)},
            "at of public.t, by which increments are read, has to be among the columns",
        ),
        (
            ['CREATE TABLE t (id int PRIMARY KEY, "of Table" regclass, acl aclitem[])'],
            {},
            'Columns of public.t cannot be carried: "of Table" (regclass: its values are numbers of this cluster\'s '
            "own catalogue), acl (aclitem[]: it has no binary form); leave them out or name them in as_text",
        ),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(
    database: Endpoint, opened: Open, setup: list[str], declared: dict[str, Any], words: str
) -> None:
    """X5: one clear sentence before any row moves."""
    run(database, "SELECT 1", *setup)
    static = Consistency.STATIC if declared.pop("static", False) else None
    assert words in refusal(opened(**declared), static)


def test_a_type_is_refused_inside_of_others_too(database: Endpoint, opened: Open) -> None:
    """X4: or the plan refuses the column by name."""
    run(
        database,
        "CREATE TYPE inner_ AS (a int, r regrole)",
        "CREATE DOMAIN outer_ AS inner_[]",
        "CREATE TABLE t (id int PRIMARY KEY, deep outer_)",
    )
    assert "deep (public.outer_: its values are numbers" in refusal(opened())
    assert [column.type for column in opened(as_text=("deep",)).snapshot().columns] == ["integer", "text"]


@pytest.mark.statement("X5")
@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("nix > 1", 'column "nix" does not exist'),
        ("id >", "syntax error"),
        ("id", "argument of "),
        ("count(*) > 1", "aggregate functions are not allowed in WHERE"),
        ("true) OR (true", 'syntax error at or near ")"'),
        ("true] OR ARRAY[true", 'syntax error at or near "]"'),
        ("true; DROP TABLE t; --", 'syntax error at or near ";"'),
        ("true); DROP TABLE t; --", 'syntax error at or near ")"'),
        ("true /* never closed", "unterminated /* comment"),
        ("id IN (SELECT id FROM hidden)", "permission denied for table hidden"),
    ],
)
def test_a_condition_is_checked_before_any_row_moves(
    database: Endpoint, opened: Open, reader: Endpoint, where: str, words: str
) -> None:
    """X5: PostgreSQL's own message, in one sentence; what closes our parentheses and opens them again is refused."""
    run(
        database,
        "CREATE TABLE t (id int PRIMARY KEY)",
        "CREATE TABLE hidden (id int)",
        f"GRANT SELECT ON t TO {reader.user}",
    )
    sentence = refusal(opened(reader, where=where))
    assert words in sentence
    assert "public.t can answer" in sentence
    assert run(database, "SELECT to_regclass('public.t')::text") == [("t",)]


@pytest.mark.statement("X5")
def test_rights_are_named(database: Endpoint, opened: Open, reader: Endpoint) -> None:
    """X5: no right to read, by schema, table and column, also of the key that is only cut by."""
    run(
        database,
        "CREATE SCHEMA closed",
        "CREATE TABLE closed.t (id int PRIMARY KEY)",
        f"GRANT SELECT ON closed.t TO {reader.user}",
        "CREATE TABLE t (id int PRIMARY KEY, a int, b int)",
    )
    assert f"{reader.user} has no USAGE right on schema closed" in refusal(opened(reader, table="closed.t"))
    assert f"{reader.user} has no SELECT right on public.t." in refusal(opened(reader))
    run(database, f"GRANT SELECT (a) ON t TO {reader.user}")
    assert f"{reader.user} has no SELECT right on id and b of public.t." in refusal(opened(reader))
    assert f"{reader.user} has no SELECT right on id of public.t." in refusal(opened(reader, columns=("a",)))
    run(database, f"GRANT SELECT (id) ON t TO {reader.user}", "INSERT INTO t VALUES (1, 2, 3)")
    source = opened(reader, columns=("a",))
    snapshot = source.snapshot()
    assert keys_by_range(reader, source, snapshot, list(source.ranges(snapshot, rows=10, bytes=MANY_BYTES))) == [[(2,)]]


@pytest.mark.statement("X5")
@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"port": 1}, SourceUnavailable, "cannot be reached: Connection refused"),
        ({"host": "no-such-host.invalid"}, SourceUnavailable, "cannot be reached: "),
        ({"password": "wrong-" + PASSWORD}, SourceRefused, "does not let postgres in: password authentication failed"),
        ({"password": ""}, SourceRefused, "does not let postgres in: "),
        ({"database": "nix"}, SourceRefused, 'does not let postgres in: database "nix" does not exist'),
        ({"options": {"nix": "1"}}, SourceRefused, "The connection test has an option that cannot be used"),
    ],
)
def test_the_door_is_shut_in_one_sentence(
    database: Endpoint, opened: Open, change: dict[str, Any], error: type[Exception], words: str
) -> None:
    """X5: unreachable host, wrong password (not printed)."""
    endpoint = replace(database, **change)
    with pytest.raises(error) as raised:
        opened(endpoint).snapshot()
    sentence = str(raised.value)
    assert words in sentence
    assert "\n" not in sentence
    secrets = [secret for secret in (PASSWORD, database.password) if secret not in (database.user, database.database)]
    assert not any(secret in text for secret in secrets for text in (sentence, repr(endpoint)))


@pytest.mark.parametrize(
    "where",
    [
        "at > now() - interval '1 day'",
        "at::date < current_date",
        "at < 'today'",
        "age(at) < interval '1 day'",
        "recent(at)",
        "EXISTS (SELECT FROM t AS o WHERE o.at < clock_timestamp())",
        "random() < 0.5",
    ],
)
def test_a_condition_that_asks_the_clock_is_refused(database: Endpoint, opened: Open, where: str) -> None:
    """Each range and each count would answer it at its own moment. Partitions that it rules out show nothing of it."""
    run(
        database,
        "CREATE TABLE t (id int PRIMARY KEY, at timestamptz) PARTITION BY RANGE (id)",
        "CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (1) TO (9)",
        "CREATE FUNCTION recent(at timestamptz) RETURNS bool STABLE LANGUAGE sql AS 'SELECT at > now()'",
    )
    with pytest.raises(SourceRefused, match=r"^The condition .* of public\.t asks for .*write the value itself\.$"):
        opened(where=where).snapshot()


def test_a_clock_of_a_view_is_not_the_conditions(database: Endpoint, opened: Open) -> None:
    run(
        database,
        "CREATE TABLE kept (id int PRIMARY KEY, at timestamptz)",
        "INSERT INTO kept VALUES (1, now())",
        "CREATE VIEW t AS SELECT * FROM kept WHERE at > now() - interval '30 days'",
    )
    assert opened(where="id > 0", split_column="id").snapshot().total == 1


def test_a_condition_that_only_names_the_clock_is_read(database: Endpoint, opened: Open) -> None:
    columns = "id int PRIMARY KEY, at timestamptz, status text, now text, utc_date date"
    run(database, f"CREATE TABLE t ({columns})", "INSERT INTO t VALUES (1, '2024-06-01', 'now', 'now()', '2024-06-01')")
    where = "at::date < '2024-07-01' AND status = 'now' AND now = 'now()' AND utc_date < '2025-01-01'"
    assert opened(where=where).snapshot().total == 1


def test_a_source_only_reads(database: Endpoint, opened: Open) -> None:
    run(
        database,
        "CREATE TABLE t (id int PRIMARY KEY)",
        "INSERT INTO t VALUES (1)",
        "CREATE FUNCTION writes() RETURNS boolean VOLATILE LANGUAGE sql AS 'DELETE FROM t RETURNING true'",
    )
    with pytest.raises(SourceRefused, match="read-only transaction"):
        opened(where="writes()").snapshot()
    assert run(database, "SELECT id FROM t") == [(1,)]


# --- how it is cut

ROWS = 120_000
KEYS = {
    "integer": (
        "bigint",
        "CASE WHEN g <= 90000 THEN g * 3 WHEN g <= 100000 THEN -g * 1000000007 ELSE 1000000000000 + g * 104729 END",
        [],
    ),
    "uuid": ("uuid", "md5(g::text)::uuid", []),
    "text": (
        'text COLLATE "en-US-x-icu"',
        "CASE WHEN g % 10 = 0 THEN 'Zoë-' || md5(g::text) ELSE 'ä customer/' || lpad(g::text, 9, '0') END",
        ["''", "'😀'", "E'back\\\\slash'", "'quote''s'"],
    ),
    "timestamp": (
        "timestamptz",
        "CASE WHEN g <= 100000 THEN timestamptz '2024-01-01 UTC' + g * interval '1 ms'"
        " ELSE timestamptz '1990-01-01 UTC' + g * interval '2 h' END",
        ["'infinity'", "'-infinity'", "'0044-03-15 BC'"],
    ),
    "numeric": (
        "numeric",
        "CASE WHEN g % 10 = 0 THEN -g * 1e30 ELSE g / 7.0 END",
        ["'NaN'", "'Infinity'", "'-Infinity'", "1e500"],
    ),
    "char": ("char(12)", "CASE WHEN g % 2 = 0 THEN 'a' ELSE 'B' END || g", ["''"]),
    "date": ("date", "date '4000-01-01' - g::int * CASE WHEN g <= 60000 THEN 1 ELSE 13 END", ["'infinity'"]),
}


@pytest.fixture
def skewed(database: Endpoint, request: pytest.FixtureRequest) -> str:
    """A table of a skewed key without statistics; autovacuum leaves it alone. Returns the key's sort."""
    type_, expression, specials = KEYS[request.param]
    run(
        database,
        f"CREATE TABLE t (id {type_} PRIMARY KEY) WITH (autovacuum_enabled = off)",
        f"INSERT INTO t SELECT {expression} FROM generate_series(1, {ROWS}::bigint) g ON CONFLICT DO NOTHING",
        *(f"INSERT INTO t VALUES ({value}) ON CONFLICT DO NOTHING" for value in specials),
    )
    return str(request.param)


def cut_by(caplog: pytest.LogCaptureFixture) -> str:
    """Return the way of cutting that the source says it took last."""
    said = [record.getMessage() for record in caplog.records if "is cut by" in record.getMessage()]
    return said[-1].rsplit("(", 1)[1].rstrip(").")


@pytest.mark.parametrize("skewed", mark_long(KEYS, quick=["uuid", "text"]), indirect=True)
@pytest.mark.fault(20)
def test_skewed_keys_are_cut_evenly_by_every_way(
    database: Endpoint, opened: Open, skewed: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Every row in exactly one range, none above its bound, the last one too; max/median at most 1.25."""
    caplog.set_level(logging.INFO)
    for way, rows, analyse in (("sample", 5000, False), ("walk", 2000, False), ("histogram", 5000, True)):
        if analyse:
            run(database, "ANALYZE t")
        sizes, _ = assert_covered(database, opened(), rows=rows, query="SELECT id FROM t")
        assert cut_by(caplog) == way
        assert max(sizes) / statistics.median(sizes) <= 1.25
        assert max(sizes) <= 1.1 * rows


@pytest.mark.parametrize("skewed", ["text", "integer"], indirect=True)
def test_a_filtered_table_is_cut_by_what_is_left(
    database: Endpoint, opened: Open, skewed: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    run(database, "ANALYZE t")
    where = "abs(hashtext(id::text)) % 10 <> 1"
    sizes, snapshot = assert_covered(database, opened(where=where), rows=5000, query=f"SELECT id FROM t WHERE {where}")
    assert cut_by(caplog) == "sample"
    assert snapshot.total == sum(sizes)
    assert max(sizes) / statistics.median(sizes) <= 1.25


@pytest.mark.parametrize("skewed", ["uuid"], indirect=True)
@pytest.mark.fault(20)
def test_stale_statistics_are_not_believed(
    database: Endpoint, opened: Open, skewed: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Analysed, then ten times as much put in at the end."""
    caplog.set_level(logging.INFO)
    run(
        database,
        "DELETE FROM t WHERE id > '15000000-0000-0000-0000-000000000000'",
        "VACUUM FULL t",
        "ANALYZE t",
        "INSERT INTO t SELECT ('f' || substr(md5(g::text), 2))::uuid FROM generate_series(1, 120000) g",
    )
    sizes, _ = assert_covered(database, opened(), rows=5000, query="SELECT id FROM t")
    assert cut_by(caplog) == "sample"
    assert max(sizes) <= 1.1 * 5000


@pytest.mark.parametrize("skewed", ["uuid"], indirect=True)
@pytest.mark.parametrize("first", ["0", "f"])
def test_open_ends_are_counted_even_where_statistics_seem_fresh(
    database: Endpoint,
    opened: Open,
    skewed: str,
    first: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first range and the last are open: what came after the statistics lies there."""
    caplog.set_level(logging.INFO)
    filler = f"('{first}{first}' || substr(md5(g::text), 3))::uuid"
    run(database, "ANALYZE t")
    source = opened()
    snapshot = source.snapshot()
    # Counters of changes arrive late and the file may have had room: let the statistics look fresh all the same.
    monkeypatch.setattr(
        "airflow_provider_backpressure.connectors.postgres.source.boundaries._FRESH",
        SQL(
            "SELECT true, reltuples::float8 FROM pg_class"
            " WHERE relname = %(table)s AND %(schema)s::text <> '' AND %(key)s::text <> '' AND %(changes)s >= 0"
        ),
    )
    run(database, f"INSERT INTO t SELECT {filler} FROM generate_series(1000001, 1030000) g")
    ranges = list(source.ranges(snapshot, rows=5000, bytes=MANY_BYTES))
    assert cut_by(caplog) == "histogram"
    sizes = list(map(len, keys_by_range(database, source, snapshot, ranges)))
    assert sum(sizes) == ROWS + 30000
    assert max(sizes[0], sizes[-1]) <= 5000


@pytest.mark.statement("X1")
def test_statistics_in_an_order_of_before_are_not_cut_by(
    database: Endpoint, opened: Open, caplog: pytest.LogCaptureFixture
) -> None:
    """X1: a library below the server sorts text otherwise since an upgrade; the key was indexed again, not analysed."""
    caplog.set_level(logging.INFO)
    run(
        database,
        "CREATE COLLATION words (provider = icu, locale = 'en-US')",
        "CREATE TABLE t (id text COLLATE words PRIMARY KEY)",
        f"INSERT INTO t SELECT CASE WHEN i % 2 = 0 THEN upper(m) ELSE m END"
        f" FROM (SELECT i, chr(97 + i % 26) || i AS m FROM generate_series(1, {ROWS}) i) x",
    )
    analyse(database)
    run(
        database,
        # What an upgrade does: a collation of the same name has another order.
        "UPDATE pg_collation SET collprovider = 'c', collcollate = 'C', collctype = 'C', collversion = NULL"
        " WHERE collname = 'words'",
    )
    run(database, "REINDEX TABLE t")
    assert_covered(database, opened(), rows=5000, query="SELECT id FROM t")
    assert cut_by(caplog) != "histogram"
    assert "The statistics of public.t are in an order that its key no longer has: ANALYZE it." in caplog.text
    analyse(database)
    assert_covered(database, opened(), rows=5000, query="SELECT id FROM t")
    assert cut_by(caplog) == "histogram"


def analyse(database: Endpoint) -> None:
    """Analyse the table until the server counts no change since: a change may be counted behind it."""
    changed = "SELECT n_mod_since_analyze FROM pg_stat_user_tables WHERE relname = 't' AND last_analyze IS NOT NULL"

    def is_fresh() -> bool:
        run(database, "ANALYZE t")
        return run(database, changed) == [(0,)]

    until(is_fresh)


@pytest.mark.parametrize("count", [0, 1, 2, 9, 10, 11, 20, 21])
def test_small_tables_are_cut_exactly(database: Endpoint, opened: Open, count: int) -> None:
    """Empty: no range. Otherwise as few as the bound allows, of equal size."""
    run(
        database,
        "CREATE TABLE t (id uuid PRIMARY KEY)",
        f"INSERT INTO t SELECT gen_random_uuid() FROM generate_series(1, {count})",
    )
    sizes, snapshot = assert_covered(database, opened(), rows=10, query="SELECT id FROM t")
    assert snapshot.total == count
    assert len(sizes) == -(-count // 10)
    assert max(sizes, default=0) <= 10


def test_a_condition_that_leaves_nothing_leaves_no_range(database: Endpoint, opened: Open) -> None:
    run(database, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    sizes, snapshot = assert_covered(database, opened(where="id > 1"), rows=10, query="SELECT id FROM t WHERE id > 1")
    assert (sizes, snapshot.total) == ([], 0)


def test_rows_without_a_key_are_read_once_where_one_range_is_all_of_the_table(database: Endpoint, opened: Open) -> None:
    """It has no condition, so it holds them too; cut in the middle of a plan they are a range of their own."""
    run(
        database,
        "CREATE TABLE t (id int PRIMARY KEY, g int)",
        "INSERT INTO t SELECT i, CASE WHEN i % 9 > 0 THEN i END FROM generate_series(1, 90) i",
    )
    sizes, _ = assert_covered(database, opened(split_column="g"), rows=1000, query="SELECT * FROM t")
    assert sizes == [90]


@pytest.mark.parametrize(("type_", "low"), [("smallint", -32768), ("bigint", 9223372036854770000), ("integer", -7)])
def test_dense_integers_are_cut_without_looking(
    database: Endpoint, opened: Open, type_: str, low: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    run(
        database,
        f"CREATE TABLE t (id {type_} PRIMARY KEY)",
        f"INSERT INTO t SELECT ({low}::numeric + g)::{type_} FROM generate_series(0, 4999) g WHERE g % 10 <> 3",
    )
    sizes, _ = assert_covered(database, opened(), rows=100, query="SELECT id FROM t")
    assert cut_by(caplog) == "strides"
    assert set(sizes) == {90}


def test_a_bound_below_one_is_refused(database: Endpoint, opened: Open) -> None:
    run(database, "CREATE TABLE t (id int PRIMARY KEY)")
    source = opened()
    with pytest.raises(InvalidDeclaration, match="at least 1 row"):
        list(source.ranges(source.snapshot(), rows=0, bytes=MANY_BYTES))


@pytest.mark.long
def test_a_hundred_thousand_ranges_are_planned_in_two_seconds(
    database: Endpoint, opened: Open, caplog: pytest.LogCaptureFixture
) -> None:
    """Planning 100,000 ranges of an existing table takes at most 2 s; its keys give nothing away."""
    caplog.set_level(logging.INFO)
    run(
        database,
        "CREATE TABLE t (id uuid PRIMARY KEY)",
        "INSERT INTO t SELECT gen_random_uuid() FROM generate_series(1, 1000000)",
        "VACUUM ANALYZE t",
    )
    source = opened()
    snapshot = source.snapshot()

    def plan() -> float:
        start = time.perf_counter()
        count = sum(1 for _ in source.ranges(snapshot, rows=10, bytes=MANY_BYTES))
        took = time.perf_counter() - start
        assert (count, cut_by(caplog)) == (100_000, "walk")
        return took

    # What else the machine does only ever adds: the best of three is nearest to what planning takes.
    took = min(plan() for _ in range(3))
    print(f"100,000 ranges of 1,000,000 uuid keys: {took:.2f} s")
    assert took <= 2.0


def test_ranges_come_as_they_are_found(database: Endpoint, opened: Open) -> None:
    run(
        database,
        "CREATE TABLE t (id uuid PRIMARY KEY)",
        "INSERT INTO t SELECT gen_random_uuid() FROM generate_series(1, 50000)",
    )
    source = opened()
    snapshot = source.snapshot()
    ranges = source.ranges(snapshot, rows=2, bytes=MANY_BYTES)
    first = next(ranges)
    assert first.bounds.start is None
    assert source.snapshot().total == 50000, "the source answers while its ranges are still coming"
    ranges.close()  # type: ignore[attr-defined]
    left = run(
        database,
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'backpressure control'"
        " AND datname = current_database() AND state LIKE '%transaction%'",
    )
    assert left == [(0,)]


# --- slices


@pytest.mark.parametrize("key", ["text", "varchar(30)", "bpchar", "bigint", "numeric", "timestamp", "uuid", "smallint"])
def test_a_slice_goes_through_the_index(database: Endpoint, opened: Open, key: str) -> None:
    value = {"timestamp": "timestamp '2024-01-01' + g * interval '1 s'", "uuid": "md5(g::text)::uuid"}.get(
        key, f"g::{key}"
    )
    run(
        database,
        f"CREATE TABLE t (id {key} PRIMARY KEY, v text)",
        f"INSERT INTO t SELECT {value}, repeat('x', 100) FROM generate_series(1, 20000) g",
        "VACUUM ANALYZE t",
    )
    source = opened()
    snapshot = source.snapshot()
    middle = list(source.ranges(snapshot, rows=500, bytes=MANY_BYTES))[5]
    query = source.slice(source.read_spec(snapshot), middle.bounds, "5.0").query
    plan = "\n".join(row[0] for row in run(database, "EXPLAIN " + query))
    assert "t_pkey" in plan
    assert "Seq Scan" not in plan


def test_hostile_names_and_values_stay_names_and_values(database: Endpoint, opened: Open) -> None:
    run(
        database,
        'CREATE SCHEMA "a.b; --"',
        'CREATE TABLE "a.b; --"."c""d%s{}" ("k""ey" text PRIMARY KEY, "sel ect" int, "%s" int)',
        """INSERT INTO "a.b; --"."c""d%s{}" VALUES (''' OR true --', 1, 2), ('"', 3, 4), ('\\', 5, 6)""",
        """INSERT INTO "a.b; --"."c""d%s{}" VALUES ('%s {} $1', 7, 8)""",
    )
    source = opened(table='"a.b; --"."c""d%s{}"', where='"%s" % 2 = 0 -- \'')
    snapshot = source.snapshot()
    ranges = list(source.ranges(snapshot, rows=1, bytes=MANY_BYTES))
    pieces = keys_by_range(database, source, snapshot, ranges)
    assert sorted(row for piece in pieces for row in piece) == sorted(
        run(database, 'SELECT * FROM "a.b; --"."c""d%s{}"')
    )
    assert [len(piece) for piece in pieces] == [1, 1, 1, 1]


def test_a_slice_needs_nothing_but_the_declaration_and_the_plan(database: Endpoint, opened: Open) -> None:
    """A lane that comes back in another process makes the same statements."""
    run(
        database,
        "CREATE TABLE t (id int PRIMARY KEY, v int)",
        "INSERT INTO t SELECT g * g, g FROM generate_series(1, 100) g",
    )
    planner = opened()
    snapshot = planner.snapshot()
    read, ranges = planner.read_spec(snapshot), list(planner.ranges(snapshot, rows=10, bytes=MANY_BYTES))
    lane = opened()
    for piece in ranges:
        assert lane.slice(read, piece.bounds, "x") == planner.slice(read, piece.bounds, "x")
    run(database, "ALTER TABLE t DROP COLUMN id")
    with pytest.raises(SourceRefused, match="can no longer be cut by id"):
        opened().slice(read, ranges[1].bounds, "x")


# --- the connection


def test_a_lost_connection_is_made_anew(database: Endpoint, opened: Open) -> None:
    run(database, "CREATE TABLE t (id int PRIMARY KEY)")
    source = opened()
    assert source.snapshot().total == 0
    ended = run(
        database,
        "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name = 'backpressure control'"
        " AND datname = current_database()",
    )
    assert ended == [(True,)]
    assert source.snapshot().total == 0
    source.close()
    source.close()
    assert source.snapshot().total == 0


def test_threads_share_a_source(database: Endpoint, opened: Open) -> None:
    run(database, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t SELECT g * 7 FROM generate_series(1, 5000) g")
    source, barrier = opened(), threading.Barrier(8)

    def plan(_: int) -> int:
        barrier.wait(10)
        snapshot = source.snapshot()
        return sum(1 for _ in source.ranges(snapshot, rows=100, bytes=MANY_BYTES))

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(plan, range(8))) == [50] * 8
    names = run(
        database,
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()",
    )
    assert names[0][0] <= 1 + 8


def test_columns_whose_texts_are_equal_though_they_differ_are_named(database: Endpoint, opened: Open) -> None:
    """By a nondeterministic collation, and by a type of its own; a domain is what it is of in the end."""
    run(
        database,
        "CREATE EXTENSION citext",
        "CREATE DOMAIN mail AS citext",
        "CREATE DOMAIN price AS numeric(12, 2)",
        "CREATE DOMAIN fare AS price",
        "CREATE COLLATION folded (provider = icu, locale = 'und-u-ks-level2', deterministic = false)",
        'CREATE TABLE t (id int PRIMARY KEY, a text COLLATE folded, b text, c text COLLATE "C",'
        " d citext, e mail, f fare)",
    )
    snapshot = opened().snapshot()
    assert snapshot.loose == ("a", "d", "e")
    assert [column.base_type for column in snapshot.columns[4:]] == ["public.citext", "public.citext", "numeric(12,2)"]
