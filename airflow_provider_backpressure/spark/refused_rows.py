"""Rows that a target refuses: how they are kept aside and named, and the errors where none more may be."""

import json
from typing import Any

from airflow_provider_backpressure.core.snapshot.spark_messages import RangeSpec
from airflow_provider_backpressure.exceptions import QuarantineFull, SinkRefused

LONGEST = 10_000
"""Most characters of a row that are kept."""
Row = dict[str, Any]


def key_of(spec: RangeSpec, row: Row) -> str:
    """Return what a person finds a row by, as JSON: offsets of a log, the columns ranges are cut by, or the key."""
    bounds = spec.slices[0].bounds
    for names in (("partition", "offset"), bounds.get("columns", ()), spec.write.key, tuple(row)[:1]):
        if names and all(name in row for name in names):
            return as_json({name: row[name] for name in names})
    return as_json(row)


def kept_of(row: Row) -> str:
    """Return the row as it is kept."""
    return as_json(row)[:LONGEST]


def as_json(value: Row) -> str:
    """Return JSON without the characters that PostgreSQL's text cannot hold."""
    return json.dumps(value, default=_text)


def alone(spec: RangeSpec, row: Row, reason: str) -> SinkRefused:
    """Return the error of a row where none may be kept aside."""
    return SinkRefused(f"The row {key_of(spec, row)} cannot go into {spec.write.fence}: {reason}.")


def full(spec: RangeSpec, row: Row, reason: str) -> QuarantineFull:
    """Return the error of one row too many."""
    return QuarantineFull(
        f"More than {spec.write.most_bad} rows cannot go into {spec.write.fence}, the most that may be kept aside; "
        f"one of them is {key_of(spec, row)}: {reason}."
    )


def _text(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)
