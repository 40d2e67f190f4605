"""What every sink that knows keys promises of ``upsert``."""

import pytest

from airflow_provider_backpressure.core.snapshot.spark_messages import Window
from airflow_provider_backpressure.exceptions import RangeFailed, SinkRefused
from tests.conformance.sinks.cases import Case, opened
from tests.conformance.sinks.support import batches, begin, bounds, expected, ids

pytestmark = [
    pytest.mark.integration,
    # The others refuse ``upsert``, as another test shows.
    pytest.mark.parametrize("case", ["delta", "hadoop", "iceberg", "postgres"], indirect=True),
]


@pytest.mark.statement("X1")
def test_rows_take_the_place_of_those_with_their_key(case: Case) -> None:
    """X1: changed and new ones in one step with the marker; a second attempt changes nothing."""
    first = begin(case, mode="upsert")
    first.write(0, word="old")
    first.write(1, word="old")
    second = begin(case, mode="upsert")
    some = [3, 5, 101, 102]
    result = case.write(second.spec(0), batches(case, some, word="new"))
    assert result.rows == 4
    again = case.write(second.spec(0, attempt=2), batches(case, some, word="again"))
    assert again.checksum == result.checksum == second.markers()["0.0"].checksum
    rows = {**dict(expected(case, 0, 1, word="old")), 3: None, 5: "new 5", 101: "new 101", 102: None}
    assert case.rows() == sorted(rows.items())


@pytest.mark.statement("X1")
def test_half_an_upsert_is_never_seen(case: Case) -> None:
    """X1: rows that break off change nothing."""
    begun = begin(case, mode="upsert")
    begun.write(0, word="old")
    with pytest.raises(RangeFailed):
        case.write(begun.spec(1), batches(case, ids(0), word="new", whole=False))
    assert case.rows() == expected(case, 0, word="old")
    assert set(begun.markers()) == {"0.0"}


def test_an_empty_upsert_has_a_marker(case: Case) -> None:
    """Nothing to do is done too."""
    begun = begin(case, mode="upsert")
    begun.write(0)
    assert case.write(begun.spec(1), batches(case, [])).rows == 0
    assert set(begun.markers()) == {"0.0", "1.0"}


def test_doubles_within_a_range_are_refused(case: Case) -> None:
    """Which of two rows with one key is to stay, nobody has said."""
    begun = begin(case, mode="upsert")
    with pytest.raises((SinkRefused, RangeFailed)):
        case.write(begun.spec(0), batches(case, [1, 2, 1]))
    assert case.rows() == []


@pytest.mark.statement("X3")
def test_a_window_is_read_back_by_its_values(case: Case) -> None:
    """X3: rows lie where a merge has put them; an increment is told by its rising column."""
    begin(case, mode="upsert").write(0, word="old")
    window = Window(column="id", after="9", upto="19")
    second = begin(case, mode="upsert", window=window)
    second.write(1)
    assert second.read_back(None, window).checksum == second.markers()["1.0"].checksum
    assert second.read_back(None).rows == 20
    with opened(case) as sink:
        if case.replaces:
            assert sink.slice_query(second.plan.write, bounds(1))
        else:
            with pytest.raises(SinkRefused, match=r"no longer lie|not found by"):
                sink.slice_query(second.plan.write, bounds(1))
