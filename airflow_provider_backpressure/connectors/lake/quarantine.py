"""The table beside a table of files, of the same kind, that takes the rows which it cannot."""

import json
from dataclasses import replace

from airflow_provider_backpressure.connectors.lake.markers import Attempt
from airflow_provider_backpressure.connectors.lake.table import LakeTable, address_of, open_table
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.snapshot.messages import Column
from airflow_provider_backpressure.exceptions import SinkUnavailable

ENDING = "_quarantine"
COLUMNS = (
    Column(name="plan_id", type="text", nullable=False),
    Column(name="slice_id", type="text", nullable=False),
    Column(name="target", type="text", nullable=False),
    Column(name="key", type="text", nullable=False),
    Column(name="reason", type="text", nullable=False),
    Column(name="row", type="text", nullable=False),
    Column(name="at", type="timestamp with time zone", nullable=False),
)
"""As ``backpressure_quarantine`` of a PostgreSQL target has them."""


def address_beside(address: str) -> str:
    """Return where the rows of the table at an address are kept aside."""
    parts = json.loads(address)
    named = "table" if "table" in parts else "path"
    return address_of(**{**parts, named: parts[named] + ENDING})


def open_beside(kind: str, address: str, endpoint: Endpoint) -> LakeTable:
    """Return the table beside the one at an address."""
    return open_table(kind, address_beside(address), endpoint)


def attempt_at(table: LakeTable, attempt: Attempt) -> Attempt:
    """Return the attempt as the quarantine table has it, whose epochs differ."""
    holder = table.holder()
    if holder is None:
        raise SinkUnavailable(f"{table.name} has no plan: it was removed while plan {attempt.plan_id} is under way.")
    holder.check_plan(attempt.plan_id, table.name)
    return replace(attempt, epoch=holder.epoch, moves=())
