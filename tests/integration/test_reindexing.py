"""T9: after the loss of the ledger the markers restore it; the source's rows are not read again."""

import shutil
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.gate.hydration_record import Phase
from airflow_provider_backpressure.core.planning.plan_result import Verdict
from airflow_provider_backpressure.core.planning.planner import Planner
from airflow_provider_backpressure.exceptions import LedgerRefused, PlanSuperseded
from dev.services import Server
from tests.conftest import fresh_database
from tests.support import lakes, mysql
from tests.support.composed import Composed, difference
from tests.support.ledgers import new_ledger
from tests.support.marks import mark_long
from tests.support.postgres import run

pytestmark = [pytest.mark.integration, pytest.mark.in_process, pytest.mark.statement("T9")]

ROWS = 10_000


@pytest.fixture
def composed(database: Endpoint, hydration: Composed) -> Composed:
    """10,000 rows in ten ranges of a text key, which only the source can order."""
    run(
        database,
        f"CREATE TABLE t AS SELECT 'k' || i AS id, md5(i::text) AS code FROM generate_series(1, {ROWS}) i",
        "ALTER TABLE t ADD PRIMARY KEY (id)",
        "ANALYZE t",
    )
    return replace(
        hydration,
        budget=Budget(credits=2, range_rows=1000),
    )


def lost(composed: Composed, folder: Path) -> Composed:
    """The hydration with a ledger that knows nothing."""
    return replace(composed, ledger_url=new_ledger(folder / "fresh.db"))


def filled(composed: Composed) -> None:
    composed.plan()
    composed.run()
    composed.finish()


def scanned(database: Endpoint) -> tuple[int, ...]:
    """Scans of the source's table and its index, as the server counts them; all of ours are over by then."""
    run(database, "SELECT pg_stat_force_next_flush()")
    ((scans, rows),) = run(
        database,
        "SELECT seq_scan + coalesce(idx_scan, 0), seq_tup_read + coalesce(idx_tup_fetch, 0)"
        " FROM pg_stat_user_tables WHERE relname = 't' AND schemaname = 'public'",
    )
    return scans, rows


@pytest.mark.parametrize("kind", mark_long(["postgres", "parquet", "delta", "iceberg"], quick=["postgres", "delta"]))
def test_a_complete_target_gives_the_ledger_back(composed: Composed, database: Endpoint, tmp_path: Path, kind: str):
    """T9: not one scan of the source's table, over every kind of sink; the phases say what it was."""
    if kind != "postgres":
        composed = replace(composed, into=lakes.place(kind, tmp_path))
    filled(composed)
    with composed.open() as ports:
        before = [(each.seq, each.bounds, each.rows, each.checksum) for each in ports.ledger.ranges(ports.plan.plan_id)]
    composed = lost(composed, tmp_path)
    counted = scanned(database)
    planned = composed.plan()
    composed.run()
    composed.finish()
    assert scanned(database) == counted
    assert (planned.verdict, planned.ranges) == (Verdict.RESUMED, len(before))
    with composed.open() as ports:
        after = [(each.seq, each.bounds, each.rows, each.checksum) for each in ports.ledger.ranges(ports.plan.plan_id)]
        assert after == before
        phases = [span.phase for span in ports.ledger.spans(ports.hydration.id)]
        assert phases == [Phase.HYDRATION, Phase.REHYDRATION, Phase.STEADY_STATE]
    assert composed.plan().verdict is Verdict.UNCHANGED


@pytest.mark.fault(23)
def test_only_what_has_no_marker_is_read_again(composed: Composed, database: Endpoint, tmp_path: Path):
    """T9: holes in the middle and at the end are cut by the source's own order, and filled once."""
    composed.plan()
    composed.run()
    with composed.open() as ports:
        plan = ports.plan
        for record in ports.ledger.ranges(plan.plan_id):
            if record.seq in (2, 3, 4, 8, 9, 10, 11):
                ports.sink.discard(plan, record.slice_id, record.bounds)
        kept = ports.sink.markers(plan.plan_id)
    composed = lost(composed, tmp_path)
    planned = composed.plan()
    assert planned.plan.plan_id == plan.plan_id
    assert composed.run().committed == planned.ranges - len(kept)
    with composed.open() as ports:
        now = ports.sink.markers(plan.plan_id)
        assert {name: now[name] for name in kept} == kept
        assert all(marker.rows <= 1100 for marker in now.values())
    composed.finish()
    assert difference(database, "t", database, "raw.t") == (0, 0)


def test_a_plan_is_not_completed_by_another_key(composed: Composed, database: Endpoint, tmp_path: Path):
    """T9: refused before a row moves, where the source would be cut by another column than its committed ranges."""
    columns = ("id", "code")
    composed = replace(composed, reading={"columns": columns})
    composed.plan()
    composed.run()
    with composed.open() as ports:
        (last,) = ports.ledger.ranges(ports.plan.plan_id)[-1:]
        ports.sink.discard(ports.plan, last.slice_id, last.bounds)
    run(database, "ALTER TABLE t ADD COLUMN other bigint GENERATED ALWAYS AS IDENTITY UNIQUE")
    composed = replace(lost(composed, tmp_path), reading={"split_column": "other", "columns": columns})
    with pytest.raises(LedgerRefused, match=r"were cut by id, and the source would be cut by other now"):
        composed.plan()
    assert replace(composed, reading={"columns": columns}).plan().verdict is Verdict.RESUMED


@pytest.mark.fault(23)
def test_a_restored_target_is_named_and_its_word_can_be_taken(composed: Composed, database: Endpoint, tmp_path: Path):
    """Fault 23: a dump from the middle is put in the place of the target, rows, markers and plan row together."""
    composed.plan()
    with composed.open() as ports:
        hydrator = ports.hydrator()
        hydrator.share = 1
        hydrator.on_commit = _stop_after(4)
        with pytest.raises(KeyboardInterrupt):
            hydrator.run()
        hydrator.cancel()
    run(database, "CREATE SCHEMA backup")
    for table in ("t", "backpressure_plan", "backpressure_commit"):
        run(database, f"CREATE TABLE backup.{table} AS SELECT * FROM raw.{table}")
    composed.run()
    composed.finish()
    columns = "plan_id, slice_id, target, epoch, attempt, bounds, rows, bytes, checksum"
    run(
        database,
        "TRUNCATE raw.t, raw.backpressure_plan, raw.backpressure_commit",
        "INSERT INTO raw.t SELECT * FROM backup.t",
        "INSERT INTO raw.backpressure_plan SELECT * FROM backup.backpressure_plan",
        f"INSERT INTO raw.backpressure_commit ({columns}) SELECT {columns} FROM backup.backpressure_commit",
    )
    with pytest.raises(LedgerRefused, match="restored from an older backup"):
        composed.plan()
    assert difference(database, "backup.t", database, "raw.t") == (0, 0)
    with composed.open() as ports:
        found = ports.planner().reindex(ports.hydration, who="ada", accept=True)
        assert found is not None
        assert ports.hydration.phase is Phase.REHYDRATION
        assert ports.ledger.counts(ports.plan.plan_id).committed >= 4
    composed.run()
    composed.finish()
    assert difference(database, "t", database, "raw.t") == (0, 0)


@pytest.mark.fault(23)
def test_a_target_that_was_restored_to_before_its_rows_were_published_is_named(
    composed: Composed, database: Endpoint, postgres: Server
):
    """Fault 23: all ranges are there, beside the old rows; the target's word lets them be published again."""
    with fresh_database(postgres) as sink:
        admin, copy = replace(sink, database="postgres"), f"{sink.database}_copy"
        composed = replace(composed, sink=sink, mode="replace")
        run(sink, "CREATE SCHEMA raw", "CREATE TABLE raw.t (id text PRIMARY KEY, code text)")
        run(sink, "INSERT INTO raw.t VALUES ('old', 'old')")
        composed.plan()
        composed.run()
        ended = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{sink.database}'"
        run(admin, ended, f"CREATE DATABASE {copy} TEMPLATE {sink.database}")
        composed.finish()
        assert composed.plan().verdict is Verdict.UNCHANGED
        run(admin, f"DROP DATABASE {sink.database} WITH (FORCE)", f"CREATE DATABASE {sink.database} TEMPLATE {copy}")
        run(admin, f"DROP DATABASE {copy}")
        with pytest.raises(LedgerRefused, match=r"does not hold the new rows of plan .*restored from an older backup"):
            composed.plan()
        with composed.open() as ports:
            ports.planner().reindex(ports.hydration, who="ada", accept=True)
        assert composed.plan().verdict is Verdict.RESUMED
        composed.finish()
        assert difference(database, "t", sink, "raw.t") == (0, 0)
        assert composed.plan().verdict is Verdict.UNCHANGED


def test_a_mysql_key_is_cut_where_no_marker_is(composed: Composed, mysql_database: Endpoint, tmp_path: Path):
    """T9: by MySQL's own order of text; the table of files has each row once in the end."""
    mysql.run(
        mysql_database,
        "SET SESSION cte_max_recursion_depth = 2000",
        "CREATE TABLE t (id varchar(20) PRIMARY KEY, code varchar(40))",
        "INSERT INTO t WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000)"
        " SELECT CONCAT('k', i), MD5(i) FROM n",
    )
    place = lakes.place("parquet", tmp_path)
    composed = replace(
        composed, source=mysql_database, kind="mysql", table="t", into=place, budget=Budget(credits=2, range_rows=100)
    )
    composed.plan()
    composed.run()
    with composed.open() as ports:
        plan = ports.plan
        for record in ports.ledger.ranges(plan.plan_id):
            if record.seq in (0, 3, 4, 5, 9):
                ports.sink.discard(plan, record.slice_id, record.bounds)
    composed = lost(composed, tmp_path)
    assert composed.plan().ranges == 10
    assert composed.run().committed == 5
    composed.finish()
    assert sorted(row[0] for row in lakes.rows(place)) == sorted(f"k{number}" for number in range(1, 1001))


@pytest.mark.parametrize("plans", [pytest.param(1, marks=pytest.mark.long), 2])
@pytest.mark.parametrize("kind", mark_long(["postgres", "parquet", "delta", "iceberg"], quick=["postgres"]))
def test_a_copy_of_the_ledger_of_before_the_target_knew_its_plan(
    composed: Composed, database: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, plans: int
):
    """T9: the planner was killed there, the ledger is copied, and restored after that plan and later ones."""
    into = {} if kind == "postgres" else lakes.place(kind, tmp_path)
    composed = replace(lost(composed, tmp_path), into=into, reading={"increment_column": "id"})
    filled(composed)

    def add(letter: str) -> None:
        run(database, f"INSERT INTO t SELECT '{letter}' || i, 'new' FROM generate_series(1, 10) i")

    add("l")
    with monkeypatch.context() as killed:
        killed.setattr(Planner, "take_target", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            composed.plan()
    ledger, copy = tmp_path / "fresh.db", tmp_path / "copy.db"
    shutil.copy(ledger, copy)
    filled(composed)
    for _ in range(1, plans):
        add("m")
        filled(composed)
    shutil.copy(copy, ledger)
    if plans > 1:
        # As a lane does that goes on without planning.
        with composed.open() as ports, pytest.raises(PlanSuperseded, match="has taken it since"):
            ports.planner().take_target(ports.hydration, ports.plan)
    for _ in range(2):
        filled(composed)
    if kind == "postgres":
        assert difference(database, "t", database, "raw.t") == (0, 0)
    else:
        assert len(lakes.rows(into)) == ROWS + 10 * plans


@pytest.mark.statement("T9")
def test_two_ledgers_of_one_target_bring_what_is_new(composed: Composed, database: Endpoint, tmp_path: Path):
    """T9: a copy of the ledger is in use beside it. Each finds what the other has done, and one plans what is new."""
    composed = replace(lost(composed, tmp_path), reading={"increment_column": "id"})
    filled(composed)
    shutil.copy(tmp_path / "fresh.db", tmp_path / "copy.db")
    other = replace(composed, ledger_url=composed.ledger_url.replace("fresh.db", "copy.db"))
    for number in range(4):
        run(database, f"INSERT INTO t SELECT 'l{number}' || i, 'new' FROM generate_series(10, 20) i")
        filled(other)
        filled(composed)
        if number:
            assert difference(database, "t", database, "raw.t") == (0, 0)


def _stop_after(commits: int):
    done = 0

    def stop() -> None:
        nonlocal done
        done += 1
        if done == commits:
            raise KeyboardInterrupt

    return stop
