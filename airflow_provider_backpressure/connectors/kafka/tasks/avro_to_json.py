"""One Avro value as JSON text, for what is no column of its own: records, lists, maps and unions of several types.

Numbers keep all of their digits, bytes are in base64, times are ISO text. What JSON has no number for is a text.
"""

import base64
import json
import math
import struct
import uuid
from collections.abc import Callable
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

from airflow_provider_backpressure.connectors.kafka.avro_schema import Node

Read = tuple[str, int]
"""The JSON text of a value, and the position behind it."""
_EPOCH, _DAY = datetime(1970, 1, 1), 86_400_000_000
_TO_MICROS = {"millis": 1000, "micros": 1}
_MOST_BYTES, _GROUP, _GOES_ON = 10, 7, 0x80
_DEEPEST = 200
_MOST_DIGITS = 1000
"""Of PostgreSQL's ``numeric``; Python would not write more than 4,300 of them."""


class Malformed(ValueError):
    """Bytes are no value of their schema; says why."""


def read_long(data: bytes, at: int) -> tuple[int, int]:
    """Return a number and the position behind it."""
    value = 0
    for index in range(_MOST_BYTES):
        if at + index >= len(data):
            break
        byte = data[at + index]
        value |= (byte & ~_GOES_ON) << (_GROUP * index)
        if not byte & _GOES_ON:
            return (value >> 1) ^ -(value & 1), at + index + 1
    raise Malformed("a number does not end")


def read_text(node: Node, data: bytes, at: int, depth: int = 0) -> Read:
    """Return a value at a position."""
    if depth > _DEEPEST:
        raise Malformed("it is nested too deep")
    kind = node.kind
    if kind == "record":
        parts = []
        for each in node.fields:
            text, at = read_text(each.node, data, at, depth + 1)
            parts.append(f"{json.dumps(each.name)}: {text}")
        return "{" + ", ".join(parts) + "}", at
    if kind == "union":
        branch, at = read_long(data, at)
        if not 0 <= branch < len(node.branches):
            raise Malformed(f"a union has no branch {branch}")
        return read_text(node.branches[branch], data, at, depth + 1)
    if kind in ("array", "map"):
        return _read_items(node, data, at, depth)
    return _SCALARS[kind](node, data, at)


def read_as(writer: Node, reader: Node, data: bytes, at: int) -> Read:
    """Return a record, or null, as the text that it has by another schema that ``source.key_compatibility`` allows."""
    record = writer
    if writer.kind == "union":
        branch, at = read_long(data, at)
        if not 0 <= branch < len(writer.branches):
            raise Malformed(f"a union has no branch {branch}")
        record = writer.branches[branch]
        if record.kind == "null":
            return "null", at
    found: dict[str, str] = {}
    for each in record.fields:
        found[each.name], at = read_text(each.node, data, at, 1)
    parts = []
    for each in reader.fields:
        if each.name not in found:
            found[each.name], _ = read_text(each.node, write_default(each.node, each.default), 0)
        parts.append(f"{json.dumps(each.name)}: {found[each.name]}")
    return "{" + ", ".join(parts) + "}", at


def _read_items(node: Node, data: bytes, at: int, depth: int) -> Read:
    assert node.items is not None, "a list or a map has elements"
    parts: list[str] = []
    while True:
        count, at = read_long(data, at)
        if count < 0:
            count = -count
            _, at = read_long(data, at)
        if not count:
            break
        # Each element takes a byte, but for those that hold nothing: of these there would be no end.
        if count > len(data) - at:
            raise Malformed("a list is longer than its bytes")
        for _ in range(count):
            if node.kind == "map":
                name, at = _string(node, data, at)
            text, at = read_text(node.items, data, at, depth + 1)
            parts.append(f"{name}: {text}" if node.kind == "map" else text)
    return ("{%s}" if node.kind == "map" else "[%s]") % ", ".join(parts), at


def _take(data: bytes, at: int, size: int) -> tuple[bytes, int]:
    if size < 0 or at + size > len(data):
        raise Malformed("it ends too early")
    return data[at : at + size], at + size


def _null(node: Node, data: bytes, at: int) -> Read:
    return "null", at


def _boolean(node: Node, data: bytes, at: int) -> Read:
    byte, at = _take(data, at, 1)
    if byte not in (b"\0", b"\1"):
        raise Malformed("a boolean is neither 0 nor 1")
    return ("true" if byte == b"\1" else "false"), at


def _integer(node: Node, data: bytes, at: int) -> Read:
    value, at = read_long(data, at)
    if node.kind == "int" and not -(2**31) <= value < 2**31:
        raise Malformed("an int has more than 32 bits")
    return to_text(node, value), at


def to_text(node: Node, value: int) -> str:
    """Return a whole number, or the day or time that it stands for, as JSON."""
    kind, _, unit = node.logical.rpartition("-")
    try:
        if node.logical == "date":
            return f'"{date(1970, 1, 1) + timedelta(days=value)}"'
        if kind == "time":
            micros = value * _TO_MICROS[unit]
            if not 0 <= micros < _DAY:
                raise OverflowError
            return f'"{(datetime.min + timedelta(microseconds=micros)).time().isoformat()}"'
        if kind:
            return f'"{_moment(value, kind, unit)}"'
    except OverflowError as error:
        raise Malformed("a time is outside of the years 1 to 9999") from error
    return str(value)


def _moment(value: int, kind: str, unit: str) -> str:
    """Return a timestamp; nanoseconds as nine digits, as Python's own times have six."""
    if unit == "nanos":
        seconds, nanos = divmod(value, 10**9)
        text = f"{(_EPOCH + timedelta(seconds=seconds)).isoformat()}.{nanos:09d}"
    else:
        text = (_EPOCH + timedelta(microseconds=value * _TO_MICROS[unit])).isoformat()
    return text if kind.startswith("local") else f"{text}Z"


def _read_float(node: Node, data: bytes, at: int) -> Read:
    size, form = (4, "<f") if node.kind == "float" else (8, "<d")
    raw, at = _take(data, at, size)
    (value,) = struct.unpack(form, raw)
    if not math.isfinite(value):
        return json.dumps("NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"), at
    return repr(value), at


def _bytes(node: Node, data: bytes, at: int) -> Read:
    size = node.size
    if node.kind == "bytes":
        size, at = read_long(data, at)
    raw, at = _take(data, at, size)
    if node.logical == "decimal":
        return f"{to_decimal(raw, node.scale):f}", at
    if node.logical == "uuid":
        return f'"{uuid.UUID(bytes=raw)}"', at
    return json.dumps(base64.b64encode(raw).decode()), at


def to_decimal(raw: bytes, scale: int, precision: int = _MOST_DIGITS) -> Decimal:
    """Return the number that bytes stand for, with all of its digits; :class:`Malformed` where it has too many."""
    number = int.from_bytes(raw, "big", signed=True)
    if abs(number) >= 10**precision:
        raise Malformed(f"a decimal has more than {precision} digits")
    return Decimal((int(number < 0), tuple(map(int, str(abs(number)))), -scale))


def _string(node: Node, data: bytes, at: int) -> Read:
    size, at = read_long(data, at)
    raw, at = _take(data, at, size)
    try:
        return json.dumps(raw.decode(), ensure_ascii=False), at
    except UnicodeDecodeError as error:
        raise Malformed("a text is no UTF-8") from error


def _enum(node: Node, data: bytes, at: int) -> Read:
    index, at = read_long(data, at)
    if not 0 <= index < len(node.symbols):
        raise Malformed(f"an enum has no symbol {index}")
    return json.dumps(node.symbols[index]), at


_SCALARS: dict[str, Callable[[Node, bytes, int], Read]] = {
    "null": _null,
    "boolean": _boolean,
    "int": _integer,
    "long": _integer,
    "float": _read_float,
    "double": _read_float,
    "bytes": _bytes,
    "fixed": _bytes,
    "string": _string,
    "enum": _enum,
}


def write_default(node: Node, value: Any) -> bytes:
    """Return the bytes of a field's default, which a schema has as JSON."""
    kind = node.kind
    if kind == "union":
        return _write_union(node, value)
    if kind == "record":
        return b"".join(write_default(each.node, value.get(each.name, each.default)) for each in node.fields)
    if kind in ("array", "map"):
        assert node.items is not None, "a list or a map has elements"
        names = [write_long(len(each.encode())) + each.encode() if kind == "map" else b"" for each in value]
        items = [write_default(node.items, each) for each in (value.values() if kind == "map" else value)]
        whole = b"".join(name + item for name, item in zip(names, items, strict=True))
        return (write_long(len(items)) + whole if items else b"") + b"\0"
    if kind in ("bytes", "fixed", "string"):
        raw: bytes = value.encode("utf-8" if kind == "string" else "latin-1")
        return raw if kind == "fixed" else write_long(len(raw)) + raw
    if kind in ("float", "double"):
        return struct.pack("<f" if kind == "float" else "<d", float(value))
    if kind == "enum":
        return write_long(node.symbols.index(value))
    return {"null": b"", "boolean": bytes([bool(value)])}[kind] if kind in ("null", "boolean") else write_long(value)


_DEFAULTS: dict[str, tuple[type, ...]] = {
    "null": (type(None),),
    "boolean": (bool,),
    "int": (int,),
    "long": (int,),
    "float": (int, float),
    "double": (int, float),
    "bytes": (str,),
    "fixed": (str,),
    "string": (str,),
    "enum": (str,),
    "array": (list,),
    "map": (dict,),
    "record": (dict,),
}
"""What JSON has for a default of each type."""


def _write_union(node: Node, value: Any) -> bytes:
    """Return a default of a union: of its first type, or of any later one that takes it."""
    for index, each in enumerate(node.branches):
        if type(value) in _DEFAULTS[each.kind] and (each.kind != "enum" or value in each.symbols):
            return write_long(index) + write_default(each, value)
    raise Malformed("a default is of no type of its union")


def write_long(value: int) -> bytes:
    """Return a number as Avro writes it."""
    rest, written = (value << 1) ^ (value >> 63), bytearray()
    while rest >= _GOES_ON:
        written.append(rest & ~_GOES_ON & 0xFF | _GOES_ON)
        rest >>= _GROUP
    written.append(rest)
    return bytes(written)
