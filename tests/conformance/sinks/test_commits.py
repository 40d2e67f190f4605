"""What every sink promises: rows and marker at once, once, and only under the plan that holds the target."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pyarrow
import pytest

from airflow_provider_backpressure.core.ports.sink import Marker
from airflow_provider_backpressure.core.snapshot.spark_messages import Window
from airflow_provider_backpressure.exceptions import (
    LedgerRefused,
    PlanSuperseded,
    RangeFailed,
    SinkRefused,
    SinkUnavailable,
)
from tests.conformance.sinks.cases import CASES, Case, opened
from tests.conformance.sinks.support import Begun, batches, begin, bounds, expected, ids

pytestmark = pytest.mark.integration

REAL = pytest.mark.parametrize("case", sorted(CASES.keys() - {"memory"}), indirect=True)
"""The sink in memory has one column and knows one plan."""


@pytest.mark.statement("X1")
def test_rows_and_marker_appear_together(case: Case) -> None:
    """X1: before the commit there is neither, behind it there are both, and the marker says what came."""
    begun = begin(case)
    seen: list[tuple[int, int]] = []

    def watched() -> Iterator[pyarrow.RecordBatch]:
        for batch in batches(case, ids(0)):
            seen.append((len(case.rows()), len(begun.markers())))
            yield batch

    result = case.write(begun.spec(0), watched())
    assert set(seen) == {(0, 0)}
    assert case.rows() == expected(case, 0)
    marker = begun.markers()["0.0"]
    assert (marker.rows, marker.bytes, marker.checksum) == (10, result.bytes, result.checksum)
    assert (marker.plan_id, marker.slice_id, marker.epoch, marker.attempt, dict(marker.bounds)) == (
        begun.plan.plan_id,
        "0.0",
        begun.plan.epoch,
        1,
        dict(begun.spec(0).slices[0].bounds),
    )


def test_an_empty_range_has_a_marker(case: Case) -> None:
    """No rows are an answer too, and the target holds none then."""
    begun = begin(case)
    assert case.write(begun.spec(0), batches(case, [])).rows == 0
    assert begun.markers(0)["0.0"].rows == 0
    assert case.rows() == []
    with opened(case) as sink:
        assert not sink.holds_rows()


@pytest.mark.statement("X1")
def test_a_second_attempt_changes_nothing(case: Case) -> None:
    """X1: a duplicate is refused by the sink: it gets the marker that stands, whatever it would have written."""
    begun = begin(case)
    first = begun.write(0)
    again = begun.write(0, attempt=2, word="other")
    assert (again.rows, again.checksum) == (first.rows, first.checksum)
    assert case.rows() == expected(case, 0)
    assert begun.markers()["0.0"].attempt == 1


@pytest.mark.statement("X1")
def test_a_marker_with_other_bounds_is_not_taken_for_the_range(case: Case) -> None:
    """X1: a restored ledger may give a number to other rows, which must not pass for committed by their number."""
    begun = begin(case)
    begun.write(0)
    other = begun.spec(0, slices=(replace(begun.spec(0).slices[0], bounds=bounds(1).to_json()),))
    with pytest.raises(LedgerRefused, match=r"committed in the target with the bounds id \[0, 10\).*reindex"):
        case.write(replace(other, attempt=2), batches(case, ids(1)))
    assert case.rows() == expected(case, 0)


@pytest.mark.statement("X1")
def test_half_a_range_is_never_seen(case: Case) -> None:
    """X1: a stream that breaks off leaves neither rows nor marker, and the next attempt goes well."""
    begun = begin(case)
    with pytest.raises(RangeFailed, match="broke off"):
        begun.write(0, whole=False)
    assert case.rows() == []
    assert begun.markers() == {}
    begun.write(0, attempt=2)
    assert case.rows() == expected(case, 0)


@pytest.mark.statement("X1")
@pytest.mark.fault(13)
def test_a_zombie_of_an_older_plan_is_refused(case: Case) -> None:
    """X1: it was half through its rows when a newer plan came."""
    old = begin(case)
    newer: list[Begun] = []

    def slow() -> Iterator[pyarrow.RecordBatch]:
        for batch in batches(case, ids(0)):
            if not newer:
                newer.append(begin(case))
            yield batch

    with pytest.raises((PlanSuperseded, SinkUnavailable)):  # where it holds a connection, that is ended
        case.write(old.spec(0), slow())
    with pytest.raises(PlanSuperseded):
        old.write(1)
    assert case.rows() == []
    assert old.markers() == {}
    with opened(case) as sink:
        assert sink.epoch(old.plan.plan_id) is None
        assert sink.epoch(newer[0].plan.plan_id) == newer[0].plan.epoch > old.plan.epoch


@pytest.mark.statement("X1")
def test_an_older_epoch_of_the_same_plan_is_refused(case: Case) -> None:
    """X1: a new life of the lane mints a newer epoch, and what the old one submitted is refused."""
    begun = begin(case)
    begun.write(0)
    with opened(case) as sink:
        newer = sink.renew(begun.plan.plan_id)
        assert newer is not None
        assert newer > begun.plan.epoch
        assert sink.renew("another") is None
        assert sink.epoch(begun.plan.plan_id) == newer
    with pytest.raises(PlanSuperseded):
        begun.write(1)
    begun.write(1, attempt=2, epoch=newer)
    assert case.rows() == expected(case, 0, 1)
    assert set(begun.markers()) == {"0.0", "1.0"}


@pytest.mark.statement("X1")
@pytest.mark.fault(12)
def test_of_racing_attempts_exactly_one_wins(case: Case) -> None:
    """X1: attempts at one slice that commit at the same moment; they would all write different rows."""
    begun, racers = begin(case), 4
    at_once = threading.Barrier(racers)

    def race(number: int) -> str:
        def late() -> Iterator[pyarrow.RecordBatch]:
            *rows, end = batches(case, ids(0), word=f"attempt{number}")
            yield from rows
            at_once.wait(60)
            yield end

        return case.write(begun.spec(0, attempt=1), late()).checksum

    with ThreadPoolExecutor(racers) as pool:
        checksums = set(pool.map(race, range(racers)))
    assert len(checksums) == 1
    assert len(case.rows()) == 10
    marker = begun.markers()["0.0"]
    assert {marker.checksum} == checksums
    assert begun.read_back(0).checksum == marker.checksum


@pytest.mark.statement("X1")
def test_ranges_that_commit_at_once_all_come_in(case: Case) -> None:
    """X1: commits of different slices contend for one table, and none is lost."""
    begun, count = begin(case), 4
    at_once = threading.Barrier(count)

    def commit(seq: int) -> None:
        *rows, end = batches(case, ids(seq))

        def late() -> Iterator[pyarrow.RecordBatch]:
            yield from rows
            at_once.wait(60)
            yield end

        case.write(begun.spec(seq), late())

    with ThreadPoolExecutor(count) as pool:
        list(pool.map(commit, range(count)))
    assert case.rows() == expected(case, *range(count))
    assert set(begun.markers()) == {f"{seq}.0" for seq in range(count)}


def test_markers_are_found_by_slice(case: Case) -> None:
    """All, those asked for, and none of a plan that is not known."""
    begun = begin(case)
    for seq in range(3):
        begun.write(seq)
    assert set(begun.markers()) == {"0.0", "1.0", "2.0"}
    assert set(begun.markers(1, 7)) == {"1.0"}
    assert all(isinstance(marker, Marker) and not marker.revoked for marker in begun.markers().values())
    with opened(case) as sink:
        assert sink.markers("unknown") == {}
        assert sink.epoch("unknown") is None
        assert sink.rows_in_flight(begun.plan.plan_id) == {}
        assert sink.end_attempts(begun.plan.plan_id, "0.0") == 0


@pytest.mark.statement("X3")
def test_a_wrong_range_is_found_alone(case: Case) -> None:
    """X3: read back, each range says what its marker says, but for the one that somebody has changed."""
    begun = begin(case)
    for seq in range(3):
        begun.write(seq)
    markers = begun.markers()
    assert {seq: begun.read_back(seq).checksum for seq in range(3)} == {
        seq: markers[f"{seq}.0"].checksum for seq in range(3)
    }
    assert begun.read_back(None).rows == 30
    case.spoil()
    wrong = [seq for seq in range(3) if begun.read_back(seq).checksum != markers[f"{seq}.0"].checksum]
    assert len(wrong) == 1


def test_a_later_plan_adds(case: Case) -> None:
    """An increment brings its own rows beside those of before, and only its own are its own."""
    first = begin(case)
    first.write(0)
    second = begin(case)
    second.write(1)
    assert case.rows() == expected(case, 0, 1)
    assert set(second.markers()) == {"1.0"}
    assert second.read_back(1).checksum == second.markers()["1.0"].checksum
    with opened(case) as sink:
        assert sink.holds_rows()


def test_a_closed_plan_is_cleared(case: Case) -> None:
    """What it wrote is gone when the next one holds the target."""
    first = begin(case)
    first.write(0)
    first.write(1)
    second = begin(case, clear=first.plan.plan_id)
    assert case.rows() == []
    with pytest.raises(PlanSuperseded):
        first.write(2)
    second.write(0, word="new")
    assert case.rows() == expected(case, 0, word="new")


@pytest.mark.statement("X1", "X2")
def test_a_plan_that_holds_the_target_already_clears_nothing(case: Case) -> None:
    """X1, X2: a task that was frozen before it took the target wakes up when its retry has committed a range."""
    first = begin(case)
    first.write(0)
    second = begin(case, clear=first.plan.plan_id)
    second.write(1)
    with opened(case) as sink:
        epoch = sink.begin(second.plan, clear=first.plan.plan_id)
    assert epoch > second.plan.epoch
    assert case.rows() == expected(case, 1)
    assert set(second.markers()) == {"1.0"}


@REAL
def test_another_s_rows_are_not_cleared(case: Case) -> None:
    """Rows of an earlier plan would stay behind or be lost: refused, and nothing has changed."""
    first = begin(case)
    first.write(0)
    second = begin(case)
    second.write(1)
    with pytest.raises(SinkRefused, match="cannot be cleared"):
        begin(case, clear=second.plan.plan_id)
    assert case.rows() == expected(case, 0, 1)
    second.write(2)


def test_what_a_sink_cannot_do_is_refused_at_once(case: Case) -> None:
    """Modes that the kind does not have, in one sentence."""
    if not case.upserts and len(case.columns) > 1:
        with pytest.raises(SinkRefused, match="append only"):
            begin(case, mode="upsert")
    if not case.replaces:
        with pytest.raises(SinkRefused, match="replaced at once"):
            begin(case, mode="replace")


@REAL
def test_another_schema_is_refused(case: Case) -> None:
    """A target that is there has to fit."""
    begun = begin(case)
    begun.write(0)
    changed: Any = (case.columns[0], type(case.columns[1])(name="name", type="integer"))
    with opened(case) as sink, pytest.raises(SinkRefused, match="name"):
        sink.fit(changed, mode="append", key=())


@pytest.mark.statement("X3")
def test_a_range_is_repaired_alone(case: Case) -> None:
    """X3: its rows and marker go in one step, the others stay, and it is written again."""
    begun = begin(case)
    for seq in range(3):
        begun.write(seq)
    with opened(case) as sink:
        assert sink.discard(begun.plan, "1.0", bounds(1)) == 10
        assert sink.discard(begun.plan, "1.0", bounds(1)) == 0
    assert case.rows() == expected(case, 0, 2)
    assert set(begun.markers()) == {"0.0", "2.0"}
    assert begun.read_back(1).rows == 0
    begun.write(1, attempt=2)
    assert case.rows() == expected(case, 0, 1, 2)
    assert begun.read_back(1).checksum == begun.markers(1)["1.0"].checksum


@pytest.mark.statement("X3")
def test_rows_of_others_are_seen_beside_the_plans_own(case: Case) -> None:
    """X3: what stands in no range of the plan is not passed over: it is named, with the way out."""
    begun = begin(case)
    for seq in (0, 1):
        begun.write(seq)
    with opened(case) as sink:
        assert sink.find_surplus(begun.plan) == ""
    case.add_foreign()
    with opened(case) as sink:
        said = sink.find_surplus(begun.plan)
        later = replace(begun.plan.read, window=Window(column="id", after="20", upto="30"))
        increment = sink.find_surplus(replace(begun.plan, read=later))
    assert said.endswith("plan again")
    assert ("copied-by-hand.parquet" in increment) == ("copied-by-hand.parquet" in said)


@pytest.mark.statement("X3")
@pytest.mark.parametrize("case", ["delta", "hadoop", "iceberg", "postgres"], indirect=True)
def test_rows_of_others_are_welcome_in_an_upserted_target(case: Case) -> None:
    """X3: there a target has several writers, and verification speaks of the plan's own rows only."""
    begun = begin(case, mode="upsert")
    begun.write(0)
    case.add_foreign()
    with opened(case) as sink:
        assert sink.find_surplus(begun.plan) == ""
