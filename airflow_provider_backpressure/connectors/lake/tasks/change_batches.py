"""Changes of a log as typed Arrow batches: each value is parsed from its text as those of a range are.

No object is made for a value.
"""

from array import array
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from zlib import compress, decompress

import numpy
import pyarrow
import pyarrow.compute as pc

from airflow_provider_backpressure.connectors.relational.csv_blocks import BLOCK, describe_misfit, parse
from airflow_provider_backpressure.core.snapshot.spark_messages import Column
from airflow_provider_backpressure.exceptions import SourceRefused
from airflow_provider_backpressure.spark import arrow_buffers as buffers
from airflow_provider_backpressure.spark.change_columns import ChangeColumns, ColumnarChanges, split_changes
from airflow_provider_backpressure.spark.change_rows import MOVE, TRUNCATE
from airflow_provider_backpressure.spark.column_types import arrow_schema
from airflow_provider_backpressure.spark.value_hash import BatchSum, digest_rows

SEQ, OP, KEPT, ASK = "backpressure_seq", "backpressure_op", "backpressure_kept", "backpressure_ask"
"""Columns before the table's own: the number of a change, what was done, numbers of the columns that the log leaves
out, and of such a change the texts of its key, by which the source is asked for the row."""
OWN = (
    pyarrow.field(SEQ, pyarrow.int64()),
    pyarrow.field(OP, pyarrow.int16()),
    pyarrow.field(KEPT, pyarrow.list_(pyarrow.int16())),
    pyarrow.field(ASK, pyarrow.list_(pyarrow.string())),
)
MOST_KEYS = 2_000_000
"""Changes up to which their keys are remembered, by 8 bytes each."""
MOST_ROWS = 10_000
"""Changes in a batch."""


@dataclass(kw_only=True)
class ChangeBatches:
    """Makes batches of changes, and keeps what is to be known of all of them."""

    columns: Sequence[Column]
    key: Sequence[str]
    way_out: Callable[[Column], str]
    """What may be the matter with a value that its column cannot hold, and what to do about it."""
    total: BatchSum = field(default_factory=BatchSum)
    truncated: int = -1
    """Number of the last change that emptied the table."""
    kept: set[int] = field(default_factory=set)
    """Numbers of columns that some change leaves out."""
    keys: list[numpy.ndarray] | None = field(default_factory=list)
    """A number for each key, by which a key that comes again is found; ``None`` where that is not known."""
    moved: bool = False
    """Whether a row whose key changed is among those that leave something out."""
    spans: dict[int, tuple[int, int]] = field(default_factory=dict)
    """The least and the greatest value of each column of the key that holds integers, by the column's number."""

    @property
    def schema(self) -> pyarrow.Schema:
        """The columns of a batch: :data:`OWN`, and the table's by their numbers."""
        typed = [field.type for field in arrow_schema(self.columns)]
        return pyarrow.schema([*OWN, *(pyarrow.field(f"_{n}", type_) for n, type_ in enumerate(typed))])

    @property
    def once(self) -> bool:
        """Whether every key comes once, for sure: then its change needs no other one of the window."""
        if self.keys is None or self.truncated >= 0:
            return False
        numbers = numpy.sort(numpy.concatenate([numpy.empty(0, "u8"), *self.keys]))
        return not bool((numbers[1:] == numbers[:-1]).any())

    def read(self, changes: Iterable[Sequence[bytes]]) -> Iterator[pyarrow.RecordBatch]:
        """Yield all changes; ``SourceRefused`` for a value that its column's type cannot hold."""
        waiting, size = list[bytes](), 0
        for rows in changes:
            if isinstance(rows, ColumnarChanges) and not waiting:
                yield self._make_batch(rows)
                continue
            waiting += rows
            size += sum(map(len, rows))
            if size >= BLOCK or len(waiting) >= MOST_ROWS:
                yield self._make_batch(waiting)
                waiting, size = [], 0
        if waiting:
            yield self._make_batch(waiting)

    def describe(self, xids: Collection[int], read_at: str) -> dict[str, Any]:
        """Return what is said of the changes behind them. ``xids``: of their transactions; ``read_at``: of the log."""
        return {
            "rows": self.total.rows,
            "bytes": self.total.bytes,
            "checksum": str(self.total),
            "truncated": self.truncated,
            "kept": sorted(self.kept),
            "moved": self.moved,
            "once": self.once,
            "spans": [[place, *span] for place, span in sorted(self.spans.items())],
            "xids": pack_xids(xids if self.kept else ()),
            "read_at": read_at,
        }

    def _make_batch(self, rows: Sequence[bytes]) -> pyarrow.RecordBatch:
        schema, found = self.schema, split_changes(rows)
        places = [[column.name for column in self.columns].index(name) for name in self.key]
        values = found.values[len(places) :]
        typed = parse_columns(values, self.columns, self.way_out)
        own = [
            buffers.of_numbers(found.numbers, pyarrow.int64()),
            buffers.of_numbers(found.operations, pyarrow.int16()),
            found.kept,
            join_keys([values[place] for place in places], found.lacking),
        ]
        self._note(found)
        batch = pyarrow.record_batch([*own, *typed], schema=schema)
        self.total.update(batch.select([SEQ, OP, *schema.names[len(OWN) :]]))
        self._note_keys(batch.select([f"_{place}" for place in places]))
        self._note_spans(batch, places)
        return batch

    def _note_keys(self, keys: pyarrow.RecordBatch) -> None:
        """Keep the keys of a batch. Two numbers of floating point may be equal and not the same bytes."""
        if self.total.rows > MOST_KEYS or any(pyarrow.types.is_floating(each.type) for each in keys.columns):
            self.keys = None
        if self.keys is None:
            return
        if keys.num_columns == 1 and pyarrow.types.is_signed_integer(keys.column(0).type):
            self.keys.append(buffers.numbers(keys.column(0)).astype("u8"))
        else:
            self.keys.append(digest_rows(keys))

    def _note_spans(self, batch: pyarrow.RecordBatch, places: Sequence[int]) -> None:
        for place in places:
            values = batch.column(f"_{place}")
            if pyarrow.types.is_signed_integer(values.type) and values.null_count < len(values):
                low, high = (pc.min_max(values)[name].as_py() for name in ("min", "max"))
                before = self.spans.get(place, (low, high))
                self.spans[place] = min(low, before[0]), max(high, before[1])

    def _note(self, found: ChangeColumns) -> None:
        """Keep what is to be known of changes."""
        if found.lacking.any():
            self.kept.update(buffers.numbers(found.kept.values).tolist())
            self.moved |= bool((found.operations[found.lacking] == MOVE).any())
        emptied = found.numbers[found.operations == TRUNCATE]
        if len(emptied):
            self.truncated = int(emptied[-1])


def pack_xids(xids: Collection[int]) -> str:
    """Return the numbers of transactions as text."""
    return b64encode(compress(array("I", sorted(set(xids))).tobytes())).decode()


def unpack_xids(text: str) -> list[int]:
    """Read what :func:`pack_xids` wrote."""
    numbers = array("I")
    numbers.frombytes(decompress(b64decode(text)))
    return numbers.tolist()


_BYTES = pyarrow.large_binary()
_CAST = (pyarrow.string(), pyarrow.int16(), pyarrow.int32(), pyarrow.int64())
"""Types of which the text of a value is the value, or its digits."""
_QUOTE, _COMMA, _LINE = (buffers.first_of_bytes(each, _BYTES) for each in (b'"', b",", b"\n"))


def join_keys(columns: Sequence[pyarrow.Array], wanted: numpy.ndarray) -> pyarrow.Array:
    """Return the texts of the wanted rows' keys as ``list<string>``, and NULL for other rows."""
    places, width = numpy.flatnonzero(wanted), len(columns)
    rows = buffers.of_numbers(places, pyarrow.int64())
    texts = pyarrow.concat_arrays([column.take(rows) for column in columns])
    order = numpy.arange(len(places) * width).reshape(width, -1).T.ravel()
    values = texts.take(buffers.of_numbers(order, pyarrow.int64())).cast(pyarrow.large_string()).cast(pyarrow.string())
    return buffers.of_lists(numpy.where(wanted, width, 0), values, ~wanted)


def parse_columns(
    texts: Sequence[pyarrow.Array], columns: Sequence[Column], way_out: Callable[[Column], str]
) -> list[pyarrow.Array]:
    """Return texts as what their columns hold; ``SourceRefused`` for one that its column's type cannot hold.

    Texts and integers need no more than a cast; the parser of CSV knows how servers write everything else.
    """
    types, found = [field.type for field in arrow_schema(columns)], dict[int, pyarrow.Array]()
    for number, (values, type_) in enumerate(zip(texts, types, strict=True)):
        if type_ in _CAST:
            try:
                found[number] = values.cast(type_)
            except pyarrow.ArrowInvalid as error:
                raise SourceRefused(describe_misfit(columns[number], way_out)) from error
    rest = [number for number in range(len(columns)) if number not in found]
    if rest:
        parsed = parse(write_csv([texts[number] for number in rest]), [columns[number] for number in rest], way_out)
        for number, column in zip(rest, parsed.columns, strict=True):
            found[number] = column.combine_chunks().cast(types[number])
    return [found[number] for number in range(len(columns))]


def write_csv(columns: Sequence[pyarrow.Array]) -> pyarrow.Buffer:
    """Return rows of texts as CSV, where every text is in quotes and NULL is nothing at all."""
    quoted = []
    for column in columns:
        text = pc.replace_substring(column, '"', '""')
        text = pc.binary_join_element_wise(_QUOTE, text, _QUOTE, buffers.NOTHING)
        quoted.append(pc.fill_null(text, buffers.NOTHING))
    lines = pc.binary_join_element_wise(*quoted, _COMMA)
    lines = pc.binary_join_element_wise(lines, buffers.NOTHING, _LINE)
    return lines.buffers()[2].slice(0, int(numpy.sum(buffers.lengths(lines))))
