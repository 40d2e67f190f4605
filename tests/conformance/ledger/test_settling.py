"""Commits, releases and retries: what becomes of a range in flight."""

import pytest

from airflow_provider_backpressure.core.gate.credit_limits import GradedLimit
from airflow_provider_backpressure.core.gate.hydration_record import Phase, RangeCounts
from airflow_provider_backpressure.core.progress.rates_and_eta import total_progress
from airflow_provider_backpressure.core.snapshot.ranges import RangeState, attempt_tag
from airflow_provider_backpressure.exceptions import LedgerRefused, LedgerUnavailable
from tests.conformance.ledger.support import admit, commit, cut, in_threads, make_plan, planned, replan, take
from tests.support.waiting import until


def test_a_commit_is_written_down_and_gives_the_credit_back(ledger):
    hydration_id, plan_id = planned(ledger, credits=1)
    take(ledger, hydration_id)
    assert commit(ledger, plan_id, 0, rows=9, bytes=900, checksum="sum") is True
    record = ledger.range(plan_id, 0)
    assert (record.state, record.rows, record.bytes, record.checksum) == (RangeState.COMMITTED, 9, 900, "sum")
    assert (record.lease_until, record.error, record.lane) == (None, None, "lane")
    assert record.committed_at >= record.admitted_at
    assert ledger.gate(hydration_id).in_flight == 0
    assert ledger.find_abandoned(hydration_id, lane="lane") == []


def test_a_commit_counts_once(ledger):
    hydration_id, plan_id = planned(ledger)
    take(ledger, hydration_id)
    assert commit(ledger, plan_id, 0) is True
    assert commit(ledger, plan_id, 0, attempt=2, rows=99) is False
    assert ledger.range(plan_id, 0).rows == 10
    assert total_progress(ledger.statistics(hydration_id)).committed == 10


@pytest.mark.statement("X1")
def test_of_many_that_report_the_same_commit_one_counts(subject):
    """X1 as the ledger sees it: lane, trigger and reaper all find the marker; the rows count once."""
    hydration_id, plan_id = planned(subject.ledger)
    ledgers = [subject.another() for _ in range(4)]
    for seq in range(3):
        take(subject.ledger, hydration_id)
        told = in_threads(8, lambda index, seq=seq: commit(ledgers[index % 4], plan_id, seq, worker=f"lane {index}"))
        assert told.count(True) == 1
    assert total_progress(subject.ledger.statistics(hydration_id)).committed == 30


@pytest.mark.statement("X3")
def test_a_committed_range_is_planned_again_by_a_person_only(ledger):
    """X3: its rows no longer count as progress, what was received does; it is the next to be read."""
    hydration_id, plan_id = planned(ledger, 3)
    for seq in range(3):
        take(ledger, hydration_id)
        commit(ledger, plan_id, seq, rows=10, worker=f"worker {seq % 2}")
    ledger.finish(hydration_id)
    assert ledger.reopen(plan_id, 1, who="ada", why="a row was changed") is True
    assert ledger.reopen(plan_id, 1, who="ada") is False, "it is planned already"
    record = ledger.range(plan_id, 1)
    assert (record.state, record.rows, record.checksum, record.attempt) == (RangeState.PLANNED, None, None, 1)
    statistics = ledger.statistics(hydration_id)
    assert total_progress(statistics).committed == 20
    assert sum(row.messages_received for row in statistics) == 30
    assert ledger.counts(plan_id).open == 1
    again = take(ledger, hydration_id)
    assert (again.seq, again.attempt) == (1, 2)
    assert commit(ledger, plan_id, 1, attempt=2, rows=10) is True
    assert total_progress(ledger.statistics(hydration_id)).committed == 30


@pytest.mark.statement("X3")
def test_a_plan_that_is_marked_unverified_is_verified_again(ledger):
    """X3: before a range's rows are removed; the plan that was made meanwhile does not follow it."""
    hydration_id, plan_id = planned(ledger, 1)
    take(ledger, hydration_id)
    commit(ledger, plan_id, 0)
    assert ledger.finish(hydration_id).verified
    assert ledger.mark_unverified(plan_id) is True
    assert not ledger.hydration(hydration_id).verified
    assert ledger.hydration(hydration_id).phase is Phase.STEADY_STATE
    later = make_plan(builds_on=plan_id)
    with pytest.raises(LedgerUnavailable, match="is repaired meanwhile"):
        ledger.save_plan(hydration_id, later, cut(1))
    assert ledger.finish(hydration_id).verified
    ledger.save_plan(hydration_id, later, cut(1))
    assert ledger.mark_unverified(plan_id) is False, "another plan follows it"
    with pytest.raises(LedgerUnavailable, match="Another plan has followed"):
        ledger.save_plan(hydration_id, make_plan(builds_on=plan_id), cut(1))


def test_a_failed_range_is_planned_again_and_one_in_flight_is_not(ledger):
    hydration_id, plan_id = planned(ledger, 2)
    take(ledger, hydration_id)
    assert ledger.reopen(plan_id, 0, who="ada") is False
    ledger.release(plan_id, 0, attempt=1, error="no", fail=True)
    assert ledger.reopen(plan_id, 0, who="ada") is True
    assert take(ledger, hydration_id).seq == 0


@pytest.mark.parametrize("fail", [False, True])
def test_a_marker_found_later_commits_what_was_set_back(ledger, fail):
    """The sink wins, also over a range that the ledger had planned again or given up."""
    hydration_id, plan_id = planned(ledger, 2)
    take(ledger, hydration_id)
    ledger.release(plan_id, 0, attempt=1, error="the lane was lost", fail=fail)
    assert commit(ledger, plan_id, 0) is True
    assert ledger.range(plan_id, 0).state is RangeState.COMMITTED
    assert take(ledger, hydration_id).seq == 1
    assert ledger.gate(hydration_id).commit_seconds is None, "nobody waited for that commit"


def test_a_marker_of_an_earlier_attempt_ends_the_later_ones_flight(ledger):
    hydration_id, plan_id = planned(ledger, credits=1)
    take(ledger, hydration_id)
    ledger.release(plan_id, 0, attempt=1, error="the lane was lost")
    take(ledger, hydration_id)
    assert commit(ledger, plan_id, 0, attempt=1) is True
    record = ledger.range(plan_id, 0)
    assert (record.state, record.attempt) == (RangeState.COMMITTED, 2)
    assert ledger.gate(hydration_id).in_flight == 0
    assert ledger.release(plan_id, 0, attempt=2, error="refused by the sink") is False


def test_a_marker_of_an_attempt_that_the_ledger_never_saw_is_believed(ledger):
    """A ledger restored from a backup is older than its sink; attempt numbers go on from the marker's."""
    hydration_id, plan_id = planned(ledger)
    assert commit(ledger, plan_id, 3, attempt=7) is True
    assert ledger.range(plan_id, 3).attempt == 7
    assert [take(ledger, hydration_id).seq for _ in range(3)] == [0, 1, 2]


def test_a_commit_of_an_unknown_range_is_refused(ledger):
    _, plan_id = planned(ledger, 1)
    with pytest.raises(LedgerRefused, match="no range 1 of plan"):
        commit(ledger, plan_id, 1)


def test_credits_follow_the_limits_law_with_each_commit(ledger):
    hydration_id, plan_id = planned(ledger, credits=4)
    seen = []
    for seq, pressure in enumerate((1.0, 0.9, 0.9, 0.5, 0.1, 0.1, float("inf"))):
        take(ledger, hydration_id)
        commit(ledger, plan_id, seq, limit=GradedLimit(), pressure=pressure)
        seen.append(ledger.gate(hydration_id).credits)
    assert seen == [2, 1, 1, 1, 2, 3, 1]


def test_commit_latency_is_learned_as_a_moving_mean(ledger):
    hydration_id, plan_id = planned(ledger)
    assert ledger.gate(hydration_id).commit_seconds is None
    take(ledger, hydration_id)
    until(lambda: ledger.gate(hydration_id).oldest_seconds >= 0.2)
    commit(ledger, plan_id, 0)
    slow = ledger.gate(hydration_id).commit_seconds
    assert slow >= 0.2
    take(ledger, hydration_id)
    commit(ledger, plan_id, 1)
    record = ledger.range(plan_id, 1)
    fast = (record.committed_at - record.admitted_at).total_seconds()
    assert ledger.gate(hydration_id).commit_seconds == pytest.approx((fast + slow) / 2, abs=0.002)


def test_a_commit_found_after_its_lease_teaches_nothing_about_the_sink(ledger):
    hydration_id, plan_id = planned(ledger)
    take(ledger, hydration_id, lease_seconds=0.001)
    until(lambda: ledger.find_abandoned(hydration_id))
    commit(ledger, plan_id, 0)
    assert ledger.gate(hydration_id).commit_seconds is None


def test_memory_per_range_is_learned_as_a_fading_maximum(ledger):
    hydration_id, plan_id = planned(ledger)
    learned = []
    for seq, memory in enumerate((None, 1000, 3000, 1000, None, 4000)):
        take(ledger, hydration_id)
        commit(ledger, plan_id, seq, memory_bytes=memory)
        learned.append(ledger.gate(hydration_id).range_memory_bytes)
    assert learned[:3] == [None, 1000, 3000]
    assert 2500 < learned[3] < 3000
    assert learned[4:] == [learned[3], 4000]


def test_a_released_range_is_planned_again_under_the_next_attempt(ledger):
    hydration_id, plan_id = planned(ledger)
    for _ in range(3):
        take(ledger, hydration_id)
    assert ledger.release(plan_id, 1, attempt=1, error="the executor was lost\x00") is True
    record = ledger.range(plan_id, 1)
    assert (record.state, record.lane, record.session_id, record.lease_until) == (RangeState.PLANNED, None, None, None)
    assert record.error == "the executor was lost"
    again = take(ledger, hydration_id)
    assert (again.seq, again.attempt, again.tag) == (1, 2, attempt_tag(plan_id, "1.0", 2))


def test_an_attempt_releases_only_what_it_holds(ledger):
    hydration_id, plan_id = planned(ledger)
    take(ledger, hydration_id)
    ledger.release(plan_id, 0, attempt=1, error="first")
    assert ledger.release(plan_id, 0, attempt=1, error="twice") is False
    take(ledger, hydration_id)
    assert ledger.release(plan_id, 0, attempt=1, error="late") is False, "attempt 2 holds it now"
    assert ledger.range(plan_id, 0).state is RangeState.ADMITTED
    commit(ledger, plan_id, 0, attempt=2)
    assert ledger.release(plan_id, 0, attempt=2, error="too late") is False
    assert ledger.release(plan_id, 5, attempt=0, error="never began") is False
    with pytest.raises(LedgerRefused, match="no range 99"):
        ledger.release(plan_id, 99, attempt=1, error="nothing")


def test_failed_ranges_wait_for_a_retry(ledger):
    hydration_id, plan_id = planned(ledger, 4)
    for seq in range(3):
        take(ledger, hydration_id)
        if seq != 1:
            ledger.release(plan_id, seq, attempt=1, error="broken", fail=True)
    assert ledger.counts(plan_id) == RangeCounts(planned=1, admitted=1, failed=2)
    assert ledger.gate(hydration_id).in_flight == 1
    assert take(ledger, hydration_id).seq == 3
    assert admit(ledger, hydration_id) is None
    failed = ledger.ranges(plan_id, states=[RangeState.FAILED])
    assert {(record.lane, record.session_id) for record in failed} == {("lane", "session")}, "they lead to their log"
    assert ledger.retry_failed(plan_id) == 2
    again = ledger.ranges(plan_id, states=[RangeState.PLANNED])
    assert {(record.lane, record.session_id) for record in again} == {(None, None)}
    assert ledger.retry_failed(plan_id) == 0
    assert ledger.range(plan_id, 0).error == "broken"
    assert take(ledger, hydration_id).seq == 0
    assert ledger.retry_failed("0" * 32) == 0


def test_a_retry_never_touches_another_plan(ledger):
    hydration_id, first = planned(ledger, 2)
    take(ledger, hydration_id)
    ledger.release(first, 0, attempt=1, error="broken", fail=True)
    second = replan(ledger, hydration_id, 2)
    assert ledger.retry_failed(second) == 0
    assert ledger.retry_failed(first) == 0
    assert ledger.range(first, 0).state is RangeState.FAILED
