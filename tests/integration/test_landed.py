"""T9: a target is rebuilt from what was landed in a lake, while its upstream cannot even be connected to."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.types import TimestamptzType

from airflow_provider_backpressure.connectors.lake.source.landed_table import LandedTable
from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.gate.hydration_record import Phase, latency
from airflow_provider_backpressure.core.planning.plan_result import Verdict
from airflow_provider_backpressure.core.progress.rates_and_eta import total_progress
from airflow_provider_backpressure.core.snapshot.bounds import FileBounds
from airflow_provider_backpressure.exceptions import SourceRefused
from dev.services import Server
from tests.conftest import endpoint_of, fresh_database
from tests.support import lakes
from tests.support.composed import Composed, difference
from tests.support.ledgers import new_ledger
from tests.support.marks import mark_long
from tests.support.postgres import run

pytestmark = [pytest.mark.integration, pytest.mark.in_process, pytest.mark.statement("T9")]

ROWS = 5_000
COLUMNS = "id, code, ref, price, seen, tags"


@pytest.fixture
def upstream(postgres: Server) -> Iterator[Endpoint]:
    """A database that is only read from, with types that files carry as text too."""
    with fresh_database(postgres) as database:
        run(
            database,
            "CREATE TABLE t AS SELECT i AS id, md5(i::text) AS code, md5(i::text)::uuid AS ref,"
            " (i / 7.0)::numeric(12, 4) AS price, 'epoch'::timestamptz + i * interval '1 h' AS seen,"
            f" CASE WHEN i % 3 = 0 THEN ARRAY[i, -i] END AS tags FROM generate_series(1::bigint, {ROWS}) i",
            "ALTER TABLE t ADD PRIMARY KEY (id)",
            "ANALYZE t",
        )
        yield database


@pytest.fixture
def landing(upstream: Endpoint, hydration: Composed) -> Composed:
    """The upstream's rows on their way into a lake, in ranges of 1,000; the target is in another database."""
    return replace(
        hydration,
        source=upstream,
        budget=Budget(credits=2, range_rows=1000),
    )


def land(landing: Composed, place: dict[str, Any]) -> Composed:
    """Land the rows; return the way back, from the lake into the target."""
    filling = replace(landing, into=place)
    filling.plan()
    filling.run()
    filling.finish()
    return replace(landing, kind="landed", reading=place, source=landing.sink, into={})


@pytest.fixture
def closed(upstream: Endpoint, postgres: Server) -> Iterator[Any]:
    """Close the upstream to everybody; what is compared in the end is a copy of its rows."""
    admin = endpoint_of(postgres, "postgres")

    def close(target: Endpoint) -> None:
        rows = run(upstream, f"SELECT {COLUMNS} FROM t ORDER BY id")
        assert len(rows) == ROWS
        run(
            admin,
            f"ALTER DATABASE {upstream.database} ALLOW_CONNECTIONS false",
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{upstream.database}'",
        )
        with pytest.raises(Exception, match="not currently accepting connections"):
            run(upstream, "SELECT 1")

    yield close
    run(admin, f"ALTER DATABASE {upstream.database} ALLOW_CONNECTIONS true")


def sessions(postgres: Server, upstream: Endpoint) -> int:
    """Sessions that were ever opened on a database."""
    admin = endpoint_of(postgres, "postgres")
    ((number,),) = run(admin, f"SELECT sessions FROM pg_stat_database WHERE datname = '{upstream.database}'")
    return int(number)


@pytest.mark.statement("T8")
@pytest.mark.parametrize("kind", mark_long(lakes.KINDS, quick=["delta"]))
def test_a_target_is_rebuilt_without_its_upstream(
    landing: Composed, upstream: Endpoint, closed: Any, postgres: Server, tmp_path: Path, kind: str
):
    """T9: not one session on the upstream; rows and types are as they left, by count and checksum; T8: rehydration."""
    back = land(landing, lakes.place(kind, tmp_path))
    closed(landing.sink)
    before = sessions(postgres, upstream)
    planned = back.plan()
    with back.open() as ports:
        assert ports.hydration.phase is Phase.REHYDRATION
        assert latency(ports.ledger.spans(ports.hydration.id), Phase.REHYDRATION) is None
        records = ports.ledger.ranges(planned.plan.plan_id)
        assert all(isinstance(record.bounds, FileBounds) and record.bounds.checksum for record in records)
        assert sum(record.planned_rows for record in records) == ROWS
    back.run()
    back.finish()
    with back.open() as ports:
        assert ports.hydration.phase is Phase.STEADY_STATE
        assert latency(ports.ledger.spans(ports.hydration.id), Phase.REHYDRATION) is not None
        assert total_progress(ports.ledger.statistics(ports.hydration.id)).committed == ROWS
    assert back.plan().verdict is Verdict.UNCHANGED
    assert sessions(postgres, upstream) == before
    run(endpoint_of(postgres, "postgres"), f"ALTER DATABASE {upstream.database} ALLOW_CONNECTIONS true")
    assert difference(upstream, "t", landing.sink, "raw.t") == (0, 0)


def change_lake(landing: Composed, place: dict[str, Any], upstream: Endpoint) -> None:
    """Upsert the upstream's rows into the lake again, one of them with another value: their number stays."""
    run(upstream, "UPDATE t SET code = 'changed' WHERE id = 7")
    land(replace(landing, restart=True), place)


@pytest.mark.parametrize(
    ("kind", "kept"), mark_long([("delta", True), ("iceberg", True), ("iceberg", False)], quick=[("delta", True)])
)
def test_a_lake_that_changed_and_kept_its_number_of_rows_is_named(
    landing: Composed, upstream: Endpoint, tmp_path: Path, kind: str, kept: bool, monkeypatch: pytest.MonkeyPatch
):
    """A later run says so and what to do; not ``kept``: the plan is one of a release that kept no version."""
    place, landing = lakes.place(kind, tmp_path), replace(landing, mode="upsert")
    back = land(landing, place)
    with monkeypatch.context() as earlier:
        if not kept:
            asked = LandedTable.snapshot
            earlier.setattr(
                LandedTable, "snapshot", lambda *args, **options: replace(asked(*args, **options), version="")
            )
        back.plan()
    back.run()
    back.finish()
    with back.open() as ports:
        assert bool(ports.plan.version) is kept
    assert back.plan().verdict is Verdict.UNCHANGED

    change_lake(landing, place, upstream)
    assert len(lakes.rows(place)) == ROWS
    planned = back.plan()
    assert planned.verdict is Verdict.MOVED
    assert "has changed since it was read" in planned.note
    assert '{"backpressure": "restart"}' in planned.note
    assert run(landing.sink, "SELECT count(*) FROM raw.t WHERE code = 'changed'") == [(0,)]

    again = replace(back, restart=True)
    again.plan()
    again.run()
    again.finish()
    assert back.plan().verdict is Verdict.UNCHANGED
    assert difference(upstream, "t", landing.sink, "raw.t") == (0, 0)


def test_a_lake_that_changed_between_two_runs_of_a_plan_is_named(landing: Composed, upstream: Endpoint, tmp_path: Path):
    """The plan goes on with the files that it was made of."""
    place, landing = lakes.place("iceberg", tmp_path), replace(landing, mode="upsert")
    back = land(landing, place)
    assert "has changed" not in back.plan().note
    change_lake(landing, place, upstream)
    planned = back.plan()
    assert planned.verdict is Verdict.RESUMED
    assert "the source has changed since they were planned" in planned.note
    back.run()
    back.finish()
    assert back.plan().verdict is Verdict.MOVED


def test_columns_are_those_that_readers_of_the_lake_see(landing: Composed, tmp_path: Path):
    """Other engines write ids of columns into their files: two columns exchanged their names, one was added again."""
    place = lakes.place("iceberg", tmp_path)
    back = land(landing, place)
    with closing(load_catalog(**place["catalog"])) as catalog:
        table = catalog.load_table(place["table"])
        table.overwrite(table.scan().to_arrow())
        for old, new in (("code", "between"), ("ref", "code"), ("between", "ref")):
            with catalog.load_table(place["table"]).update_schema() as change:
                change.rename_column(old, new)
        with catalog.load_table(place["table"]).update_schema(allow_incompatible_changes=True) as change:
            change.delete_column("seen")
        with catalog.load_table(place["table"]).update_schema() as change:
            change.add_column("seen", TimestamptzType())
    back.plan()
    back.run()
    back.finish()
    seen = lakes.table(**place).select(["id", "code", "ref", "seen"]).to_pylist()
    found = run(landing.sink, "SELECT id, code, replace(ref::text, '-', ''), seen FROM raw.t ORDER BY id")
    assert found == [tuple(row.values()) for row in sorted(seen, key=lambda row: row["id"])]
    assert found[0][3] is None
    catalog = load_catalog(**place["catalog"])
    with closing(catalog), catalog.load_table(place["table"]).update_schema(allow_incompatible_changes=True) as change:
        change.delete_column("seen")
    with pytest.raises(SourceRefused, match="no longer has what was landed in seen"):
        back.plan()


def test_increments_that_were_landed_come_along(landing: Composed, upstream: Endpoint, tmp_path: Path):
    """Files of every plan are read, not only those of the last; small ones go together."""
    place = lakes.place("parquet", tmp_path)
    filling = replace(landing, into=place, reading={"increment_column": "id"})
    for rows in (0, 30):
        if rows:
            run(
                upstream,
                f"INSERT INTO t (id, code) SELECT i, 'new' FROM generate_series({ROWS + 1}, {ROWS + rows}) i",
            )
        filling.plan()
        filling.run()
        filling.finish()
    back = replace(
        landing, kind="landed", reading=place, source=landing.sink, budget=Budget(credits=2, range_rows=3000)
    )
    assert back.plan().ranges < 5
    back.run()
    back.finish()
    assert difference(upstream, "t", landing.sink, "raw.t") == (0, 0)


def test_a_target_that_was_half_rebuilt_is_completed_without_its_ledger(landing: Composed, tmp_path: Path):
    """T9: the files that have no marker are read, and no other one."""
    back = land(landing, lakes.place("parquet", tmp_path))
    planned = back.plan()
    with back.open() as ports:
        lane = ports.hydrator()
        lane.share, lane.on_commit = 1, _stop
        with pytest.raises(KeyboardInterrupt):
            lane.run()
        lane.cancel()
    back = replace(back, ledger_url=new_ledger(tmp_path / "fresh.db"))
    again = back.plan()
    assert (again.plan.plan_id, again.verdict) == (planned.plan.plan_id, Verdict.RESUMED)
    assert back.run().committed == planned.ranges - 1
    back.finish()
    assert difference(landing.source, "t", landing.sink, "raw.t") == (0, 0)


def _stop() -> None:
    raise KeyboardInterrupt


def test_into_another_lake(landing: Composed, upstream: Endpoint, tmp_path: Path):
    """Any sink is a target: files of one format become those of another, with the same values."""
    source, target = lakes.place("delta", tmp_path / "a"), lakes.place("parquet", tmp_path / "b")
    back = replace(land(landing, source), into=target)
    back.plan()
    back.run()
    back.finish()
    assert lakes.rows(target) == lakes.rows(source)


def test_a_file_that_is_not_what_was_landed_stops_it(landing: Composed, tmp_path: Path):
    """The count is the same, a value is not: the range is not committed, and the file is named."""
    from tests.conformance.sinks.cases import spoil_file

    run(landing.source, "ALTER TABLE t DROP ref, DROP price, DROP seen, DROP tags", "ALTER TABLE t RENAME code TO name")
    place = lakes.place("parquet", tmp_path)
    back = land(landing, place)
    victim = sorted(Path(place["path"]).glob("part-*.parquet"))[2]
    back.plan()
    spoil_file(victim)
    with pytest.raises(SourceRefused, match=f"{victim.name} .* have the checksum .* was landed: .* to plan again"):
        back.run()
    assert run(landing.sink, "SELECT count(*) FROM raw.t WHERE name = 'wrong'") == [(0,)]


def test_a_file_that_is_gone_stops_it(landing: Composed, tmp_path: Path):
    """Rows that are missing are not passed by."""
    place = lakes.place("parquet", tmp_path)
    back = land(landing, place)
    back.plan()
    sorted(Path(place["path"]).glob("part-*.parquet"))[1].unlink()
    with pytest.raises(SourceRefused, match=r"hold 0 rows, and .* were landed: .* to plan again"):
        back.run()


def test_files_that_spark_has_named_in_its_own_way_are_the_tables(landing: Composed, tmp_path: Path):
    """Its Hadoop catalog writes ``file:/folder`` for what the table itself calls ``file:///folder``."""
    place = lakes.place("iceberg", tmp_path)
    back = land(landing, place)
    with closing(load_catalog(**place["catalog"])) as catalog:
        table = catalog.load_table(place["table"])
        files = table.inspect.files()["file_path"].to_pylist()
        table.delete()
        table.add_files([path.replace("file:///", "file:/") for path in files])
    back.plan()
    back.run()
    back.finish()
    assert difference(landing.source, "t", landing.sink, "raw.t") == (0, 0)


def test_what_is_not_landed_whole_is_refused(landing: Composed, tmp_path: Path):
    """Before any row moves: a folder of others, and a plan of ours that is not complete."""
    place = lakes.place("parquet", tmp_path)
    back = replace(landing, kind="landed", reading=place, source=landing.sink)
    with pytest.raises(SourceRefused, match="was not landed by a hydration"):
        back.plan()
    filling = replace(landing, into=place)
    filling.plan()
    with pytest.raises(SourceRefused, match=r"does not hold the whole of plan .* 0 ranges of 5"):
        back.plan()
