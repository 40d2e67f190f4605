"""What waiting costs with push, beside polling in the same run: as ratios and counts, never as seconds of a machine."""

import argparse
import statistics

import pytest

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.ledger.migration import migrate
from benchmarks import push
from benchmarks.accounting import TICK
from dev.services import Server
from tests.conformance.ledger.support import address

# It measures, and so needs a machine for itself.
pytestmark = [pytest.mark.integration, pytest.mark.long]

IDLE = 5.0
"""Seconds for which the cost of waiting is counted."""


@pytest.mark.statement("P1", "P2")
@pytest.mark.timeout(600)
def test_push_is_sooner_and_cheaper_than_polling(database: Endpoint, postgres: Server) -> None:
    """P1: a tenth of polling's latency at most. P2: reads do not grow with the waiters, and CPU is 25 times less.

    P1 compares with one that polls every two seconds, P2's CPU with one that polls so often that it is as soon as push.
    The kernel counts CPU in ticks, so one at each end tells nothing.
    """
    migrate(found := address(database))
    url = found.render_as_string(hide_password=False)

    def measure(side: str, waiters: int, *, samples: int = 5, idle: float = IDLE) -> push.Found:
        wanted = argparse.Namespace(idle=idle, samples=samples, seconds=60.0)
        return push.measure(side, waiters, postgres, url, database, wanted)

    one, many = measure(push.PUSH, 1), measure(push.PUSH, 100)
    rare, soon = measure(push.RARE, 1, idle=0.1), measure(push.SOON, 1, samples=1)
    for pushed in (one, many):
        assert statistics.median(pushed.latencies) <= statistics.median(rare.latencies) / 10, (pushed, rare)
    assert many.queries <= one.queries + 2, (one, many)
    assert many.queries <= soon.queries / 10, (many, soon)
    assert one.cpu - 2 / TICK / IDLE <= soon.cpu / 25, (one, soon)
