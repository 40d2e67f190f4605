"""Values as Kafka Connect writes them in JSON, made ready for a column: by the schema that comes along, or without one.

Connect writes a decimal as bytes in base64 and a time as a number. Only the schema says so. Without a schema, a value
that may mean two things is refused.
"""

import base64
import binascii
import re
from collections.abc import Callable, Mapping
from datetime import date, datetime, timedelta
from functools import partial
from typing import Any

from airflow_provider_backpressure.connectors.kafka.tasks.avro_to_json import Malformed, to_decimal
from airflow_provider_backpressure.connectors.kafka.tasks.json_values import JSON_DECODER, OUTSIDE, Verbatim

Convert = Callable[[Any], Any]
"""Returns a value that is not null as a text, or as JSON for what goes by the words of its sender."""
ConnectSchema = Mapping[str, Any]
"""A schema as Connect's JSON converter writes it: ``type``, ``name``, ``parameters``, ``fields``, ``items``."""
STRING, PRECISE, DOUBLE = "string", "precise", "double"
"""Values of Debezium's ``decimal.handling.mode``."""

_CONNECT, _DEBEZIUM = "org.apache.kafka.connect.data.", "io.debezium.time."
_DAYS = (f"{_CONNECT}Date", f"{_DEBEZIUM}Date")
_MOMENTS = {
    f"{_CONNECT}Timestamp": 10**3,
    f"{_DEBEZIUM}Timestamp": 10**3,
    f"{_DEBEZIUM}MicroTimestamp": 10**6,
    f"{_DEBEZIUM}NanoTimestamp": 10**9,
}
_TIMES = {
    f"{_CONNECT}Time": 10**3,
    f"{_DEBEZIUM}Time": 10**3,
    f"{_DEBEZIUM}MicroTime": 10**6,
    f"{_DEBEZIUM}NanoTime": 10**9,
}
"""Units of a second, by the name of a schema."""
_ISO = tuple(f"{_DEBEZIUM}Iso{each}" for each in ("Date", "Time", "Timestamp"))
_DURATIONS = (f"{_DEBEZIUM}MicroDuration", f"{_DEBEZIUM}NanoDuration")
_DECIMAL, _ANY_SCALE = f"{_CONNECT}Decimal", "io.debezium.data.VariableScaleDecimal"
_BITS = "io.debezium.data.Bits"
_OPAQUE = (_DECIMAL, _BITS, *_DAYS, *_MOMENTS, *_TIMES, *_DURATIONS)
"""Values that Connect writes as bytes or as a number, and that are something else."""
_WAY_OUT = "docs/reference/types-debezium.md lists the types that it can be"

# With the short forms, which an array's type may have.
_FLOAT = re.compile(r"real|double precision|float[48]?")
_NUMBER = re.compile(rf"smallint|integer|bigint|int[248]?|oid|(numeric|decimal)\b.*|money|{_FLOAT.pattern}")
_DAY, _LOCAL, _ZONED = (
    re.compile(each) for each in ("date", r"timestamp.* without time zone", r"timestamp.* with time zone")
)
_CLOCK, _CLOCK_ZONED = re.compile(r"time(\(\d+\))?( without time zone)?"), re.compile(r"timetz.*|time.* with time zone")
_TEMPORAL = re.compile(r"date|time.*|interval\b.*")
_TEXT = re.compile(r"text|citext|character\b.*")
_BIT, _FIXED_BITS = re.compile(r"bit\b.*|varbit\b.*"), re.compile(r"bit(\(\d+\))?")
_FINE = re.compile(r"(\.\d{6})0+(?=Z?$|[+-])")
"""Zeros behind the microseconds."""
_EPOCH, _NANOS, _DAY_SECONDS = datetime(1970, 1, 1), 10**9, 86_400


class Unfit(ValueError):
    """A value cannot be taken; says why, to follow the name of its field."""


def find_converter(schema: ConnectSchema | None, type_: str, decimals: str) -> Convert:
    """Return what makes a value ready for a column of a PostgreSQL type.

    ``schema``: of the value, ``None`` where it comes without one; then ``decimals`` says how decimals are written.
    """
    if type_.endswith("]"):
        items = None if schema is None else schema.get("items")
        return partial(_to_array, find_converter(items, re.sub(r"\[\d*\]$", "", type_), decimals))
    is_json = type_ in ("json", "jsonb")
    if schema is not None and (is_json or schema.get("type") == "array") and (opaque := _find_opaque(schema)):
        return partial(_refuse, f"holds {opaque}, whose JSON does not say so, and is no {type_}: {_WAY_OUT}")
    if is_json:
        return _to_json if schema is None or schema.get("type") == "string" else _keep
    if schema is None:
        return partial(_check_unnamed, type_, decimals)
    name = schema.get("name") or ""
    if name in _DAYS or name in _MOMENTS or name in _TIMES:
        return _keep if _NUMBER.fullmatch(type_) else _find_time(name, type_)
    if name == _DECIMAL:
        return partial(_to_decimal, int((schema.get("parameters") or {})["scale"]))
    if name == _ANY_SCALE:
        return _to_any_scale
    if name in _ISO:
        return _drop_zone if _TEMPORAL.fullmatch(type_) else _keep
    # Not of a varying length: zeros at its beginning are not among the bits.
    if name == _BITS and _FIXED_BITS.fullmatch(type_):
        return partial(_to_bits, int((schema.get("parameters") or {})["length"]))
    if name in _DURATIONS and type_.startswith("interval"):
        return partial(_refuse, "is a duration whose months are averages: set interval.handling.mode=string")
    if schema.get("type") == "bytes" and not _TEXT.fullmatch(type_):
        return partial(_refuse, f"holds bytes, which are no {type_}: take it as text, in base64")
    return partial(_check_named, type_)


def _find_opaque(schema: ConnectSchema) -> str | None:
    """Return what a value, or an element of a list, is where only its schema says it; otherwise ``None``."""
    if schema.get("type") == "array":
        return _find_opaque(schema["items"])
    name = schema.get("name") or ""
    if name in _OPAQUE:
        return f"a {name.rpartition('.')[2]}"
    return "bytes" if schema.get("type") == "bytes" else None


def _keep(value: Any) -> Any:
    return value


def _refuse(reason: str, value: Any) -> Any:
    raise Unfit(reason)


def _check_named(type_: str, value: Any) -> Any:
    """Return a value of a schema that says no more than its JSON does."""
    if _TEMPORAL.fullmatch(type_):
        if isinstance(value, Verbatim):
            raise Unfit(f"is a number, and its schema does not say of which {type_}")
        return _trim(value)
    return value


def _check_unnamed(type_: str, decimals: str, value: Any) -> Any:
    """Return a value without a schema; :class:`Unfit` where it may be of two meanings."""
    if _TEMPORAL.fullmatch(type_):
        if isinstance(value, Verbatim):
            raise Unfit(
                f"is a number without a schema, which may be in any unit and is no {type_}: set "
                "time.precision.mode=isostring, or schemas.enable=true, or take it as bigint"
            )
        return _drop_zone(value) if not (_ZONED.fullmatch(type_) or _CLOCK_ZONED.fullmatch(type_)) else _trim(value)
    if _NUMBER.fullmatch(type_):
        if isinstance(value, dict) and value.keys() == {"scale", "value"}:
            return _to_any_scale(value)
        if type(value) is str and decimals != STRING and not (_FLOAT.fullmatch(type_) and _is_no_number(value)):
            raise Unfit(
                "is a text without a schema, which may be the bytes of a decimal: set decimal.handling.mode=string "
                f'and Debezium(decimal_handling_mode="{STRING}"), or schemas.enable=true'
            )
    if _BIT.fullmatch(type_) and type(value) is str:
        raise Unfit(f"holds bytes without a schema, which are no {type_}: set schemas.enable=true, or take it as text")
    return value


def _is_no_number(value: str) -> bool:
    return value in ("NaN", "Infinity", "-Infinity")


def _trim(value: Any) -> Any:
    return _FINE.sub(r"\1", value) if type(value) is str else value


def _drop_zone(value: Any) -> Any:
    """Return a time of a column without a zone, which Debezium writes as one in UTC."""
    if isinstance(value, Verbatim):
        raise Unfit("is a number, and its schema says that it is a text")
    return _trim(value).removesuffix("Z") if type(value) is str else value


def _to_json(value: Any) -> Any:
    """Return what a text says: JSON travels as a text."""
    if type(value) is not str:
        return value
    try:
        JSON_DECODER.decode(value)
    except (ValueError, RecursionError) as error:
        raise Unfit("is a text that is no JSON: take it as text") from error
    return Verbatim(value)


def _to_array(convert: Convert, value: Any) -> Any:
    """Return a list in PostgreSQL's words."""
    if not isinstance(value, list):
        return value
    return "{" + ",".join(_to_element(convert, each) for each in value) + "}"


def _to_element(convert: Convert, value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, list):
        return str(_to_array(convert, value))
    found = convert(value)
    if isinstance(found, bool):
        return "true" if found else "false"
    if isinstance(found, dict):
        raise Unfit("has an element that is an object: take it as json")
    return '"' + str(found).replace("\\", "\\\\").replace('"', '\\"') + '"'


def _to_number(value: Any) -> int:
    try:
        return int(value) if isinstance(value, Verbatim) else int("")
    except ValueError as error:
        raise Unfit("is no whole number, as its schema says") from error


def _decode_bytes(value: Any) -> bytes:
    try:
        found = base64.b64decode(value, validate=True) if type(value) is str else b""
    except (binascii.Error, ValueError) as error:
        raise Unfit("is no base64, as bytes are written") from error
    if not found:
        raise Unfit("is no base64, as bytes are written")
    return found


def _to_decimal(scale: int, value: Any) -> Any:
    # With decimal.format=NUMERIC the converter writes a number.
    if isinstance(value, Verbatim):
        return value
    try:
        return f"{to_decimal(_decode_bytes(value), scale):f}"
    except Malformed as error:
        raise Unfit(f"cannot be taken: {error}") from error


def _to_any_scale(value: Any) -> Any:
    if not isinstance(value, dict):
        raise Unfit("is no object of scale and value, as its schema says")
    return _to_decimal(_to_number(value.get("scale")), value.get("value"))


def _to_bits(length: int, value: Any) -> str:
    """Return a string of bits; the bytes come with the lowest first."""
    # A string of zeros may have no byte at all.
    number = int.from_bytes(_decode_bytes(value) if value != "" else b"", "little")
    if number >> length:
        raise Unfit(f"has more than {length} bits, as its schema says")
    return f"{number:0{length}b}"


def _find_time(name: str, type_: str) -> Convert:
    """Return what writes a number of days or of parts of a second; only into a type that drops nothing of it."""
    free = not (_TEMPORAL.fullmatch(type_) or _BIT.fullmatch(type_))
    if name in _DAYS and (free or _DAY.fullmatch(type_) or _LOCAL.fullmatch(type_)):
        return _to_day
    if name in _MOMENTS and (free or _LOCAL.fullmatch(type_)):
        return partial(_to_moment, _MOMENTS[name], "")
    if name.startswith(_CONNECT) and name in _MOMENTS and _ZONED.fullmatch(type_):
        return partial(_to_moment, _MOMENTS[name], "Z")
    if name in _TIMES and (free or type_.startswith("interval")):
        return partial(_to_time, _TIMES[name], False)
    if name in _TIMES and _CLOCK.fullmatch(type_):
        return partial(_to_time, _TIMES[name], True)
    without = " without a zone" if name in _MOMENTS else ""
    return partial(_refuse, f"is a {name.rpartition('.')[2]}{without}, which is no {type_}")


def _to_day(value: Any) -> str:
    try:
        return (date(1970, 1, 1) + timedelta(days=_to_number(value))).isoformat()
    except OverflowError as error:
        raise Unfit(OUTSIDE) from error


def _to_moment(per_second: int, zone: str, value: Any) -> str:
    seconds, rest = divmod(_to_number(value), per_second)
    try:
        return (_EPOCH + timedelta(seconds=seconds)).isoformat() + _fraction(rest, per_second) + zone
    except OverflowError as error:
        raise Unfit(OUTSIDE) from error


def _to_time(per_second: int, of_day: bool, value: Any) -> str:
    number = _to_number(value)
    if of_day and not 0 <= number <= _DAY_SECONDS * per_second:
        raise Unfit("is not within a day: take it as interval")
    seconds, rest = divmod(abs(number), per_second)
    sign, (hours, seconds) = "-" if number < 0 else "", divmod(seconds, 3600)
    return f"{sign}{hours:02d}:{seconds // 60:02d}:{seconds % 60:02d}{_fraction(rest, per_second)}"


def _fraction(rest: int, per_second: int) -> str:
    digits = f"{rest * (_NANOS // per_second):09d}".rstrip("0")
    return f".{digits}" if digits else ""
