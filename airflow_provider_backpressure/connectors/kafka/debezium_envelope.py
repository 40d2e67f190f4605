"""The form of Debezium's change events, which planning and tasks know alike."""

import base64
import json
import re
import uuid
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal, InvalidOperation
from functools import cached_property
from hashlib import md5
from typing import Any

from airflow_provider_backpressure.connectors.kafka.avro_schema import Node, record_of
from airflow_provider_backpressure.exceptions import InvalidDeclaration

ENVELOPE = "envelope"
"""Name of what a plan knows of change events, beside the schemas of keys and values."""
BEFORE, AFTER, OP, SOURCE = "before", "after", "op", "source"
"""Fields of an envelope."""
FLAT_OP, FLAT_DELETED = "__op", "__deleted"
"""Fields that flattened events may have beside those of the row."""
WRITES, DELETE = ("c", "r", "u"), "d"
"""Values of ``op``: created, read by a snapshot, updated; deleted."""
_OTHERS = {
    "t": "the source truncated the table, and the event does not say which rows are gone",
    "m": "it is a message in the source's log, and no change of a row",
}
UNLOGGED = (
    "is not in the event: the source did not log it, as PostgreSQL does with a TOASTed value that did not change. Set "
    "REPLICA IDENTITY FULL on the table"
)
"""Why a field cannot be taken, to follow its name."""
_FAR = Decimal(-99_999_999)
"""Both coordinates of a point that was not logged."""
_SHAPES = tuple(
    base64.b64encode(bytes.fromhex(each)).decode()
    for each in (
        "0101000020e6100000000000fc83d797c1000000fc83d797c1",
        "0101000020e61000000c21e7fdff7f66401842cefbff7f5640",
    )
)
"""A geometry and a geography that were not logged, in WKB: the point of both, and one near the pole."""
_MOST_DIGITS = 1000
"""Of PostgreSQL's ``numeric``."""
_BYTE = re.compile(r"[A-Za-z0-9+/]{2}==")
_FIRST_SECOND = re.compile(r"(?:1970-01-01T)?00:00:00(\.\d+)Z?")


def describe_op(op: Any, name: str = OP) -> str:
    """Return why an operation is no change of a row."""
    why = _OTHERS.get(op) if isinstance(op, str) else None
    return f"its {name} is {op}: {why}" if why else f"its {name} is none of {', '.join((*WRITES, DELETE))}"


def find_row(node: Node, *, flattened: bool) -> Node:
    """Return the record of an event's row in Avro; :class:`InvalidDeclaration` where its schema has none."""
    whole = record_of(node)
    fields = {each.name: each.node for each in whole.fields} if whole is not None else {}
    inner = record_of(fields[AFTER]) if fields.keys() >= {BEFORE, AFTER, OP} else None
    if flattened and inner is not None:
        raise InvalidDeclaration("The Avro schema is an envelope of Debezium, and of no flattened event.")
    row = whole if flattened else inner
    if row is None:
        raise InvalidDeclaration(
            "The Avro schema is of no change event of Debezium: an envelope has before, after and op, and "
            "Debezium(flattened=True) reads rows without one."
        )
    return replace(row, fields=tuple(each for each in row.fields if each.name not in (FLAT_OP, FLAT_DELETED)))


@dataclass(frozen=True, kw_only=True)
class Placeholder:
    """What Debezium writes in place of a value that the source did not log: one text, in a form for each type.

    The forms are those of Debezium's UnchangedToastedPlaceholder and PostgresValueConverter.
    """

    text: str

    def has_form(self, value: Any) -> bool:
        """Whether a value, as JSON has it, is the placeholder in the form of any type. Numbers may be texts."""
        if isinstance(value, str):
            return value in self.texts
        if isinstance(value, list):
            return (len(value) == 1 and value[0] in self._elements) or self._are_bytes(value)
        return isinstance(value, dict) and (value.get(self.text) == self.text or _is_shape(value))

    @cached_property
    def marks(self) -> tuple[str, ...]:
        """Texts of which one is in the JSON of each form that is no list of numbers."""
        return (*self._elements, *_SHAPES, "99999999", "9.9999999")

    @cached_property
    def texts(self) -> frozenset[str]:
        """Itself, bytes in base64, and a map of ``hstore`` as JSON."""
        pairs = {self.text: self.text}
        maps = (json.dumps(pairs, separators=(",", ":"), ensure_ascii=each) for each in (False, True))
        return frozenset((self.text, self._base64, *maps))

    @cached_property
    def numbers(self) -> tuple[int, ...]:
        """Its bytes as Java has them, with a sign: a list of numbers holds one for each."""
        return tuple(each - 2 * (each & 0x80) for each in self.text.encode())

    @cached_property
    def _elements(self) -> tuple[str, ...]:
        """What a list of one element holds: itself, its bytes, or its UUID as Java makes one of bytes."""
        named = uuid.UUID(bytes=md5(self.text.encode(), usedforsecurity=False).digest(), version=3)
        return (self.text, self._base64, str(named))

    @property
    def _base64(self) -> str:
        return base64.b64encode(self.text.encode()).decode()

    def _are_bytes(self, values: list[Any]) -> bool:
        """Whether a list holds its bytes: as numbers, decimals of any scale, days, parts of a second or booleans."""
        if len(values) != len(self.numbers):
            return False
        if all(each is True for each in values):
            return True
        found = [_to_number(each) for each in values]
        if not found[0]:
            return False
        digits = found[0].adjusted() - Decimal(self.numbers[0]).adjusted()
        return abs(digits) <= _MOST_DIGITS and found == [Decimal(each).scaleb(digits) for each in self.numbers]


def _is_shape(value: dict[str, Any]) -> bool:
    return value.get("wkb") in _SHAPES or _to_number(value.get("x")) == _to_number(value.get("y")) == _FAR


def _to_number(value: Any) -> Decimal | None:
    """Return a number, of what is written as one byte, as a day or as a part of the first second too."""
    if isinstance(value, dict):
        value = value.get("value")
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        return None
    text = str(value)
    if len(text) > _MOST_DIGITS:
        return None
    if _BYTE.fullmatch(text):
        return Decimal(int.from_bytes(base64.b64decode(text), "big", signed=True))
    if match := _FIRST_SECOND.fullmatch(text):
        return Decimal(match[1])
    try:
        number = Decimal((date.fromisoformat(text) - date(1970, 1, 1)).days) if "-" in text[1:] else Decimal(text)
    except (ValueError, InvalidOperation):
        return None
    return number if number.is_finite() else None
