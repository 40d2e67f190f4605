"""What is kept of sources and of time: who asks, frontiers, the course, samples, phases."""

import time
from datetime import timedelta

import pytest

from airflow_provider_backpressure.core.gate.signals import MemoryReading
from airflow_provider_backpressure.core.progress.lag import Sight, Verdict
from airflow_provider_backpressure.core.progress.rates_and_eta import total_progress
from airflow_provider_backpressure.core.progress.source_position import Unit, Upstream
from airflow_provider_backpressure.exceptions import LedgerRefused
from tests.conformance.ledger.support import commit, in_threads, planned, register, replan, take
from tests.support.waiting import until

SOURCE = "postgres://shop:5432/shop/public.orders"
READING = MemoryReading(used_bytes=600, limit_bytes=1000, age_seconds=0.1)


def sight_at(ledger, hydration_id, known, committed, *, seconds=0.0):
    at = ledger.hydration(hydration_id).created_at + timedelta(seconds=seconds)
    return Sight(at=at, unit=Unit.OFFSETS, known=known, committed=committed, working=True)


@pytest.mark.statement("M13")
def test_a_source_is_asked_by_one_at_a_time(subject):
    """M13: however many look at once, one of them asks; and nobody else before the time is over."""
    ledgers = [subject.another() for _ in range(4)]
    claims = in_threads(4, lambda index: ledgers[index].claim_look(SOURCE, seconds=60))
    assert sorted(claims) == [False, False, False, True]
    assert ledgers[0].claim_look("another source", seconds=60)
    assert until(lambda: subject.ledger.claim_look(SOURCE, seconds=0.05))
    assert not subject.ledger.claim_look(SOURCE, seconds=60)


def test_a_frontier_is_kept_for_whoever_reads_the_same_source(subject):
    assert subject.ledger.upstream(SOURCE) is None
    subject.ledger.claim_look(SOURCE, seconds=60)
    assert subject.ledger.upstream(SOURCE) is None, "asked is not seen"
    subject.ledger.keep_upstream(SOURCE, Upstream(unit=Unit.OFFSETS, at={0: 7}, open=2))
    seen = subject.another().upstream(SOURCE)
    assert seen.upstream == Upstream(unit=Unit.OFFSETS, at={"0": 7}, open=2)
    subject.ledger.keep_upstream(SOURCE, Upstream(unit=Unit.OFFSETS, at={0: 9}))
    assert subject.ledger.upstream(SOURCE).at > seen.at


@pytest.mark.statement("M7")
def test_frontiers_and_rates_stand_in_the_statistics(ledger):
    """M7: the values themselves and both rates, on the plan's row, so that a sum over workers has them once."""
    hydration_id, plan_id = planned(ledger)
    take(ledger, hydration_id)
    commit(ledger, plan_id, 0)
    assert ledger.course(hydration_id) is None
    ledger.record_sight(hydration_id, sight_at(ledger, hydration_id, {0: 10, 1: 5}, None), least_seconds=5)
    progress = total_progress(ledger.statistics(hydration_id))
    assert (progress.offset_known, progress.offset_committed) == (15, None), "unknown is NULL, never 0"
    ledger.record_sight(
        hydration_id, sight_at(ledger, hydration_id, {0: 20, 1: 5}, {0: 4}, seconds=10), least_seconds=5
    )
    course = ledger.record_sight(
        hydration_id, sight_at(ledger, hydration_id, {0: 2**63, 1: 5}, {0: 24}, seconds=20), least_seconds=5
    )
    assert ledger.course(hydration_id) == course
    assert (course.process_rate, course.verdict) == (2.0, Verdict.KEEPING_UP)
    rows = {row.worker_id: row for row in ledger.statistics(hydration_id)}
    assert (rows["plan"].offset_known, rows["plan"].offset_committed, rows["plan"].process_rate) == (2**63 + 5, 24, 2.0)
    assert rows["lane"].offset_known is rows["lane"].upstream_rate is None
    newest = ledger.samples(hydration_id, seconds=60)[-1]
    assert (newest.offset_known, newest.offset_committed, newest.process_rate) == (2**63 + 5, 24, 2.0)
    assert newest.committed == 10


def test_a_sight_that_is_no_newer_leaves_no_sample(ledger):
    hydration_id, _ = planned(ledger)
    sight = sight_at(ledger, hydration_id, {0: 10}, {0: 1})
    first = ledger.record_sight(hydration_id, sight, least_seconds=5)
    number = len(ledger.samples(hydration_id, seconds=60))
    assert ledger.record_sight(hydration_id, sight, least_seconds=5) == first
    assert len(ledger.samples(hydration_id, seconds=60)) == number


@pytest.mark.statement("M6")
def test_memory_is_sampled_on_the_same_axis_as_progress(ledger):
    """M6: each sample has time, progress and, where a lane saw it, the executors' memory."""
    hydration_id, plan_id = planned(ledger)
    take(ledger, hydration_id)
    commit(ledger, plan_id, 0)
    ledger.record_memory(hydration_id, READING)
    newest = ledger.samples(hydration_id, seconds=60)[-1]
    assert (newest.memory_used, newest.memory_limit, newest.committed, newest.in_flight) == (600, 1000, 10, 0)


@pytest.mark.statement("M11")
def test_counters_never_go_back_when_a_plan_follows(ledger):
    """M11: rows and bytes received add up over plans; progress begins again."""
    hydration_id, plan_id = planned(ledger, 1)
    take(ledger, hydration_id)
    commit(ledger, plan_id, 0, rows=10, bytes=99)
    ledger.record_sight(hydration_id, sight_at(ledger, hydration_id, {0: 10}, {0: 3}), least_seconds=5)
    ledger.finish(hydration_id)
    for number in (1, 2):
        second = replan(ledger, hydration_id, 1)
        progress = total_progress(ledger.statistics(hydration_id))
        assert (progress.messages, progress.bytes, progress.committed) == (10 * number, 99 * number, 0)
        assert (progress.offset_known, progress.offset_committed) == (10, 3)
        take(ledger, hydration_id)
        commit(ledger, second, 0, rows=10, bytes=99)
        ledger.finish(hydration_id)
    assert total_progress(ledger.statistics(hydration_id)).messages == 30


def test_samples_are_forgotten_in_small_steps(ledger):
    hydration_id, _ = planned(ledger)
    for _ in range(10):
        ledger.record_memory(hydration_id, READING)
        time.sleep(0.002)
    number = len(ledger.samples(hydration_id, seconds=60))
    assert number >= 9
    assert ledger.prune_samples(hydration_id, seconds=3600, rows=100) == 0
    assert ledger.prune_samples(hydration_id, seconds=3600, rows=3, most=2) == 2
    assert len(ledger.samples(hydration_id, seconds=60)) == number - 2
    assert ledger.prune_samples(hydration_id, seconds=3600, rows=3) == number - 5
    assert ledger.prune_samples(hydration_id, seconds=0.001, rows=100) == 3
    assert ledger.samples(hydration_id, seconds=60) == []


def test_what_does_not_exist_is_refused(ledger):
    known = register(ledger)
    sight = sight_at(ledger, known, {0: 1}, None)
    with pytest.raises(LedgerRefused):
        ledger.record_sight("0" * 32, sight, least_seconds=1)
    with pytest.raises(LedgerRefused):
        ledger.record_memory("0" * 32, READING)
    assert ledger.course("0" * 32) is None
    ledger.record_memory(known, READING)
    assert ledger.samples(known, seconds=60) == [], "without a plan there is nothing to sample"


def test_an_event_is_told_by_one_of_many(subject):
    """Several lanes see the same: one tells, and it goes on for all of them."""
    hydration_id, _ = planned(subject.ledger)
    ledgers = [subject.another() for _ in range(4)]
    looked = {"closed", "slow"}
    found = in_threads(4, lambda index: ledgers[index].note(hydration_id, {"slow": 0.0}, looked=looked).due)
    assert sorted(found) == [(), (), (), ("slow",)]
    later = subject.ledger.note(hydration_id, {"slow": 0.0, "closed": 60.0}, looked=looked)
    assert later.due == ()
    assert 50 < later.later <= 60
    subject.ledger.note(hydration_id, {}, looked=looked)
    assert subject.ledger.note(hydration_id, {"slow": 0.0}, looked=looked).due == ("slow",)
