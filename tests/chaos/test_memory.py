"""Fault 22: a range takes more memory than its executor has."""

import re
from dataclasses import replace

import pytest

from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.execution.lane_submission import Outcome
from airflow_provider_backpressure.core.snapshot.bounds import KeyBounds, Values
from airflow_provider_backpressure.core.snapshot.ranges import RangeRecord, RangeState
from airflow_provider_backpressure.core.snapshot.spark_messages import Transform
from tests.chaos.drained import Drained, Session
from tests.support.composed import Composed
from tests.support.postgres import run

pytestmark = [pytest.mark.integration, pytest.mark.fault(22), pytest.mark.timeout(300)]

ROWS, RANGE_ROWS = 4_000, 2_000


def ends(record: RangeRecord) -> tuple[Values | None, Values | None]:
    """Return where a range of keys begins and ends."""
    assert isinstance(record.bounds, KeyBounds)
    return record.bounds.start, record.bounds.end


@pytest.mark.statement("X2")
@pytest.mark.parametrize("way", ["narrow", "killed"])
@pytest.mark.long
def test_a_range_that_is_too_large_is_cut_until_it_fits(
    database: Endpoint, ledger_url: str, session: Session, hydration: Composed, way: str
) -> None:
    """X2: in halves that stand for it; what did not fit is refused by the sink from then on, and all rows arrive."""
    run(
        database,
        "CREATE TABLE t (id bigint PRIMARY KEY, body text NOT NULL)",
        f"INSERT INTO t SELECT i, md5(i::text) FROM generate_series(1, {ROWS}) i",
        "ANALYZE t",
    )
    composed = replace(
        hydration,
        budget=Budget(credits=2, range_rows=RANGE_ROWS),
    )
    runner = session(composed)
    with composed.open(runner) as ports:
        planner = replace(ports.planner(), transform=Transform(python=f"tests.integration.transforms:{way}"))
        plan = planner.plan().plan
        assert ports.hydrator().run().outcome is Outcome.DONE
        records, markers = ports.ledger.ranges(plan.plan_id), ports.sink.markers(plan.plan_id)
    cut = [record for record in records if record.state is RangeState.REVOKED]
    assert {record.seq for record in cut} >= {0, 1}
    assert {slice_id for slice_id, marker in markers.items() if marker.revoked} == {each.slice_id for each in cut}
    assert {record.rows for record in records if record.state is RangeState.COMMITTED} <= set(range(1, 1_001))
    by_seq = {record.seq: record for record in records}
    for record in cut:
        first, second = (by_seq[int(seq)] for seq in re.findall(r"\d+", record.error or ""))
        assert (ends(first)[0], ends(first)[1], ends(second)[1]) == (ends(record)[0], ends(second)[0], ends(record)[1])
        assert first.planned_rows == second.planned_rows == -(-record.planned_rows // 2)
    Drained(composed=composed, runner=runner, direct=ledger_url, plan_id=plan.plan_id, ranges=2).check()
