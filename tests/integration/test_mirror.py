"""A target that is made equal to its source by each run, which writes only what differs."""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from airflow_provider_backpressure.connectors.postgres.sink import mirror_target
from airflow_provider_backpressure.connectors.postgres.tasks import copy, mirror_by_row_hashes
from airflow_provider_backpressure.connectors.postgres.tasks.copy import copy_slice
from airflow_provider_backpressure.core.config import Budget, Refresh
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.execution.lane_submission import spec_for
from airflow_provider_backpressure.core.failpoints import Step
from airflow_provider_backpressure.core.planning.plan_result import Planned, Verdict
from airflow_provider_backpressure.core.planning.planner import Planner
from airflow_provider_backpressure.core.planning.range_repair import repair
from airflow_provider_backpressure.core.reconciliation.last_writes import LastWrites
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.core.snapshot.ranges import RangeRecord, RangeState
from airflow_provider_backpressure.exceptions import (
    BackpressureError,
    LedgerUnavailable,
    SinkRefused,
    SinkUnavailable,
    SourceRefused,
    VerificationFailed,
)
from tests.support import mysql as on_mysql
from tests.support.composed import Composed, difference
from tests.support.ledgers import new_ledger
from tests.support.marks import mark_long
from tests.support.postgres import run

pytestmark = [pytest.mark.integration, pytest.mark.in_process]

ROWS = 3000
EXCHANGES = ("TRUNCATE raw.t", "VACUUM FULL raw.t", "ALTER TABLE raw.t DROP COLUMN price, ADD COLUMN price numeric")
CHANGES = (
    "UPDATE t SET code = 'changed' WHERE id % 7 = 0 AND id <= 1000",
    "DELETE FROM t WHERE id <= 50",
    "INSERT INTO t SELECT i, 'new', 1.0 FROM generate_series(-20, 0) i",
)


@pytest.fixture
def composed(database: Endpoint, hydration: Composed) -> Composed:
    """3,000 rows in three ranges."""
    run(
        database,
        f"CREATE TABLE t AS SELECT i AS id, md5(i::text) AS code, i::numeric AS price "
        f"FROM generate_series(1::bigint, {ROWS}) i",
        "ALTER TABLE t ADD PRIMARY KEY (id)",
        "ANALYZE t",
        "CREATE SCHEMA raw",
    )
    return replace(hydration, mode="mirror", budget=Budget(credits=2, range_rows=1000))


@dataclass(frozen=True, kw_only=True)
class Run:
    """What one run has done."""

    planned: Planned
    records: list[RangeRecord]
    markers: dict[str, Any]


def mirror(composed: Composed, name: str, *, allow_deletes: bool = False) -> Run:
    """Let one run plan, drain its ranges, verify and end."""
    with composed.open() as ports:
        planner = replace(ports.planner(), run=name, refresh=Refresh.EACH_RUN, allow_deletes=allow_deletes)
        planned = planner.plan()
        ports.hydrator().run()
        plan_id = planned.plan.plan_id
        found = Run(planned=planned, records=ports.ledger.ranges(plan_id), markers=ports.sink.markers(plan_id))
    composed.finish()
    return found


def written(database: Endpoint) -> tuple[int, ...]:
    """Return what was ever written into the target, by the server's own count, and its size in blocks."""
    (found,) = run(
        database,
        "SELECT pg_stat_force_next_flush()",
        "SELECT n_tup_ins, n_tup_upd, n_tup_del, pg_relation_size(relid) FROM pg_stat_user_tables "
        "WHERE relid = 'raw.t'::regclass",
    )
    return tuple(found)


@pytest.mark.statement("L2")
@pytest.mark.parametrize("consistency", mark_long(["static", "snapshot"], quick=["snapshot"]))
def test_each_run_writes_only_the_ranges_that_differ(consistency: str, database: Endpoint, composed: Composed) -> None:
    """L2: the second of three ranges never has a marker again, and the target's own counters do not move for it."""
    composed = replace(composed, consistency=consistency)
    first = mirror(composed, "first")
    assert len(first.markers) == len(first.records) == 3
    assert difference(database, "t", database, "raw.t") == (0, 0)
    before = written(database)
    second = mirror(composed, "second")
    assert (len(second.records), second.markers, written(database)) == (3, {}, before)
    run(database, *CHANGES)
    third = mirror(composed, "third")
    assert set(third.markers) == {"0.0"}
    assert difference(database, "t", database, "raw.t") == (0, 0)
    inserted, updated, deleted, _ = (now - then for now, then in zip(written(database), before, strict=True))
    assert (inserted, deleted) == (21, 50)
    assert updated == len([i for i in range(51, 1001) if i % 7 == 0])
    assert mirror(composed, "fourth").markers == {}
    confirmed = run(database, "SELECT plan_id, rows FROM raw.backpressure_commit WHERE slice_id = 'confirmed'")
    assert len(confirmed) == 4
    assert dict(confirmed)[second.planned.plan.plan_id] == ROWS


@pytest.mark.statement("L2", "X2")
@pytest.mark.parametrize("by_hand", [False, True])
def test_the_run_after_a_lost_ledger_does_not_go_on_with_the_run_before(
    database: Endpoint, composed: Composed, tmp_path: Path, by_hand: bool
) -> None:
    """L2, X2: ranges that did not change left no marker, so the plan in the target looks as if it had open ranges.

    ``by_hand``: a person has rebuilt the ledger by the command before the run.
    """
    composed = replace(composed, consistency="static")
    mirror(composed, "first")
    run(database, "UPDATE t SET code = 'second' WHERE id = 5")
    mirror(composed, "second")
    run(database, "UPDATE t SET code = 'third' WHERE id IN (6, 2500)", "DELETE FROM t WHERE id = 7")
    composed = replace(composed, ledger_url=new_ledger(tmp_path / "new.db"))
    if by_hand:
        with composed.open() as ports:
            assert ports.planner().reindex(ports.planner().register(), who="ada") is not None
    third = mirror(composed, "third")
    assert third.planned.verdict is Verdict.PLANNED
    assert difference(database, "t", database, "raw.t") == (0, 0)


def test_a_source_is_still_mirrored_under_another_name_of_its_server(database: Endpoint, composed: Composed) -> None:
    """The table itself says that it is the same one; another table's rows would be deleted."""
    mirror(composed, "first")
    run(database, "UPDATE t SET code = 'second' WHERE id = 5", "DELETE FROM t WHERE id = 7")
    moved = replace(composed, source=replace(composed.source, host="localhost"))
    mirror(moved, "second")
    assert difference(database, "t", database, "raw.t") == (0, 0)
    run(database, "CREATE TABLE other (LIKE t INCLUDING ALL)")
    with pytest.raises(SinkRefused, match="mirror would delete its rows"):
        mirror(replace(moved, table="public.other"), "third")


@pytest.mark.statement("L2")
def test_a_range_that_did_not_change_does_not_connect_to_the_target(database: Endpoint, composed: Composed) -> None:
    """L2: its task returns where the target's server cannot be reached; that of a range which differs does not."""
    mirror(composed, "first")
    nowhere = replace(database, port=1)
    with composed.open() as ports:
        planned = replace(ports.planner(), run="second", refresh=Refresh.EACH_RUN).plan()
        run(database, "DELETE FROM t WHERE id = 1")
        writes = LastWrites(planned.plan, ports.sink)
        records = ports.ledger.ranges(planned.plan.plan_id)
        specs = [spec_for(planned.plan, each, ports.source, None, writes.find(each)) for each in records]
    changed, *same = specs
    assert [copy_slice(spec, spec.slices[0], database, nowhere).unchanged for spec in same] == [True, True]
    with pytest.raises(SinkUnavailable):
        copy_slice(changed, changed.slices[0], database, nowhere)


@pytest.mark.statement("L2")
def test_a_range_that_changed_in_the_run_before_is_hashed_first(database: Endpoint, composed: Composed) -> None:
    """L2: it has no marker in the run after that, and nothing is staged for it."""
    mirror(composed, "first")
    run(database, "UPDATE t SET code = 'changed' WHERE id = 1")
    assert set(mirror(composed, "second").markers) == {"0.0"}
    with composed.open() as ports:
        planned = replace(ports.planner(), run="third", refresh=Refresh.EACH_RUN).plan()
        record = ports.ledger.ranges(planned.plan.plan_id)[0]
        last = LastWrites(planned.plan, ports.sink).find(record)
        spec = spec_for(planned.plan, record, ports.source, None, last)
    assert last is not None
    assert last.staged
    assert copy_slice(spec, spec.slices[0], database, replace(database, port=1)).unchanged


def forbid_staging_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a range that is staged as a whole fail."""

    def refuse(*_: Any) -> None:
        raise AssertionError("only rows that differ are staged")

    monkeypatch.setattr(copy, "mirror_stage", refuse)


@pytest.mark.statement("L2")
@pytest.mark.parametrize(
    "changes", [CHANGES, CHANGES[:1], CHANGES[1:2], CHANGES[2:]], ids=["all", "update", "delete", "insert"]
)
def test_only_rows_that_differ_are_staged(
    changes: tuple[str, ...], database: Endpoint, composed: Composed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L2: of a range that a server has hashed before; rows are changed, removed and added."""
    mirror(composed, "first")
    forbid_staging_as_a_whole(monkeypatch)
    run(database, *changes)
    second = mirror(composed, "second")
    assert set(second.markers) == {"0.0"}
    deleted = run(
        database, f"SELECT deleted FROM raw.backpressure_commit WHERE plan_id = '{second.planned.plan.plan_id}'"
    )
    assert max(deleted) == (50 if CHANGES[1] in changes else 0,)
    assert difference(database, "t", database, "raw.t") == (0, 0)
    assert mirror(composed, "third").markers == {}


EXTENSIONS = {"citext": "'a' || {}", "ltree": "('a' || {})::other.ltree", "hstore": "other.hstore('k', ({})::text)"}


@pytest.mark.parametrize("as_a_whole", [False, True])
@pytest.mark.parametrize("type_", mark_long(EXTENSIONS, quick=["citext"]))
def test_a_key_may_be_of_an_extension_that_is_not_searched(
    type_: str, as_a_whole: bool, database: Endpoint, composed: Composed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its operators lie in a schema that nobody names, and those of text take other values for the same."""
    value = EXTENSIONS[type_].format
    run(database, "DROP TABLE t", "CREATE SCHEMA other", f"CREATE EXTENSION {type_} SCHEMA other")
    run(
        database,
        f"CREATE TABLE t (id int, k other.{type_}, v int, PRIMARY KEY (id, k))",
        f"INSERT INTO t SELECT g, {value('g')}, g FROM generate_series(1, 100) g",
    )
    if as_a_whole:
        monkeypatch.setattr(mirror_by_row_hashes, "hash_alike", lambda *_: False)
    composed = replace(composed, reading={"split_column": "id"}, key=("id", "k"))
    mirror(composed, "first")
    changed = "upper(k::text)::other.citext" if type_ == "citext" else value("id + 1000")
    run(database, f"UPDATE t SET k = {changed} WHERE id % 3 = 0", "UPDATE t SET v = v + 1 WHERE id % 5 = 0")
    mirror(replace(composed, budget=replace(composed.budget, max_deletes=1.0)), "second")
    assert difference(database, "t", database, "raw.t") == (0, 0)


@pytest.mark.parametrize("name", ["ctid of theirs", "gone", "backpressure held", "s", "c0"])
def test_a_column_may_have_any_name(
    name: str, database: Endpoint, composed: Composed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a range is staged as a whole, too: its rows stand beside what is known of them."""
    monkeypatch.setattr(mirror_by_row_hashes, "hash_alike", lambda *_: False)
    run(database, f'ALTER TABLE t RENAME code TO "{name}"')
    mirror(composed, "first")
    run(database, f"UPDATE t SET \"{name}\" = 'changed' WHERE id = 7", *CHANGES[1:])
    mirror(composed, "second")
    assert difference(database, "t", database, "raw.t") == (0, 0)


def test_a_table_of_nothing_but_its_key_is_mirrored(database: Endpoint, composed: Composed) -> None:
    run(database, "ALTER TABLE t DROP COLUMN code, DROP COLUMN price")
    mirror(composed, "first")
    run(database, "DELETE FROM t WHERE id <= 50", "INSERT INTO t SELECT generate_series(-20, 0)")
    mirror(composed, "second")
    assert difference(database, "t", database, "raw.t") == (0, 0)


@pytest.mark.parametrize("who", ["servers", "types"])
def test_rows_that_cannot_be_compared_by_their_bytes_are_staged_as_a_whole(
    who: str, database: Endpoint, composed: Composed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Servers of another byte order hash otherwise, and values of a database's own types name it by its numbers."""
    if who == "types":
        run(database, "CREATE TYPE mood AS ENUM ('ok', 'bad')", "ALTER TABLE t ADD COLUMN moods mood[] DEFAULT '{ok}'")
    else:
        monkeypatch.setattr(mirror_by_row_hashes, "hash_alike", lambda *_: False)
    mirror(composed, "first")
    run(database, *CHANGES)
    staged = []
    whole = copy.mirror_stage
    monkeypatch.setattr(copy, "mirror_stage", lambda *args: staged.append(1) or whole(*args))
    mirror(composed, "second")
    assert staged
    assert difference(database, "t", database, "raw.t") == (0, 0)
    assert mirror(composed, "third").markers == {}


DOUBLES = {
    "the same row": ("INSERT INTO t SELECT * FROM t WHERE id = 5",),
    "another row": ("INSERT INTO t SELECT id, 'again', price FROM t WHERE id = 5",),
    "two other rows": (
        "INSERT INTO t SELECT id, 'again', price FROM t WHERE id = 5",
        "UPDATE t SET price = 0 WHERE id = 5",
    ),
    "the same row instead of another": ("INSERT INTO t SELECT * FROM t WHERE id = 5", "DELETE FROM t WHERE id = 6"),
    "another row instead of another": (
        "INSERT INTO t SELECT id, 'again', price FROM t WHERE id = 5",
        "DELETE FROM t WHERE id = 6",
    ),
}


@pytest.mark.statement("L2")
@pytest.mark.parametrize("how", mark_long(DOUBLES, quick=["the same row instead of another"]))
def test_rows_of_one_key_are_refused_where_only_rows_that_differ_are_staged(
    how: str, database: Endpoint, composed: Composed
) -> None:
    """L2: a source whose key is not unique, by a sink that names it; nothing is written for the range."""
    run(database, "ALTER TABLE t DROP CONSTRAINT t_pkey", "CREATE TABLE raw.t (LIKE t, PRIMARY KEY (id))")
    run(database, "ALTER TABLE t ALTER COLUMN id SET NOT NULL", "CREATE INDEX ON t (id)")
    composed = replace(composed, reading={"split_column": "id"}, key=("id",))
    mirror(composed, "first")
    before = run(database, "SELECT * FROM raw.t ORDER BY id")
    run(database, *DOUBLES[how])
    with pytest.raises(SinkRefused, match=r"Range 0 holds several rows of one key \(id\)"):
        mirror(composed, "second")
    assert run(database, "SELECT * FROM raw.t ORDER BY id") == before


OTHERS = {
    "deletes a row that changed": "DELETE FROM raw.t WHERE id = 7",
    "deletes a row that did not": "DELETE FROM raw.t WHERE id = 8",
    "changes a row that did not": "UPDATE raw.t SET code = 'theirs' WHERE id = 8",
    "adds a row": "INSERT INTO raw.t VALUES (-5, 'theirs', 1)",
}


@pytest.mark.parametrize("what", mark_long(OTHERS, quick=["deletes a row that changed", "changes a row that did not"]))
def test_a_write_of_others_while_rows_are_compared_is_mended_or_found(
    what: str, database: Endpoint, composed: Composed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What changes the counts lets the range be staged as a whole; the rest is found when the target is verified."""
    mirror(composed, "first")
    run(database, "UPDATE t SET code = 'changed' WHERE id = 7")
    once = iter([OTHERS[what]])

    def interfere(step: Step, *_: Any) -> None:
        if step is Step.IN_COPY and (statement := next(once, None)):
            run(database, statement)

    monkeypatch.setattr(mirror_by_row_hashes, "reach", interfere)
    if what == "deletes a row that changed":
        mirror(composed, "second")
        assert difference(database, "t", database, "raw.t") == (0, 0)
    else:
        with pytest.raises(VerificationFailed):
            mirror(composed, "second")
    assert next(once, None) is None


@pytest.mark.statement("L2")
def test_a_marker_of_an_earlier_release_is_no_proof(database: Endpoint, composed: Composed) -> None:
    """L2: its range is staged once, which writes a marker and no row, even where the digits are the same."""
    mirror(composed, "first")
    run(
        database,
        "UPDATE raw.backpressure_commit SET checksum = replace(checksum, 'pgvalue-hash64', 'pgcopy-xxh3')",
    )
    before = written(database)
    second = mirror(composed, "second")
    assert len(second.markers) == 3
    assert {marker.checksum.partition(":")[0] for marker in second.markers.values()} == {"pgvalue-hash64"}
    assert written(database) == before
    assert mirror(composed, "third").markers == {}


@pytest.mark.statement("L2")
def test_rows_that_exchange_their_values_are_written(database: Endpoint, composed: Composed) -> None:
    """L2: a sum of the columns' hashes would stay the same."""
    mirror(composed, "first")
    run(database, "UPDATE t SET code = md5(CASE id WHEN 5 THEN '6' ELSE '5' END) WHERE id IN (5, 6)")
    assert set(mirror(composed, "second").markers) == {"0.0"}
    assert difference(database, "t", database, "raw.t") == (0, 0)


def test_a_target_that_others_changed_is_found_by_its_servers_checksum(database: Endpoint, composed: Composed) -> None:
    mirror(composed, "first")
    run(database, "UPDATE raw.t SET code = 'theirs' WHERE id = 1500")
    with pytest.raises(VerificationFailed, match="checksum is pgvalue-hash64"):
        mirror(composed, "second")


def count_wal(database: Endpoint, since: str) -> int:
    """Return how many blocks of the target, its index and its long values are in the server's log since a position."""
    ((found,),) = run(
        database,
        f"""
        SELECT count(*)::int FROM pg_get_wal_block_info('{since}', pg_current_wal_flush_lsn()) w
        JOIN pg_class c ON pg_relation_filenode(c.oid) = w.relfilenode
        WHERE w.reldatabase = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND c.oid IN (
            SELECT unnest(ARRAY[t.oid, t.reltoastrelid, i.indexrelid])
            FROM pg_class t JOIN pg_index i ON i.indrelid = t.oid WHERE t.oid = 'raw.t'::regclass
        )
        """,
    )
    return int(found)


@pytest.mark.statement("L2")
def test_ranges_that_did_not_change_are_not_in_the_servers_log(database: Endpoint, composed: Composed) -> None:
    """L2: no block of the target's relations, and blocks of a range that did are."""
    run(database, "CREATE EXTENSION pg_walinspect")
    mirror(composed, "first")
    # Who reads a row for the first time notes in its block that it is committed, and the log has that block.
    run(database, "VACUUM raw.t", "CHECKPOINT")
    ((start,),) = run(database, "SELECT pg_current_wal_insert_lsn()::text")
    assert mirror(composed, "second").markers == {}
    assert count_wal(database, start) == 0
    run(database, "UPDATE t SET code = 'changed' WHERE id = 1")
    mirror(composed, "third")
    assert count_wal(database, start) > 0


def test_a_value_that_is_equal_but_stored_otherwise_is_written(database: Endpoint, composed: Composed) -> None:
    mirror(composed, "first")
    run(database, "UPDATE t SET price = 5.000 WHERE id = 5", "UPDATE t SET price = NULL WHERE id = 6")
    mirror(composed, "second")
    assert run(database, "SELECT price::text FROM raw.t WHERE id IN (5, 6) ORDER BY id") == [("5.000",), (None,)]


def test_a_value_that_a_cast_to_text_does_not_show_is_written(database: Endpoint, composed: Composed) -> None:
    """A user's cast of a type may say less than the type's own text does."""
    run(
        database,
        "CREATE TYPE pair AS (a int, b int)",
        "CREATE FUNCTION label(pair) RETURNS text IMMUTABLE LANGUAGE sql AS 'SELECT ''pair ''::text || ($1).a'",
        "CREATE CAST (pair AS text) WITH FUNCTION label(pair)",
        "ALTER TABLE t ADD COLUMN p pair",
        "UPDATE t SET p = (1, 2) WHERE id <> 8",
    )
    mirror(composed, "first")
    run(database, "UPDATE t SET p = (1, 3) WHERE id = 7", "UPDATE t SET p = (NULL, NULL) WHERE id = 8")
    mirror(composed, "second")
    assert difference(database, "t", database, "raw.t") == (0, 0)


def test_rows_behind_the_last_bounds_are_cut_into_new_ranges(database: Endpoint, composed: Composed) -> None:
    mirror(composed, "first")
    run(database, "INSERT INTO t SELECT i, 'new', 1 FROM generate_series(3001, 8000) i", "ANALYZE t")
    grown = mirror(composed, "second")
    assert len(grown.records) == 8
    assert {"0.0", "1.0"}.isdisjoint(grown.markers)
    assert difference(database, "t", database, "raw.t") == (0, 0)
    assert mirror(composed, "third").markers == {}


@pytest.mark.parametrize("how", mark_long(EXCHANGES, quick=["VACUUM FULL raw.t"]))
def test_a_target_whose_files_were_exchanged_is_staged_as_a_whole(
    how: str, database: Endpoint, composed: Composed
) -> None:
    mirror(composed, "first")
    run(database, how)
    assert len(mirror(composed, "second").markers) == 3
    assert difference(database, "t", database, "raw.t") == (0, 0)


def test_a_truncation_while_ranges_are_compared_is_found_at_the_end(database: Endpoint, composed: Composed) -> None:
    mirror(composed, "first")
    with composed.open() as ports:
        replace(ports.planner(), run="second", refresh=Refresh.EACH_RUN).plan()
        ports.hydrator().run()
    run(database, "TRUNCATE raw.t")
    with pytest.raises(SinkRefused, match="lie in other files than when plan"):
        composed.finish()
    with composed.open() as ports:
        ports.planner().plan(restart=True)
        ports.hydrator().run()
    composed.finish()
    assert difference(database, "t", database, "raw.t") == (0, 0)


@pytest.mark.parametrize("mode", ["mirror", "replace", "upsert"])
def test_a_column_that_is_gone_stops_the_next_run_and_leaves_no_values_of_before(
    mode: str, database: Endpoint, composed: Composed
) -> None:
    """The target still has the column: rows would keep what it was, or all of them become NULL there."""
    composed = replace(composed, mode=mode)
    with composed.open() as ports:
        ports.planner().plan()
        ports.hydrator().run()
    composed.finish()
    run(database, "ALTER TABLE t DROP COLUMN price")
    with (
        composed.open() as ports,
        pytest.raises(SourceRefused, match=r"column price is gone\. What is committed stays"),
    ):
        replace(ports.planner(), run="second", refresh=Refresh.EACH_RUN).plan()
    assert run(database, "SELECT count(price) FROM raw.t") == [(ROWS,)]


def test_a_write_of_another_mode_proves_nothing(database: Endpoint, composed: Composed) -> None:
    """The plan between leaves other rows in the target; the next mirror stages all."""
    mirror(composed, "first")
    run(database, "UPDATE t SET code = 'between' WHERE id = 1500")
    upserted = replace(composed, mode="upsert")
    with upserted.open() as ports:
        ports.planner().plan(restart=True)
        ports.hydrator().run()
    upserted.finish()
    run(database, "UPDATE t SET code = md5('1500') WHERE id = 1500")
    assert len(mirror(composed, "second").markers) == 3
    assert difference(database, "t", database, "raw.t") == (0, 0)


KEYS: dict[str, Callable[[int], str]] = {
    "smallint": str,
    "numeric": lambda i: f"{i}.5",
    "uuid": lambda i: f"'{i:08x}-0000-0000-0000-000000000000'",
    "date": lambda i: f"date '2020-01-01' + {i}",
    "timestamptz": lambda i: f"timestamptz '2020-01-01' + interval '{i} s'",
    "bytea": lambda i: f"'\\x{i:06x}'",
    'text COLLATE "C"': lambda i: f"'k{i}'",
    "char(6)": lambda i: f"'k{i}'",
}


@pytest.mark.statement("L2")
@pytest.mark.parametrize("type_", mark_long(KEYS, quick=["char(6)"]))
def test_random_changes_arrive_whatever_the_key(type_: str, database: Endpoint, composed: Composed) -> None:
    value, chance = KEYS[type_], random.Random(type_)
    run(database, "DROP TABLE t", f"CREATE TABLE t (id {type_} PRIMARY KEY, code text)")
    run(database, f"CREATE TABLE raw.t (id {type_} PRIMARY KEY, code text)")
    run(database, "INSERT INTO t VALUES " + ", ".join(f"({value(i)}, 'old')" for i in range(0, 900, 3)))
    composed = replace(composed, budget=Budget(credits=2, range_rows=60))
    for number in range(3):
        mirror(composed, f"run {number}")
        assert difference(database, "t", database, "raw.t") == (0, 0)
        for i in chance.sample(range(900), 60):
            run(
                database,
                f"DELETE FROM t WHERE id = {value(i)}" if i % 2 else f"UPDATE t SET code = '{i}' WHERE id = {value(i)}",
                f"INSERT INTO t VALUES ({value(i)}, 'new') ON CONFLICT DO NOTHING" if i % 5 == 0 else "SELECT 1",
            )


PARTITIONED = (
    "CREATE TABLE raw.t (LIKE t INCLUDING ALL) PARTITION BY RANGE (id)",
    "CREATE TABLE raw.part PARTITION OF raw.t DEFAULT",
)


@pytest.mark.statement("L2")
@pytest.mark.parametrize(
    ("statements", "error", "words"),
    [
        (("CREATE TABLE raw.t (LIKE t INCLUDING ALL, UNIQUE (code))",), SinkRefused, "unique index t_code_key may be"),
        (
            (
                "CREATE TABLE raw.t (LIKE t INCLUDING ALL)",
                "CREATE TABLE raw.of (id bigint REFERENCES raw.t (id))",
            ),
            SinkRefused,
            "foreign key .* may be broken while ranges are of different times: drop it, or use mode='replace'",
        ),
        (
            (
                "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (code)",
                'CREATE TABLE raw.t (id bigint NOT NULL, code text COLLATE "und-x-icu" PRIMARY KEY, price numeric)',
            ),
            SinkRefused,
            r"its ranges may hold other rows than the source's\. Text in code is ordered by icu",
        ),
        (("ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (code)",), SinkRefused, "it is not there yet"),
        (("CREATE TABLE raw.t (LIKE t)",), SinkRefused, "mirror needs a unique index on exactly that"),
        (
            (*PARTITIONED, "CREATE UNIQUE INDEX part_code ON raw.part (code)"),
            SinkRefused,
            "its unique index part_code may be broken",
        ),
        (
            (*PARTITIONED, "CREATE TABLE raw.of (id bigint REFERENCES raw.part (id) ON DELETE CASCADE)"),
            SinkRefused,
            "its foreign key of_id_fkey may be broken",
        ),
        (
            ("CREATE TABLE raw.t (LIKE t INCLUDING ALL)", "CREATE TABLE raw.child () INHERITS (raw.t)"),
            SinkRefused,
            "other tables inherit from it",
        ),
    ],
    ids=[
        "unique",
        "foreign key",
        "collation",
        "text key",
        "no key",
        "unique in a part",
        "foreign key to a part",
        "children",
    ],
)
def test_a_target_that_cannot_be_mirrored_is_refused_at_plan(
    statements: tuple[str, ...], error: type[BackpressureError], words: str, database: Endpoint, composed: Composed
) -> None:
    run(database, *statements)
    with pytest.raises(error, match=words):
        composed.plan()


@pytest.mark.on_spark
def test_rows_of_one_key_are_refused_and_not_merged(database: Endpoint, composed: Composed) -> None:
    mirror(composed, "first")
    doubled = "SELECT * FROM source UNION ALL SELECT id, 'again', price FROM source WHERE id = 5"
    with pytest.raises(SinkRefused, match=r"Range 0 holds several rows of one key \(id\)"):
        mirror(replace(composed, transform=doubled), "second")
    assert difference(database, "t", database, "raw.t") == (0, 0)


def test_rows_of_others_are_not_deleted(database: Endpoint, composed: Composed) -> None:
    """A target of another hydration, and one that holds rows from before where the source has a condition."""
    mirror(composed, "first")
    with pytest.raises(SinkRefused, match=r"is held by plan .* mirror would delete its rows"):
        replace(composed, reading={"columns": ("id", "code", "price")}).plan()
    run(database, "CREATE TABLE raw.u (LIKE t INCLUDING ALL)", "INSERT INTO raw.u VALUES (5, 'mine', 1)")
    part = replace(composed, target="raw.u", reading={"where": "id > 10"})
    with pytest.raises(SinkRefused, match="may hold rows that the source's condition"):
        part.plan()
    run(database, "TRUNCATE raw.u")
    mirror(part, "first")
    run(database, "UPDATE t SET code = 'changed' WHERE id = 11")
    mirror(part, "second")
    assert difference(database, "(SELECT * FROM t WHERE id > 10)", database, "raw.u") == (0, 0)


def test_a_run_that_would_delete_too_much_stops_before_its_first_delete(database: Endpoint, composed: Composed) -> None:
    """A source that has shrunk or is empty; the run's flag allows it."""
    mirror(composed, "first")
    run(database, "DELETE FROM t WHERE id <= 1000")
    with pytest.raises(SourceRefused, match=r"would delete at least 1000, more than Budget\(max_deletes=0.2\) allows"):
        mirror(composed, "second")
    assert run(database, "SELECT count(*) FROM raw.t") == [(ROWS,)]
    mirror(composed, "second", allow_deletes=True)
    assert difference(database, "t", database, "raw.t") == (0, 0)
    run(database, "TRUNCATE t")
    with pytest.raises(SourceRefused, match="is empty, and mirror would delete all 2000 rows"):
        mirror(composed, "third")
    mirror(composed, "third", allow_deletes=True)
    assert run(database, "SELECT count(*) FROM raw.t") == [(0,)]


def test_the_servers_estimate_is_taken_only_where_it_is_about_what_the_source_holds(
    database: Endpoint, composed: Composed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counting a large target costs as much as reading it, and a wrong estimate must not stop a run."""
    mirror(composed, "first")
    run(database, "ALTER TABLE raw.t SET (autovacuum_enabled = off)", "ANALYZE raw.t")
    run(database, "DELETE FROM raw.t WHERE id <= 100")
    with composed.open() as ports:
        target = ports.sink.mirror()
        assert target.rows(near=ROWS) == ROWS - 100, "a small one is counted"
        monkeypatch.setattr(mirror_target, "QUICKLY_COUNTED_ROWS", 10)
        assert target.rows(near=ROWS) == ROWS
        assert target.rows(near=ROWS // 2) == ROWS - 100
        assert target.rows() == ROWS - 100


def test_rows_that_were_all_exchanged_stop_the_range_that_passes_the_limit(
    database: Endpoint, composed: Composed
) -> None:
    """Their number is the same, so only the ranges show it; the next run with the flag ends the plan."""
    mirror(composed, "first")
    run(database, "UPDATE t SET id = id + 100000")
    with pytest.raises(SinkRefused, match=r"would delete .* more than Budget"):
        mirror(composed, "second")
    (held,) = run(database, "SELECT count(*) FROM raw.t WHERE id <= 3000")[0]
    assert held >= ROWS * 0.8
    with composed.open() as ports:
        ports.ledger.retry_failed(ports.plan.plan_id)
    mirror(composed, "third", allow_deletes=True)
    assert difference(database, "t", database, "raw.t") == (0, 0)


def test_a_range_is_repaired_while_the_next_run_is_planned(
    database: Endpoint, composed: Composed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan would have no such range, and nothing but a restart would mend that."""
    mirror(composed, "first")
    mirror(composed, "second")
    run(database, "DELETE FROM raw.t WHERE id = 1500")
    build = Planner._with_mirror

    def build_and_repair(planner: Planner, *arguments: Any, **others: Any) -> Plan:
        found = build(planner, *arguments, **others)
        with composed.open() as ports:
            record = ports.ledger.range(ports.plan.plan_id, 1)
            repair(ports.ledger, ports.source, ports.sink, ports.plan, record, who="ada")
        return found

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(Planner, "_with_mirror", build_and_repair)
        with pytest.raises(LedgerUnavailable, match="is repaired meanwhile"):
            mirror(composed, "third")
    for name in ("third", "fourth"):
        mirror(composed, name)
        assert difference(database, "t", database, "raw.t") == (0, 0)


@pytest.mark.parametrize("consistency", ["static", "snapshot"])
def test_a_run_that_may_delete_any_number_leaves_that_to_no_other(
    consistency: str, database: Endpoint, composed: Composed
) -> None:
    """It is killed after one range, and then the source is emptied by mistake: the next run stops again."""
    composed = replace(composed, consistency=consistency)
    mirror(composed, "first")
    run(database, "DELETE FROM t WHERE id % 2 = 0")
    with composed.open() as ports:
        planner = replace(ports.planner(), run="second", refresh=Refresh.EACH_RUN, allow_deletes=True)
        planner.plan()
        hydrator = ports.hydrator()
        hydrator.share, hydrator.on_commit = 1, Mock(side_effect=KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            hydrator.run()
        hydrator.cancel()
    ((left,),) = run(database, "SELECT count(*) FROM raw.t")
    run(database, "DELETE FROM t WHERE id > 3")
    with pytest.raises((SinkRefused, SourceRefused), match="more than Budget"):
        mirror(composed, "third")
    assert run(database, "SELECT count(*) FROM raw.t")[0][0] >= left * 0.8
    with composed.open() as ports:
        ports.ledger.retry_failed(ports.plan.plan_id)
    # Under static the first range stays as the second run has read it until the plan is over.
    for name in ("fourth", "fifth"):
        mirror(composed, name, allow_deletes=True)
    assert difference(database, "t", database, "raw.t") == (0, 0)


@pytest.mark.on_spark
def test_a_transform_may_filter_and_not_move_the_key(database: Endpoint, composed: Composed) -> None:
    kept = replace(composed, transform="SELECT id, code, price FROM source WHERE id % 2 = 0")
    mirror(kept, "first")
    run(database, *CHANGES)
    mirror(kept, "second")
    assert difference(database, "(SELECT * FROM t WHERE id % 2 = 0)", database, "raw.t") == (0, 0)
    moved = replace(composed, target="raw.moved", transform="SELECT id + 1500 AS id, code, price FROM source")
    with pytest.raises(SinkRefused, match="lie outside of it"):
        mirror(moved, "first")


def test_a_table_of_mysql_is_mirrored_by_the_form_that_its_rows_have_in_the_target(
    mysql_database: Endpoint, database: Endpoint, hydration: Composed
) -> None:
    """Its rows are hashed in the target's form; only the range that differs is staged."""
    numbers = "WITH RECURSIVE g (g) AS (SELECT 1 UNION ALL SELECT g + 1 FROM g WHERE g < 900) SELECT"
    on_mysql.run(
        mysql_database,
        "CREATE TABLE t (id int PRIMARY KEY, code varchar(20), price decimal(10,2), at datetime, note text)",
        f"INSERT INTO t {numbers} g, CONCAT('c', g), g / 3, '2024-01-01', NULL FROM g",
    )
    composed = replace(
        hydration, source=mysql_database, kind="mysql", table="t", mode="mirror", budget=Budget(range_rows=300)
    )
    assert len(mirror(composed, "first").markers) == 3
    assert mirror(composed, "second").markers == {}
    on_mysql.run(
        mysql_database,
        "UPDATE t SET price = 9.99 WHERE id = 301",
        "DELETE FROM t WHERE id = 310",
        "INSERT INTO t (id) VALUES (0)",
    )
    assert set(mirror(composed, "third").markers) == {"0.0", "1.0"}
    found = run(database, "SELECT count(*), sum(price), min(id) FROM raw.t")
    assert on_mysql.run(mysql_database, "SELECT COUNT(*), SUM(price), MIN(id) FROM t") == found
    on_mysql.run(mysql_database, "CREATE TABLE u (name varchar(20) COLLATE utf8mb4_bin PRIMARY KEY)")
    run(database, "CREATE TABLE raw.u (name varchar(20) PRIMARY KEY)")
    with pytest.raises(SinkRefused, match="Text in name is ordered by"):
        replace(composed, table="u", target="raw.u").plan()


@pytest.mark.statement("X3")
def test_a_range_that_is_repaired_while_its_lane_runs_is_written_again(composed: Composed, database: Endpoint) -> None:
    """X3: the lane had found it unchanged, by a marker that the repair has deleted."""
    one = replace(composed, budget=Budget(credits=1, range_rows=1000))
    with one.open() as ports:
        ports.planner().plan()
    one.run()
    one.finish()
    run(database, f"UPDATE t SET code = 'changed' WHERE id = {ROWS}")
    with one.open() as ports:
        replace(ports.planner(), refresh=Refresh.EACH_RUN, run="second").plan()
    removed = list[int]()

    def repair_first() -> None:
        if removed:
            return
        run(database, "UPDATE raw.t SET code = 'wrong' WHERE id = 5")
        with one.open() as ports:
            (record,) = ports.ledger.ranges(ports.plan.plan_id, states=[RangeState.COMMITTED])
            removed.append(repair(ports.ledger, ports.source, ports.sink, ports.plan, record, who="ada"))

    with one.open() as ports:
        hydrator = ports.hydrator()
        hydrator.on_commit = repair_first
        hydrator.run()
    one.finish()
    assert removed
    assert difference(database, "public.t", database, "raw.t") == (0, 0)
