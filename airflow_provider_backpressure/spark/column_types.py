"""PostgreSQL's types on their way through Spark, and back: Arrow's type beside Spark's.

What is not listed here is carried as text in the server's own words, which the target's type reads back.
"""

import re
from collections.abc import Sequence

import pyarrow
from pyspark.sql import types as spark

from airflow_provider_backpressure.core.snapshot.spark_messages import Column

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
