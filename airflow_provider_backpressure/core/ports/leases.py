"""Leases of ranges in flight: a lane renews them, and one that has run out is anybody's to settle."""

from airflow_provider_backpressure.core.ports.ledger import Ledger


def count_leased(ledger: Ledger, hydration_id: str) -> int:
    """Return how many ranges of a hydration are in flight under a lease that has not run out."""
    return max(0, ledger.gate(hydration_id).in_flight - len(ledger.find_abandoned(hydration_id)))
