"""PostgreSQL's types on their way through Spark, and back: Arrow's type beside Spark's.

What is not listed here is carried as text in the server's own words, which the target's type reads back.
"""

import pyarrow
from pyspark.sql import types as spark

from airflow_provider_backpressure.spark.arrow_types import PLAIN, arrow_type

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


def postgres_type(type_: spark.DataType) -> str | None:
    """Return the PostgreSQL type that holds every value of a Spark type; ``None`` where there is none."""
    if isinstance(type_, spark.DecimalType):
        return f"numeric({type_.precision},{type_.scale})"
    return _FROM_SPARK.get(type(type_))
