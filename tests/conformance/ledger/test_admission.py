"""Credits, reservations and leases."""

import threading
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from airflow_provider_backpressure.core.gate.hydration_record import RangeCounts
from airflow_provider_backpressure.core.progress.rates_and_eta import total_progress
from airflow_provider_backpressure.core.snapshot.ranges import RangeState, attempt_tag
from airflow_provider_backpressure.exceptions import LedgerRefused
from tests.conformance.ledger.support import (
    LEASE,
    admit,
    commit,
    drain,
    in_threads,
    planned,
    planned_log,
    planned_parts,
    planned_side_by_side,
    register,
    replan,
    take,
)
from tests.support.waiting import beside, until


def test_ranges_are_admitted_in_order_and_written_down_first(subject):
    """What a later life needs to find and end an attempt stands in the ledger when the permit is given."""
    ledger = subject.ledger
    hydration_id, plan_id = planned(ledger)
    record = take(ledger, hydration_id, memory_bytes=77)
    assert record == subject.another().range(plan_id, 0)
    assert (record.state, record.attempt, record.lane) == (RangeState.ADMITTED, 1, "lane")
    assert (record.session_id, record.tag) == ("session", attempt_tag(plan_id, "0.0", 1))
    assert record.memory_bytes == 77
    assert (record.lease_until - record.admitted_at).total_seconds() == pytest.approx(LEASE, abs=1)
    assert [take(ledger, hydration_id).seq for _ in range(2)] == [1, 2]


def test_every_credit_in_flight_refuses_the_next(ledger):
    hydration_id, plan_id = planned(ledger, credits=2)
    assert [take(ledger, hydration_id).seq for _ in range(2)] == [0, 1]
    assert admit(ledger, hydration_id) is None
    assert admit(ledger, hydration_id, seq=5) is None
    commit(ledger, plan_id, 1)
    assert take(ledger, hydration_id).seq == 2


def test_nothing_is_admitted_without_a_plan_or_a_planned_range(ledger):
    hydration_id = register(ledger)
    assert admit(ledger, hydration_id) is None
    replan(ledger, hydration_id, 1)
    take(ledger, hydration_id)
    assert admit(ledger, hydration_id) is None


def test_a_range_is_admitted_by_name(ledger):
    hydration_id, plan_id = planned(ledger, credits=9)
    assert take(ledger, hydration_id, seq=4).seq == 4
    assert admit(ledger, hydration_id, seq=4) is None, "it is in flight already"
    assert admit(ledger, hydration_id, seq=99) is None
    assert [take(ledger, hydration_id).seq for _ in range(5)] == [0, 1, 2, 3, 5], "in order, around it"
    commit(ledger, plan_id, 4)
    assert admit(ledger, hydration_id, seq=4) is None
    assert take(ledger, hydration_id, seq=6).seq == 6
    assert take(ledger, hydration_id).seq == 7


@pytest.mark.statement("T1")
def test_admission_never_exceeds_the_credits_however_many_ask(subject):
    """T1: lanes in many threads over several connections; every range once, never more than W in flight."""
    credits, number = 3, 60
    hydration_id, plan_id = planned(subject.ledger, number, credits=credits)
    ledgers = [subject.another() for _ in range(3)]
    lock, flying, most, admitted = threading.Lock(), set(), [0], []

    def lane(index: int) -> None:
        ledger = ledgers[index % 3]
        while len(admitted) < number:
            permit = admit(ledger, hydration_id, lane=f"lane {index}")
            if permit is None:
                time.sleep(0.002)
                continue
            with lock:
                flying.add(permit.range.seq)
                admitted.append(permit.range.seq)
                most[0] = max(most[0], len(flying))
            time.sleep(0.002)
            # Taken out before the commit: what flies by this count does so by the ledger's too.
            with lock:
                flying.discard(permit.range.seq)
            assert commit(ledger, plan_id, permit.range.seq, worker=f"lane {index}")

    seen: list[int] = []

    def sampler(over: threading.Event) -> None:
        while True:
            seen.append(subject.ledger.gate(hydration_id).in_flight)
            if over.wait(0.005):
                return

    with beside(sampler):
        in_threads(6, lane)
    assert sorted(admitted) == list(range(number))
    assert max(seen) <= credits
    assert most[0] <= credits
    assert total_progress(subject.ledger.statistics(hydration_id)).committed == number * 10
    assert subject.ledger.counts(plan_id) == RangeCounts(committed=number)


@pytest.mark.statement("T1")
def test_two_processes_never_exceed_the_credits(on_tables):
    """T1: three lanes in processes of their own share two credits, and each range is taken once."""
    credits, number = 2, 40
    hydration_id, plan_id = planned(on_tables.ledger, number, credits=credits)
    with ProcessPoolExecutor(3, mp_context=get_context("spawn")) as pool:
        lanes = [pool.submit(drain, on_tables.url, hydration_id, plan_id, f"lane {index}") for index in range(3)]
        ended = [lane.result(timeout=120) for lane in lanes]
    assert sorted(seq for taken, _ in ended for seq in taken) == list(range(number))
    assert 1 <= max(most for _, most in ended) <= credits
    assert on_tables.ledger.counts(plan_id) == RangeCounts(committed=number)


@pytest.mark.statement("T1")
def test_many_that_ask_at_the_same_moment_share_the_credits(subject):
    """T1: eight ask at once for three credits, nobody commits: exactly three are let through."""
    hydration_id, _ = planned(subject.ledger, 20, credits=3)
    ledgers = [subject.another() for _ in range(4)]
    for _ in range(3):
        permits = in_threads(8, lambda index: admit(ledgers[index % 4], hydration_id, lane=f"lane {index}"))
        given = [permit.range for permit in permits if permit is not None]
        assert len(given) == 3
        assert len({record.seq for record in given}) == 3
        for record in given:
            assert subject.ledger.release(record.plan_id, record.seq, attempt=record.attempt, error="again")


def test_lowered_credits_only_bind_at_admission(ledger):
    """T1: W is the limit at admission; what is in flight may only fall."""
    hydration_id, plan_id = planned(ledger, credits=3)
    for _ in range(3):
        take(ledger, hydration_id)
    register(ledger, credits=1)
    assert ledger.gate(hydration_id).in_flight == 3
    for seq in (0, 1):
        commit(ledger, plan_id, seq)
        assert admit(ledger, hydration_id) is None
    commit(ledger, plan_id, 2)
    assert take(ledger, hydration_id).seq == 3


def test_a_reservation_becomes_the_permit_of_the_same_attempt(ledger):
    hydration_id, _ = planned(ledger, credits=1)
    reserved = take(ledger, hydration_id, session_id="", seq=0, lease_seconds=LEASE)
    assert (reserved.session_id, reserved.attempt) == (None, 1)
    assert admit(ledger, hydration_id, lane="another", seq=0) is None, "it is another lane's"
    renewed = take(ledger, hydration_id, session_id="", seq=0, lease_seconds=2 * LEASE)
    assert renewed.lease_until > reserved.lease_until
    permit = take(ledger, hydration_id, session_id="spark", seq=0, lease_seconds=3 * LEASE)
    assert (permit.attempt, permit.tag, permit.session_id) == (1, reserved.tag, "spark")
    assert permit.lease_until > renewed.lease_until
    assert permit.admitted_at == reserved.admitted_at
    assert ledger.gate(hydration_id).in_flight == 1
    assert admit(ledger, hydration_id, session_id="spark", seq=0) is None, "it has its session: it runs already"


def test_a_reservation_that_ran_out_has_to_be_settled_first(ledger):
    hydration_id, plan_id = planned(ledger)
    take(ledger, hydration_id, session_id="", seq=0, lease_seconds=0.001)
    until(lambda: ledger.find_abandoned(hydration_id))
    assert admit(ledger, hydration_id, seq=0) is None
    ledger.release(plan_id, 0, attempt=1, error="its reservation ran out")
    assert take(ledger, hydration_id, seq=0).attempt == 2


def test_a_lease_runs_out_by_the_ledgers_clock(ledger):
    """A credit is not freed by that: somebody has to settle what the lane left."""
    hydration_id, _ = planned(ledger, credits=1)
    take(ledger, hydration_id, lease_seconds=1.0)
    assert ledger.find_abandoned(hydration_id) == []
    found = until(lambda: ledger.find_abandoned(hydration_id))
    assert [(record.seq, record.session_id, record.attempt) for record in found] == [(0, "session", 1)]
    assert ledger.gate(hydration_id).in_flight == 1
    assert admit(ledger, hydration_id) is None


def test_a_renewed_lease_runs_on(ledger):
    hydration_id, _ = planned(ledger)
    take(ledger, hydration_id, lane="a", lease_seconds=0.001)
    take(ledger, hydration_id, lane="a", lease_seconds=0.001)
    take(ledger, hydration_id, lane="b", lease_seconds=0.001)
    until(lambda: len(ledger.find_abandoned(hydration_id)) == 3)
    assert ledger.renew(hydration_id, lane="a", lease_seconds=LEASE) == 2
    assert [record.lane for record in ledger.find_abandoned(hydration_id)] == ["b"]
    assert ledger.renew(hydration_id, lane="c", lease_seconds=LEASE) == 0


def test_lanes_are_told_apart_as_they_are_spelled(ledger):
    """Whatever a database thinks of capitals and accents: one's lease is not the other's."""
    hydration_id, plan_id = planned(ledger, credits=9)
    names = ["lane", "Lane", "lané", "lane ß", "lane ss"]
    for name in names:
        take(ledger, hydration_id, lane=name)
    for seq, name in enumerate(names):
        assert [record.seq for record in ledger.find_abandoned(hydration_id, lane=name)] == [seq]
        assert ledger.renew(hydration_id, lane=name, lease_seconds=LEASE) == 1
        commit(ledger, plan_id, seq, worker=name)
    assert {row.worker_id for row in ledger.statistics(hydration_id)} == {"plan", *names}


def test_a_hydration_that_does_not_exist_has_no_leases(ledger):
    with pytest.raises(LedgerRefused, match="no hydration 0000"):
        ledger.renew("0" * 32, lane="lane", lease_seconds=LEASE)


def test_a_lane_finds_what_its_earlier_life_left(ledger):
    hydration_id, plan_id = planned(ledger)
    take(ledger, hydration_id, lane="a")
    take(ledger, hydration_id, lane="b")
    take(ledger, hydration_id, lane="a")
    commit(ledger, plan_id, 0)
    assert [record.seq for record in ledger.find_abandoned(hydration_id, lane="a")] == [2]
    assert ledger.find_abandoned(hydration_id) == []


def test_ranges_that_win_over_earlier_ones_go_one_after_another(ledger):
    """However many credits there are: the next is admitted when the one before it is in, by name or by order."""
    hydration_id, plan_id = planned_log(ledger, 4, credits=3, ordered=True)
    assert admit(ledger, hydration_id, seq=1) is None
    assert take(ledger, hydration_id).seq == 0
    assert admit(ledger, hydration_id) is None
    ledger.release(plan_id, 0, attempt=1, error="broken", fail=True)
    assert admit(ledger, hydration_id) is None
    ledger.retry_failed(plan_id)
    assert take(ledger, hydration_id).seq == 0
    commit(ledger, plan_id, 0, attempt=2)
    assert admit(ledger, hydration_id, seq=2) is None
    assert take(ledger, hydration_id, seq=1).seq == 1


def test_ranges_of_different_partitions_go_side_by_side(ledger):
    """Each when the one before it in its partition is in, whatever the others do; a failed one holds its own up."""
    # Range 0 is of the short partition; 1, 3, 5, 6 are of partition 0, and 2, 4 of partition 1.
    hydration_id, plan_id = planned_side_by_side(ledger, [4, 2], credits=4)
    assert [take(ledger, hydration_id).seq for _ in range(3)] == [0, 1, 2]
    assert admit(ledger, hydration_id) is None
    assert admit(ledger, hydration_id, seq=3) is None
    commit(ledger, plan_id, 2)
    assert take(ledger, hydration_id).seq == 4, "the one before it is of partition 0, and not in"
    commit(ledger, plan_id, 4)
    assert admit(ledger, hydration_id) is None
    ledger.release(plan_id, 1, attempt=1, error="broken", fail=True)
    assert admit(ledger, hydration_id) is None
    ledger.retry_failed(plan_id)
    assert take(ledger, hydration_id).seq == 1
    commit(ledger, plan_id, 1, attempt=2)
    for seq in (3, 5, 6):
        assert take(ledger, hydration_id).seq == seq
        assert admit(ledger, hydration_id) is None
        commit(ledger, plan_id, seq)
    commit(ledger, plan_id, 0)
    assert ledger.counts(plan_id).open == 0


def test_credits_bound_the_ranges_that_go_side_by_side(ledger):
    """A range that was passed over is admitted as soon as it may be."""
    hydration_id, plan_id = planned_side_by_side(ledger, [3, 3, 3], credits=2)
    assert [take(ledger, hydration_id).seq for _ in range(2)] == [0, 1]
    assert admit(ledger, hydration_id) is None
    commit(ledger, plan_id, 0)
    assert take(ledger, hydration_id).seq == 2
    commit(ledger, plan_id, 2)
    assert take(ledger, hydration_id).seq == 3
    commit(ledger, plan_id, 3)
    # Range 4 waits for range 1, which is in flight; 5 is of the next partition.
    assert take(ledger, hydration_id).seq == 5
    commit(ledger, plan_id, 1)
    assert take(ledger, hydration_id).seq == 4


@pytest.mark.statement("X1")
def test_parts_of_the_keys_go_side_by_side(ledger):
    """X1: each range when the one before it in its part is in; a failed one holds its own part up, and progress is
    that of the offsets, whatever the number of parts."""
    # Ranges 0, 3, 6 are of the first part, 1, 4, 7 of the second, and 2, 5, 8 of the third.
    hydration_id, plan_id = planned_parts(ledger, 3, 3, credits=4)
    assert [take(ledger, hydration_id).seq for _ in range(3)] == [0, 1, 2]
    assert admit(ledger, hydration_id) is None
    commit(ledger, plan_id, 1)
    assert take(ledger, hydration_id).seq == 4
    commit(ledger, plan_id, 4)
    assert take(ledger, hydration_id).seq == 7
    ledger.release(plan_id, 0, attempt=1, error="broken", fail=True)
    assert admit(ledger, hydration_id) is None
    for seq in (2, 7):
        commit(ledger, plan_id, seq)
    ledger.retry_failed(plan_id)
    assert [take(ledger, hydration_id).seq for _ in range(2)] == [0, 5]
    assert {ledger.range(plan_id, seq).bounds.part for seq in (2, 5, 8)} == {(2, 3)}
    commit(ledger, plan_id, 0, attempt=2)
    commit(ledger, plan_id, 5)
    for seq in (3, 6):
        commit(ledger, plan_id, take(ledger, hydration_id, seq=seq).seq)
    commit(ledger, plan_id, take(ledger, hydration_id).seq)
    assert ledger.counts(plan_id).open == 0
    assert sum(each.progress(rows=99) for each in ledger.ranges(plan_id)) == 30


def test_other_ranges_of_a_log_go_side_by_side(ledger):
    """Offsets alone are no order."""
    hydration_id, _ = planned_log(ledger, 3, credits=2, ordered=False)
    assert [take(ledger, hydration_id).seq for _ in range(2)] == [0, 1]
    assert admit(ledger, hydration_id) is None
