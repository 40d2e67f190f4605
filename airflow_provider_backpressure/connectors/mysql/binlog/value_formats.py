"""Numbers, dates, times and JSON documents as MySQL's log packs them, and integers of varying length."""

import base64
import struct
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_EVEN, Context, Decimal
from functools import cache

_WIDE = {0xFC: 2, 0xFD: 3, 0xFE: 8}
"""Bytes of a number behind its first byte, where that says that it is a long one."""


class Bytes:
    """Reads a block from its front to its end."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data, self.at = data, at

    @property
    def left(self) -> int:
        """Bytes that have not been read."""
        return len(self.data) - self.at

    def take(self, size: int) -> bytes:
        """Return the next so many bytes."""
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self, size: int) -> int:
        """Return an unsigned number, its lowest byte first."""
        return int.from_bytes(self.take(size), "little")

    def read_packed_integer(self) -> int:
        """Return a number whose first byte says how long it is."""
        first = self.data[self.at]
        self.at += 1
        return first if first < 0xFB else self.number(_WIDE[first])

    def text(self) -> bytes:
        """Return a text behind its length."""
        return self.take(self.read_packed_integer())


_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
"""Bytes of so many digits."""
_Group = tuple[int, int, int]
"""Where digits that were packed together begin and end, and how many they are."""


def decimal_bytes(precision: int, scale: int) -> int:
    """Return how many bytes a number takes."""
    return _groups(precision, scale)[-1][1]


def decimal_text(raw: bytes, precision: int, scale: int) -> str:
    """Return the text of a number with all the digits of its scale."""
    sign = 1 << 8 * len(raw) - 1
    packed = int.from_bytes(raw, "big") ^ sign
    negative = packed & sign
    data = (packed ^ (2 * sign - 1) if negative else packed).to_bytes(len(raw), "big")
    digits = "".join(
        [f"{int.from_bytes(data[start:end], 'big'):0{number}d}" for start, end, number in _groups(precision, scale)]
    )
    whole = digits[: precision - scale].lstrip("0") or "0"
    return f"{'-' if negative else ''}{whole}{'.' if scale else ''}{digits[precision - scale :]}"


@cache
def _groups(precision: int, scale: int) -> list[_Group]:
    """Return how digits were packed: a remainder comes first before the point, and last after it."""
    before, after = precision - scale, scale
    numbers = [before % 9, *[9] * (before // 9), *[9] * (after // 9), after % 9]
    groups, at = [], 0
    for number in numbers:
        if number:
            groups.append((at, at + _BYTES[number], number))
            at += _BYTES[number]
    return groups


WIDTH = 22
"""Most characters of a number in a statement's result; digits that do not fit are rounded away."""
_PLAIN = 15
"""Most digits before the point of a number without an exponent."""


def double_text(number: float, most: int = WIDTH) -> str:
    """Return what ``CAST(number AS CHAR)`` gives, in so many characters."""
    if number == 0:
        return "-0" if str(number)[0] == "-" else "0"
    sign, digits, exponent = Decimal(repr(number)).normalize().as_tuple()
    assert isinstance(exponent, int), "MySQL has neither infinities nor NaN"
    text = "".join(map(str, digits))
    point, width = len(text) + exponent, most - sign
    minus = "-" * sign
    if _fits(len(text), point, width):
        return minus + _plain(text, point)
    return minus + _scientific(number, text, point - 1, width)


def _fits(length: int, point: int, width: int) -> bool:
    """Whether a number is printed without an exponent."""
    needed = length - point + 2 if point <= 0 else length + 1 if point < length else point
    return needed <= width and point >= 1 - _PLAIN and (point <= _PLAIN or length > point)


def _plain(text: str, point: int) -> str:
    if point <= 0:
        return "0." + "0" * -point + text
    if point < len(text):
        return f"{text[:point]}.{text[point:]}"
    return text + "0" * (point - len(text))


def _scientific(number: float, text: str, exponent: int, width: int) -> str:
    shown = str(abs(exponent))
    room = width - (exponent < 0) - 1 - len(shown) - (len(text) > 1)
    if room < len(text):
        short = Context(prec=room, rounding=ROUND_HALF_EVEN).create_decimal(Decimal(abs(number))).normalize()
        digits = short.as_tuple().digits
        text, exponent = "".join(map(str, digits)), short.adjusted()
    fraction = f".{text[1:]}" if len(text) > 1 else ""
    return f"{text[0]}{fraction}e{exponent}"


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC).replace(tzinfo=None)
_DATETIME_ZERO, _MICRO = 1 << 39, 1 << 24


def date_text(raw: bytes) -> str:
    """Return the text of a DATE."""
    packed = int.from_bytes(raw, "little")
    return f"{packed >> 9:04d}-{packed >> 5 & 15:02d}-{packed & 31:02d}"


def datetime_text(raw: bytes, digits: int) -> str:
    """Return the text of a DATETIME with so many digits of a second's fraction."""
    whole = int.from_bytes(raw[:5], "big") - _DATETIME_ZERO
    return _moment(whole) + _fraction(_micros(raw[5:]), digits)


def timestamp_text(raw: bytes, digits: int) -> str:
    """Return the text of a TIMESTAMP in UTC."""
    seconds, micros = int.from_bytes(raw[:4], "big"), _micros(raw[4:])
    if not seconds and not micros:
        return "0000-00-00 00:00:00" + _fraction(0, digits)
    return (_EPOCH + timedelta(seconds=seconds)).isoformat(" ") + _fraction(micros, digits)


def time_text(raw: bytes, digits: int) -> str:
    """Return the text of a TIME."""
    size = 8 * (len(raw) - 3)
    # Of a negative one, whole and fraction are one number's two's complement.
    value = int.from_bytes(raw, "big") - (0x800000 << size)
    whole, rest = abs(value) >> size, abs(value) & (1 << size) - 1
    return _clock(value < 0, whole) + _fraction(rest * _UNITS[len(raw) - 3], digits)


def decode_packed_date(packed: int) -> str:
    """Return the text of a date in a document."""
    return _moment(packed >> 24)[:10]


def decode_packed_datetime(packed: int) -> str:
    """Return the text of a date and time in a document."""
    return _moment(packed >> 24) + _fraction(packed % _MICRO, 6)


def decode_packed_time(packed: int) -> str:
    """Return the text of a time in a document."""
    return _clock(packed < 0, abs(packed) >> 24) + _fraction(abs(packed) % _MICRO, 6)


def _moment(whole: int) -> str:
    days, clock = whole >> 17, whole & 0x1FFFF
    year, month = divmod(days >> 5, 13)
    return f"{year:04d}-{month:02d}-{days & 31:02d} {clock >> 12:02d}:{clock >> 6 & 63:02d}:{clock & 63:02d}"


def _clock(negative: bool, whole: int) -> str:
    return f"{'-' * negative}{whole >> 12 & 1023:02d}:{whole >> 6 & 63:02d}:{whole & 63:02d}"


_UNITS = (0, 10_000, 100, 1)
"""Microseconds that the last place of a fraction stands for, by its bytes."""


def _micros(raw: bytes) -> int:
    return int.from_bytes(raw, "big") * _UNITS[len(raw)]


def _fraction(micros: int, digits: int) -> str:
    return f".{micros:06d}"[: digits + 1] if digits else ""


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
