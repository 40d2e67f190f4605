"""One Protobuf message as JSON text, for what is no column of its own: messages within messages, lists and maps.

Fields have the names of the schema. Numbers keep all of their digits, bytes are in base64, times are ISO text. What
JSON has no number for is a text. A field that is not set has its zero, or is left out
where that would be another value.
"""

import base64
import json
import math
import struct
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

from airflow_provider_backpressure.connectors.kafka.protobuf_schema import (
    BYTES,
    DURATION,
    FIXED32,
    FIXED64,
    TIMESTAMP,
    VARINT,
    WRAPPERS,
    Enum,
    Field,
    Message,
)
from airflow_provider_backpressure.connectors.kafka.tasks.avro_to_json import Malformed

_DEEPEST = 100
"""Messages within one another, as many as Protobuf's own readers take."""
_MOST_BYTES, _GROUP, _GOES_ON = 10, 7, 0x80
_BITS = {"int32": 32, "uint32": 32, "sint32": 32, "int64": 64, "uint64": 64, "sint64": 64}
_FIXED = {"fixed32": "<I", "sfixed32": "<i", "float": "<f", "fixed64": "<Q", "sfixed64": "<q", "double": "<d"}
_SIZES = {FIXED32: 4, FIXED64: 8}
_ZERO: dict[str, Any] = {"bool": False, "string": "", "bytes": b"", "float": 0.0, "double": 0.0}
_quote = json.encoder.encode_basestring
"""Returns a text as JSON has it. ``json.dumps`` does the same, and makes an encoder for each text."""
_EPOCH, NANOS = datetime(1970, 1, 1), 10**9
FIRST_SECOND, LAST_SECOND, MOST_SECONDS = -62_135_596_800, 253_402_300_799, 315_576_000_000
"""Bounds of a timestamp and of a duration, as Protobuf defines them."""


def read_varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Return a number of 64 bits without a sign, and the position behind it."""
    if at < end and data[at] < _GOES_ON:
        return data[at], at + 1
    value = 0
    for index in range(_MOST_BYTES):
        if at + index >= end:
            raise Malformed("it ends too early")
        byte = data[at + index]
        value |= (byte & ~_GOES_ON) << (_GROUP * index)
        if byte < _GOES_ON:
            if value >= 2**64:
                raise Malformed("a number has more than 64 bits")
            return value, at + index + 1
    raise Malformed("a number does not end")


def unfold_sign(value: int) -> int:
    """Return the signed number that one without a sign stands for."""
    return (value >> 1) ^ -(value & 1)


def walk(message: Message, data: bytes, at: int, end: int) -> Iterator[tuple[Field, int, int, int, int]]:
    """Yield what is written: the field, how it is written, and where its tag, its value and what follows begin."""
    by_tag = message.by_tag
    while at < end:
        begin = at
        tag, at = read_varint(data, at, end)
        each = by_tag.get(tag)
        if each is None:
            raise Malformed(describe_unknown(message, tag))
        wire = tag & 7
        size = _SIZES.get(wire, 0)
        start = at
        if wire == VARINT:
            _, at = read_varint(data, at, end)
        elif wire == BYTES:
            size, start = read_varint(data, at, end)
            at = start
        at += size
        if at > end:
            raise Malformed("it ends too early")
        yield each, wire, begin, start, at


def describe_unknown(message: Message, tag: int) -> str:
    """Return why what is written before a value cannot be there."""
    number = tag >> 3
    named = [each.name for each in message.fields if each.number == number]
    if named:
        return f"field {named[0]} of message {message.name} is written as another type"
    return f"message {message.name} has no field of number {number}"


def put_in_order(message: Message, data: bytes, at: int, end: int) -> bytes:
    """Return a message with each field once, by its number: the last value, and messages in parts as one.

    Protobuf allows any order, values that are written again, and lists with other fields between their parts.
    """
    found: dict[int, bytes] = {}
    parts: dict[int, bytes] = {}
    for each, _, begin, start, behind in walk(message, data, at, end):
        if each.oneof:
            _clear_others(message, each, found)
        number = each.number
        if each.repeated:
            found[number] = found.get(number, b"") + data[begin:behind]
        elif each.kind == "message":
            parts[number] = (parts[number] if number in found else b"") + data[start:behind]
            found[number] = write_varint(each.tags[0]) + write_varint(len(parts[number])) + parts[number]
        else:
            found[number] = data[begin:behind]
    return b"".join(found[number] for number in sorted(found))


def _clear_others(message: Message, each: Field, found: dict[int, Any]) -> None:
    """Remove the other fields of a oneof."""
    for other in message.fields:
        if other.oneof == each.oneof and other is not each:
            found.pop(other.number, None)


def write_varint(value: int) -> bytes:
    """Return a number as Protobuf writes it."""
    written = bytearray()
    while value >= _GOES_ON:
        written.append(value & 0x7F | _GOES_ON)
        value >>= _GROUP
    written.append(value)
    return bytes(written)


def read_message(message: Message, data: bytes, at: int, end: int, depth: int = 0) -> str:
    """Return a message as JSON; :class:`Malformed` says why it is none of its schema."""
    if depth > _DEEPEST:
        raise Malformed("it is nested too deep")
    found = _read_fields(message, data, at, end, depth)
    form = _FORMS.get(message.name)
    if form is not None:
        return form(message, found)
    parts = []
    for each in message.fields:
        text = found.get(each.number)
        if text is None:
            if each.presence:
                continue
            text = default_text(each)
        parts.append(f"{_quote(each.name)}: {text}")
    return "{" + ", ".join(parts) + "}"


def default_text(each: Field) -> str:
    """Return what a field has that is not set."""
    if each.repeated:
        return "{}" if each.message is not None and each.message.is_entry else "[]"
    if each.enum is not None:
        return json.dumps(zero_of(each.enum))
    return _to_text(_ZERO.get(each.kind, 0))


def zero_of(enum: Enum) -> str:
    """Return the name of an enum that is not set."""
    return enum.by_number.get(0, enum.values[0][0])


def _read_fields(message: Message, data: bytes, at: int, end: int, depth: int) -> dict[int, str]:
    """Return the JSON text of each field that is set, by its number."""
    found: dict[int, Any] = {}
    for each, wire, _, start, behind in walk(message, data, at, end):
        if each.oneof:
            _clear_others(message, each, found)
        number = each.number
        if each.repeated:
            found.setdefault(number, []).extend(_read_items(each, wire, data, start, behind, depth))
        elif each.kind == "message":
            found[number] = found.get(number, b"") + data[start:behind]
        else:
            found[number] = _read_scalar(each, data, start, behind)
    for each in message.fields:
        value = found.get(each.number)
        if isinstance(value, bytes):
            assert each.message is not None, "bytes are gathered of messages only"
            found[each.number] = read_message(each.message, value, 0, len(value), depth + 1)
        elif isinstance(value, list):
            found[each.number] = _join(each, value)
        elif value is None and each.required:
            raise Malformed(f"field {each.name} of message {message.name} is required and not there")
    return found


def _join(each: Field, items: list[Any]) -> str:
    if each.message is None or not each.message.is_entry:
        return f"[{', '.join(items)}]"
    # The last value of a key is the one; their order is nobody's, so that equal maps are equal texts.
    return "{" + ", ".join(f"{key}: {value}" for key, value in sorted(dict(items).items())) + "}"


def _read_items(each: Field, wire: int, data: bytes, at: int, end: int, depth: int) -> list[Any]:
    if each.message is not None:
        if each.message.is_entry:
            return [_read_entry(each.message, data, at, end, depth)]
        return [read_message(each.message, data, at, end, depth + 1)]
    if wire != BYTES or each.kind in ("string", "bytes"):
        return [_read_scalar(each, data, at, end)]
    items = []
    size = struct.calcsize(_FIXED[each.kind]) if each.kind in _FIXED else 0
    while at < end:
        behind = at + size if size else read_varint(data, at, end)[1]
        if behind > end:
            raise Malformed("it ends too early")
        items.append(_read_scalar(each, data, at, behind))
        at = behind
    return items


def _read_entry(entry: Message, data: bytes, at: int, end: int, depth: int) -> tuple[str, str]:
    found = _read_fields(entry, data, at, end, depth)
    key, value = entry.fields
    name = found.get(key.number) or default_text(key)
    if key.kind != "string":
        name = f'"{name}"'
    text = found.get(value.number)
    if text is None:
        text = read_message(value.message, b"", 0, 0, depth + 1) if value.message is not None else default_text(value)
    return name, text


def read_run(each: Field, data: bytes, at: int, end: int, tag: int) -> tuple[str, int]:
    """Return the JSON text of a list or a map and the position behind it, from behind its first tag on.

    The elements follow one another; ``put_in_order`` brings others into that order.
    """
    items: list[Any] = []
    tags = each.tags
    while True:
        start = at
        if tag & 7 == BYTES:
            size, start = read_varint(data, at, end)
            at = start + size
        else:
            at = start + _SIZES[tag & 7] if tag & 7 in _SIZES else read_varint(data, at, end)[1]
        if at > end:
            raise Malformed("it ends too early")
        items += _read_items(each, tag & 7, data, start, at, 0)
        if at == end:
            break
        tag, behind = read_varint(data, at, end)
        if tag not in tags:
            break
        at = behind
    return _join(each, items), at


def _read_scalar(each: Field, data: bytes, at: int, end: int) -> str:
    """Return a value as JSON text."""
    kind = each.kind
    if kind in _FIXED:
        return _to_text(struct.unpack(_FIXED[kind], data[at:end])[0])
    if kind == "bytes":
        return _to_text(data[at:end])
    if kind == "string":
        try:
            return _to_text(data[at:end].decode())
        except UnicodeDecodeError as error:
            raise Malformed("a text is no UTF-8") from error
    value, _ = read_varint(data, at, end)
    if kind == "bool":
        if value > 1:
            raise Malformed("a boolean is neither 0 nor 1")
        return _to_text(bool(value))
    if kind in ("sint32", "sint64"):
        value = unfold_sign(value)
    elif not kind.startswith("u") and value >= 2**63:
        value -= 2**64
    if each.enum is not None:
        name = each.enum.by_number.get(value)
        if name is None:
            raise Malformed(f"enum {each.enum.name} has no number {value}")
        return json.dumps(name)
    bits = _BITS[kind]
    if not (0 <= value < 2**bits if kind.startswith("u") else -(2 ** (bits - 1)) <= value < 2 ** (bits - 1)):
        raise Malformed(f"an {kind} has more than {bits} bits")
    return str(value)


def _to_text(value: Any) -> str:
    if isinstance(value, str):
        return _quote(value)
    if isinstance(value, float):
        if math.isfinite(value):
            return repr(value)
        return _quote("NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity")
    if isinstance(value, bytes):
        return _quote(base64.b64encode(value).decode())
    return json.dumps(value)


def to_time(seconds: int, nanos: int) -> str:
    """Return a timestamp as ISO text with all of its digits."""
    if not (FIRST_SECOND <= seconds <= LAST_SECOND and 0 <= nanos < NANOS):
        raise Malformed("a time is outside of the years 1 to 9999")
    return f"{(_EPOCH + timedelta(seconds=seconds)).isoformat()}{_fraction(nanos)}Z"


def to_duration(seconds: int, nanos: int) -> str:
    """Return a duration as Protobuf's JSON has it: its seconds."""
    if abs(seconds) > MOST_SECONDS or abs(nanos) >= NANOS or seconds * nanos < 0:
        raise Malformed("a duration is outside of its bounds")
    sign = "-" if seconds < 0 or nanos < 0 else ""
    return f"{sign}{abs(seconds)}{_fraction(abs(nanos))}s"


def _fraction(nanos: int) -> str:
    digits = f"{nanos:09d}"
    while digits.endswith("000"):
        digits = digits[:-3]
    return f".{digits}" if digits else ""


Form = Callable[[Message, dict[int, str]], str]


def _time(message: Message, found: dict[int, str]) -> str:
    return json.dumps(to_time(int(found.get(1, 0)), int(found.get(2, 0))))


def _duration(message: Message, found: dict[int, str]) -> str:
    return json.dumps(to_duration(int(found.get(1, 0)), int(found.get(2, 0))))


def _read_wrapper(message: Message, found: dict[int, str]) -> str:
    return found.get(1) or default_text(message.fields[0])


def _list(message: Message, found: dict[int, str]) -> str:
    return found.get(1, "[]")


def _structure(message: Message, found: dict[int, str]) -> str:
    return found.get(1, "{}")


def _value(message: Message, found: dict[int, str]) -> str:
    """Return what one of several types is; its null is JSON's, and so is one that is not set."""
    return next((text for number, text in found.items() if number != 1), "null")


_FORMS: dict[str, Form] = {
    TIMESTAMP: _time,
    DURATION: _duration,
    **dict.fromkeys(WRAPPERS, _read_wrapper),
    "google.protobuf.ListValue": _list,
    "google.protobuf.Struct": _structure,
    "google.protobuf.Value": _value,
}
"""Messages that are a value of JSON."""
