"""Avro values of many messages at once: each step reads one field of all of them."""

import uuid
from collections.abc import Callable
from functools import partial

import numpy
import pyarrow
import pyarrow.compute as pc

from airflow_provider_backpressure.connectors.kafka.avro_schema import Node
from airflow_provider_backpressure.connectors.kafka.tasks.avro_to_json import Malformed, Read, read_text, to_decimal
from airflow_provider_backpressure.connectors.kafka.tasks.message_buffer import Messages, Rows, spread, take, to_texts
from airflow_provider_backpressure.spark.arrow_buffers import of_bytes, of_numbers

_DAY, _DAY_MICROS = 86_400, 86_400_000_000
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
_PER_SECOND = {"millis": 10**3, "micros": 10**6, "nanos": 10**9}
_SMALL_DIGITS, _SMALL_BYTES, _DECIMAL_BYTES, _MOST_DIGITS = 18, 8, 16, 38
_OUTSIDE = "is outside of the years 1 to 9999"


def read_branches(messages: Messages, node: Node, rows: Rows) -> numpy.ndarray:
    """Read which type of a union each is of."""
    branch = messages.longs(rows)
    wrong = (branch < 0) | (branch >= len(node.branches))
    if wrong.any():
        messages.refuse(rows[wrong], "a union has no such branch")
    return branch


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
            branch = read_branches(messages, node, rows)
            for index, each in enumerate(node.branches):
                skip(messages, each, rows[branch == index])
        case _:
            _texts_one_by_one(messages, node, rows)


def _union(messages: Messages, node: Node, rows: Rows, type_: str) -> pyarrow.Array:
    """Read null or a value of one type."""
    branch = read_branches(messages, node, rows)
    index, value = next((index, each) for index, each in enumerate(node.branches) if each.kind != "null")
    there = branch == index
    if there.all():
        return read(messages, value, rows, type_)
    return spread(read(messages, value, rows[there], type_), there)


def _texts_one_by_one(messages: Messages, node: Node, rows: Rows) -> pyarrow.Array:
    """Read values as JSON text: lists and what may be of several types have no fixed steps."""
    return read_texts(messages, rows, partial(read_text, node))


def read_texts(messages: Messages, rows: Rows, read_one: Callable[[bytes, int], Read]) -> pyarrow.Array:
    """Read values as JSON text, message by message."""
    texts: list[bytes | None] = []
    for row in rows.tolist():
        base = int(messages.base[row])
        try:
            text, behind = read_one(messages.payloads[row], int(messages.at[row]) - base)
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
_TAKE_RAW_TEXT = "name its field in raw= of the format to take the text"
_UUID = "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"
"""As nearly all of them are written; braces and other places of hyphens are less frequent."""


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
    size = node.size if node.kind == "fixed" else _sizes(messages, rows)
    return take(messages, messages.skip_bytes(rows, size), rows)


def _bytes(messages: Messages, node: Node, rows: Rows, logical: bool) -> pyarrow.Array:
    if logical and node.logical == "decimal":
        return _decimal(messages, node, rows)
    found = _take(messages, node, rows)
    if logical and node.logical == "uuid":
        texts = [str(uuid.UUID(bytes=each.ljust(16, b"\0"))).encode() for each in found.to_pylist()]
        return of_bytes(texts, pyarrow.string())
    return found


def _string(messages: Messages, node: Node, rows: Rows, logical: bool) -> pyarrow.Array:
    texts = to_texts(messages, _take(messages, node, rows), rows)
    return _to_uuids(messages, rows, texts) if logical and node.logical == "uuid" else texts


def _to_uuids(messages: Messages, rows: Rows, texts: pyarrow.Array) -> pyarrow.Array:
    """Return UUIDs as PostgreSQL prints them, which files keep too, and refuse other texts."""
    if pc.all(pc.match_substring_regex(texts, _UUID)).as_py() is not False:
        return pc.utf8_lower(texts)
    found: list[bytes | None] = []
    for row, text in zip(rows.tolist(), texts.to_pylist(), strict=True):
        try:
            found.append(None if text is None else str(uuid.UUID(text)).encode())
        except ValueError:
            messages.refuse(numpy.array([row]), f"a text is no UUID, as its schema says: {_TAKE_RAW_TEXT}")
            found.append(None)
    return of_bytes(found, pyarrow.string())


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
        # Such a number could not be widened to the digits of a later schema.
        cells[wrong] = 0
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
