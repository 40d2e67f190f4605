"""JSON as MySQL keeps it, turned into the text that MySQL prints for it."""

import base64
import struct

from airflow_provider_backpressure.connectors.mysql.binlog.values import (
    decimal_text,
    decode_packed_date,
    decode_packed_datetime,
    decode_packed_time,
    double_text,
)

_CONTAINERS = {0: (2, True), 1: (4, True), 2: (2, False), 3: (4, False)}
"""Bytes of a place, and whether it is an object."""
_LITERAL, _DOUBLE, _STRING = 4, 11, 12
_LITERALS = ("null", "true", "false")
_NUMBERS = {5: "<h", 6: "<H", 7: "<i", 8: "<I", 9: "<q", 10: "<Q"}
_INLINE = {2: (_LITERAL, 5, 6), 4: (_LITERAL, 5, 6, 7, 8)}
"""Types whose value is written in place of an offset, by the bytes of an offset."""
_DATE, _TIME, _DATETIMES, _DECIMAL = 10, 11, (7, 12), 246
_WIDTH = 350
"""Characters of a number: as many as it needs."""
_LINE = 57
"""Bytes in a line of MySQL's base64."""
_ESCAPES = str.maketrans(
    {code: f"\\u{code:04x}" for code in range(32)}
    | {ord(each): f"\\{letter}" for each, letter in zip('"\\\b\f\n\r\t', '"\\bfnrt', strict=True)}
)


def document(data: bytes) -> str:
    """Return the text of a value."""
    return _value(data[0], data, 1) if data else "null"


def _value(kind: int, data: bytes, at: int) -> str:
    if kind in _CONTAINERS:
        return _container(data, at, *_CONTAINERS[kind])
    if kind in _NUMBERS:
        return str(struct.unpack_from(_NUMBERS[kind], data, at)[0])
    match kind:
        case 4:
            return _LITERALS[data[at]]
        case 11:
            return _double(struct.unpack_from("<d", data, at)[0])
        case 12:
            return _quote(_read_sized(data, at))
    return _opaque(data[at], _read_sized(data, at + 1))


def _container(data: bytes, at: int, wide: int, named: bool) -> str:
    """Return an object or an array. Offsets are counted from its beginning, which holds its number of members."""
    number = _number(data, at, wide)
    names = at + 2 * wide
    values = names + number * (wide + 2) * named

    def name(index: int) -> str:
        entry = names + index * (wide + 2)
        start = at + _number(data, entry, wide)
        return _quote(data[start : start + _number(data, entry + wide, 2)])

    def value(index: int) -> str:
        entry = values + index * (wide + 1)
        inline = data[entry] in _INLINE[wide]
        return _value(data[entry], data, entry + 1 if inline else at + _number(data, entry + 1, wide))

    if named:
        return "{" + ", ".join(f"{name(index)}: {value(index)}" for index in range(number)) + "}"
    return "[" + ", ".join(map(value, range(number))) + "]"


def _opaque(kind: int, data: bytes) -> str:
    """Return a value of a type of SQL that JSON does not have."""
    if kind == _DECIMAL:
        return decimal_text(data[2:], data[0], data[1])
    packed = int.from_bytes(data[:8], "little", signed=True)
    if kind == _DATE:
        return f'"{decode_packed_date(packed)}"'
    if kind == _TIME:
        return f'"{decode_packed_time(packed)}"'
    if kind in _DATETIMES:
        return f'"{decode_packed_datetime(packed)}"'
    lines = (base64.b64encode(data[start : start + _LINE]) for start in range(0, len(data), _LINE))
    return _quote(b"base64:type%d:" % kind + b"\n".join(lines))


def _double(number: float) -> str:
    text = double_text(number, _WIDTH)
    return text if "." in text or "e" in text else f"{text}.0"


def _quote(text: bytes) -> str:
    return f'"{text.decode().translate(_ESCAPES)}"'


def _number(data: bytes, at: int, size: int) -> int:
    return int.from_bytes(data[at : at + size], "little")


def _read_sized(data: bytes, at: int) -> bytes:
    """Return the bytes that follow their length, of which each byte but the last has its highest bit set."""
    size = shift = 0
    while True:
        byte = data[at]
        size |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not byte & 0x80:
            return data[at : at + size]
