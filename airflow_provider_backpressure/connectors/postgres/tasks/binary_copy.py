"""Arrow batches as rows of PostgreSQL's binary COPY, a whole column at a time.

Only of types whose binary form says all of a value: what is sent is then what the table returns, so that it can be
hashed here. Every other type is the server's to make of text.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy
import psycopg
import pyarrow
import pyarrow.compute as pc
from psycopg import sql

from airflow_provider_backpressure.connectors.postgres.tasks.staging_table import END, HEADER, SIGNATURE, names
from airflow_provider_backpressure.core.snapshot.spark_messages import Column, WriteSpec
from airflow_provider_backpressure.exceptions import RangeFailed
from airflow_provider_backpressure.spark import arrow_buffers as buffers
from airflow_provider_backpressure.spark.column_types import PLAIN

OPTIONS = "FORMAT binary"
BEGINNING = HEADER.pack(SIGNATURE, 0, 0)
ENDING = END.to_bytes(2, "big", signed=True)
_EPOCH_DAYS, _EPOCH_MICROS = 10_957, 946_684_800_000_000
"""PostgreSQL counts from the year 2000."""
FIRST_DAY, FIRST_MICRO = -2_440_588, -210_866_803_200_000_000
"""The first day and moment of PostgreSQL, counted from 1970. Earlier ones would be infinity, or in the far future."""
TOO_EARLY = "A date or a moment lies before the year 4713 BC, in which those of PostgreSQL begin."
_TEXT, _BYTES = pyarrow.string(), pyarrow.binary()
_LENGTH = numpy.dtype(">i4")
_CELL = buffers.CELL.itemsize
_NUMERIC, _BPCHAR, _VARCHAR = 1700, 1042, 1043
_PLAIN = {
    16: "boolean", 17: "bytea", 20: "bigint", 21: "smallint", 23: "integer", 25: "text", 114: "text",
    700: "real", 701: "double precision", 1082: "date", 1114: "timestamp without time zone",
    1184: "timestamp with time zone",
}  # fmt: skip
"""Types that take whatever their carrier holds, by their number; 114 is json, which keeps its text."""
_NAMES = {**_PLAIN, 114: "json", _VARCHAR: "character varying"}


@dataclass(frozen=True, kw_only=True)
class Target:
    """One column of the table that rows go into."""

    type: pyarrow.DataType
    """What has to come."""
    longest: int | None = None
    """Most characters of a text."""
    padded: bool = False
    """Whether shorter ones are filled up with blanks."""


def targets(connection: psycopg.Connection, write: WriteSpec) -> list[Target] | None:
    """Return the target's columns; ``None`` where one of them is of a type that only the server can make."""
    query = sql.SQL("SELECT {} FROM {} LIMIT 0").format(names(write.columns), sql.SQL(write.target))
    result = connection.execute(query).pgresult
    assert result is not None
    found = [_target(result.ftype(number), result.fmod(number)) for number in range(result.nfields)]
    known = [target for target in found if target is not None]
    return known if len(known) == len(found) else None


def read_targets(columns: Sequence[Column]) -> list[Target] | None:
    """Return the columns of a target by the names of its types, without asking it; ``None`` as for :func:`targets`."""
    found = [_read_target(column.type) for column in columns]
    known = [target for target in found if target is not None]
    return known if len(known) == len(found) else None


def _read_target(type_: str) -> Target | None:
    name, _, rest = type_.partition("(")
    if not rest:
        return next((_target(oid, -1) for oid, plain in _NAMES.items() if plain == type_), None)
    oid = {"character": _BPCHAR, "character varying": _VARCHAR, "numeric": _NUMERIC}.get(name)
    if oid is None:
        return None
    numbers = [int(number) for number in rest.removesuffix(")").split(",")]
    return _target(oid, (numbers[0] << 16 | numbers[1] if oid == _NUMERIC else numbers[0]) + 4)


def _target(oid: int, modifier: int) -> Target | None:
    if oid in _PLAIN and modifier == -1:
        return Target(type=PLAIN[_PLAIN[oid]])
    if oid in (_BPCHAR, _VARCHAR):
        return Target(type=_TEXT, longest=modifier - 4 if modifier >= 4 else None, padded=oid == _BPCHAR)
    if oid == _NUMERIC and modifier >= 4:
        precision, scale = modifier - 4 >> 16, modifier - 4 & 0x7FF
        if scale <= precision <= 38:
            return Target(type=pyarrow.decimal128(precision, scale))
    return None


def fits(schema: pyarrow.Schema, columns: Sequence[Target]) -> bool:
    """Return whether batches of this schema are what these columns take."""
    return [_zoneless(field.type) for field in schema] == [_zoneless(target.type) for target in columns]


def _zoneless(type_: pyarrow.DataType) -> pyarrow.DataType:
    """Return a type in which times of all zones are alike: they are moments, whatever zone they are shown in."""
    if pyarrow.types.is_timestamp(type_) and type_.tz is not None:
        return pyarrow.timestamp(type_.unit, tz="UTC")
    return type_


def rows(batch: pyarrow.RecordBatch, columns: Sequence[Target]) -> pyarrow.LargeBinaryArray:
    """Return the rows; one behind the other they are what COPY reads. ``RangeFailed`` for a text that is too long."""
    found = _Rows(count=batch.num_rows)
    found.fixed.append(numpy.full(batch.num_rows, batch.num_columns, buffers.CELL))
    found.kept.append(None)
    for column, target in zip(batch.columns, columns, strict=True):
        found.add(column, target)
    return found.join_fields()


def block(rows: pyarrow.LargeBinaryArray) -> memoryview:
    """Return the bytes of rows, one behind the other; there has to be one."""
    _, offsets, values = rows.buffers()
    bounds = numpy.frombuffer(offsets, "i8")
    return memoryview(values)[bounds[rows.offset] : bounds[rows.offset + len(rows)]]


@dataclass(kw_only=True)
class _Rows:
    """Rows on their way: runs of numbers, made at once of 16-bit cells of which some are left out, between texts."""

    count: int
    fixed: list[numpy.ndarray] = field(default_factory=list)
    """Of the run that is being made: for each of its parts a value for each row, of one cell or more."""
    kept: list[numpy.ndarray | None] = field(default_factory=list)
    """Which cells of a part are kept; ``None``: all."""
    parts: list[pyarrow.Array] = field(default_factory=list)

    def add(self, column: pyarrow.Array, target: Target) -> None:
        """Add a column."""
        if target.type in (_TEXT, _BYTES):
            self._add_texts(column, _texts(column, target))
        elif target.type == pyarrow.bool_():
            # A value of one byte is no whole cell.
            self._add_texts(column, _bytes(column))
        elif pyarrow.types.is_decimal(target.type):
            self._add_numbers(column, *buffers.encode(column))
        else:
            self._add_numbers(column, _FIXED[target.type](column), None)

    def join_fields(self) -> pyarrow.LargeBinaryArray:
        """Return the rows."""
        self._close()
        if len(self.parts) == 1:
            return self.parts[0]
        return pc.binary_join_element_wise(*self.parts, buffers.NOTHING)

    def _add_numbers(self, column: pyarrow.Array, values: numpy.ndarray, kept: numpy.ndarray | None) -> None:
        cells = _width(values)
        count = numpy.full(self.count, cells) if kept is None else numpy.count_nonzero(kept, axis=1)
        lengths = count * _CELL
        if column.null_count:
            present = buffers.present(column)
            lengths = numpy.where(present, lengths, -1)
            kept = numpy.repeat(present[:, None], cells, axis=1) if kept is None else kept & present[:, None]
        if (kept is None) != all(each is None for each in self.kept):
            # What has to be looked at cell by cell is kept apart from what has not.
            self._close()
        self.fixed += [lengths.astype(_LENGTH), values]
        self.kept += [None, kept]

    def _add_texts(self, column: pyarrow.Array, values: pyarrow.LargeBinaryArray) -> None:
        lengths = buffers.lengths(values)
        if column.null_count:
            lengths = numpy.where(buffers.present(column), lengths, -1)
        self.fixed.append(lengths.astype(_LENGTH))
        self.kept.append(None)
        self._close()
        self.parts.append(values)

    def _close(self) -> None:
        """End the run."""
        if not self.fixed:
            return
        record = numpy.empty(
            self.count, [(f"{n}", part.dtype.str, part.shape[1:]) for n, part in enumerate(self.fixed)]
        )
        for n, part in enumerate(self.fixed):
            record[f"{n}"] = part
        cells = record.view(buffers.CELL).reshape(self.count, record.itemsize // _CELL)
        if all(kept is None for kept in self.kept):
            lengths = numpy.full(self.count, record.itemsize)
        else:
            kept = [
                numpy.ones((self.count, _width(part)), bool) if some is None else some
                for part, some in zip(self.fixed, self.kept, strict=True)
            ]
            whole = numpy.concatenate(kept, axis=1)
            lengths = numpy.count_nonzero(whole, axis=1) * _CELL
            cells = cells[whole]
        self.parts.append(_cut(cells, lengths))
        self.fixed, self.kept = [], []


def _width(values: numpy.ndarray) -> int:
    """Return how many cells a row has of these."""
    return values.dtype.itemsize * math.prod(values.shape[1:]) // _CELL


def _cut(values: numpy.ndarray, lengths: numpy.ndarray) -> pyarrow.LargeBinaryArray:
    """Return values that lie one behind the other as an array without NULL."""
    offsets = numpy.zeros(len(lengths) + 1, "i8")
    numpy.cumsum(lengths, out=offsets[1:])
    buffers = [None, pyarrow.py_buffer(offsets), pyarrow.py_buffer(numpy.ascontiguousarray(values))]
    return pyarrow.Array.from_buffers(pyarrow.large_binary(), len(lengths), buffers, 0)


def _texts(column: pyarrow.Array, target: Target) -> pyarrow.LargeBinaryArray:
    if target.longest is not None:
        # The server would cut blanks off in silence, and then hold something else than what was hashed.
        if (pc.max(pc.utf8_length(column)).as_py() or 0) > target.longest:
            raise RangeFailed(f"A text is longer than the {target.longest} characters that its column may have.")
        if target.padded:
            column = pc.utf8_rpad(column, target.longest)
    values = column.cast(pyarrow.large_binary())
    return pc.fill_null(values, buffers.NOTHING) if column.null_count else values


def _plain(column: pyarrow.Array, arrow: pyarrow.DataType, wire: str) -> numpy.ndarray:
    return buffers.numbers(column.view(arrow) if column.type != arrow else column).astype(wire)


def _bytes(column: pyarrow.Array) -> pyarrow.LargeBinaryArray:
    """Return booleans as a byte each, nothing for NULL."""
    present = buffers.present(column)
    values = buffers.numbers(column)[present]
    return _cut(values, present)


def is_too_early(column: pyarrow.Array) -> bool:
    """Whether a date or a moment lies before the first one that PostgreSQL has."""
    days = pyarrow.types.is_date32(column.type)
    least = pc.min(column.view(pyarrow.int32() if days else pyarrow.int64())).as_py()
    return least is not None and least < (FIRST_DAY if days else FIRST_MICRO)


def _days(column: pyarrow.Array) -> numpy.ndarray:
    if is_too_early(column):
        raise RangeFailed(TOO_EARLY)
    return (_plain(column, pyarrow.int32(), "i8") - _EPOCH_DAYS).astype(">i4")


def _times(column: pyarrow.Array) -> numpy.ndarray:
    if is_too_early(column):
        raise RangeFailed(TOO_EARLY)
    return (_plain(column, pyarrow.int64(), "i8") - _EPOCH_MICROS).astype(">i8")


_FIXED: dict[pyarrow.DataType, Callable[[pyarrow.Array], numpy.ndarray]] = {
    pyarrow.int16(): lambda column: _plain(column, pyarrow.int16(), ">i2"),
    pyarrow.int32(): lambda column: _plain(column, pyarrow.int32(), ">i4"),
    pyarrow.int64(): lambda column: _plain(column, pyarrow.int64(), ">i8"),
    pyarrow.float32(): lambda column: _plain(column, pyarrow.float32(), ">f4"),
    pyarrow.float64(): lambda column: _plain(column, pyarrow.float64(), ">f8"),
    pyarrow.date32(): _days,
    pyarrow.timestamp("us"): _times,
    pyarrow.timestamp("us", tz="UTC"): _times,
}
