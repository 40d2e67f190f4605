"""What pages ask of a ledger: the same as the single reads tell, in a bounded number of statements."""

import math
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_provider_backpressure.core.gate.cluster_queue import Shared
from airflow_provider_backpressure.core.gate.signals import Decision, Signal
from airflow_provider_backpressure.core.ports.ledger import Ledger
from airflow_provider_backpressure.core.progress.rates_and_eta import RECENT_SECONDS, recent_rates, total_progress
from airflow_provider_backpressure.core.progress.summary import HydrationSummary
from airflow_provider_backpressure.core.snapshot.ranges import RangeState
from airflow_provider_backpressure.core.stage_metrics import Stage, StageTime
from airflow_provider_backpressure.ledger import models
from tests.conformance.ledger.support import Subject, commit, planned, register, replan, take

FLOW = {Stage.ADMIT: StageTime(busy=1, backpressured=9), Stage.SINK: StageTime(busy=10)}


def one(ledger: Ledger, hydration_id: str) -> HydrationSummary:
    (found,) = ledger.glances(ids=[hydration_id], limit=1)
    return found


def committed(ledger: Ledger, hydration_id: str, plan_id: str, number: int) -> None:
    for _ in range(number):
        taken = take(ledger, hydration_id)
        assert commit(ledger, plan_id, taken.seq, attempt=taken.attempt)


def test_a_standing_is_what_the_single_reads_tell(ledger: Ledger):
    hydration_id, plan_id = planned(ledger, 10)
    committed(ledger, hydration_id, plan_id, 2)
    take(ledger, hydration_id)
    failed = take(ledger, hydration_id)
    ledger.release(plan_id, failed.seq, attempt=failed.attempt, error="no", fail=True)
    ledger.record_flow(hydration_id, worker="lane", times=FLOW)
    found, gate = one(ledger, hydration_id), ledger.gate(hydration_id)
    assert found.hydration == ledger.hydration(hydration_id)
    assert found.progress == total_progress(ledger.statistics(hydration_id))
    assert (found.in_flight, found.failed) == (gate.in_flight, 1) == (1, 1)
    assert found.place == gate.place
    (sample,) = ledger.history(hydration_id, seconds=60, most=1)
    assert (found.memory_used, found.memory_limit) == (sample.memory_used, sample.memory_limit)
    assert found.flow == ledger.flow(hydration_id) == FLOW
    assert found.bottleneck is Stage.SINK
    assert (found.percent, found.unit, found.reasons) == (20.0, "rows", [])


def test_the_rate_is_the_ledger_s_own(ledger: Ledger):
    hydration_id, plan_id = planned(ledger, 10)
    assert one(ledger, hydration_id).speed is None
    committed(ledger, hydration_id, plan_id, 1)
    time.sleep(1.2)  # Samples are kept a second apart, by the database's own clock.
    committed(ledger, hydration_id, plan_id, 1)
    found = one(ledger, hydration_id)
    assert found.speed == pytest.approx(ledger.rate(hydration_id), rel=0.05)
    assert found.speed is not None
    assert found.eta is not None
    history = ledger.history(hydration_id, seconds=60)
    assert len(history) >= 2
    assert [point.committed for point in history] == sorted(point.committed for point in history)
    assert [point.at for point in history] == sorted({point.at for point in history})
    (together,) = ledger.history(hydration_id, seconds=60, most=1)
    assert (together.at, together.committed) == (history[-1].at, 20) == (history[-1].at, history[-1].committed)


def test_the_spread_of_recent_rates_is_the_samples_own(on_tables: Subject):
    """The interval of the ETA, of all lines at once: as the samples of each tell it, of its plan, of five minutes."""
    ledger = on_tables.ledger
    ids = [register(ledger, sink_identity=f"postgres://w:5432/w/raw.t{number}") for number in range(3)]
    for number, hydration_id in enumerate(ids):
        plan_id = replan(ledger, hydration_id, 1 if number == 2 else 100)
        sampled(on_tables, hydration_id, "0" * 32, [10 * second for second in range(50)])
        sampled(on_tables, hydration_id, plan_id, [second * (1 + number) + second**2 // 100 for second in range(290)])
    committed(ledger, ids[2], plan_id, 1)
    ledger.finish(ids[2])
    found = {now.hydration.id: now for now in ledger.glances(ids=ids, limit=9)}
    for hydration_id in ids[:2]:
        recent = recent_rates(ledger.samples(hydration_id, seconds=RECENT_SECONDS))
        assert len(recent) > 25
        assert found[hydration_id].recent == pytest.approx(recent)
        left = found[hydration_id].eta
        assert left is not None
        assert left.soonest <= left.seconds < left.latest < math.inf
    assert (found[ids[2]].eta, len(found[ids[2]].recent)) == (None, 0), "it is complete"


def sampled(on_tables: Subject, hydration_id: str, plan_id: str, committed: list[int]) -> None:
    """Write a sample for each second, the last of them of now: time cannot be waited for."""
    now = datetime.now(UTC)
    rest = {"hydration_id": hydration_id, "plan_id": plan_id, "read_rows": 0, "in_flight": 0, "credits": 1}
    rows = [
        {**rest, "at": now - timedelta(seconds=len(committed) - 1 - second), "committed_rows": each}
        for second, each in enumerate(committed)
    ]
    engine: Any = on_tables.ledger._database.engine  # type: ignore[attr-defined]
    with engine.begin() as connection:
        connection.execute(sa.insert(models.sample), rows)


def test_every_reason_is_told(ledger: Ledger):
    """A person's hand, the queue, spent credits, the server's connections, and what was measured."""
    hydration_id, _ = planned(ledger, 10, credits=1)
    take(ledger, hydration_id)
    ledger.pause(hydration_id, who="ada", why="release night")
    signals = (
        Signal(name="executor memory", utilisation=1.2, sentence="executor memory 96% >= 80%"),
        Signal(name="credits", utilisation=1.0, sentence="an older count", measured=False),
    )
    ledger.record_decision(hydration_id, Decision(open=False, pressure=1.2, signals=signals))
    assert one(ledger, hydration_id).reasons == [
        "paused by ada: release night",
        "1 of 1 credits in flight",
        "executor memory 96% >= 80%",
    ]


def test_places_in_the_queue(ledger: Ledger):
    """H9: who waits is told its position, who runs that it may."""
    first = register(ledger)
    second = register(ledger, sink_identity="postgres://warehouse:5432/warehouse/raw.second")
    for hydration_id in (first, second):
        replan(ledger, hydration_id)
    ledger.share(Shared.HYDRATIONS, "spark_default", 1, who="ada")
    ledger.enqueue(first, run="a")
    ledger.enqueue(second, run="b")
    running, waiting = one(ledger, first), one(ledger, second)
    assert running.place.granted
    assert (waiting.place.position, waiting.place.running) == (1, 1)
    assert waiting.reasons == ["number 1 in the queue of spark_default: 1 of 1 hydrations under way"]
    assert waiting.place == ledger.gate(second).place


def test_connections_of_a_shared_server(ledger: Ledger):
    hydration_id = register(ledger, sink_server="warehouse:5432", connections=1)
    replan(ledger, hydration_id)
    take(ledger, hydration_id)
    found = one(ledger, hydration_id)
    assert (found.connections, found.connections_max) == (1, 1)
    assert "1 of 1 connections to the sink's server in use" in found.reasons


def test_pages_and_owners(ledger: Ledger):
    names = [f"raw.t{number}" for number in range(5)]
    for number, name in enumerate(names):
        register(ledger, sink_identity=f"postgres://w:5432/w/{name}", owner=f"dag_{number % 2}")
    assert ledger.owners() == {"dag_0", "dag_1"}
    assert ledger.how_many(owners=["dag_0"]) == 3
    assert ledger.how_many(owners=[]) == 0
    pages = [ledger.glances(owners={"dag_0", "dag_1"}, limit=2, offset=offset) for offset in (0, 2, 4)]
    assert [len(page) for page in pages] == [2, 2, 1]
    assert len({found.hydration.id for page in pages for found in page}) == 5
    assert {found.hydration.owner for found in ledger.glances(owners=["dag_1"], limit=9)} == {"dag_1"}
    assert ledger.glances(owners=[], limit=9) == []


def test_flow_over_time(ledger: Ledger):
    hydration_id = register(ledger)
    assert ledger.flows(hydration_id, seconds=60) == []
    for _ in range(3):
        ledger.record_flow(hydration_id, worker="lane", times=FLOW)
        time.sleep(0.01)
    (found,) = ledger.flows(hydration_id, seconds=60, most=1)
    assert found.flow[Stage.SINK] == StageTime(busy=30)


@pytest.mark.parametrize(("most", "sizes"), [(100, [1] * 10), (4, [3, 3, 3, 1]), (1, [10])])
def test_the_map_of_the_ranges(ledger: Ledger, most: int, sizes: list[int]):
    hydration_id, plan_id = planned(ledger, 10)
    assert ledger.tiles("0" * 32) == []
    committed(ledger, hydration_id, plan_id, 2)
    failed = take(ledger, hydration_id)
    ledger.release(plan_id, failed.seq, attempt=failed.attempt, error="no", fail=True)
    tiles = ledger.tiles(plan_id, most=most)
    assert [tile.ranges for tile in tiles] == sizes
    assert (tiles[0].first, tiles[-1].last) == (0, 9)
    told = {state: sum(tile.states.get(state, 0) for tile in tiles) for state in RangeState}
    counts = ledger.counts(plan_id)
    assert told == {state: getattr(counts, state.value) for state in RangeState}
    assert tiles[0].attempts == 1
    assert tiles[0].seconds is not None
    assert 0 <= tiles[0].seconds < 30


def test_the_number_of_statements_does_not_grow(on_tables: Subject):
    """Ten hydrations, or one: as many statements."""
    ids = [register(on_tables.ledger, sink_identity=f"postgres://w:5432/w/raw.t{number}") for number in range(10)]
    for hydration_id in ids:
        sampled(on_tables, hydration_id, replan(on_tables.ledger, hydration_id, 3), list(range(60)))
    asked: list[str] = []
    engine: Any = on_tables.ledger._database.engine  # type: ignore[attr-defined]
    sa.event.listen(engine, "before_cursor_execute", lambda *values: asked.append(values[2]))
    numbers = []
    for chosen in (ids[:1], ids):
        asked.clear()
        told = on_tables.ledger.glances(ids=chosen, limit=100)
        assert [len(each.recent) > 3 for each in told] == [True] * len(chosen)
        numbers.append(len(asked))
    assert numbers[0] == numbers[1] <= 14, asked


def test_whose_hydrations_are_and_on_which_clusters(ledger: Ledger):
    assert (ledger.find_owners([]), ledger.clusters()) == ({}, {})
    first = register(ledger)
    second = register(ledger, owner="bills", sink_identity="postgres://w:5432/w/raw.bills")
    third = register(ledger, owner="bills", cluster="other", sink_identity="postgres://w:5432/w/raw.more")
    assert ledger.find_owners([first, third, "0" * 32]) == {first: "orders", third: "bills"}
    assert ledger.clusters() == {"spark_default": {"orders", "bills"}, "other": {"bills"}}
    ledger.forget(third)
    assert ledger.clusters() == {"spark_default": {"orders", "bills"}}
    assert ledger.find_owners([second]) == {second: "bills"}
