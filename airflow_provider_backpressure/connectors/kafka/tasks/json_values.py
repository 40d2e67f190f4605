"""Values that are JSON: as texts, or field by field, every value in its sender's words; and why a record is refused."""

import json
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn, cast

import numpy
import pyarrow
import pyarrow.compute as pc
from pyarrow import json as arrow_json

from airflow_provider_backpressure.core.snapshot.spark_messages import Column
from airflow_provider_backpressure.exceptions import SourceRefused
from airflow_provider_backpressure.spark import arrow_buffers as buffers
from airflow_provider_backpressure.spark.arrow_buffers import of_bytes, of_numbers
from airflow_provider_backpressure.spark.column_types import carrier

if TYPE_CHECKING:
    from confluent_kafka import Message

Records = Sequence["Message"]
_JSON = ("json", "jsonb")
_HEXADECIMAL = r"^\s*[+-]?0[xX]"
_FLOATING = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*", re.ASCII)
_INTEGER = re.compile(r"[+-]?\d+")
_NUMERIC = re.compile(r"numeric\(\d+,\s*(-?\d+)\)")
_FRACTION = re.compile(r"(timestamp|time|timetz|interval|money)\b[^(]*(?:\((\d+)\).*)?")
"""Types that PostgreSQL rounds to so many digits behind the point."""
_MICROS, _MILLIS, _YEARS = "(?:us|micro)", "(?:ms|milli)", r"(?:y|dec|c|mon|mil(?:s|l[ae]|\b))"
"""Beginnings of the units that PostgreSQL knows; those of months and longer together."""
_CHARACTERS = re.compile(r"character(?: varying)?\((\d+)\)")
_OF_DAY = r"^\s*T?\d{1,2}(:?\d{2}){1,2}(\.\d*)?\s*([AaPp][Mm])?\s*"
_WRITTEN = (
    (re.compile(r"time(\(\d+\))?( without time zone)?"), _OF_DAY + "$"),
    (
        re.compile(r"timetz(\(\d+\))?|time(\(\d+\))? with time zone"),
        _OF_DAY + r"(Z|z|UTC|[+-]\d{1,2}(:?\d{2}){0,2})\s*$",
    ),
    # PostgreSQL makes a large number of one below zero.
    (re.compile("oid"), r"^\s*\d+\s*$"),
    (re.compile(r"oid(\[\d*\])+"), r"^[^-]*$"),
    (re.compile("money"), r"^\s*[-+]?\s*\$?(\d+|\d{1,3}(,\d{3})+)(\.\d*)?\s*$"),
)
"""How the values of a type are written, so that nothing of them is dropped."""
_SHOWN = 40
"""Digits of a number that an error shows."""
_DAY_MILLIS = 86_400_000
FIRST_MILLIS, LAST_MILLIS = -62_135_596_800_000, 253_402_300_799_999
OUTSIDE = "is outside of the years 1 to 9999"
"""All that readers of files can hold."""
_ASIDE = "Where there is no transform, quarantine= on the sink puts such records aside."


class Unreadable(SourceRefused):
    """A record is not what its columns say; ``reason`` without its place."""

    reason: str = ""
    record: "Message | None" = None


def refuse(record: "Message", reason: str, way_out: str = "") -> NoReturn:
    error = Unreadable(
        f"The record at offset {record.offset()} of partition {record.partition()} of topic {record.topic()} cannot be "
        f"taken: {reason}. {way_out}{_ASIDE}"
    )
    error.reason, error.record = reason, record
    raise error


def each_part(records: Records, part: str) -> Iterator[Any]:
    """Yield one part of every record. Called as what it is of its type, a method takes half the time."""
    return map(getattr(type(records[0]), part), records) if records else iter(())


def read_bytes(records: Records, part: str) -> pyarrow.Array:
    return buffers.of_bytes(list(each_part(records, part)), pyarrow.binary())


def read_text(record: "Message", part: str, value: bytes | None) -> str | None:
    """Return bytes as text that PostgreSQL can hold."""
    if value is None:
        return None
    try:
        text = value.decode()
    except UnicodeDecodeError:
        refuse(record, f"its {part} is no UTF-8")
    if "\0" in text:
        refuse(record, f"its {part} holds a NUL character, which no text can")
    return text


class Verbatim(str):
    """JSON in the words of its sender, as of a number nothing is to be rounded."""

    __slots__ = ()


_TEXTS = frozenset((str, Verbatim, type(None)))
_BLANKS = " \t\n\r"
"""What JSON may have around a value."""


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


JSON_DECODER = json.JSONDecoder(parse_int=Verbatim, parse_float=Verbatim, parse_constant=_no_number)
"""Gives numbers as :class:`Verbatim`, and refuses what is no JSON with a ``ValueError``."""


def _parse_value(record: "Message", value: bytes | None) -> tuple[str | None, Any]:
    """Return a value's text and what it says."""
    text = read_text(record, "value", value)
    return text, None if text is None else parse_json(record, text)


def parse_json(record: "Message", text: str) -> Any:
    """Return what the text of a record's value says."""
    try:
        return JSON_DECODER.decode(text)
    except ValueError as error:
        reason = str(error).partition(": line")[0]
        at = getattr(error, "pos", None)
        refuse(record, f"its value is no JSON ({reason}{'' if at is None else f' at character {at}'})")
    except RecursionError:
        refuse(record, "its value is nested too deep")


def json_texts(records: Records, values: Sequence[bytes | None], *, trusts: bool) -> pyarrow.Array:
    """Return values as text: as they are where all are plainly objects, otherwise each is checked by itself.

    ``values``: those of the records, without what is before the JSON.
    """
    whole = buffers.of_bytes(values, pyarrow.binary())
    if trusts or are_objects(whole):
        with suppress(pyarrow.ArrowInvalid):
            return whole.cast(pyarrow.string())
    texts = [_parse_value(record, value)[0] for record, value in zip(records, values, strict=True)]
    return pyarrow.array(texts, pyarrow.string())


def json_columns(records: Records, values: Sequence[bytes | None], columns: Sequence[Column]) -> list[pyarrow.Array]:
    """Return the fields of values that are all objects. ``values``: as of :func:`json_texts`."""
    scan = JSON_DECODER.scan_once  # type: ignore[attr-defined]
    objects: list[dict[str, Any] | None] = []
    for record, value in zip(records, values, strict=True):
        # What nearly all records are is found out by few steps, and anything else by those that can name it.
        text, found, end = "", None, -1
        try:
            if value is not None:
                text = value.decode().strip(_BLANKS)
                found, end = scan(text, 0)
        except (ValueError, StopIteration, RecursionError):
            end = -1
        if end != len(text) or type(found) is not dict or "\0" in text:
            found = _json_object(record, value)
        objects.append(found)
    return [json_field(records, objects, column) for column in columns]


def _json_object(record: "Message", value: bytes | None) -> dict[str, Any] | None:
    text, found = _parse_value(record, value)
    if text is not None and not isinstance(found, dict):
        refuse(record, "its value is no JSON object")
    return cast("dict[str, Any] | None", found)


def json_field(records: Records, objects: Sequence[dict[str, Any] | None], column: Column) -> pyarrow.Array:
    """Return one field of every object in the column's type; NULL where it is missing or null."""
    as_json = column.type in _JSON
    try:
        texts = _to_texts(objects, column.name, as_json=as_json)
        return _cast(pyarrow.array(texts, pyarrow.string()), column)
    except (pyarrow.ArrowInvalid, UnicodeEncodeError, RecursionError):
        _refuse_first(records, objects, column, as_json=as_json)


def _cast(texts: pyarrow.Array, column: Column) -> pyarrow.Array:
    type_ = carrier(column.type)[0]
    if _would_round(texts, column.type):
        raise pyarrow.ArrowInvalid("rounded")
    if _is_cut(texts, column.type):
        raise pyarrow.ArrowInvalid("cut")
    if type_ != pyarrow.string():
        return _number(texts, type_)
    if pc.any(pc.match_substring(texts, "\0")).as_py():
        raise pyarrow.ArrowInvalid("NUL")
    return texts


@cache
def _digits(type_: str) -> str | None:
    """Return the pattern of texts with a longer fraction than a type's; ``None`` for a type that has none."""
    match = _FRACTION.fullmatch(type_)
    if match is None:
        return None
    digits = int(match[2] or ("2" if match[1] == "money" else "6"))
    pattern = rf"\.\d{{{digits}}}\d*[1-9]"
    return "(?i)" + "|".join((pattern, *_fine_intervals(digits))) if match[1] == "interval" else pattern


def _fine_intervals(digits: int) -> Iterator[str]:
    """Yield patterns of intervals that a number of digits behind the second does not hold, by their units."""
    yield r"\dE[-+]?\d"
    # A fraction of a year is rounded to months, and one of a microsecond to a whole one.
    yield rf"\.\d*[1-9]\d*\s*(?:{_MICROS}|{_YEARS})"
    yield r"^[^T]*P[^T]*\.\d*[1-9]\d*M"
    for unit, finer in ((_MICROS, 6), (_MILLIS, 3)):
        if digits < finer:
            yield rf"[1-9][\d.]*\s*{unit}"
        elif unit == _MILLIS:
            yield rf"\.\d{{{digits - finer}}}\d*[1-9]\d*\s*{unit}"


def _would_round(texts: pyarrow.Array, type_: str) -> bool:
    """Whether PostgreSQL would take another value than one that is written, without a word: it rounds to the type."""
    pattern = _digits(type_)
    if pattern is not None:
        return bool(pc.any(pc.match_substring_regex(texts, pattern)).as_py())
    match = _NUMERIC.fullmatch(type_)
    if match is None or carrier(type_)[0] != pyarrow.string():
        return False
    return any(_decimals(text) > int(match[1]) for text in texts.to_pylist() if text is not None)


def _is_cut(texts: pyarrow.Array, type_: str) -> bool:
    """Whether PostgreSQL would drop a part of a text without an error: a zone, a date, blanks at the end, a comma."""
    longest = _CHARACTERS.fullmatch(type_)
    if longest is not None:
        return bool(pc.any(pc.greater(pc.utf8_length(texts), int(longest[1]))).as_py())
    written = next((pattern for of, pattern in _WRITTEN if of.fullmatch(type_)), None)
    return written is not None and pc.all(pc.match_substring_regex(texts, written)).as_py() is False


def _decimals(text: str) -> float:
    """Return how many digits behind the point a number needs, below zero where it ends in zeros before it."""
    try:
        _, digits, exponent = Decimal(text).as_tuple()
    except InvalidOperation:
        return -math.inf
    written = "".join(map(str, digits)).rstrip("0")
    return -exponent - (len(digits) - len(written)) if written and isinstance(exponent, int) else -math.inf


def _number(texts: pyarrow.Array, type_: pyarrow.DataType) -> pyarrow.Array:
    """Return texts in a type that is none; ``ArrowInvalid`` where Arrow would give another number than is written.

    It reads hexadecimal digits, by their bits, takes what is too large for infinity, and keeps 128 bits of a decimal.
    """
    if pyarrow.types.is_integer(type_) and pc.any(pc.match_substring_regex(texts, _HEXADECIMAL)).as_py():
        raise pyarrow.ArrowInvalid("hexadecimal")
    if pyarrow.types.is_decimal(type_) and _has_more_digits(texts, type_):
        raise pyarrow.ArrowInvalid("digits")
    found = pc.cast(texts, type_)
    if pyarrow.types.is_temporal(type_) and pc.any(_is_outside(found)).as_py():
        raise pyarrow.ArrowInvalid("out of range")
    if pyarrow.types.is_floating(type_):
        infinite = pc.and_(pc.is_inf(found), pc.match_substring_regex(texts, "[0-9]"))
        vanished = pc.and_(pc.equal(found, 0), pc.match_substring_regex(texts, "^[^eE]*[1-9]"))
        if pc.any(pc.or_(infinite, vanished)).as_py():
            raise pyarrow.ArrowInvalid("out of range")
    return found


def _has_more_digits(texts: pyarrow.Array, type_: pyarrow.Decimal128Type) -> bool:
    """Whether a number has more digits before or behind the point than a type. Of plain ones a pattern decides."""
    whole, scale = type_.precision - type_.scale, type_.scale
    plain = pc.match_substring_regex(texts, rf"^[+-]?0*[0-9]{{0,{whole}}}(\.[0-9]{{0,{scale}}}0*)?$")
    others = texts.filter(pc.invert(plain)).to_pylist()
    return any(_count_whole(text) > whole or _decimals(text) > scale for text in others)


def _count_whole(text: str) -> float:
    """Return how many digits a number has before the point; infinity for a text that is none."""
    try:
        number = Decimal(text)
    except InvalidOperation:
        return math.inf
    return (number.adjusted() + 1 if number else 0) if number.is_finite() else math.inf


def _is_outside(moments: pyarrow.Array) -> pyarrow.Array:
    """Whether each date or timestamp is outside of the years 1 to 9999."""
    if pyarrow.types.is_date32(moments.type):
        found, first, last = moments.view(pyarrow.int32()), FIRST_MILLIS // _DAY_MILLIS, LAST_MILLIS // _DAY_MILLIS
    else:
        found, first, last = moments.view(pyarrow.int64()), FIRST_MILLIS * 1000, LAST_MILLIS * 1000 + 999
    return pc.or_(pc.less(found, first), pc.greater(found, last))


def _refuse_first(
    records: Records, objects: Sequence[dict[str, Any] | None], column: Column, *, as_json: bool
) -> NoReturn:
    for record, found in zip(records, objects, strict=True):
        text = None
        try:
            text = None if found is None else _to_text(found.get(column.name), as_json=as_json)
            _cast(pyarrow.array([text], pyarrow.string()), column)
        except RecursionError:
            refuse(record, f"its field {column.name} is nested too deep")
        except (pyarrow.ArrowInvalid, UnicodeEncodeError):
            refuse(record, f"its field {column.name} {_unfit(text or '', column)}")
    raise AssertionError("one of them was refused")


def _unfit(text: str, column: Column) -> str:
    """Return why a text is not of a column's type: a number may be one and be too large."""
    type_ = carrier(column.type)[0]
    if any("\ud800" <= each <= "\udfff" for each in text):
        return "holds half of a surrogate pair, which no text can"
    if "\0" in text:
        return "holds a NUL character, which no text can"
    if _would_round(pyarrow.array([text]), column.type):
        return f"has too many decimals for {column.type}"
    if _CHARACTERS.fullmatch(column.type) and _is_cut(pyarrow.array([text]), column.type):
        return f"is too long for {column.type}"
    if pyarrow.types.is_temporal(type_) and _is_moment(text, type_):
        return f"{OUTSIDE}: {text[:_SHOWN]}"
    if pyarrow.types.is_integer(type_) and _INTEGER.fullmatch(text):
        return f"is too large for {column.type}: {text[:_SHOWN]}"
    if pyarrow.types.is_floating(type_) and _FLOATING.fullmatch(text):
        return f"is {'too small' if abs(float(text)) < 1 else 'too large'} for {column.type}: {text[:_SHOWN]}"
    if pyarrow.types.is_decimal(type_) and (whole := _count_whole(text)) < math.inf:
        too_large = whole > type_.precision - type_.scale
        return f"{'is too large' if too_large else 'has too many decimals'} for {column.type}"
    return f"is no {column.type}"


def _is_moment(text: str, type_: pyarrow.DataType) -> bool:
    try:
        return bool(pc.cast(pyarrow.array([text]), type_).is_valid()[0].as_py())
    except pyarrow.ArrowInvalid:
        return False


def _to_texts(objects: Sequence[dict[str, Any] | None], name: str, *, as_json: bool) -> list[str | None]:
    """Return a field of every object as :func:`_to_text` does; most are texts and numbers, which need nothing."""
    values = [None if each is None else each.get(name) for each in objects]
    if not as_json and _TEXTS.issuperset(map(type, values)):
        return values
    return [_to_text(value, as_json=as_json) for value in values]


def _to_text(value: Any, *, as_json: bool) -> str | None:
    """Return a field in its sender's words; an object or a list as JSON."""
    if value is None:
        return None
    if as_json or isinstance(value, dict | list):
        return _dump(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _dump(value: Any) -> str:
    if isinstance(value, Verbatim):
        return str(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(name)}: {_dump(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_dump, value)) + "]"
    return json.dumps(value)


_READ = {"use_threads": False}
# No field is wanted, so none is converted; one of an odd name has to be, or there would be no rows to count.
_PARSE = arrow_json.ParseOptions(
    explicit_schema=pyarrow.schema([("backpressure: nothing", pyarrow.string())]),
    unexpected_field_behavior="ignore",
)
_BEYOND = re.compile(b"NaN|Inf")
"""What Arrow's parser accepts and JSON does not have. Within a text it is allowed, which a closer check decides."""
_LINE_END = of_bytes([b"\n"], pyarrow.binary())[0]
_INITIALS = (b"N", b"I")
"""Most batches have none of them, which takes no time to see."""


def are_objects(values: pyarrow.Array) -> bool:
    """Return whether every value that is not NULL surely is one JSON object in UTF-8 and nothing else.

    Values are parsed as lines of one text. Each begins with ``{`` and ends with ``}``, so a line's end can only lie
    between two objects: within one, ``}`` is never followed by ``{``, and a text holds no end of a line. As many
    objects as values are then one in each.
    """
    present = values.drop_null()
    if not len(present):
        return True
    framed = pc.and_(pc.starts_with(present, b"{"), pc.ends_with(present, b"}"))
    if not pc.all(framed).as_py():
        return False
    lines = pyarrow.ListArray.from_arrays(of_numbers(numpy.array([0, len(present)], "i4"), pyarrow.int32()), present)
    text = pc.binary_join(lines, _LINE_END)[0].as_py()
    if any(initial in text for initial in _INITIALS) and _BEYOND.search(text):
        return False
    try:
        present.cast(pyarrow.string())
        found = arrow_json.read_json(
            pyarrow.BufferReader(text), arrow_json.ReadOptions(**_READ, block_size=len(text) + 1), _PARSE
        )
    except pyarrow.ArrowInvalid:
        return False
    return bool(found.num_rows == len(present))
