"""In-memory implementations of the ports, for tests of this package and of those who build on it.

They keep the contracts of :mod:`airflow_provider_backpressure.core.ports`; the conformance suites run over them too.
"""

from airflow_provider_backpressure.testing.ledger import MemoryLedger
from airflow_provider_backpressure.testing.runner import MemoryRunner
from airflow_provider_backpressure.testing.sink import COLUMNS, ManualClock, MemoryHealth, MemoryScratch, MemorySink
from airflow_provider_backpressure.testing.source import MemoryKeeper, MemorySource

__all__ = [
    "COLUMNS",
    "ManualClock",
    "MemoryHealth",
    "MemoryKeeper",
    "MemoryLedger",
    "MemoryRunner",
    "MemoryScratch",
    "MemorySink",
    "MemorySource",
]
