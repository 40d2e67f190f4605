"""Dates and times as MySQL packs them."""

from datetime import UTC, datetime, timedelta

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
