"""How far a topic is committed, while its ranges are committed in any order and cut into smaller ones."""

import random

import pytest

from airflow_provider_backpressure.core.config import Consistency
from airflow_provider_backpressure.core.monitoring import committed_frontier as module
from airflow_provider_backpressure.core.monitoring.committed_frontier import STILL, unread
from airflow_provider_backpressure.core.snapshot.bounds import OffsetBounds
from airflow_provider_backpressure.core.snapshot.ranges import PlannedRange
from airflow_provider_backpressure.core.snapshot.spark_messages import ReadSpec
from airflow_provider_backpressure.core.snapshot.topic_offsets import LogWindow, pack_pieces
from airflow_provider_backpressure.testing import COLUMNS, MemoryLedger
from tests.conformance.ledger.support import commit, make_plan, register, take
from tests.support.marks import mark_long

PARTITIONS, OFFSETS = 4, 60
WINDOW = LogWindow(topic="t", topic_id="1", start=dict.fromkeys(range(PARTITIONS), 7), end={0: 67, 1: 67, 2: 67, 3: 67})


def topic(ledger: MemoryLedger) -> tuple[str, str]:
    ranges = [
        PlannedRange(seq=seq, bounds=bounds, rows=bounds.offsets, bytes=1)
        for seq, bounds in enumerate(pack_pieces(WINDOW.pieces(), offsets=12))
    ]
    plan = make_plan(
        consistency=Consistency.OFFSETS,
        total=WINDOW.total,
        ranges=len(ranges),
        read=ReadSpec(kind="kafka", conn_id="k", columns=COLUMNS, window=WINDOW.window(None)),
    )
    hydration_id = register(ledger, source_identity="kafka://t", credits=99)
    ledger.save_plan(hydration_id, plan, ranges)
    return hydration_id, plan.plan_id


@pytest.mark.statement("F7", "M8")
@pytest.mark.parametrize("most", [3, 6, 1000])
@pytest.mark.parametrize("seed", mark_long(range(12), quick=range(3)))
def test_it_is_never_told_as_further_than_it_is(monkeypatch: pytest.MonkeyPatch, most: int, seed: int) -> None:
    """F7, M8: whatever was cut; exact where the open ones are few enough to be asked for at once."""
    monkeypatch.setattr(module, "MOST", most)
    draw, ledger = random.Random(seed), MemoryLedger()
    hydration_id, plan_id = topic(ledger)
    for _ in range(80):
        still = ledger.ranges(plan_id, states=STILL)
        if not still:
            break
        held = take(ledger, hydration_id, seq=draw.choice(still).seq)
        if draw.random() < 0.35 and held.bounds.offsets > 1:
            parts = draw.randint(2, 4)
            pieces = list(pack_pieces(held.bounds.pieces, offsets=-(-held.bounds.offsets // parts)))
            ledger.recut(plan_id, held.seq, attempt=held.attempt, pieces=pieces)
        else:
            commit(ledger, plan_id, held.seq)
        told, true = unread(ledger.hydration(hydration_id).plan, ledger)(), true_offsets(ledger, plan_id)
        assert all(told[partition] <= true[partition] for partition in WINDOW.end)
        if len(ledger.ranges(plan_id, states=STILL)) < most:
            assert told == true


def true_offsets(ledger: MemoryLedger, plan_id: str) -> dict[int, int]:
    """Return the first offset that is open, of each partition, by every open range."""
    first = dict(WINDOW.end)
    for record in ledger.ranges(plan_id, states=STILL):
        assert isinstance(record.bounds, OffsetBounds)
        for partition, start, _ in record.bounds.pieces:
            first[partition] = min(first[partition], start)
    return first
