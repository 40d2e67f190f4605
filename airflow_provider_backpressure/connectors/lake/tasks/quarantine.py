"""Rows that a table of files cannot take, kept in the table beside it.

No commit spans two tables. So they are committed there first, under the same plan and slice: an attempt that dies in
between is followed by one that finds its rows there. They stay if this attempt keeps the same rows; if not, they are
exchanged.
"""

import json
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import pyarrow

from airflow_provider_backpressure.connectors.lake.base_table import LakeTable, address_of, open_table
from airflow_provider_backpressure.connectors.lake.markers import Attempt, Mark, mint_nonce
from airflow_provider_backpressure.connectors.lake.tasks.parquet_writer import Files, cast, check_years, to_row
from airflow_provider_backpressure.core.config import Mode
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.snapshot.spark_messages import Column, RangeSpec
from airflow_provider_backpressure.exceptions import RangeFailed, SinkUnavailable
from airflow_provider_backpressure.spark.column_types import arrow_schema
from airflow_provider_backpressure.spark.refused_rows import Row, alone, full, kept_of, key_of
from airflow_provider_backpressure.spark.stream_end import name_place

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


@dataclass(kw_only=True)
class QuarantineWriter:
    """Takes the rows of one attempt that its target cannot."""

    sink: Endpoint
    spec: RangeSpec
    attempt: Attempt
    _rows: list[Row] = field(default_factory=list)
    _others: int | None = None
    """Rows that other ranges of the plan have there."""
    _exchanged: list[Row] | None = None
    """Rows of an earlier attempt that :meth:`commit` took away."""

    def refuse(self, row: Row, reason: str) -> None:
        """Keep a row; ``SinkRefused`` names it where none is kept, and where there is no room for it."""
        if self.spec.write.quarantine is None:
            raise alone(self.spec, row, reason)
        if self._others is None:
            self._others = self._count()
        if self._others + len(self._rows) >= self.spec.write.most_bad:
            raise full(self.spec, row, reason)
        values = (self.attempt.plan_id, self.attempt.slice_id, self.spec.write.fence, key_of(self.spec, row), reason)
        names = (column.name for column in COLUMNS)
        self._rows.append(dict(zip(names, (*values, kept_of(row), datetime.now(UTC)), strict=True)))

    def put_what_fits(self, files: Files, batch: pyarrow.RecordBatch, marks: pyarrow.RecordBatch | None) -> None:
        """Write a batch but for rows whose values the table's types cannot hold: it is halved until they are alone.

        ``marks``: of an ordered plan, see :func:`.split_marks`.
        """
        with files.table.translate_errors():
            try:
                rows = cast(batch, files.schema)
                if files.table.has_year_limit(self.spec.write.mode):
                    check_years(rows)
            except pyarrow.ArrowInvalid as error:
                reason = " ".join(str(error).split())
            else:
                files.put(rows, marks)
                return
        if batch.num_rows == 1:
            place = {} if marks is None else name_place(marks.to_pylist()[0])
            self.refuse({**to_row(batch), **place}, reason)
            return
        half = batch.num_rows // 2
        for start, rest in ((0, half), (half, batch.num_rows - half)):
            self.put_what_fits(files, batch.slice(start, rest), None if marks is None else marks.slice(start, rest))

    def commit(self) -> int:
        """Make the rows visible where they are kept, once, and return how many of the range are there.

        An earlier attempt may have kept other rows, and died before its range was committed: a setting, a transform
        or a schema has changed since. Its rows are taken away, also where this attempt has none to keep.
        """
        if self.spec.write.quarantine is None:
            return 0
        with closing(self._table()) as table, table.translate_errors():
            earlier = table.marks(self.attempt.plan_id, [self.attempt.slice_id]).get(self.attempt.slice_id)
            if earlier is not None:
                if self._has_rows(table, earlier, self._rows):
                    return earlier.rows
                self._exchanged = _read(table, earlier)
                table.discard(self.attempt.plan_id, self.attempt.slice_id)
            return self._commit(table, self.attempt, self._rows).rows if self._rows else 0

    def restore(self) -> None:
        """Put back what :meth:`commit` took away: the earlier attempt was alive, and has committed the range first."""
        if self._exchanged is None:
            return
        with closing(self._table()) as table, table.translate_errors():
            table.discard(self.attempt.plan_id, self.attempt.slice_id)
            # Under a new nonce: files of this attempt's own still belong to older versions of the table.
            self._commit(table, replace(self.attempt, nonce=mint_nonce()), self._exchanged)

    def _has_rows(self, table: LakeTable, mark: Mark, rows: list[Row]) -> bool:
        """Whether another attempt kept these rows. ``RangeFailed`` where it kept others and is no earlier one."""
        if Counter(map(_to_values, _read(table, mark))) == Counter(map(_to_values, rows)):
            return True
        if mark.attempt >= self.attempt.attempt and mark.nonce != self.attempt.nonce:
            raise RangeFailed(
                f"Attempt {mark.attempt} at slice {mark.slice_id} has kept other rows in {table.name} than attempt "
                f"{self.attempt.attempt}. The range is written again."
            )
        return False

    def _commit(self, table: LakeTable, attempt: Attempt, rows: list[Row]) -> Mark:
        attempt, schema = attempt_at(table, attempt), table.to_stored_schema(arrow_schema(COLUMNS))
        files = Files(table=table, attempt=attempt, schema=schema)
        try:
            files.put(cast(pyarrow.RecordBatch.from_pylist(rows, arrow_schema(COLUMNS)), schema))
            mark = files.finish()
        except BaseException:
            files.drop()
            raise
        stands = table.commit(attempt, mark, replace(self.spec.write, mode=Mode.APPEND, ordered=False))
        if stands.nonce != attempt.nonce:
            files.drop()
            if not self._has_rows(table, stands, rows):
                raise RangeFailed(f"Attempt {stands.attempt} at slice {stands.slice_id} is under way in {table.name}.")
        return stands

    def _count(self) -> int:
        with closing(self._table()) as table, table.translate_errors():
            marks = table.marks(self.attempt.plan_id)
        return sum(mark.rows for key, mark in marks.items() if key != self.attempt.slice_id)

    def _table(self) -> LakeTable:
        return open_beside(self.spec.write.kind, self.spec.write.plan_table, self.sink)


def _read(table: LakeTable, mark: Mark) -> list[Row]:
    return [row for batch in table.read(mark.files) for row in batch.to_pylist()]


def _to_values(row: Row) -> tuple[Any, ...]:
    return tuple(value for name, value in sorted(row.items()) if name != "at")
