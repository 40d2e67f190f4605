"""What follows from looks at a source: rates, the verdict, the time to catch up, and what is wrong with a frontier."""

import math
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_backpressure.core.default_limits import SLOWER_SAMPLES
from airflow_provider_backpressure.core.progress.lag import Course, Sight, Verdict, advance, lags, sentence
from airflow_provider_backpressure.core.progress.source_position import Unit

NOON = datetime(2026, 7, 1, 12, tzinfo=UTC)
GTID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"


def sight(seconds: float, known: dict, committed: dict | None = None, unit: Unit = Unit.OFFSETS, **changes) -> Sight:
    at = NOON + timedelta(seconds=seconds)
    return Sight(at=at, unit=unit, known=known, committed=committed, **{"working": True, **changes})


def followed(*sights: Sight, least_seconds: float = 5.0) -> Course:
    course = None
    for each in sights:
        course = advance(course, each, least_seconds=least_seconds)
    assert course is not None
    return course


@pytest.mark.statement("M1", "M7")
@pytest.mark.parametrize(
    ("unit", "before", "after", "seconds", "expected"),
    [
        (Unit.OFFSETS, {0: 10}, {0: 70}, 60, 1.0),
        (Unit.OFFSETS, {0: 100, 1: 150}, {0: 150, 1: 170}, 10, 7.0),
        (Unit.OFFSETS, {0: 0}, {0: 100, 1: 100}, 10, 20.0),
        (Unit.BYTES, {"wal": 100_050}, {"wal": 100_100}, 10, 5.0),
        (Unit.TRANSACTIONS, {0: 1000, 1: 0}, {0: 1010, 1: 10}, 10, 2.0),
    ],
    ids=["one offset a second", "partitions", "partition added", "bytes of WAL", "transactions"],
)
def test_rates_come_from_the_two_latest_frontiers(unit, before, after, seconds, expected):
    """M1, M7: the numbers of M1, as rates of the source and of the sink alike."""
    course = followed(sight(0, before, before, unit), sight(seconds, after, after, unit))
    assert (course.upstream_rate, course.process_rate) == (expected, expected)


@pytest.mark.statement("M9")
def test_not_keeping_up_takes_three_samples_in_a_row():
    """M9: not after one dip, nor after two with a good one between them."""
    known, done, course, verdicts = 0, 0, None, []
    for second, gain in enumerate([100, 50, 100, 50, 50, 50, 100]):
        known, done = known + 90, done + gain
        course = advance(course, sight(10 * second, {0: 1000 + known}, {0: done}), least_seconds=5)
        verdicts.append(course.verdict)
    assert verdicts == [
        Verdict.UNKNOWN,
        *[Verdict.KEEPING_UP] * 4,
        Verdict.NOT_KEEPING_UP,
        Verdict.KEEPING_UP,
    ]
    assert SLOWER_SAMPLES == 3


@pytest.mark.statement("M9", "F1")
def test_the_time_to_catch_up_or_never():
    """M9: lag over what the sink gains on the source; never where it gains nothing."""
    gaining = followed(sight(0, {0: 1000}, {0: 0}), sight(10, {0: 1100}, {0: 300}))
    assert (gaining.lag, gaining.upstream_rate, gaining.process_rate) == (800, 10.0, 30.0)
    assert gaining.catch_up_seconds == 40.0
    losing = followed(*(sight(10 * n, {0: 10_000 * n}, {0: 1000 * n}) for n in range(7)))
    assert (losing.lag, losing.verdict, losing.catch_up_seconds) == (54_000, Verdict.NOT_KEEPING_UP, math.inf)
    assert sentence(losing) == (
        "NO: 100 offsets/s committed, the source makes 1,000 offsets/s, 54,000 offsets behind, "
        "never catches up at this rate"
    )
    assert followed(sight(0, {0: 5}, {0: 5}), sight(10, {0: 6}, {0: 6})).catch_up_seconds == 0.0


def test_between_two_runs_nothing_is_expected_to_move():
    """No run is under way: that is neither keeping up nor the contrary, and counts for neither."""
    course = followed(*(sight(10 * n, {0: 100 * n}, {0: 0}, working=False) for n in range(1, 9)))
    assert (course.behind, course.verdict, course.catch_up_seconds) == (0, Verdict.IDLE, None)
    assert "the next run brings it" in sentence(course)


def test_ranges_that_take_minutes_are_no_standstill():
    """Rates are taken as far apart as a range takes; the frontiers are as fresh as the look."""
    course = followed(*(sight(10 * n, {0: 100 * n}, {0: 0}) for n in range(12)), least_seconds=300)
    assert (course.behind, course.upstream_rate, course.latest.known) == (0, None, {"0": 1100})
    course = advance(course, sight(300, {0: 3000}, {0: 6000}), least_seconds=300)
    assert (course.upstream_rate, course.process_rate) == (10.0, 20.0)


def test_a_window_that_is_under_way_tells_nothing_of_the_rate():
    course = followed(
        sight(0, {"wal": 0}, {"wal": 0}, Unit.BYTES),
        *(sight(10 * n, {"wal": 10 * n}, {"wal": 0}, Unit.BYTES, settled=False) for n in range(1, 8)),
        sight(80, {"wal": 80}, {"wal": 80}, Unit.BYTES),
    )
    assert (course.behind, course.process_rate, course.verdict) == (0, 1.0, Verdict.CAUGHT_UP)


@pytest.mark.statement("M10")
def test_a_log_that_was_reset_is_an_error_and_no_negative_rate():
    """M10: an LSN, or transactions, behind what was seen: named, without a rate."""
    course = followed(
        sight(0, {"wal": 3 * 2**32}, {"wal": 2**32}, Unit.BYTES),
        sight(10, {"wal": 4 * 2**32}, {"wal": 2**32}, Unit.BYTES),
        sight(20, {"wal": 2**32 + 255}, {"wal": 2**32}, Unit.BYTES),
    )
    assert (course.upstream_rate, course.process_rate) == (None, None)
    assert "was seen at 4/0 and is at 1/FF now: the server was restored" in course.trouble
    assert sentence(course) == course.trouble
    course = followed(
        sight(0, {GTID: 10}, {GTID: 5}, Unit.TRANSACTIONS), sight(10, {GTID: 3}, {GTID: 5}, Unit.TRANSACTIONS)
    )
    assert f"was seen at 10 transactions of {GTID} and has 3 now" in course.trouble


@pytest.mark.statement("M10")
def test_a_source_with_less_than_was_committed_stays_in_trouble():
    """M10: also when the log has grown again since, as long as it is behind the sink."""
    first = sight(0, {"wal": 100}, {"wal": 100}, Unit.BYTES)
    reset = sight(10, {"wal": 10}, {"wal": 100}, Unit.BYTES)
    grown = sight(20, {"wal": 30}, {"wal": 100}, Unit.BYTES)
    past = sight(30, {"wal": 130}, {"wal": 100}, Unit.BYTES)
    assert "was committed up to 0/64 and is at 0/1E now" in followed(first, reset, grown).trouble
    assert followed(first, reset, grown, past).trouble == ""


@pytest.mark.statement("M10")
def test_what_is_committed_beyond_the_last_look_at_the_source_is_no_trouble():
    """M10: two tasks that end one after the other see what is committed, and ask the source no second time."""
    first = sight(0, {"wal": 100}, {"wal": 50}, Unit.BYTES)
    ended, verified = (sight(n, {"wal": 100}, {"wal": 150}, Unit.BYTES) for n in (1, 2))
    course = followed(first, ended, verified)
    assert (course.trouble, course.verdict) == ("", Verdict.CAUGHT_UP)
    assert followed(first, ended, verified, sight(20, {"wal": 200}, {"wal": 150}, Unit.BYTES)).trouble == ""
    assert "was committed up to" in followed(first, ended, sight(20, {"wal": 120}, {"wal": 150}, Unit.BYTES)).trouble
    reset = sight(20, {"wal": 20}, {"wal": 150}, Unit.BYTES)
    assert "was seen at" in followed(first, ended, reset, sight(21, {"wal": 20}, {"wal": 150}, Unit.BYTES)).trouble


@pytest.mark.statement("M10")
def test_a_truncated_topic_is_named_and_takes_nothing_from_the_other_partitions():
    """M10: the partition that went back counts nothing, the others go on."""
    course = followed(sight(0, {0: 100, 1: 100}, {0: 50, 1: 50}), sight(10, {0: 40, 1: 200}, {0: 50, 1: 60}))
    assert (course.upstream_rate, course.process_rate) == (10.0, 1.0)
    assert "Partition 0 was seen at offset 100 and ends at offset 40 now" in course.trouble


@pytest.mark.statement("M10")
def test_partitions_tables_and_gtid_sources_that_appear_or_vanish():
    """M10: what appears counts from zero, what is gone counts nothing."""
    appeared = followed(sight(0, {"a": 10}, {"a": 10}), sight(10, {"a": 10, "b": 50}, {"a": 10}))
    assert (appeared.upstream_rate, appeared.latest.lag, appeared.trouble) == (5.0, {"a": 0, "b": 50}, "")
    gone = followed(sight(0, {"a": 10, "b": 50}, {"a": 10}), sight(10, {"a": 20}, {"a": 20}))
    assert (gone.upstream_rate, gone.lag, gone.trouble) == (1.0, 0, "")
    other = followed(
        sight(0, {GTID: 10}, {GTID: 10}, Unit.TRANSACTIONS),
        sight(10, {GTID: 10, "other": 20}, {GTID: 10}, Unit.TRANSACTIONS),
    )
    assert (other.upstream_rate, other.lag) == (2.0, 20)


def test_the_open_transaction_and_the_worst_partitions_are_shown():
    """Fine print 26: the gap between high watermark and last stable offset."""
    course = followed(sight(0, {n: 100 * n for n in range(10)}, dict.fromkeys(range(10), 0), open=7))
    assert lags(course).startswith("9: 900 offsets, 8: 800 offsets")
    assert lags(course).endswith("and 3 more, 7 offsets held back by open transactions")


def test_an_unknown_committed_frontier_is_unknown_and_not_zero():
    course = followed(sight(0, {"wal": 100}, None, Unit.BYTES), sight(10, {"wal": 200}, None, Unit.BYTES))
    assert (course.upstream_rate, course.process_rate, course.lag) == (10.0, None, None)
    assert (course.verdict, course.catch_up_seconds) == (Verdict.UNKNOWN, None)
    assert sentence(course) == "not known before the snapshot is in"


def test_a_sight_that_is_no_newer_changes_nothing():
    course = followed(sight(0, {0: 1}, {0: 1}), sight(10, {0: 2}, {0: 2}))
    assert advance(course, sight(10, {0: 9}, {0: 9}), least_seconds=0) is course


@given(
    st.lists(
        st.tuples(st.dictionaries(st.integers(0, 3), st.integers(0, 2**63)), st.sampled_from(list(Unit))), min_size=1
    )
)
def test_no_rate_is_ever_negative_and_json_keeps_everything(looks):
    """M10: whatever is seen, in whatever order."""
    course = None
    for at, (known, unit) in enumerate(looks):
        course = advance(course, sight(10 * at, known, known, unit), least_seconds=5)
        assert (course.upstream_rate or 0) >= 0
        assert (course.process_rate or 0) >= 0
        assert Course.from_json(course.to_json()) == course
