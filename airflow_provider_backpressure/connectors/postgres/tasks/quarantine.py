"""Rows that PostgreSQL refuses: found, and put aside with the reason."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import psycopg
import pyarrow
from psycopg import sql

from airflow_provider_backpressure.connectors.postgres.errors import words
from airflow_provider_backpressure.core.snapshot.messages import RangeSpec
from airflow_provider_backpressure.spark.stream_end import name_place
from airflow_provider_backpressure.spark.types import alone, full, kept_of, key_of

_COLUMN = re.compile(r", column ([^:]+)")


_NUL: dict[type[psycopg.Error], str] = {
    psycopg.errors.CharacterNotInRepertoire: "\0",
    psycopg.errors.UntranslatableCharacter: "\\u0000",
}
"""The form of a NUL in a text and in JSON."""


class BadRowIsolator:
    """Puts batches into the stage; a batch that is refused is halved until its bad rows are alone.

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
                row = batch.to_pylist()[0]
                if self._spec.write.ordered:
                    row = name_place(row)
                self.refuse(row, _nul(row, error) or _reason(error))
                return
            half = batch.num_rows // 2
            self.put(batch.slice(0, half), put)
            self.put(batch.slice(half), put)

    def check(self, waiting: Sequence[tuple[dict[str, Any], str]]) -> None:
        """``SinkRefused`` where nothing is kept, or there will be no room for what waits."""
        if waiting and self._spec.write.quarantine is None:
            raise alone(self._spec, *waiting[0])
        if waiting and self._before + self.bad + len(waiting) > self._spec.write.most_bad:
            raise full(self._spec, *waiting[-1])

    def refuse(self, row: dict[str, Any], reason: str) -> None:
        """Keep a row aside with its key and the reason; ``SinkRefused`` where there is no room for it."""
        write = self._spec.write
        if write.quarantine is None:
            raise alone(self._spec, row, reason)
        self.bad += 1
        if self._before + self.bad > write.most_bad:
            raise full(self._spec, row, reason)
        self._connection.execute(
            sql.SQL(
                "INSERT INTO {} (plan_id, slice_id, target, key, reason, row) VALUES (%s, %s, %s, %s, %s, %s)"
            ).format(sql.SQL(write.quarantine)),
            (self._spec.plan_id, self._slice_id, write.fence, key_of(self._spec, row), reason, kept_of(row)),
        )

    def _kept(self) -> int:
        query = sql.SQL("SELECT count(*) FROM {} WHERE plan_id = %s").format(sql.SQL(self._spec.write.quarantine or ""))
        found = self._connection.execute(query, (self._spec.plan_id,)).fetchone()
        return int(found[0]) if found else 0


def _nul(row: dict[str, Any], error: psycopg.Error) -> str | None:
    """Return the reason where it is a NUL character: PostgreSQL speaks of bytes and of an escape sequence."""
    sign = next((sign for kind, sign in _NUL.items() if isinstance(error, kind)), None)
    name = next((name for name, value in row.items() if sign and isinstance(value, str) and sign in value), None)
    return None if name is None else f"column {name} holds a NUL character, which no text in PostgreSQL can"


def _reason(error: psycopg.Error) -> str:
    column = _COLUMN.search(error.diag.context or "")
    return f"column {column[1]}: {words(error)}" if column else words(error)
