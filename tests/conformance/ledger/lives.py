"""Processes that a test of the queue kills, or lets race: each opens the ledger by itself."""

import random
from multiprocessing.connection import Connection
from typing import Any

import sqlalchemy as sa

from airflow_provider_backpressure.core.gate.credit_limits import FixedLimit
from airflow_provider_backpressure.ledger.database import normalize_url
from airflow_provider_backpressure.ledger.repository import SqlLedger
from tests.conformance.ledger.support import admit, commit
from tests.support.waiting import until


def hydrate(url: str | sa.URL, hydration_id: str, told: Connection) -> None:
    """Wait for the turn, and let ranges come and go until told to ``fail`` or to ``complete``."""
    ledger = SqlLedger(url)
    while not ledger.enqueue(hydration_id, run="run").granted:
        told.poll(0.02)
    told.send("granted")
    while not told.poll(0.005):
        permit = admit(ledger, hydration_id)
        assert permit is not None
        ledger.release(permit.range.plan_id, permit.range.seq, attempt=permit.range.attempt, error="again")
    if told.recv() == "complete":
        while (permit := admit(ledger, hydration_id)) is not None:
            attempt = permit.range.attempt
            commit(ledger, permit.range.plan_id, permit.range.seq, attempt=attempt, limit=FixedLimit())
        ledger.finish(hydration_id)
    else:
        ledger.leave(hydration_id)
    told.send("over")
    ledger.close()


def take_halves(url: str | sa.URL, every: list[str], number: int) -> list[str]:
    """Hydrate one range of each source, whichever has its turn, beside a process that hydrates the other.

    A source is complete with both. Returns the sources in the order in which they were hydrated here.
    """
    ledger, chance, order = SqlLedger(url), random.Random(number), []

    def look() -> bool:
        for hydration_id in chance.sample(every, len(every)):
            if hydration_id not in order and ledger.enqueue(hydration_id, run=f"run {number}").granted:
                permit = admit(ledger, hydration_id, lane=f"lane {number}", seq=number)
                if permit is None:
                    continue
                order.append(hydration_id)
                commit(ledger, permit.range.plan_id, number, worker=f"lane {number}", limit=FixedLimit())
        return len(order) == len(every)

    until(look, timeout=60, told=lambda: f"lane {number} waits behind {order}")
    ledger.close()
    return order


def expire(url: str | sa.URL, hydration_id: str) -> None:
    """Let the time pass after which a hydration's place and ranges are nobody's: it asks no more."""
    engine = sa.create_engine(normalize_url(url))
    with engine.begin() as connection:
        for table in ("backpressure_queue", "backpressure_range"):
            change = sa.text(f"UPDATE {table} SET lease_until = '2000-01-01' WHERE hydration_id = :id")
            connection.execute(change, {"id": hydration_id})
    engine.dispose()


def settle(ledger: Any, hydration_id: str) -> None:
    """Give back what a dead lane had in flight, as the next one does that finds no marker of it."""
    for record in ledger.find_abandoned(hydration_id):
        ledger.release(record.plan_id, record.seq, attempt=record.attempt, error="its lane is gone")
