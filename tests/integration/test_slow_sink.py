"""T4: a target that slows down to a tenth, to a fiftieth, and stands still: nothing drowns, and the gate says why."""

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest

from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.ledger.repository import SqlLedger
from benchmarks.accounting import resident_bytes
from dev.proxy import Proxy
from dev.services import Server
from tests.support.composed import Composed, difference
from tests.support.postgres import run
from tests.support.waiting import until

pytestmark = [pytest.mark.integration, pytest.mark.long]

SECONDS = 120.0
"""In which what is waited for comes."""
ROWS, RANGE_ROWS, ROW_BYTES = 400_000, 2_000, 110
FAST = 8_000_000.0
"""Bytes per second that count as the target's full speed."""
HELD = 60.0
"""Seconds for which it stands still."""
DROWNED = 5.0


@pytest.fixture
def proxy(database: Endpoint) -> Iterator[Proxy]:
    made = Proxy(database.host, database.port)
    yield made
    made.close()


@pytest.mark.statement("T4", "F2")
@pytest.mark.timeout(900)
@pytest.mark.fault(21)
def test_memory_does_not_grow_while_the_sink_slows_down(
    database: Endpoint, proxy: Proxy, connect: Server, ledger_url: str
) -> None:
    """T4, F2: the peak of Spark's memory stays within a tenth; while the gate is closed nothing begins."""
    run(
        database,
        "CREATE TABLE t (id bigint PRIMARY KEY, body text NOT NULL)",
        f"INSERT INTO t SELECT i, repeat(md5(i::text), 3) FROM generate_series(1, {ROWS}) i",
        "ANALYZE t",
    )
    budget = Budget(credits=3, range_rows=RANGE_ROWS, commit_seconds=DROWNED)
    composed = Composed(
        source=database,
        sink=replace(database, host="127.0.0.1", port=proxy.port),
        ledger_url=ledger_url,
        remote=connect.url,
        ui_url=connect.ui_url,
        budget=budget,
    )
    plan = composed.plan()
    peaks: dict[float, int] = {}
    lane = threading.Thread(target=composed.run)
    with closing(SqlLedger(ledger_url)) as ledger:

        def committed() -> int:
            return ledger.counts(plan.plan.plan_id).committed

        def at(speed: float, ranges: int) -> None:
            """Watch so many ranges come in at a part of the speed."""
            proxy.bytes_per_second = speed * FAST
            wanted = committed() + ranges
            while committed() < wanted:
                assert lane.is_alive()
                peaks[speed] = max(peaks.get(speed, 0), resident_bytes(connect.pid))
                assert ledger.gate(plan.hydration.id).in_flight <= budget.credits
                time.sleep(0.1)

        proxy.bytes_per_second = FAST
        lane.start()
        at(1.0, 30)
        at(0.1, 10)
        at(0.02, 4)
        proxy.bytes_per_second = 0
        until(lambda: (ledger.gate(plan.hydration.id).oldest_seconds or 0) > DROWNED, SECONDS)
        until(lambda: "s >= 5 s" in str(ledger.hydration(plan.hydration.id).decision), SECONDS)
        before, began = ledger.gate(plan.hydration.id), time.monotonic()
        while time.monotonic() - began < HELD:
            now = ledger.gate(plan.hydration.id)
            assert now.in_flight <= before.in_flight
            peaks[0] = max(peaks.get(0, 0), resident_bytes(connect.pid))
            time.sleep(0.2)
        assert committed() >= 44
        proxy.bytes_per_second = None
        lane.join(300)
        assert not lane.is_alive()
    assert difference(database, "public.t", database, "raw.t") == (0, 0)
    assert max(peaks[0.1], peaks[0.02], peaks[0]) <= 1.1 * peaks[1.0], peaks
