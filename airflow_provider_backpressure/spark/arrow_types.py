"""PostgreSQL's types as Arrow has them: what files hold, and what carries rows through Spark.

A type with a counterpart whose values are the same is carried by it. Every other (uuid, json, arrays, enums, intervals,
numeric without a scale …) is carried as text in the server's own words.
"""

import re
from collections.abc import Sequence

import pyarrow

from airflow_provider_backpressure.core.snapshot.messages import Column

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
