"""The completion check over in-memory ports: what ledger and sink have to agree on before a hydration ends."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_provider_backpressure.core.config import Consistency
from airflow_provider_backpressure.core.gate.cluster_queue import Change
from airflow_provider_backpressure.core.planning.range_repair import skip
from airflow_provider_backpressure.core.snapshot.bounds import KeyBounds
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.core.snapshot.ranges import RangeState
from airflow_provider_backpressure.core.snapshot.spark_messages import Transform, Window
from airflow_provider_backpressure.core.verification.completeness_check import Completion, exact_total
from airflow_provider_backpressure.exceptions import LedgerRefused, LedgerUnavailable, VerificationFailed
from airflow_provider_backpressure.ledger.models import range_
from airflow_provider_backpressure.ledger.repository import SqlLedger
from tests.support.bench import Bench
from tests.support.ledgers import new_ledger


@pytest.fixture
def bench() -> Bench:
    """Ten ranges of ten rows, all committed."""
    made = Bench()
    made.lane().run()
    return made


def check(bench: Bench, plan: Plan | None = None) -> None:
    """Check the plan as the ledger has it now."""
    known = plan or bench.ledger.hydration(bench.id).plan
    assert known is not None
    Completion(plan=known, ledger=bench.ledger, sink=bench.sink).check()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The file of a migrated ledger."""
    new_ledger(tmp_path / "ledger.db")
    return tmp_path / "ledger.db"


@pytest.fixture
def fresh(file: Path) -> Iterator[Bench]:
    """Ten ranges of ten rows, none read yet, in a ledger whose rows may be lost."""
    with closing(SqlLedger(f"sqlite:///{file}")) as ledger:
        yield Bench(ledger=ledger)


def lose(file: Path, *seqs: int) -> None:
    """Lose rows of the ledger."""
    engine = sa.create_engine(f"sqlite:///{file}")
    with engine.begin() as connection:
        connection.execute(sa.delete(range_).where(range_.c.seq.in_(seqs)))
    engine.dispose()


def test_a_complete_plan_passes(bench: Bench) -> None:
    """Also one whose ranges were cut meanwhile."""
    check(bench)
    finer = Bench()
    finer.ledger.steer(finer.id, Change(range_rows=3), who="a person")
    finer.lane().run()
    assert finer.ledger.counts(finer.plan_id).revoked == 10
    check(finer)


@pytest.mark.parametrize("seq", [0, 4, 9])
def test_a_range_that_the_ledger_has_lost_is_missed(fresh: Bench, file: Path, seq: int) -> None:
    """The first, one between, the last: the row was lost before anybody read the range."""
    lose(file, seq)
    fresh.lane().run()
    assert len(fresh.sink.rows) == 90
    with pytest.raises(VerificationFailed, match="leave a gap or overlap"):
        check(fresh)


def test_all_ranges_lost_is_no_empty_plan(fresh: Bench, file: Path) -> None:
    """Nothing open is left then either."""
    lose(file, *range(10))
    with pytest.raises(VerificationFailed, match="is not complete"):
        check(fresh)


def test_a_marker_that_is_missing_revoked_or_of_other_bounds_is_found(bench: Bench) -> None:
    """The ledger alone does not say what is in the target."""
    markers = bench.sink._markers
    for changed, words in (
        (None, "no marker of range 4"),
        ({"revoked": True}, "no marker of range 4"),
        ({"bounds": KeyBounds.of_column(column="id", start="1", end="2").to_json()}, "other bounds"),
    ):
        before = dict(markers)
        marker = markers.pop((bench.plan_id, "4.0"))
        if changed is not None:
            markers[bench.plan_id, "4.0"] = replace(marker, **changed)
        with pytest.raises(VerificationFailed, match=words):
            check(bench)
        markers.clear()
        markers.update(before)
    check(bench)


def test_a_marker_of_no_range_is_found(bench: Bench) -> None:
    """A number that the ledger does not have, or has left out."""
    marker = bench.sink._markers[bench.plan_id, "4.0"]
    bench.sink._markers[bench.plan_id, "77.0"] = replace(marker, slice_id="77.0")
    with pytest.raises(VerificationFailed, match="11 committed ranges of it, and the ledger 10"):
        check(bench)


def test_rows_that_did_not_arrive_are_missed(bench: Bench) -> None:
    """Every range is in by its bounds, and one brought fewer rows than the source held."""
    marker = bench.sink._markers[bench.plan_id, "4.0"]
    bench.sink._markers[bench.plan_id, "4.0"] = replace(marker, rows=7)
    with pytest.raises(VerificationFailed, match=r"97 rows were read, and the source held 100.*declared static"):
        check(bench)
    bench.sink._markers[bench.plan_id, "4.0"] = replace(marker, rows=7, quarantined=3)
    check(bench)


def test_a_skipped_range_is_no_gap() -> None:
    """A person has left it out: its bounds are known, its rows are not."""
    bench = Bench()
    skip(bench.ledger, bench.sink, bench.planned.plan, bench.ledger.range(bench.plan_id, 3), who="p", why="broken")
    bench.lane().run()
    assert len(bench.sink.rows) == 90
    check(bench)


def test_what_is_open_is_not_complete(bench: Bench) -> None:
    """In flight with another run is for a while; planned is not."""
    fresh = Bench()
    with pytest.raises(VerificationFailed, match="10 of 10 ranges are not committed yet"):
        check(fresh)
    only = Bench(rows=10)
    only.ledger.admit(only.id, lane="other", session_id="s", lease_seconds=60)
    with pytest.raises(LedgerUnavailable, match="in flight with another run"):
        check(only)


def test_a_target_that_another_plan_holds_is_not_complete(bench: Bench) -> None:
    """Whatever the markers of this one say."""
    bench.sink.plan = replace(bench.planned.plan, plan_id="f" * 32)
    with pytest.raises(VerificationFailed, match="no longer held"):
        check(bench)


@pytest.mark.parametrize(
    ("changes", "total"),
    [
        ({}, 100),
        ({"total_exact": False}, None),
        ({"total": None}, None),
        ({"transform": Transform(sql="SELECT * FROM source")}, None),
        ({"consistency": Consistency.SNAPSHOT}, None),
        ({"consistency": Consistency.SNAPSHOT, "counted": True}, 100),
        ({"consistency": Consistency.CATCH_UP}, None),
        ({"consistency": Consistency.OFFSETS}, None),
    ],
)
def test_a_total_is_exact_only_where_all_ranges_have_one_moment(
    bench: Bench, changes: dict[str, Any], total: int | None
) -> None:
    """Else the bounds alone decide."""
    plan = replace(bench.planned.plan, **changes)
    assert exact_total(plan) == total
    window = Window(column="at", after=None, upto="9")
    inside = exact_total(replace(plan, read=replace(plan.read, window=window)))
    assert inside == (100 if changes.get("counted") else None)


def test_a_snapshot_is_counted_when_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan's own count is of an earlier moment; a range that loses rows is found by the later one."""
    bench = Bench()
    bench.planned = replace(bench.planned, plan=replace(bench.planned.plan, consistency=Consistency.SNAPSHOT))
    bench.ledger.take_over(bench.id, bench.planned.plan)
    keep = bench.source.keep

    def counting(plan: Plan) -> Any:
        keeper = keep(plan)
        monkeypatch.setattr(keeper, "count", lambda: 103)
        return keeper

    monkeypatch.setattr(bench.source, "keep", counting)
    bench.lane().run()
    plan = bench.ledger.hydration(bench.id).plan
    assert plan is not None
    assert (plan.total, plan.counted, list(plan.frontier.values())) == (103, True, [103])
    with pytest.raises(VerificationFailed, match="100 rows were read, and the source held 103"):
        check(bench)


class TestARestoredLedger:
    """The ledger is put back to a copy from before a range was cut; slices and their bounds decide."""

    @pytest.fixture
    def restored(self, fresh: Bench, file: Path) -> Iterator[Bench]:
        """One range was cut in pieces of which one is committed; the ledger has it whole again, and untried."""
        copy = file.with_name("copy.db")
        with closing(sqlite3.connect(file)) as now, closing(sqlite3.connect(copy)) as backup:
            now.backup(backup)
        fresh.ledger.steer(fresh.id, Change(range_rows=5), who="a person")

        def killed() -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            fresh.lane(on_commit=killed).run()
        fresh.ledger.close()
        with closing(SqlLedger(f"sqlite:///{copy}")) as ledger:
            fresh.ledger = ledger
            yield fresh

    def test_the_uncut_range_is_refused_by_the_sink(self, restored: Bench) -> None:
        """It left a revoked marker, though nobody had tried it before it was cut: nothing comes in beside its parts."""
        marker = restored.sink.markers(restored.plan_id)["0.0"]
        assert marker.revoked
        rows = len(restored.sink.rows)
        with pytest.raises(Exception, match="revoked"):
            restored.lane().run()
        assert len(set(restored.sink.rows)) == len(restored.sink.rows) >= rows

    def test_a_number_that_the_sink_has_seen_is_not_given_to_other_bounds(self, restored: Bench) -> None:
        """The next cut would number its pieces alike."""
        restored.ledger.steer(restored.id, Change(range_rows=3), who="a person")
        with pytest.raises(LedgerRefused, match="restored from an older copy"):
            restored.lane().run()
        assert len(set(restored.sink.rows)) == len(restored.sink.rows)

    def test_the_ledger_follows_the_sink_and_everything_arrives_once(self, restored: Bench) -> None:
        """A marker of no range in the ledger is enough, however few they are."""
        planned = restored.planner().reindex(restored.ledger.hydration(restored.id), who="dag", within_plan=True)
        assert planned is not None
        restored.lane(plan=planned.plan).run()
        assert sorted(restored.sink.rows) == list(range(100))
        check(restored)
        assert restored.ledger.counts(restored.plan_id).open == 0
        assert {record.state for record in restored.ledger.ranges(restored.plan_id)} <= {
            RangeState.COMMITTED,
            RangeState.REVOKED,
        }
