"""Takes a sample of the tables, at some point of a transaction."""

from dataclasses import replace
from datetime import datetime

from sqlalchemy.engine import Connection

from airflow_provider_backpressure.core.gate.signals import MemoryReading
from airflow_provider_backpressure.core.transitions import statistics as tallies
from airflow_provider_backpressure.core.transitions.hydration import Figures
from airflow_provider_backpressure.ledger.tables import hydration as hydrations
from airflow_provider_backpressure.ledger.tables import range as ranges
from airflow_provider_backpressure.ledger.tables import sample as samples
from airflow_provider_backpressure.ledger.tables import statistics


def taken(
    connection: Connection,
    figures: Figures,
    now: datetime,
    *,
    pressure: float | None = None,
    memory: MemoryReading | None = None,
) -> Figures:
    """Keep a sample and return the figures after it, which the caller has to save."""
    row = tallies.sample(
        now,
        statistics.read_statistics(connection, figures.id),
        in_flight=ranges.in_flight(connection, figures.id),
        credits=figures.credits,
        pressure=pressure,
        memory=memory,
    )
    samples.add(connection, hydration_id=figures.id, plan_id=figures.plan_id or "", row=row)
    return replace(figures, sampled_at=now)


def keep_sample(
    connection: Connection, figures: Figures, now: datetime, *, memory: MemoryReading | None = None
) -> None:
    """Keep a sample, but not two at the same moment; the figures are saved."""
    if figures.plan_id is not None and (figures.sampled_at is None or now > figures.sampled_at):
        taken(connection, figures, now, memory=memory)
        hydrations.keep_sampled(connection, figures.id, now)
