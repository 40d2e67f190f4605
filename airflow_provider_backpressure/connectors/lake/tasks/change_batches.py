"""Changes of a log as typed Arrow batches: each value is parsed from its text as those of a range are."""

from array import array
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from struct import Struct
from zlib import compress, decompress

import pyarrow

from airflow_provider_backpressure.connectors.relational.csv_blocks import BLOCK, parse
from airflow_provider_backpressure.core.snapshot.messages import Column
from airflow_provider_backpressure.spark.change_rows import MOVE, TRUNCATE
from airflow_provider_backpressure.spark.types import arrow_schema
from airflow_provider_backpressure.spark.value_hash import BatchSum

SEQ, OP, KEPT, ASK = "backpressure_seq", "backpressure_op", "backpressure_kept", "backpressure_ask"
"""Columns before the table's own: the number of a change, what was done, numbers of the columns that the log leaves
out, and of such a change the texts of its key, by which the source is asked for the row."""
OWN = (
    pyarrow.field(SEQ, pyarrow.int64()),
    pyarrow.field(OP, pyarrow.int16()),
    pyarrow.field(KEPT, pyarrow.list_(pyarrow.int16())),
    pyarrow.field(ASK, pyarrow.list_(pyarrow.string())),
)
MOST_ROWS = 10_000
"""Changes in a batch."""
_HEAD = Struct(">hiqih")
_LENGTH = Struct(">i")
_NUMBER = Struct(">ih")
_ARRAY_HEAD = 20
"""Bytes of an array before its numbers."""
Change = tuple[int, int, list[int] | None, list[bytes | None]]
"""Number, what was done, what is kept, and the values of the old key and of the columns."""


def split_change(row: bytes) -> Change:
    """Return what a row of a binary COPY says, see :mod:`..spark.change_rows`."""
    fields, _, seq, _, op = _HEAD.unpack_from(row)
    at, values = _HEAD.size, list[bytes | None]()
    for _ in range(fields - 2):
        (length,) = _LENGTH.unpack_from(row, at)
        at += _LENGTH.size
        if length < 0:
            values.append(None)
        else:
            values.append(row[at : at + length])
            at += length
    kept = values[0]
    numbers = None if kept is None else [number for _, number in _NUMBER.iter_unpack(kept[_ARRAY_HEAD:])]
    return seq, op, numbers, values[1:]


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
    moved: bool = False
    """Whether a row whose key changed is among those that leave something out."""

    @property
    def schema(self) -> pyarrow.Schema:
        """The columns of a batch: :data:`OWN`, and the table's by their numbers."""
        typed = [field.type for field in arrow_schema(self.columns)]
        return pyarrow.schema([*OWN, *(pyarrow.field(f"_{n}", type_) for n, type_ in enumerate(typed))])

    def read(self, changes: Iterable[list[bytes]]) -> Iterator[pyarrow.RecordBatch]:
        """Yield all changes; ``SourceRefused`` for a value that its column's type cannot hold."""
        waiting, size = list[bytes](), 0
        for rows in changes:
            for row in rows:
                waiting.append(row)
                size += len(row)
                if size >= BLOCK or len(waiting) >= MOST_ROWS:
                    yield self._make_batch(waiting)
                    waiting, size = [], 0
        if waiting:
            yield self._make_batch(waiting)

    def _make_batch(self, rows: Sequence[bytes]) -> pyarrow.RecordBatch:
        key = [[column.name for column in self.columns].index(name) for name in self.key]
        numbers, operations, every_kept, asks, lines = array("q"), array("h"), [], [], []
        for seq, op, kept, values in map(split_change, rows):
            values = values[len(key) :]
            numbers.append(seq)
            operations.append(op)
            every_kept.append(kept)
            asks.append(None if kept is None else [_decode(values[place]) for place in key])
            if kept is not None:
                self.kept.update(kept)
                self.moved |= op == MOVE
            if op == TRUNCATE:
                self.truncated = seq
            lines.append(b",".join([b"" if each is None else b'"%b"' % each.replace(b'"', b'""') for each in values]))
        typed = parse(b"\n".join([*lines, b""]), self.columns, self.way_out).combine_chunks()
        schema = self.schema
        own = [
            pyarrow.array(numbers, pyarrow.int64()),
            pyarrow.array(operations, pyarrow.int16()),
            pyarrow.array(every_kept, schema.field(KEPT).type),
            pyarrow.array(asks, schema.field(ASK).type),
        ]
        values_ = [column.combine_chunks().cast(schema.field(f"_{n}").type) for n, column in enumerate(typed.columns)]
        batch = pyarrow.record_batch([*own, *values_], schema=schema)
        self.total.update(batch.select([SEQ, OP, *schema.names[len(OWN) :]]))
        return batch


def _decode(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


def pack_xids(xids: Collection[int]) -> str:
    """Return the numbers of transactions as text."""
    return b64encode(compress(array("I", sorted(set(xids))).tobytes())).decode()


def unpack_xids(text: str) -> list[int]:
    """Read what :func:`pack_xids` wrote."""
    numbers = array("I")
    numbers.frombytes(decompress(b64decode(text)))
    return numbers.tolist()
