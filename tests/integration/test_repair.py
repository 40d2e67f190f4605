"""X3: a range that is wrong in the target is found, removed and read once more, alone."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_backpressure.core.config import Budget, Consistency, Mode
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.planning.plan_result import Preview, Verdict
from airflow_provider_backpressure.core.planning.planner import Planner
from airflow_provider_backpressure.core.planning.range_repair import repair
from airflow_provider_backpressure.core.progress.rates_and_eta import total_progress
from airflow_provider_backpressure.core.snapshot.bounds import BlockBounds
from airflow_provider_backpressure.core.verification.verifier import Verify
from airflow_provider_backpressure.exceptions import LedgerRefused, LedgerUnavailable, PlanSuperseded, SinkRefused
from dev.services import Server
from tests.conftest import fresh_database
from tests.support.composed import Composed, Ports, difference
from tests.support.postgres import numbered_rows, run

pytestmark = [pytest.mark.integration, pytest.mark.in_process, pytest.mark.statement("X3")]

ROWS = 3000


@pytest.fixture
def composed(database: Endpoint, hydration: Composed) -> Composed:
    """3,000 rows in three ranges or four."""
    run(database, *numbered_rows(ROWS))
    return replace(
        hydration,
        budget=Budget(credits=2, range_rows=1000),
    )


@pytest.fixture
def other(postgres: Server) -> Iterator[Endpoint]:
    """A database of another encoding."""
    how = "template0 ENCODING 'KOI8R' LOCALE_PROVIDER libc LC_COLLATE 'C' LC_CTYPE 'C'"
    with fresh_database(postgres, how) as endpoint:
        yield endpoint


def wrong(ports: Ports, how: Verify = Verify.TARGET) -> list[int]:
    report = ports.verifier().verify(ports.ledger.ranges(ports.plan.plan_id), how)
    return [mismatch.seq for mismatch in report.mismatches]


def test_a_wrong_range_is_found_and_repaired_alone(composed: Composed, database: Endpoint):
    """The others are neither touched nor read again, and the figures are those of a whole table in the end."""
    with composed.open() as ports:
        assert ports.planner().plan().ranges >= 3
        ports.hydrator().run()
        ports.ledger.finish(ports.hydration.id)
        assert wrong(ports, Verify.FULL) == []
        run(database, "UPDATE raw.t SET code = 'other' WHERE id = 1500", "DELETE FROM raw.t WHERE id = 1501")
        (seq,) = wrong(ports)
        before = ports.ledger.range(ports.plan.plan_id, seq)
        removed = repair(ports.ledger, ports.source, ports.sink, ports.plan, before, who="ada", why="by hand")
        assert removed == (before.rows or 0) - 1
        assert total_progress(ports.ledger.statistics(ports.hydration.id)).committed == ROWS - (before.rows or 0)
        assert ports.planner().plan().verdict is Verdict.RESUMED
        assert ports.hydrator().run().committed == 1
        ports.ledger.finish(ports.hydration.id)
        assert wrong(ports, Verify.FULL) == []
        attempts = {record.seq: record.attempt for record in ports.ledger.ranges(ports.plan.plan_id)}
        assert attempts == {one: 2 if one == seq else 1 for one in attempts}
        assert total_progress(ports.ledger.statistics(ports.hydration.id)).committed == ROWS
    assert difference(database, "t", database, "raw.t") == (0, 0)


def fill_and_add(composed: Composed, database: Endpoint) -> Composed:
    """Bring a table and one increment of it, let more rows arrive, and return the hydration."""
    composed = replace(composed, reading={"increment_column": "id"})
    for first in (ROWS + 1, ROWS + 31):
        composed.plan()
        composed.run()
        composed.finish()
        run(database, f"INSERT INTO t SELECT i, 'new' FROM generate_series({first}, {first + 29}) i")
    return composed


def test_a_range_is_repaired_while_an_increment_is_planned(
    composed: Composed, database: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan that would follow waits: nothing would read the range again once it leads the hydration."""
    composed = fill_and_add(composed, database)
    preview, removed = Planner.preview, list[int]()

    def preview_and_repair(planner: Planner, **arguments: Any) -> Preview:
        found = preview(planner, **arguments)
        with composed.open() as ports:
            record = ports.ledger.range(ports.plan.plan_id, 0)
            removed.append(repair(ports.ledger, ports.source, ports.sink, ports.plan, record, who="ada"))
        return found

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(Planner, "preview", preview_and_repair)
        with pytest.raises(LedgerUnavailable, match="is repaired meanwhile"):
            composed.plan()
    assert removed == [30]
    assert composed.plan().verdict is Verdict.RESUMED
    for _ in range(2):
        composed.run()
        composed.finish()
        composed.plan()
    assert difference(database, "t", database, "raw.t") == (0, 0)


def test_a_range_of_a_plan_that_was_followed_meanwhile_keeps_its_rows(composed: Composed, database: Endpoint) -> None:
    """The person has looked at it before; the ledger refuses it before the target is touched."""
    composed = fill_and_add(composed, database)
    with composed.open() as ports:
        before = ports.plan
        record = ports.ledger.range(before.plan_id, 0)
        assert ports.planner().plan().verdict is Verdict.PLANNED
        with pytest.raises(LedgerRefused, match="of the plan before"):
            repair(ports.ledger, ports.source, ports.sink, before, record, who="ada")
    composed.run()
    composed.finish()
    assert difference(database, "t", database, "raw.t") == (0, 0)


@pytest.mark.statement("X3", "L2")
def test_bytes_of_another_encoding_are_another_order(hydration: Composed, database: Endpoint, other: Endpoint):
    """X3: a range's bounds would select other rows in the target, and removing those would lose them."""
    table = 'CREATE TABLE {} (id text COLLATE "C" PRIMARY KEY)'
    letters = "SELECT chr(192 + i % 32) || chr(192 + i / 32) FROM generate_series(0, 1023) i"
    run(other, table.format("t"), f"INSERT INTO t {letters}", "ANALYZE t")
    run(database, "CREATE SCHEMA raw", table.format("raw.t"))
    composed = replace(hydration, source=other, budget=Budget(credits=2, range_rows=200))
    with composed.open() as ports:
        assert ports.planner().plan().ranges >= 4
        ports.hydrator().run()
        ports.ledger.finish(ports.hydration.id)
        assert wrong(ports, Verify.FULL) == [], "compared as a whole"
        record = ports.ledger.range(ports.plan.plan_id, 1)
        with pytest.raises(SinkRefused, match=r"Text in id is ordered by C in raw\.t and by C of KOI8R in the source"):
            repair(ports.ledger, ports.source, ports.sink, ports.plan, record, who="ada")
    with pytest.raises(SinkRefused, match="cannot be mirrored: its ranges may hold other rows"):
        replace(composed, mode="mirror", restart=True).plan()
    assert difference(other, "t", database, "raw.t") == (0, 0)


def test_a_repair_that_was_killed_half_way_is_found_again(composed: Composed, database: Endpoint):
    """Rows and marker are gone, the ledger has not heard of it: verification names the range."""
    composed.plan()
    composed.run()
    with composed.open() as ports:
        record = ports.ledger.range(ports.plan.plan_id, 1)
        assert ports.sink.discard(ports.plan, record.slice_id, record.bounds) == record.rows
        assert wrong(ports) == [1]
        assert repair(ports.ledger, ports.source, ports.sink, ports.plan, record, who="ada") == 0
        assert ports.hydrator().run().committed == 1
        assert wrong(ports) == []
    assert difference(database, "t", database, "raw.t") == (0, 0)


def test_a_repair_under_upsert_leaves_the_rows_of_others(composed: Composed, database: Endpoint):
    """They may write there too; the range's own rows are replaced by their key."""
    run(
        database,
        "DELETE FROM t WHERE id % 2 = 0",
        "CREATE SCHEMA raw",
        "CREATE TABLE raw.t (id bigint PRIMARY KEY, code text)",
        f"INSERT INTO raw.t SELECT 2 * i, 'theirs' FROM generate_series(1, {ROWS // 2}) i",
    )
    composed = replace(composed, mode="upsert")
    composed.plan()
    composed.run()
    with composed.open() as ports:
        run(database, "UPDATE raw.t SET code = 'other' WHERE id = 1501")
        for record in ports.ledger.ranges(ports.plan.plan_id):
            assert repair(ports.ledger, ports.source, ports.sink, ports.plan, record, who="ada") == 0
        assert ports.hydrator().run().committed == len(ports.ledger.ranges(ports.plan.plan_id))
    assert difference(database, "t", database, "(SELECT * FROM raw.t WHERE id % 2 = 1)") == (0, 0)
    assert run(database, "SELECT count(*) FROM raw.t WHERE code = 'theirs'") == [(ROWS // 2,)]


@pytest.mark.parametrize("mode", ["append", "upsert", "mirror"])
def test_a_range_repaired_in_a_later_snapshot_is_of_the_same_moment_as_the_others(
    composed: Composed, database: Endpoint, mode: str
):
    """Rows that the source has deleted since are deleted, in the repaired range and in the others."""
    composed = replace(composed, mode=mode, consistency="snapshot")
    composed.plan()
    composed.run()
    composed.finish()
    run(database, "DELETE FROM t WHERE id IN (150, 1500)", "UPDATE t SET id = 9999 WHERE id = 1501")
    with composed.open() as ports:
        record = ports.ledger.range(ports.plan.plan_id, 1)
        repair(ports.ledger, ports.source, ports.sink, ports.plan, record, who="ada")
    composed.plan()
    composed.run()
    composed.finish()
    assert difference(database, "t", database, "raw.t") == (0, 0)


@pytest.mark.parametrize(("action", "refused"), [("CASCADE", True), ("SET NULL", True), ("NO ACTION", False)])
def test_a_repair_changes_no_rows_of_other_tables(composed: Composed, database: Endpoint, action: str, refused: bool):
    """The parents come back, and what went with them does not."""
    composed.plan()
    composed.run()
    run(
        database,
        "ALTER TABLE raw.t ADD PRIMARY KEY (id)",
        f"CREATE TABLE raw.mart (id bigint REFERENCES raw.t ON DELETE {action})",
        "INSERT INTO raw.mart VALUES (1)",
    )
    with composed.open() as ports:
        first, second = ports.ledger.ranges(ports.plan.plan_id)[:2]
        words = "mart_id_fkey of raw.mart would delete or change rows there too" if refused else "mart_id_fkey"
        with pytest.raises(SinkRefused, match=words):
            repair(ports.ledger, ports.source, ports.sink, ports.plan, first, who="ada")
        if not refused:
            assert repair(ports.ledger, ports.source, ports.sink, ports.plan, second, who="ada") == second.rows
    assert run(database, "TABLE raw.mart") == [(1,)]


def test_a_repair_removes_no_rows_of_tables_that_inherit(composed: Composed, database: Endpoint):
    composed.plan()
    composed.run()
    run(database, "CREATE TABLE raw.heir () INHERITS (raw.t)", "INSERT INTO raw.heir SELECT * FROM raw.t WHERE id = 1")
    with composed.open() as ports:
        record = ports.ledger.range(ports.plan.plan_id, 0)
        with pytest.raises(SinkRefused, match=r"raw\.heir inherits from it, and rows of that would go with them"):
            repair(ports.ledger, ports.source, ports.sink, ports.plan, record, who="ada")
    assert run(database, "SELECT id FROM raw.heir") == [(1,)]


def test_what_cannot_be_read_again_alone_is_refused_and_left(composed: Composed, database: Endpoint):
    """Each with its reason, before a row is removed."""
    composed.plan()
    composed.run()
    with composed.open() as ports:
        plan, record = ports.plan, ports.ledger.range(ports.plan.plan_id, 0)
        for changes, reason in (
            ({"consistency": Consistency.SNAPSHOT}, "read in a snapshot that is gone"),
            ({"mode": Mode.REPLACE}, "taken the target's place as a whole"),
        ):
            with pytest.raises(LedgerRefused, match=reason):
                repair(ports.ledger, ports.source, ports.sink, replace(plan, **changes), record, who="ada")
        blocks = BlockBounds(table="public.t", file=1, start=(0, 0), end=None)
        with pytest.raises(SinkRefused, match="Rows lie elsewhere"):
            repair(ports.ledger, ports.source, ports.sink, plan, replace(record, bounds=blocks), who="ada")
        with pytest.raises(PlanSuperseded):
            ports.sink.discard(replace(plan, plan_id="f" * 32), record.slice_id, record.bounds)
        assert wrong(ports) == []


def test_a_target_without_an_index_is_read_once_and_range_by_range_only_where_it_differs(
    composed: Composed, database: Endpoint
):
    """Each range by itself would read the whole table: as many times as there are ranges."""
    composed.plan()
    composed.run()
    with composed.open() as ports:
        ranges = len(ports.ledger.ranges(ports.plan.plan_id))
        before = read_rows(database)
        seen: list[int] = []
        verifier = replace(ports.verifier(), on_range=lambda done, _: seen.append(done))
        report = verifier.verify(ports.ledger.ranges(ports.plan.plan_id), Verify.TARGET)
        assert (report.equal, report.ranges, report.rows) == (True, ranges, ROWS)
        assert read_rows(database) - before <= 2 * ROWS, "once to hash them, once to count them"
        assert seen[-1] == ranges
        run(database, "UPDATE raw.t SET code = 'other' WHERE id = 1500")
        (mismatch,) = ports.verifier().verify(ports.ledger.ranges(ports.plan.plan_id), Verify.TARGET).mismatches
        assert "checksum" in mismatch.sentence


def read_rows(database: Endpoint) -> int:
    """Return how many rows of the target were read in the order in which they lie."""
    ((rows,),) = run(database, "SELECT seq_tup_read::bigint FROM pg_stat_user_tables WHERE relid = 'raw.t'::regclass")
    return int(rows)
