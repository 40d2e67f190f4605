"""Bounds of ranges as conditions on a table that Spark reads."""

import re
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal

from pyspark.sql.types import (
    BinaryType,
    DateType,
    DecimalType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    TimestampNTZType,
    TimestampType,
)

from airflow_provider_backpressure.core.snapshot.bounds import Bounds, KeyBounds
from airflow_provider_backpressure.core.snapshot.spark_messages import Column
from airflow_provider_backpressure.exceptions import SinkRefused
from airflow_provider_backpressure.spark.column_types import carrier

_BYTES = re.compile(r"\\x(([0-9a-fA-F]{2})*)")
_NUMBER = re.compile(r"-?\d+(\.\d+)?")
_LONGEST = 50
"""Most characters of a number that Spark can have."""


def list_conditions(bounds: Bounds, columns: Sequence[Column], table: str = "") -> list[str]:
    """Return the comparisons, none to two, that keep exactly the rows of these bounds.

    ``table``: what the columns are named by, where they are not the only ones of their names. Rows that lack a value of
    the key, of which the source has none, belong to the range that is open at its beginning. ``SinkRefused`` for other
    bounds than those of a key, and for a boundary that is no value of Spark's.
    """
    if not isinstance(bounds, KeyBounds):
        raise SinkRefused(f"Range {bounds} cannot be mirrored: it is not cut by a key.")
    types = {column.name: column.type for column in columns}
    prefix = f"{table}." if table else ""
    names = [f"{prefix}`{name}`" for name in bounds.columns]
    kinds = [types[name] for name in bounds.columns]
    found = []
    if bounds.start is not None:
        found.append(_compare(names, ">", _list_literals(bounds.start, kinds, bounds), last=">="))
    if bounds.end is not None:
        below = _compare(names, "<", _list_literals(bounds.end, kinds, bounds), last="<")
        missing = "".join(f" OR {name} IS NULL" for name in names) if bounds.start is None else ""
        found.append(f"({below}{missing})")
    return found


def _compare(names: Sequence[str], sign: str, values: Sequence[str], *, last: str) -> str:
    """Return the comparison of a row. With the first column by itself, by which files are passed over."""
    if len(names) == 1:
        return f"{names[0]} {last} {values[0]}"
    rest = _compare(names[1:], sign, values[1:], last=last)
    return f"({names[0]} {sign}= {values[0]} AND ({names[0]} {sign} {values[0]} OR {rest}))"


def _list_literals(values: Sequence[str], types: Sequence[str], bounds: KeyBounds) -> list[str]:
    try:
        return [_make_literal(value, type_) for value, type_ in zip(values, types, strict=True)]
    except ValueError as error:
        raise SinkRefused(
            f"Range {bounds} cannot be mirrored: its boundary is no value that Spark has. Leave such rows out by where="
        ) from error


def _make_literal(text: str, type_: str) -> str:
    """Return a value, which is text as the source prints it in UTC, as SQL; ``ValueError`` for what Spark cannot have.

    Spark folds it to a constant, so that it is pushed down.
    """
    spark = carrier(type_)[1]
    if isinstance(spark, ShortType | IntegerType | LongType):
        return f"CAST('{int(text)}' AS {spark.simpleString()})"
    if isinstance(spark, DecimalType):
        value = Decimal(text) if _NUMBER.fullmatch(text) else None
        if value is None or len(text) > _LONGEST:
            raise ValueError(f"{text!r} is no number.")
        return f"CAST('{value:f}' AS {spark.simpleString()})"
    if isinstance(spark, StringType):
        return f"CAST(X'{text.encode().hex()}' AS STRING)"
    if isinstance(spark, BinaryType):
        found = _BYTES.fullmatch(text)
        if found is None:
            raise ValueError(f"{text!r} is no bytes.")
        return f"X'{found[1]}'"
    if isinstance(spark, DateType):
        return f"DATE '{date.fromisoformat(text)}'"
    if isinstance(spark, TimestampNTZType):
        return f"TIMESTAMP_NTZ '{datetime.fromisoformat(text)}'"
    if isinstance(spark, TimestampType):
        at = datetime.fromisoformat(text)
        return f"TIMESTAMP_LTZ '{at if at.tzinfo else at.replace(tzinfo=UTC)}'"
    raise ValueError(f"Nothing is cut by {type_}.")
