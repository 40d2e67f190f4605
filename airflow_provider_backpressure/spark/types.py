"""PostgreSQL's types on their way through Spark, and back.

A type with a counterpart whose values are the same is carried by it. Every other (uuid, json, arrays, enums, intervals,
numeric without a scale …) is carried as text in the server's own words, which the target's type reads back.
"""

import re

import pyarrow
from pyspark.sql import types as spark

_PLAIN: dict[str, tuple[pyarrow.DataType, spark.DataType]] = {
    "smallint": (pyarrow.int16(), spark.ShortType()),
    "integer": (pyarrow.int32(), spark.IntegerType()),
    "bigint": (pyarrow.int64(), spark.LongType()),
    "real": (pyarrow.float32(), spark.FloatType()),
    "double precision": (pyarrow.float64(), spark.DoubleType()),
    "boolean": (pyarrow.bool_(), spark.BooleanType()),
    "date": (pyarrow.date32(), spark.DateType()),
    "timestamp without time zone": (pyarrow.timestamp("us"), spark.TimestampNTZType()),
    "timestamp with time zone": (pyarrow.timestamp("us", tz="UTC"), spark.TimestampType()),
    "bytea": (pyarrow.binary(), spark.BinaryType()),
    "text": (pyarrow.string(), spark.StringType()),
}
_PRECISION = re.compile(r"\(\d+\)(?= with| without)")
_DECIMAL = re.compile(r"numeric\((\d+),(-?\d+)\)")
_MOST_DIGITS = 38

_FROM_SPARK: dict[type[spark.DataType], str] = {
    spark.ByteType: "smallint",
    **{type(counterpart): name for name, (_, counterpart) in _PLAIN.items()},
}


def carrier(postgres: str) -> tuple[pyarrow.DataType, spark.DataType]:
    """Return the Arrow type and the Spark type that carry a PostgreSQL type, spelled as ``format_type`` spells it."""
    plain = _PLAIN.get(_PRECISION.sub("", postgres))
    if plain is not None:
        return plain
    if match := _DECIMAL.fullmatch(postgres):
        precision, scale = int(match[1]), int(match[2])
        if 0 <= scale <= precision <= _MOST_DIGITS:
            return pyarrow.decimal128(precision, scale), spark.DecimalType(precision, scale)
    return _PLAIN["text"]


def postgres_type(type_: spark.DataType) -> str | None:
    """Return the PostgreSQL type that holds every value of a Spark type; ``None`` where there is none."""
    if isinstance(type_, spark.DecimalType):
        return f"numeric({type_.precision},{type_.scale})"
    return _FROM_SPARK.get(type(type_))
