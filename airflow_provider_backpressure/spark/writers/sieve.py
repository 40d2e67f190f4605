"""Rows that the target's types refuse: found one by one, named, and kept aside where the user wants that."""

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import psycopg
import pyarrow
from psycopg import sql

from airflow_provider_backpressure.core.messages import RangeSpec
from airflow_provider_backpressure.exceptions import SinkRefused
from airflow_provider_backpressure.postgres.errors import words

LONGEST = 10_000
"""Most characters of a row that are kept."""
_COLUMN = re.compile(r", column ([^:]+)")


class Sieve:
    """Puts batches into the stage; a batch that is refused is halved until its bad rows stand alone.

    Each piece is tried under a savepoint. Its transaction is that of the range: what is kept aside is committed with
    the rows and the marker, or not at all.
    """

    def __init__(self, connection: psycopg.Connection, spec: RangeSpec, slice_id: str) -> None:
        self.bad = 0
        """Rows kept aside so far."""
        self._connection, self._spec, self._slice_id = connection, spec, slice_id
        self._before = self._kept() if spec.write.quarantine else 0

    def put(self, batch: pyarrow.RecordBatch, put: Callable[[pyarrow.RecordBatch], None]) -> None:
        """Write a batch but for the rows that are refused; ``SinkRefused`` for one that may not be kept aside.

        ``put`` writes a batch into the stage and raises psycopg's error where a row of it is refused.
        """
        try:
            with self._connection.transaction():
                put(batch)
        except psycopg.DataError as error:
            if batch.num_rows == 1:
                self.refuse(batch.to_pylist()[0], _reason(error))
                return
            half = batch.num_rows // 2
            self.put(batch.slice(0, half), put)
            self.put(batch.slice(half), put)

    def check(self, waiting: Sequence[tuple[dict[str, Any], str]]) -> None:
        """``SinkRefused`` where there will be no room for what waits to be kept aside."""
        if waiting and self._before + self.bad + len(waiting) > self._spec.write.most_bad:
            raise self._full(*waiting[-1])

    def refuse(self, row: dict[str, Any], reason: str) -> None:
        """Keep a row aside with its key and the reason; ``SinkRefused`` where there is no room for it."""
        write, key = self._spec.write, _json(self._key(row))
        if write.quarantine is None:
            raise SinkRefused(f"The row {key} cannot go into {write.fence}: {reason}.")
        self.bad += 1
        if self._before + self.bad > write.most_bad:
            raise self._full(row, reason)
        self._connection.execute(
            sql.SQL(
                "INSERT INTO {} (plan_id, slice_id, target, key, reason, row) VALUES (%s, %s, %s, %s, %s, %s)"
            ).format(sql.SQL(write.quarantine)),
            (self._spec.plan_id, self._slice_id, write.fence, key, reason, _json(row)[:LONGEST]),
        )

    def _full(self, row: dict[str, Any], reason: str) -> SinkRefused:
        write = self._spec.write
        return SinkRefused(
            f"More than {write.most_bad} rows cannot go into {write.fence}, the most that may be kept aside; "
            f"one of them is {_json(self._key(row))}: {reason}."
        )

    def _kept(self) -> int:
        query = sql.SQL("SELECT count(*) FROM {} WHERE plan_id = %s").format(sql.SQL(self._spec.write.quarantine or ""))
        found = self._connection.execute(query, (self._spec.plan_id,)).fetchone()
        return int(found[0]) if found else 0

    def _key(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return what a person finds the row by: offsets of a log, the columns ranges are cut by, or the key."""
        bounds = self._spec.slices[0].bounds
        for names in (("partition", "offset"), bounds.get("columns", ()), self._spec.write.key, tuple(row)[:1]):
            if names and all(name in row for name in names):
                return {name: row[name] for name in names}
        return row


def _reason(error: psycopg.Error) -> str:
    column = _COLUMN.search(error.diag.context or "")
    return f"column {column[1]}: {words(error)}" if column else words(error)


def _json(value: dict[str, Any]) -> str:
    """Return JSON without the characters that PostgreSQL's text cannot hold."""
    return json.dumps(value, default=_text)


def _text(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)
