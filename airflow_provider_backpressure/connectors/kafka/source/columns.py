"""The columns of a topic: what comes with every record, then its value or the fields of it."""

import re
from typing import TYPE_CHECKING

from airflow_provider_backpressure.core.snapshot.messages import Column
from airflow_provider_backpressure.core.snapshot.offsets import TOMBSTONE
from airflow_provider_backpressure.exceptions import InvalidDeclaration

if TYPE_CHECKING:
    from airflow_provider_backpressure.connectors.kafka.source.config import KafkaSource

KEY = "key"
VALUE = "value"
GIVEN = 6
"""Columns that come with every record, before the value or its fields."""
_KEYS = {"bytes": "bytea", "text": "text"}
# Not jsonb, which prints what it was given in another way: the target is to hold the text that was sent.
_VALUES = {"json": "json", "raw": "bytea"}
_ALIASES = {
    "int2": "smallint",
    "int": "integer",
    "int4": "integer",
    "int8": "bigint",
    "float4": "real",
    "float8": "double precision",
    "float": "double precision",
    "bool": "boolean",
    "timestamptz": "timestamp with time zone",
    "timestamp": "timestamp without time zone",
    "decimal": "numeric",
    "varchar": "character varying",
    "char": "character(1)",
}
_TYPE = re.compile(r"([a-z_][a-z0-9_ ]*?)\s*(?:\(([\d\s,]+)\))?((?: with| without) time zone)?")


def columns_of(declared: "KafkaSource") -> tuple[Column, ...]:
    """Return the columns; ``InvalidDeclaration`` for a field whose name or type cannot be taken."""
    given = (
        Column(name="topic", type="text", nullable=False),
        Column(name="partition", type="integer", nullable=False),
        Column(name="offset", type="bigint", nullable=False),
        Column(name="timestamp", type="timestamp with time zone"),
        Column(name=KEY, type=_KEYS[declared.key]),
        Column(name="headers", type="json"),
    )
    if declared.fields is None:
        return (*given, Column(name=VALUE, type=_VALUES[declared.format]))
    taken = [name for name in (*(column.name for column in given), TOMBSTONE) if name in declared.fields]
    if taken:
        raise InvalidDeclaration(
            f"The field {', '.join(taken)} would be a second column of that name: leave fields out, and take the value "
            "apart in a transform."
        )
    return (*given, *(Column(name=name, type=to_postgres_type(type_)) for name, type_ in declared.fields.items()))


def rebuild_source(conn_id: str, topic: str, columns: tuple[Column, ...]) -> "KafkaSource":
    """Return the declaration that made the columns of a plan, see :func:`columns_of`."""
    from airflow_provider_backpressure.connectors.kafka.source.config import KafkaSource

    key = next(kind for kind, type_ in _KEYS.items() if type_ == columns[4].type)
    rest = columns[GIVEN:]
    for name, type_ in _VALUES.items():
        if rest == (Column(name=VALUE, type=type_),):
            return KafkaSource(conn_id=conn_id, topic=topic, format=name, key=key)
    return KafkaSource(conn_id=conn_id, topic=topic, key=key, fields={column.name: column.type for column in rest})


def to_postgres_type(type_: str) -> str:
    """Return a type as PostgreSQL itself spells it; ``InvalidDeclaration`` for bytes, which JSON has none of."""
    text = " ".join(type_.lower().split())
    if text in ("bytea", ""):
        raise InvalidDeclaration(f"A field of a JSON object cannot be of type {type_!r}: take it as text.")
    match = _TYPE.fullmatch(text)
    if match is None:
        return type_
    name, numbers, zone = match[1], match[2], match[3] or ""
    given = f"({','.join(number.strip() for number in numbers.split(','))})" if numbers else ""
    full = _ALIASES.get(name, name) if not zone else name
    if full.startswith("timestamp ") and given:
        return full.replace("timestamp", f"timestamp{given}", 1)
    if name == "char" and given:
        return f"character{given}"
    if full == "numeric" and given and "," not in given:
        return f"numeric({given[1:-1]},0)"
    return f"{full}{given}{zone}"
