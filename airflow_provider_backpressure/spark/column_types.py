"""PostgreSQL's types on their way through Spark, and back: Arrow's type beside Spark's.

What is not listed here is carried as text in the server's own words, which the target's type reads back.
"""

import json
import re
from collections.abc import Sequence
from typing import Any

import pyarrow
from pyspark.sql import types as spark

from airflow_provider_backpressure.core.snapshot.spark_messages import Column, RangeSpec
from airflow_provider_backpressure.exceptions import QuarantineFull, SinkRefused

PLAIN: dict[str, pyarrow.DataType] = {
    "smallint": pyarrow.int16(),
    "integer": pyarrow.int32(),
    "bigint": pyarrow.int64(),
    "real": pyarrow.float32(),
    "double precision": pyarrow.float64(),
    "boolean": pyarrow.bool_(),
    "date": pyarrow.date32(),
    "timestamp without time zone": pyarrow.timestamp("us"),
    "timestamp with time zone": pyarrow.timestamp("us", tz="UTC"),
    "bytea": pyarrow.binary(),
    "text": pyarrow.string(),
}
_PRECISION = re.compile(r"\(\d+\)(?= with| without)")
_DECIMAL = re.compile(r"numeric\((\d+),(-?\d+)\)")
_MOST_DIGITS = 38


def arrow_type(postgres: str) -> pyarrow.DataType:
    """Return the Arrow type that carries a PostgreSQL type, spelled as ``format_type`` spells it."""
    plain = PLAIN.get(_PRECISION.sub("", postgres))
    if plain is not None:
        return plain
    if match := _DECIMAL.fullmatch(postgres):
        precision, scale = int(match[1]), int(match[2])
        if 0 <= scale <= precision <= _MOST_DIGITS:
            return pyarrow.decimal128(precision, scale)
    return PLAIN["text"]


def arrow_schema(columns: Sequence[Column]) -> pyarrow.Schema:
    """Return the schema of files that hold these columns."""
    return pyarrow.schema([pyarrow.field(each.name, arrow_type(each.type), each.nullable) for each in columns])


_SPARK: dict[str, spark.DataType] = {
    "smallint": spark.ShortType(),
    "integer": spark.IntegerType(),
    "bigint": spark.LongType(),
    "real": spark.FloatType(),
    "double precision": spark.DoubleType(),
    "boolean": spark.BooleanType(),
    "date": spark.DateType(),
    "timestamp without time zone": spark.TimestampNTZType(),
    "timestamp with time zone": spark.TimestampType(),
    "bytea": spark.BinaryType(),
    "text": spark.StringType(),
}
_BY_ARROW = {type_: _SPARK[name] for name, type_ in PLAIN.items()}

_FROM_SPARK: dict[type[spark.DataType], str] = {
    spark.ByteType: "smallint",
    **{type(counterpart): name for name, counterpart in _SPARK.items()},
}


def carrier(postgres: str) -> tuple[pyarrow.DataType, spark.DataType]:
    """Return the Arrow type and the Spark type that carry a PostgreSQL type, spelled as ``format_type`` spells it."""
    arrow = arrow_type(postgres)
    if pyarrow.types.is_decimal(arrow):
        return arrow, spark.DecimalType(arrow.precision, arrow.scale)
    return arrow, _BY_ARROW[arrow]


def declare_type(type_: spark.DataType) -> str:
    """Return a type as a statement declares it: ``timestamp`` is what ``spark.sql.timestampType`` says there."""
    return "timestamp_ltz" if isinstance(type_, spark.TimestampType) else type_.simpleString()


def postgres_type(type_: spark.DataType) -> str | None:
    """Return the PostgreSQL type that holds every value of a Spark type; ``None`` where there is none."""
    if isinstance(type_, spark.DecimalType):
        return f"numeric({type_.precision},{type_.scale})"
    return _FROM_SPARK.get(type(type_))


LONGEST = 10_000
"""Most characters of a row that are kept."""
Row = dict[str, Any]


def key_of(spec: RangeSpec, row: Row) -> str:
    """Return what a person finds a row by, as JSON: offsets of a log, the columns ranges are cut by, or the key."""
    bounds = spec.slices[0].bounds
    for names in (("partition", "offset"), bounds.get("columns", ()), spec.write.key, tuple(row)[:1]):
        if names and all(name in row for name in names):
            return as_json({name: row[name] for name in names})
    return as_json(row)


def kept_of(row: Row) -> str:
    """Return the row as it is kept."""
    return as_json(row)[:LONGEST]


def as_json(value: Row) -> str:
    """Return JSON without the characters that PostgreSQL's text cannot hold."""
    return json.dumps(value, default=_text)


def alone(spec: RangeSpec, row: Row, reason: str) -> SinkRefused:
    """Return the error of a row where none may be kept aside."""
    return SinkRefused(f"The row {key_of(spec, row)} cannot go into {spec.write.fence}: {reason}.")


def full(spec: RangeSpec, row: Row, reason: str) -> QuarantineFull:
    """Return the error of one row too many."""
    return QuarantineFull(
        f"More than {spec.write.most_bad} rows cannot go into {spec.write.fence}, the most that may be kept aside; "
        f"one of them is {key_of(spec, row)}: {reason}."
    )


def _text(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)
