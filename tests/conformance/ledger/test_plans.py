"""Saving a plan and its ranges."""

from collections.abc import Iterable
from dataclasses import replace

import pytest

from airflow_provider_backpressure.core.gate.hydration_record import Phase, RangeCounts
from airflow_provider_backpressure.core.ports.ledger import History
from airflow_provider_backpressure.core.progress.rates_and_eta import total_progress
from airflow_provider_backpressure.core.snapshot.bounds import KeyBounds
from airflow_provider_backpressure.core.snapshot.ranges import PlannedRange, RangeState
from airflow_provider_backpressure.exceptions import LedgerRefused, LedgerUnavailable, SourceUnavailable
from tests.conformance.ledger.support import admit, commit, cut, make_plan, planned, register, replan, take


def test_a_plan_comes_back_as_it_was_saved(ledger):
    hydration_id, plan = register(ledger), make_plan(frontier={"a": 2**64 - 1}, total=None, total_exact=False)
    ledger.save_plan(hydration_id, plan, cut(3))
    assert ledger.hydration(hydration_id).plan == plan


def test_a_newer_epoch_of_the_same_plan_is_written_down(ledger):
    """And one of a plan that is not the current one is not, nor an older one."""
    hydration_id, plan = register(ledger), make_plan()
    ledger.save_plan(hydration_id, plan, cut(3))
    ledger.take_over(hydration_id, replace(plan, epoch=plan.epoch + 1))
    assert ledger.hydration(hydration_id).plan == replace(plan, epoch=plan.epoch + 1)
    for other in (make_plan(), plan):
        ledger.take_over(hydration_id, other)
        assert ledger.hydration(hydration_id).plan == replace(plan, epoch=plan.epoch + 1)
    assert ledger.counts(plan.plan_id).planned == 3


def test_a_newer_epoch_is_written_down_also_by_one_who_knows_what_was_stored(ledger):
    """What the caller believes makes no difference to the result, whether it is right or not."""
    hydration_id, plan = register(ledger), make_plan()
    ledger.save_plan(hydration_id, plan, cut(3))
    second, third = replace(plan, epoch=plan.epoch + 1), replace(plan, epoch=plan.epoch + 2)
    ledger.take_over(hydration_id, second, before=plan)
    assert ledger.hydration(hydration_id).plan == second
    ledger.take_over(hydration_id, third, before=plan)
    assert ledger.hydration(hydration_id).plan == third
    for older in (plan, second):
        ledger.take_over(hydration_id, older, before=third)
        ledger.take_over(hydration_id, older, before=older)
        assert ledger.hydration(hydration_id).plan == third
    other = make_plan()
    ledger.save_plan(hydration_id, other, cut(1))
    ledger.take_over(hydration_id, replace(third, epoch=third.epoch + 1), before=third)
    assert ledger.hydration(hydration_id).plan == other


def test_ranges_come_back_in_order_and_by_page(ledger):
    _, plan_id = planned(ledger, 25)
    records = ledger.ranges(plan_id)
    assert [record.seq for record in records] == list(range(25))
    assert [record.seq for record in ledger.ranges(plan_id, after_seq=9, limit=5)] == [10, 11, 12, 13, 14]
    assert ledger.ranges(plan_id, states=[RangeState.COMMITTED, RangeState.FAILED]) == []
    assert ledger.ranges("0" * 32) == []
    assert ledger.range(plan_id, 7) == records[7]
    assert records[7].bounds == KeyBounds.of_column(column="id", start="70", end="80")
    assert (records[7].planned_rows, records[7].planned_bytes, records[7].attempt) == (10, 1000, 0)
    assert (records[7].state, records[7].rows, records[7].tag) == (RangeState.PLANNED, None, None)
    with pytest.raises(LedgerRefused, match="no range 25"):
        ledger.range(plan_id, 25)


def test_boundaries_may_hold_any_text(ledger):
    texts = ["\\", "\\N", "\\.", "a\tb", "a\nb\r", "'", '"', "ä€𝄞", "", "{}", "\x01", "%s", ":name"]
    bounds = [KeyBounds.of_column(column="k\\", start=text, end=None) for text in texts]
    bounds.append(KeyBounds.of_column(column="k", start=None, end="x"))
    hydration_id, plan = register(ledger), make_plan()
    ledger.save_plan(
        hydration_id, plan, (PlannedRange(seq=seq, bounds=b, rows=0, bytes=0) for seq, b in enumerate(bounds))
    )
    assert [record.bounds for record in ledger.ranges(plan.plan_id)] == bounds


def test_a_plan_without_ranges_is_finished_at_once(ledger):
    """An empty source: nothing to admit, and hydrated."""
    hydration_id, plan_id = planned(ledger, 0, total=0)
    assert admit(ledger, hydration_id) is None
    assert ledger.gate(hydration_id).waiting == 0
    assert ledger.finish(hydration_id).phase is Phase.STEADY_STATE
    assert ledger.counts(plan_id) == RangeCounts()


def test_a_plan_whose_ranges_cannot_be_cut_leaves_nothing_behind(ledger):
    hydration_id, first = planned(ledger, 2)
    broken = make_plan()

    def breaking() -> Iterable[PlannedRange]:
        yield from cut(6000)
        raise SourceUnavailable("the source went away")

    with pytest.raises(SourceUnavailable, match="the source went away"):
        ledger.save_plan(hydration_id, broken, breaking())
    assert ledger.ranges(broken.plan_id) == []
    assert ledger.hydration(hydration_id).plan.plan_id == first


def test_others_write_while_a_plan_is_being_cut(on_tables):
    """However long the source takes for it: nobody waits, and no transaction does, which MySQL would end."""
    hydration_id, plan = register(on_tables.ledger), make_plan()
    another = on_tables.another()

    def slow() -> Iterable[PlannedRange]:
        for planned_range in cut(6000):
            if planned_range.seq == 5500:
                register(another, sink_identity="another")
                assert waiting_transactions(another) == []
            yield planned_range

    assert on_tables.ledger.save_plan(hydration_id, plan, slow()) == 6000
    assert on_tables.ledger.counts(plan.plan_id).planned == 6000


def waiting_transactions(ledger) -> list[int]:
    """Return the sessions of MySQL that are in a transaction."""
    engine = ledger._database.engine
    if engine.dialect.name != "mysql":
        return []
    with engine.connect() as connection:
        found = connection.exec_driver_sql("SELECT trx_mysql_thread_id FROM information_schema.innodb_trx").all()
    return [row[0] for row in found]


def test_a_plan_that_is_pruned_while_it_is_being_cut_is_refused(ledger):
    """Whole or not at all: what prunes finds no run that has the hydration, and a plan that nobody has begun."""
    hydration_id, first = planned(ledger, 2)
    plan = make_plan()

    def slow() -> Iterable[PlannedRange]:
        for planned_range in cut(6000):
            if planned_range.seq == 5500:
                for found in ledger.find_superseded(History(seconds=0, plans=None)):
                    ledger.prune_plan(found, most=6000)
            yield planned_range

    refused = ""
    try:
        ledger.save_plan(hydration_id, plan, slow())
    except LedgerUnavailable as error:
        refused = str(error)
    current = ledger.hydration(hydration_id).plan.plan_id
    if refused:
        assert f"1000 of 6000 ranges of plan {plan.plan_id} are left" in refused
        assert (current, ledger.ranges(plan.plan_id)) == (first, [])
    else:
        assert (current, ledger.counts(plan.plan_id).planned) == (plan.plan_id, 6000)


def test_a_plan_is_saved_once(ledger):
    hydration_id, plan = register(ledger), make_plan()
    ledger.save_plan(hydration_id, plan, cut(2))
    with pytest.raises(LedgerRefused):
        ledger.save_plan(hydration_id, plan, cut(2))


def test_a_second_plan_takes_the_place_of_the_first(ledger):
    """Statistics begin again; the earlier plan's ranges stay, and what is in flight of them still holds its credit."""
    hydration_id, first = planned(ledger, 5)
    take(ledger, hydration_id)
    held = take(ledger, hydration_id)
    commit(ledger, first, 0)
    second = replan(ledger, hydration_id, 4, total=40)
    assert ledger.hydration(hydration_id).plan.plan_id == second
    assert ledger.counts(first) == RangeCounts(planned=3, admitted=1, committed=1)
    assert [(row.worker_id, row.snapshot_total) for row in ledger.statistics(hydration_id)] == [("plan", 40)]
    assert ledger.gate(hydration_id).in_flight == 1
    assert [record.plan_id for record in ledger.find_abandoned(hydration_id, lane="lane")] == [first]
    assert take(ledger, hydration_id).plan_id == second
    assert take(ledger, hydration_id).seq == 1
    assert admit(ledger, hydration_id) is None, "the earlier plan's range holds the third credit"
    assert commit(ledger, first, held.seq) is True
    assert ledger.range(first, held.seq).state is RangeState.COMMITTED
    assert total_progress(ledger.statistics(hydration_id)).committed == 0
    assert take(ledger, hydration_id).seq == 2
