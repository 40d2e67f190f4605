"""Avro values of many messages at once: each step reads one field of all of them, and no step is Python's for each.

Every message keeps its own bounds: one that ends too early, or has bytes behind its end, is found by itself.
"""

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy
import pyarrow
import pyarrow.compute as pc

from airflow_provider_backpressure.connectors.kafka.avro import Node
from airflow_provider_backpressure.connectors.kafka.tasks.avro_text import Malformed, read_long, read_text, to_decimal
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
_DAY, _DAY_MICROS = 86_400, 86_400_000_000
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
_PER_SECOND = {"millis": 10**3, "micros": 10**6, "nanos": 10**9}
_SMALL_DIGITS, _SMALL_BYTES, _DECIMAL_BYTES, _MOST_DIGITS = 18, 8, 16, 38
_OUTSIDE = "is outside of the years 1 to 9999"
Rows = numpy.ndarray
"""Numbers of messages."""


@dataclass(kw_only=True)
class Messages:
    """Messages in one buffer, and how far each was read."""

    payloads: Sequence[bytes]
    skip: int
    """Bytes before the value of each."""
    data: numpy.ndarray = field(init=False)
    words: dict[str, numpy.ndarray] = field(init=False, default_factory=dict)
    base: numpy.ndarray = field(init=False)
    at: numpy.ndarray = field(init=False)
    end: numpy.ndarray = field(init=False)
    problems: dict[int, str] = field(init=False, default_factory=dict)
    """Why a message cannot be taken, by its number."""

    def __post_init__(self) -> None:
        """Put them behind one another."""
        whole = b"".join([*self.payloads, PADDING])
        lengths = numpy.fromiter(map(len, self.payloads), "i8", len(self.payloads))
        self.data, self.end = numpy.frombuffer(whole, "u1"), numpy.cumsum(lengths)
        self.base = self.end - lengths
        self.at = self.base + self.skip
        for kind in ("<u8", "<u4"):
            count = len(whole) - numpy.dtype(kind).itemsize + 1
            self.words[kind] = numpy.ndarray((count,), kind, whole, 0, (1,))

    def all(self) -> Rows:
        """Return every message."""
        return numpy.arange(len(self.payloads))

    def refuse(self, rows: Rows, reason: str) -> None:
        """Note why messages cannot be taken, and read no more of them."""
        for row in rows.tolist():
            self.problems.setdefault(row, reason)
        self.at[rows] = self.end[rows]

    def branches(self, node: Node, rows: Rows) -> numpy.ndarray:
        """Read which type of a union each is of."""
        branch = self.longs(rows)
        wrong = (branch < 0) | (branch >= len(node.branches))
        if wrong.any():
            self.refuse(rows[wrong], "a union has no such branch")
        return branch

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
        """Read a number of each."""
        start = self.at[rows]
        first = self.data[start]
        if not (first & 0x80).any():
            self.skip_bytes(rows, 1)
            value = first.astype("u8")
        else:
            word = self.words["<u8"][start]
            stop = ~word & _HIGH
            low = stop & (~stop + _U8(1))
            mask = low | (low - _U8(1))
            size = (((mask >> _U8(7)) & _ONES) * _ONES) >> _U8(56)
            value = word & mask & _LOW
            for keep, move, by in _FOLDS:
                value = (value & keep) | ((value & move) >> by)
            long = stop == 0
            if long.any():
                self._long(rows, start, long, value, size)
            self.skip_bytes(rows, size.astype("i8"))
        found: numpy.ndarray = (value >> _U8(1)).view("i8") ^ -(value & _U8(1)).view("i8")
        return found

    def _long(
        self, rows: Rows, start: numpy.ndarray, long: numpy.ndarray, value: numpy.ndarray, size: numpy.ndarray
    ) -> None:
        """Read numbers of nine and ten bytes, one by one."""
        for index in numpy.flatnonzero(long).tolist():
            place = int(start[index])
            try:
                number, behind = read_long(self.data[place : int(self.end[rows[index]])].tobytes(), 0)
            except Malformed as error:
                self.refuse(rows[index : index + 1], str(error))
                number, behind = 0, 0
            if not -(2**63) <= number < 2**63:
                self.refuse(rows[index : index + 1], "a long has more than 64 bits")
                number = 0
            value[index], size[index] = ((number << 1) ^ (number >> 63)) & (2**64 - 1), behind


def read(messages: Messages, node: Node, rows: Rows, type_: str) -> pyarrow.Array:
    """Read a value of each message as a column of a PostgreSQL type, see ``avro.column_type``."""
    if type_ == "json" or (len(node.present) == 1 and node.present[0].kind in ("array", "map", "record")):
        return _texts_one_by_one(messages, node, rows)
    if not node.present:
        skip(messages, node, rows)
        return pyarrow.nulls(len(rows), pyarrow.string())
    if node.kind == "union":
        return _union(messages, node, rows, type_)
    logical = not (node.logical and type_ in _UNDERLYING)
    return _KINDS[node.kind](messages, node, rows, logical)


_UNDERLYING = ("integer", "bigint", "bytea", "text")
"""Types that a value of a logical type only has where it is taken without that."""


def skip(messages: Messages, node: Node, rows: Rows) -> None:
    """Pass a value of each message."""
    if not len(rows):
        return
    match node.kind:
        case "null":
            pass
        case "boolean":
            messages.skip_bytes(rows, 1)
        case "int" | "long" | "enum":
            messages.longs(rows)
        case "float" | "double":
            messages.skip_bytes(rows, 4 if node.kind == "float" else 8)
        case "bytes" | "string":
            messages.skip_bytes(rows, _sizes(messages, rows))
        case "fixed":
            messages.skip_bytes(rows, node.size)
        case "record":
            for part in node.fields:
                skip(messages, part.node, rows)
        case "union":
            branch = messages.branches(node, rows)
            for index, each in enumerate(node.branches):
                skip(messages, each, rows[branch == index])
        case _:
            _texts_one_by_one(messages, node, rows)


def _union(messages: Messages, node: Node, rows: Rows, type_: str) -> pyarrow.Array:
    """Read null or a value of one type."""
    branch = messages.branches(node, rows)
    index, value = next((index, each) for index, each in enumerate(node.branches) if each.kind != "null")
    there = branch == index
    if there.all():
        return read(messages, value, rows, type_)
    return spread(read(messages, value, rows[there], type_), there)


def spread(column: pyarrow.Array, there: numpy.ndarray) -> pyarrow.Array:
    """Return a column with NULL between its values, where something is not there."""
    places = numpy.cumsum(there) - 1
    return column.take(of_numbers(places, pyarrow.int64(), ~there))


def _texts_one_by_one(messages: Messages, node: Node, rows: Rows) -> pyarrow.Array:
    """Read values as JSON text, message by message: lists and what may be of several types have no fixed steps."""
    texts: list[bytes | None] = []
    for row in rows.tolist():
        base = int(messages.base[row])
        try:
            text, behind = read_text(node, messages.payloads[row], int(messages.at[row]) - base)
        except Malformed as error:
            messages.refuse(numpy.array([row]), str(error))
            texts.append(None)
            continue
        messages.at[row] = base + behind
        texts.append(None if text == "null" else text.encode())
    return of_bytes(texts, pyarrow.string())


def _boolean(messages: Messages, node: Node, rows: Rows, logical: bool) -> pyarrow.Array:
    value = messages.data[messages.skip_bytes(rows, 1)]
    if (wrong := value > 1).any():
        messages.refuse(rows[wrong], "a boolean is neither 0 nor 1")
    return of_numbers(numpy.minimum(value, 1), pyarrow.uint8()).cast(pyarrow.bool_())


def _int(messages: Messages, node: Node, rows: Rows, logical: bool) -> pyarrow.Array:
    value = messages.longs(rows)
    wrong = (value < -(2**31)) | (value >= 2**31)
    if wrong.any():
        messages.refuse(rows[wrong], "an int has more than 32 bits")
    if logical and node.logical == "date":
        value = _within(messages, rows, value, _FIRST_DAY, _LAST_DAY)
        return of_numbers(value.astype("i4"), pyarrow.date32())
    if logical and node.logical:
        return _time(messages, node, rows, value)
    return of_numbers(value.astype("i4"), pyarrow.int32())


def _long(messages: Messages, node: Node, rows: Rows, logical: bool) -> pyarrow.Array:
    value = messages.longs(rows)
    if not logical or not node.logical:
        return of_numbers(value, pyarrow.int64())
    kind, _, unit = node.logical.rpartition("-")
    if kind == "time":
        return _time(messages, node, rows, value)
    per_second = _PER_SECOND[unit]
    most = min((_LAST_DAY + 1) * _DAY * per_second, 2**63) - 1
    value = _within(messages, rows, value, max(_FIRST_DAY * _DAY * per_second, -(2**63)), most)
    if unit == "nanos":
        micros = value // 1000
        if (finer := micros * 1000 != value).any():
            messages.refuse(rows[finer], f"{_FINER}: {_TAKE_RAW}")
        value = micros
    elif unit == "millis":
        value = value * 1000
    return of_numbers(value, pyarrow.timestamp("us", tz="UTC" if kind == "timestamp" else None))


_FINER = "it has digits below the microsecond, which no target holds"
_TAKE_RAW = "name its field in raw= of the format to take the number"


def _within(messages: Messages, rows: Rows, value: numpy.ndarray, first: int, last: int) -> numpy.ndarray:
    """Return days or times, and refuse those that no reader holds."""
    beyond = (value < first) | (value > last)
    if not beyond.any():
        return value
    messages.refuse(rows[beyond], f"a time {_OUTSIDE}")
    return numpy.where(beyond, 0, value)


def _time(messages: Messages, node: Node, rows: Rows, value: numpy.ndarray) -> pyarrow.Array:
    """Return times of day as PostgreSQL prints them, so that a verification finds the same text in the target."""
    most = _DAY * _PER_SECOND[node.logical.rpartition("-")[2]]
    wrong = (value < 0) | (value >= most)
    if wrong.any():
        messages.refuse(rows[wrong], "a time of day is not within a day")
        value = numpy.where(wrong, 0, value)
    texts = of_numbers(value * (_DAY_MICROS // most), pyarrow.time64("us")).cast(pyarrow.string())
    return pc.utf8_rtrim(pc.utf8_rtrim(texts, "0"), ".")


def _read_floats(messages: Messages, node: Node, rows: Rows, logical: bool) -> pyarrow.Array:
    if node.kind == "float":
        return of_numbers(messages.words["<u4"][messages.skip_bytes(rows, 4)], pyarrow.float32())
    return of_numbers(messages.words["<u8"][messages.skip_bytes(rows, 8)], pyarrow.float64())


def _sizes(messages: Messages, rows: Rows) -> numpy.ndarray:
    """Read how many bytes follow."""
    size = messages.longs(rows)
    if (wrong := size < 0).any():
        messages.refuse(rows[wrong], "a length is below zero")
        size = numpy.where(wrong, 0, size)
    return size


def _take(messages: Messages, node: Node, rows: Rows) -> pyarrow.Array:
    """Return bytes. The buffer is seen as values and what lies between them, and only the values are copied."""
    size = node.size if node.kind == "fixed" else _sizes(messages, rows)
    start = messages.skip_bytes(rows, size)
    ends = numpy.empty(2 * len(rows) + 1, "i4")
    ends[:-1:2], ends[1::2] = start, messages.at[rows]
    ends[-1] = ends[-2] if len(rows) else 0
    buffers = [None, pyarrow.py_buffer(ends), pyarrow.py_buffer(messages.data)]
    both = pyarrow.Array.from_buffers(pyarrow.binary(), 2 * len(rows), buffers)
    return both.take(of_numbers(numpy.arange(0, 2 * len(rows), 2), pyarrow.int64()))


def _bytes(messages: Messages, node: Node, rows: Rows, logical: bool) -> pyarrow.Array:
    if logical and node.logical == "decimal":
        return _decimal(messages, node, rows)
    found = _take(messages, node, rows)
    if logical and node.logical == "uuid":
        texts = [str(uuid.UUID(bytes=each.ljust(16, b"\0"))).encode() for each in found.to_pylist()]
        return of_bytes(texts, pyarrow.string())
    return found


def _string(messages: Messages, node: Node, rows: Rows, logical: bool) -> pyarrow.Array:
    found = _take(messages, node, rows)
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
    return pc.utf8_lower(texts) if logical and node.logical == "uuid" else texts


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _enum(messages: Messages, node: Node, rows: Rows, logical: bool) -> pyarrow.Array:
    index = messages.longs(rows)
    wrong = (index < 0) | (index >= len(node.symbols))
    if wrong.any():
        messages.refuse(rows[wrong], "an enum has no such symbol")
        index = numpy.where(wrong, 0, index)
    symbols = of_bytes([each.encode() for each in node.symbols], pyarrow.string())
    return symbols.take(of_numbers(index, pyarrow.int64()))


def _decimal(messages: Messages, node: Node, rows: Rows) -> pyarrow.Array:
    """Return numbers of bytes in two's complement, the highest first."""
    size = node.size if node.kind == "fixed" else _sizes(messages, rows)
    start = messages.skip_bytes(rows, size)
    lengths = messages.at[rows] - start
    longest = int(lengths.max(initial=0))
    if node.precision > _MOST_DIGITS or longest > _DECIMAL_BYTES:
        return _decimals_one_by_one(messages, node, rows, start, lengths)
    negative = (messages.data[start] >= 0x80) & (lengths > 0)
    cells = numpy.zeros((len(rows), _DECIMAL_BYTES), "u1")
    cells[negative] = 0xFF
    for place in range(longest):
        there = lengths > place
        cells[there, place] = messages.data[(start + lengths - 1 - place)[there]]
    words = cells.view("<i8")
    if longest <= _SMALL_BYTES:
        most = 10 ** min(node.precision, _SMALL_DIGITS) - 1
        # A number of more digits than that cannot be in so few bytes.
        wrong = ((words[:, 0] > most) | (words[:, 0] < -most)) & (node.precision <= _SMALL_DIGITS)
    else:
        wide = words[:, 1].astype(object) * 2**64 + words[:, 0].view("<u8").astype(object)
        wrong = numpy.fromiter((abs(each) >= 10**node.precision for each in wide), bool, len(rows))
    if wrong.any():
        messages.refuse(rows[wrong], f"a decimal has more than {node.precision} digits")
    type_ = pyarrow.decimal128(node.precision, node.scale)
    return pyarrow.Array.from_buffers(type_, len(rows), [None, pyarrow.py_buffer(cells)])


def _decimals_one_by_one(
    messages: Messages, node: Node, rows: Rows, start: numpy.ndarray, lengths: numpy.ndarray
) -> pyarrow.Array:
    found = []
    for index, (first, size) in enumerate(zip(start.tolist(), lengths.tolist(), strict=True)):
        raw = messages.data[first : first + size].tobytes()
        try:
            found.append(f"{to_decimal(raw, node.scale, node.precision):f}".encode())
        except Malformed as error:
            messages.refuse(rows[index : index + 1], str(error))
            found.append(b"0")
    texts = of_bytes(found, pyarrow.string())
    return texts if node.precision > _MOST_DIGITS else texts.cast(pyarrow.decimal128(node.precision, node.scale))


_KINDS: dict[str, Callable[[Messages, Node, Rows, bool], pyarrow.Array]] = {
    "boolean": _boolean,
    "int": _int,
    "long": _long,
    "float": _read_floats,
    "double": _read_floats,
    "bytes": _bytes,
    "fixed": _bytes,
    "string": _string,
    "enum": _enum,
}
