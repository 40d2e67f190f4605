"""Messages of a batch in one buffer: each step reads one value of all of them, and no step is Python's for each.

Every message keeps its own bounds: one that ends too early, or has bytes behind its end, is found by itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy
import pyarrow
import pyarrow.compute as pc

from airflow_provider_backpressure.spark.arrow_buffers import numbers, of_bytes, of_numbers

PADDING = bytes(16)
"""Behind the last message: a number is read eight bytes at a time."""
_U8 = numpy.uint64
_HIGH, _LOW = _U8(0x8080808080808080), _U8(0x7F7F7F7F7F7F7F7F)
_ONES = _U8(0x0101010101010101)
_FOLDS = (
    (_U8(0x007F007F007F007F), _U8(0x7F007F007F007F00), _U8(1)),
    (_U8(0x00003FFF00003FFF), _U8(0x3FFF00003FFF0000), _U8(2)),
    (_U8(0x000000000FFFFFFF), _U8(0x0FFFFFFF00000000), _U8(4)),
)
"""How groups of seven bits come together: two, four, then eight of them."""
_MORE = 0x80
"""Bit of a byte behind which the number continues."""
_TOO_LONG = 2**40
"""Stands for each length that is beyond any message."""
Rows = numpy.ndarray
"""Numbers of messages."""


@dataclass(kw_only=True)
class Messages:
    """Messages in one buffer, and how far each was read."""

    payloads: Sequence[bytes]
    skip: int | numpy.ndarray
    """Bytes before the value of each."""
    data: numpy.ndarray = field(init=False)
    words: dict[str, numpy.ndarray] = field(init=False, default_factory=dict)
    base: numpy.ndarray = field(init=False)
    at: numpy.ndarray = field(init=False)
    end: numpy.ndarray = field(init=False)
    problems: dict[int, str] = field(init=False, default_factory=dict)
    """Why a message cannot be taken, by its number."""
    at_field: str = field(init=False, default="")
    """The field that is being read, for reasons; empty where it is not known."""
    refused: numpy.ndarray = field(init=False)
    """Which have such a reason."""

    def __post_init__(self) -> None:
        """Put them behind one another."""
        whole = b"".join([*self.payloads, PADDING])
        lengths = numpy.fromiter(map(len, self.payloads), "i8", len(self.payloads))
        self.data, self.end = numpy.frombuffer(whole, "u1"), numpy.cumsum(lengths)
        self.base = self.end - lengths
        self.at = self.base + self.skip
        self.refused = numpy.zeros(len(self.payloads), bool)
        for kind in ("<u8", "<u4"):
            count = len(whole) - numpy.dtype(kind).itemsize + 1
            self.words[kind] = numpy.ndarray((count,), kind, whole, 0, (1,))

    def all(self) -> Rows:
        """Return every message."""
        return numpy.arange(len(self.payloads))

    def refuse(self, rows: Rows, reason: str) -> None:
        """Note why messages cannot be taken, and read no more of them."""
        named = f"field {self.at_field}: {reason}" if self.at_field else reason
        for row in rows.tolist():
            self.problems.setdefault(row, named)
        self.at[rows], self.refused[rows] = self.end[rows], True

    def skip_bytes(self, rows: Rows, size: numpy.ndarray | int) -> numpy.ndarray:
        """Return where messages are now, and read on behind so many bytes; zero where that is too far."""
        start: numpy.ndarray = self.at[rows]
        behind = start + size
        ends = self.end[rows]
        late = (behind > ends) | (behind < start)
        if late.any():
            self.refuse(rows[late], "it ends too early")
            behind = numpy.where(late, ends, behind)
            start = numpy.where(late, ends, start)
        self.at[rows] = behind
        return start

    def longs(self, rows: Rows) -> numpy.ndarray:
        """Read a signed number of each, as Avro writes them and Protobuf those that zigzag."""
        return fold_sign(self.varints(rows))

    def varints(self, rows: Rows) -> numpy.ndarray:
        """Read a number of each, as 64 bits without a sign."""
        start = self.at[rows]
        first: numpy.ndarray = self.data[start].astype("u8")
        if not (first & _U8(_MORE)).any():
            self.skip_bytes(rows, 1)
            return first
        word = self.words["<u8"][start]
        stop = ~word & _HIGH
        low = stop & (~stop + _U8(1))
        mask = low | (low - _U8(1))
        size = ((((mask >> _U8(7)) & _ONES) * _ONES) >> _U8(56)).astype("i8")
        value = word & mask & _LOW
        for keep, move, by in _FOLDS:
            value = (value & keep) | ((value & move) >> by)
        long = stop == 0
        if long.any():
            self._add_highest(rows, start, long, value, size)
        self.skip_bytes(rows, size)
        found: numpy.ndarray = value
        return found

    def _add_highest(
        self, rows: Rows, start: numpy.ndarray, long: numpy.ndarray, value: numpy.ndarray, size: numpy.ndarray
    ) -> None:
        """Add the ninth and the tenth byte of numbers that have them."""
        at = start[long]
        ninth, tenth = self.data[at + 8].astype("u8"), self.data[at + 9].astype("u8")
        more = ninth >= _MORE
        highest = (ninth & _U8(0x7F)) << _U8(56)
        value[long] |= numpy.where(more, highest | (tenth & _U8(1)) << _U8(63), highest)
        size[long] = numpy.where(more, 10, 9)
        there = at + size[long] <= self.end[rows[long]]
        for wrong, reason in (
            (more & (tenth >= _MORE), "a number does not end"),
            (more & there & (tenth > 1), "a number has more than 64 bits"),
        ):
            if wrong.any():
                self.refuse(rows[long][wrong], reason)
                size[numpy.flatnonzero(long)[wrong]] = 0

    def sizes(self, rows: Rows) -> numpy.ndarray:
        """Read how many bytes follow, as a number without a sign."""
        found: numpy.ndarray = numpy.minimum(self.varints(rows), _U8(_TOO_LONG)).astype("i8")
        return found


def fold_sign(value: numpy.ndarray) -> numpy.ndarray:
    """Return the signed numbers that others without a sign stand for: 0, -1, 1, -2 and so on."""
    found: numpy.ndarray = (value >> _U8(1)).view("i8") ^ -(value & _U8(1)).view("i8")
    return found


def take(messages: Messages, start: numpy.ndarray, rows: Rows) -> pyarrow.Array:
    """Return the bytes between these positions, which rise, and where the messages of ``rows`` are now.

    The buffer is seen as values and what lies between them, and only the values are copied.
    """
    ends = numpy.empty(2 * len(rows) + 1, "i4")
    ends[:-1:2], ends[1::2] = start, messages.at[rows]
    ends[-1] = ends[-2] if len(rows) else 0
    buffers = [None, pyarrow.py_buffer(ends), pyarrow.py_buffer(messages.data)]
    both = pyarrow.Array.from_buffers(pyarrow.binary(), 2 * len(rows), buffers)
    return both.take(of_numbers(numpy.arange(0, 2 * len(rows), 2), pyarrow.int64()))


def to_texts(messages: Messages, found: pyarrow.Array, rows: Rows) -> pyarrow.Array:
    """Return bytes as texts, and refuse those that are none."""
    try:
        texts = found.cast(pyarrow.string())
    except pyarrow.ArrowInvalid:
        values = found.to_pylist()
        good = numpy.fromiter(map(_is_text, values), bool, len(values))
        messages.refuse(rows[~good], "a text is no UTF-8")
        texts = of_bytes([value if fits else None for value, fits in zip(values, good, strict=True)], pyarrow.string())
    if b"\0" in memoryview(texts.buffers()[2] or b"").tobytes():
        wrong = numbers(pc.match_substring(texts, "\0")).view(bool)
        messages.refuse(rows[wrong], "a text holds a NUL character, which no text can")
    return texts


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def spread(column: pyarrow.Array, there: numpy.ndarray) -> pyarrow.Array:
    """Return a column with NULL between its values, where something is not there."""
    places = numpy.cumsum(there) - 1
    return column.take(of_numbers(places, pyarrow.int64(), ~there))
