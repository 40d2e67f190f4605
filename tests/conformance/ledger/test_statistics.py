"""What is counted: progress, totals, rates."""

import threading
import time

import pytest

from airflow_provider_backpressure.core.gate.hydration_record import Phase
from airflow_provider_backpressure.core.progress.rates_and_eta import WorkerStatistics, total_progress
from airflow_provider_backpressure.core.snapshot.spark_messages import Transform
from airflow_provider_backpressure.core.stage_metrics import Stage, StageTime
from tests.conformance.ledger.support import commit, in_threads, planned, planned_log, replan, take
from tests.support.waiting import beside, until


@pytest.mark.statement("M2")
def test_statistics_have_a_row_per_worker_and_can_be_summed(ledger):
    """M2: a row per lane, summable over workers into one number per source."""
    hydration_id, plan_id = planned(ledger, 4, credits=9)
    for seq, (worker, rows) in enumerate((("a", 10), ("b", 20), ("a", 30))):
        take(ledger, hydration_id, lane=worker)
        commit(ledger, plan_id, seq, worker=worker, rows=rows, bytes=rows * 8)
    rows = {row.worker_id: row for row in ledger.statistics(hydration_id)}
    assert sorted(rows) == ["a", "b", "plan"]
    assert {name: row.snapshot_progress for name, row in rows.items()} == {"a": 40, "b": 20, "plan": 0}
    assert (rows["a"].messages_received, rows["a"].bytes_received, rows["a"].snapshot_total) == (40, 320, None)
    assert (rows["plan"].snapshot_total, rows["plan"].snapshot_total_exact) == (100, True)
    progress = total_progress(list(rows.values()))
    assert (progress.total, progress.total_exact, progress.committed, progress.read) == (100, True, 60, 60)
    assert rows["a"].updated_at >= rows["plan"].updated_at


@pytest.mark.statement("M2")
def test_counts_are_unsigned_and_have_64_bits(ledger):
    """M2: nothing is lost or rounded up to 2^64 - 1."""
    most = 2**64 - 1
    hydration_id, plan_id = planned(ledger, 3, total=most)
    for seq, rows in enumerate((2**63 - 1, 2**63, 0)):
        take(ledger, hydration_id)
        commit(ledger, plan_id, seq, rows=rows, bytes=rows)
    progress = total_progress(ledger.statistics(hydration_id))
    assert (progress.total, progress.committed, progress.read, progress.bytes) == (most, most, most, most)
    assert [record.rows for record in ledger.ranges(plan_id)] == [2**63 - 1, 2**63, 0]
    ledger.record_read(hydration_id, worker="other", in_flight_rows=most)
    assert {row.worker_id: row.snapshot_read for row in ledger.statistics(hydration_id)}["other"] == most
    assert ledger.finish(hydration_id).phase is Phase.STEADY_STATE


def test_a_range_of_offsets_that_is_opened_again_takes_all_of_them_back(ledger):
    """Markers of transactions leave offsets without a row: its commit had counted these too."""
    hydration_id, plan_id = planned_log(ledger, 2, credits=2, ordered=False, total=20)

    def committed():
        return total_progress(ledger.statistics(hydration_id)).committed

    commit(ledger, plan_id, 0, rows=7)
    commit(ledger, plan_id, 1, rows=10)
    assert committed() == 20
    assert ledger.reopen(plan_id, 0, who="ada")
    assert committed() == 10
    commit(ledger, plan_id, 0, rows=7)
    assert committed() == 20


@pytest.mark.statement("M3")
def test_an_unknown_total_is_null_until_it_is_known(ledger):
    """M3: unknown is NULL, never 0; an estimate is flagged and replaced when the exact number is known."""
    hydration_id, plan_id = planned(ledger, 1, total=None, total_exact=False)
    assert total_progress(ledger.statistics(hydration_id)).total is None
    assert total_progress(ledger.statistics(hydration_id)).percent is None
    commit(ledger, plan_id, 0, rows=12)
    ledger.finish(hydration_id)
    progress = total_progress(ledger.statistics(hydration_id))
    assert (progress.total, progress.total_exact, progress.percent) == (12, True, 100.0)


@pytest.mark.statement("M3", "M4")
def test_an_estimated_total_gives_way_to_what_was_committed(ledger):
    """M3, M4: at the end the total is exact, and progress equals it."""
    hydration_id, plan_id = planned(ledger, 2, total=17, total_exact=False)
    assert total_progress(ledger.statistics(hydration_id)).total_exact is False
    for seq in (0, 1):
        commit(ledger, plan_id, seq)
    ledger.finish(hydration_id)
    progress = total_progress(ledger.statistics(hydration_id))
    assert (progress.total, progress.total_exact, progress.committed) == (20, True, 20)


def test_an_exact_total_that_was_missed_stays_for_verification_to_speak(ledger):
    hydration_id, plan_id = planned(ledger, 1, total=17)
    commit(ledger, plan_id, 0)
    ledger.finish(hydration_id)
    progress = total_progress(ledger.statistics(hydration_id))
    assert (progress.total, progress.committed) == (17, 10)


@pytest.mark.statement("M4", "M5")
def test_what_was_read_never_goes_back_and_is_kept_beside_what_was_committed(ledger):
    """M4, M5: progress is what the sink has committed; rows read may be ahead by what is in flight, never behind."""
    hydration_id, plan_id = planned(ledger)
    take(ledger, hydration_id)

    def row() -> WorkerStatistics:
        return next(row for row in ledger.statistics(hydration_id) if row.worker_id == "lane")

    ledger.record_read(hydration_id, worker="lane", in_flight_rows=4)
    assert (row().snapshot_read, row().snapshot_progress) == (4, 0)
    ledger.record_read(hydration_id, worker="lane", in_flight_rows=2)
    assert row().snapshot_read == 4
    commit(ledger, plan_id, 0, rows=10)
    assert (row().snapshot_read, row().snapshot_progress) == (10, 10)
    ledger.record_read(hydration_id, worker="lane", in_flight_rows=3)
    assert (row().snapshot_read, row().snapshot_progress) == (13, 10)
    take(ledger, hydration_id)
    commit(ledger, plan_id, 1, rows=1)
    assert (row().snapshot_read, row().snapshot_progress) == (13, 11)


@pytest.mark.statement("M4")
def test_progress_is_monotone_under_concurrent_commits(subject):
    """M4: whoever looks never sees progress go back, and the sum is exact in the end."""
    number = 40
    hydration_id, plan_id = planned(subject.ledger, number, credits=number)
    for _ in range(number):
        take(subject.ledger, hydration_id)
    ledgers = [subject.another() for _ in range(4)]
    seen = []

    def look(over: threading.Event) -> None:
        while not over.wait(0.002):
            progress = total_progress(subject.ledger.statistics(hydration_id))
            seen.append((progress.committed, progress.read))

    with beside(look):
        in_threads(4, lambda index: [commit(ledgers[index], plan_id, seq) for seq in range(index, number, 4)])
    assert seen == sorted(seen)
    assert all(committed <= read for committed, read in seen)
    assert total_progress(subject.ledger.statistics(hydration_id)).committed == 10 * number


def test_the_rate_is_known_from_two_samples_on(ledger):
    hydration_id, plan_id = planned(ledger, 200, credits=1)
    assert ledger.rate(hydration_id) is None
    begun = time.monotonic()
    take(ledger, hydration_id)
    assert ledger.rate(hydration_id) is None
    seqs = iter(range(200))

    def one_more() -> float | None:
        commit(ledger, plan_id, next(seqs))
        take(ledger, hydration_id)
        time.sleep(0.05)
        return ledger.rate(hydration_id)

    rate = until(one_more)
    # The first sample is at the first admission and the second at the first commit a second later.
    assert 10 / (time.monotonic() - begun) < rate <= 10 / 0.05
    replan(ledger, hydration_id, 2)
    assert ledger.rate(hydration_id) is None, "another plan's samples tell nothing"


@pytest.mark.statement("M2", "M3")
def test_a_log_is_counted_in_offsets(ledger):
    """M2, M3: progress reaches the exact total though fewer rows came of it, also behind a transform."""
    hydration_id, plan_id = planned_log(
        ledger, 2, credits=2, ordered=False, total=20, transform=Transform(sql="SELECT 1 FROM source")
    )
    for seq, rows in enumerate((3, 0)):
        take(ledger, hydration_id)
        commit(ledger, plan_id, seq, rows=rows)
    statistics = ledger.statistics(hydration_id)
    progress = total_progress(statistics)
    assert (progress.total, progress.total_exact, progress.committed, progress.percent) == (20, True, 20, 100.0)
    assert sum(worker.messages_received for worker in statistics) == 3


@pytest.mark.statement("F4")
def test_what_the_stages_did_is_summed_over_workers_and_time(ledger):
    """F4: of the seconds that are asked for only."""
    hydration_id, _ = planned(ledger)
    assert ledger.flow(hydration_id) == {}
    ledger.record_flow(hydration_id, worker="a", times={Stage.ADMIT: StageTime(busy=1, backpressured=3)})
    ledger.record_flow(
        hydration_id, worker="b", times={Stage.ADMIT: StageTime(idle=2), Stage.SINK: StageTime(busy=0.5)}
    )
    assert ledger.flow(hydration_id) == {
        Stage.ADMIT: StageTime(busy=1, idle=2, backpressured=3),
        Stage.SINK: StageTime(busy=0.5),
    }
    until(lambda: ledger.flow(hydration_id, seconds=0.01) == {})
