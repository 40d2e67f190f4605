"""Rows that PostgreSQL refuses: found, and put aside with the reason."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import psycopg
import pyarrow
import pyarrow.compute as pc
from psycopg import sql

from airflow_provider_backpressure.connectors.postgres.errors import words
from airflow_provider_backpressure.core.snapshot.spark_messages import Column, RangeSpec
from airflow_provider_backpressure.spark.refused_rows import alone, full, kept_of, key_of
from airflow_provider_backpressure.spark.stream_end import name_place

_COLUMN = re.compile(r", column ([^:]+)")


_NUL: dict[type[psycopg.Error], str] = {
    psycopg.errors.CharacterNotInRepertoire: "\0",
    psycopg.errors.UntranslatableCharacter: "\\u0000",
}
"""The form of a NUL in a text and in JSON."""


_MOST_CHARACTERS = re.compile(r"character varying\((\d+)\)")
_MOST_BYTES = {"name": 63, '"char"': 1}
"""Types whose text the server cuts without an error, by the most bytes that they hold."""
_OCTAL = r"^\\[0-3][0-7][0-7]$"
"""How the server writes a ``"char"`` that is not ASCII."""


def split_cut(
    rows: pyarrow.RecordBatch, columns: Sequence[Column]
) -> tuple[pyarrow.RecordBatch, list[tuple[dict[str, Any], str]]]:
    """Return the rows whose texts fit, and the others with the reason: the server would cut these without an error.

    PostgreSQL cuts a ``name`` behind 63 bytes, a ``"char"`` behind one, and blanks at the end of a ``varchar(n)``.
    Verification would not notice, since it compares what was made of the text.
    """
    bad: dict[int, str] = {}
    for column, values in zip(columns, rows.columns, strict=False):
        too_long = _find_too_long(column.type, values)
        if too_long is not None and pc.any(too_long).as_py():
            reason = f"column {column.name}: value too long for type {column.type}"
            bad |= {number: reason for number in pc.indices_nonzero(too_long).to_pylist() if number not in bad}
    if not bad:
        return rows, []
    kept = pyarrow.array([number not in bad for number in range(rows.num_rows)])
    found = [(_read_row(rows.slice(number, 1)), bad[number]) for number in sorted(bad)]
    return rows.filter(kept), found


def _find_too_long(type_: str, values: pyarrow.Array) -> pyarrow.Array | None:
    """Return which texts the server would cut; ``None`` where it cuts none of the type, or no text arrives."""
    if not (pyarrow.types.is_string(values.type) or pyarrow.types.is_large_string(values.type)):
        return None
    if type_ in _MOST_BYTES:
        too_long = pc.greater(pc.binary_length(values), _MOST_BYTES[type_])
        return pc.and_not(too_long, pc.match_substring_regex(values, _OCTAL)) if type_ == '"char"' else too_long
    match = _MOST_CHARACTERS.fullmatch(type_)
    if match is None:
        return None
    most = int(match[1])
    too_long = pc.greater(pc.utf8_length(values), most)
    # The server refuses the others itself.
    return pc.and_(too_long, pc.less_equal(pc.utf8_length(pc.ascii_rtrim(values, " ")), most))


def _read_row(batch: pyarrow.RecordBatch) -> dict[str, Any]:
    """Return the one row of a batch. Bytes that are no UTF-8, which a transform may take for text, are escaped."""
    try:
        return dict(batch.to_pylist()[0])
    except UnicodeDecodeError:
        row = {}
        for name, values in zip(batch.schema.names, batch.columns, strict=True):
            is_text = pyarrow.types.is_string(values.type) or pyarrow.types.is_large_string(values.type)
            (value,) = (values.cast(pyarrow.large_binary()) if is_text else values).to_pylist()
            row[name] = value.decode(errors="backslashreplace") if is_text and value is not None else value
        return row


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
                row = _read_row(batch)
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
