"""Spark's types as those of plans, and as values by which ranges are cut."""

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any

from pyspark.sql import types as spark

from airflow_provider_backpressure.connectors.lake.source.spark_sql_names import quote
from airflow_provider_backpressure.core.snapshot.spark_messages import Column
from airflow_provider_backpressure.spark.column_types import postgres_type

BINARY = "UTF8_BINARY"
"""Spark's order of texts: that of their bytes."""
_DECLARED = "__CHAR_VARCHAR_TYPE_STRING"
"""Metadata of a column with the type that it was declared with, where Spark shows another one."""
_LENGTH = re.compile(r"(varchar|char)\((\d+)\)")
_MOMENT = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"
_JSON = "map({})".format(
    ", ".join(
        # In hexadecimal: how a quote is escaped in a text is a setting of the server.
        f"'{name}', CAST(X'{value.encode().hex()}' AS STRING)"
        for name, value in {
            "timeZone": "UTC",
            "ignoreNullFields": "false",
            "timestampFormat": f"{_MOMENT}XXX",
            "timestampNTZFormat": _MOMENT,
        }.items()
    )
)
"""Spark's own formats end at milliseconds, and leave out fields that are NULL."""
_LEAVES = (
    spark.ByteType,
    spark.ShortType,
    spark.IntegerType,
    spark.LongType,
    spark.FloatType,
    spark.DoubleType,
    spark.DecimalType,
    spark.BooleanType,
    spark.StringType,
    spark.DateType,
    spark.TimestampType,
    spark.TimestampNTZType,
)
"""Types within arrays, maps and structs whose values JSON keeps."""
_MOST_LETTERS = 10_485_760
"""Longest varchar of PostgreSQL."""


@dataclass(frozen=True, kw_only=True)
class KeyKind:
    """A type by which ranges are cut. Boundaries are text, as Spark's cast to STRING has it in UTC."""

    literal: Callable[[str], str]
    """Returns the value for a statement. Spark folds it to a constant, so it is pushed down."""
    order: Callable[[str], Any]
    """Returns what Python orders as Spark orders the value."""
    is_safe_outside: bool
    """Whether every database orders its values as Spark does, and reads them alike in any time zone."""
    is_text: bool = False
    suffix: str = ""
    """What follows the text of a value, for its zone."""


def find_key_kind(field: spark.StructField) -> KeyKind | None:
    """Return how ranges are cut by a column; ``None`` where they cannot be."""
    kind = field.dataType
    if isinstance(kind, spark.ByteType | spark.ShortType | spark.IntegerType | spark.LongType):
        # Of the column's own type: a wider literal would put a cast around the column.
        name = kind.simpleString()
        return KeyKind(literal=lambda text: f"CAST('{int(text)}' AS {name})", order=int, is_safe_outside=True)
    if isinstance(kind, spark.DecimalType):
        return _decimals(kind)
    if isinstance(kind, spark.StringType):
        fits = _collation(kind) == BINARY and not _find_declared_type(field).startswith("char(")
        return _TEXT if fits else None
    return _TIMES.get(type(kind))


def _decimals(kind: spark.DecimalType) -> KeyKind:
    name, most, step = kind.simpleString(), Decimal(10) ** (kind.precision - kind.scale), Decimal(1).scaleb(-kind.scale)

    def read(text: str) -> Decimal:
        """Return the value as the type has it; ``ValueError`` beyond its ends, where Spark's cast makes NULL of it.

        Quantiles are rounded as doubles are, so those of long numbers may lie there.
        """
        try:
            value = Decimal(text).quantize(step, rounding=ROUND_HALF_UP, context=_EXACT)
            fits = abs(value) < most
        except InvalidOperation:
            fits = False
        if not fits:
            raise ValueError(f"{text!r} is no {name}.")
        return value

    return KeyKind(literal=lambda text: f"CAST('{read(text):f}' AS {name})", order=read, is_safe_outside=True)


_EXACT = Context(prec=100)
_TEXT = KeyKind(
    literal=lambda text: f"CAST(X'{text.encode().hex()}' AS STRING)",
    order=lambda text: text.encode(),
    is_safe_outside=False,
    is_text=True,
)


def _time(name: str, *, is_safe_outside: bool = False, suffix: str = "") -> KeyKind:
    def literal(text: str) -> str:
        datetime.fromisoformat(text)
        return f"{name} '{text}'"

    return KeyKind(literal=literal, order=datetime.fromisoformat, is_safe_outside=is_safe_outside, suffix=suffix)


_TIMES: dict[type[spark.DataType], KeyKind] = {
    spark.DateType: _time("DATE", is_safe_outside=True),
    spark.TimestampType: _time("TIMESTAMP", suffix="+00:00"),
    spark.TimestampNTZType: _time("TIMESTAMP_NTZ"),
}


@dataclass(frozen=True, kw_only=True)
class Carried:
    """A column of Spark as a plan has it."""

    column: Column
    sql: str
    """Its expression in the statement that reads it."""


def carry(field: spark.StructField, *, ordered: Collection[str] = ()) -> Carried | None:
    """Return the column as it is read; ``None`` where its values have no exact counterpart.

    ``ordered``: names of the columns by which ranges are cut.
    """
    kind, name = field.dataType, quote(field.name)
    sql, type_ = name, postgres_type(kind)
    if isinstance(kind, spark.StringType):
        type_ = _text_type(field)
        if _collation(kind) != BINARY:
            sql = f"CAST({name} AS STRING)"
    elif isinstance(kind, spark.ByteType):
        sql = f"CAST({name} AS SMALLINT)"
    elif _is_nested(kind) and _fits_json(kind):
        sql, type_ = f"to_json({name}, {_JSON})", "json"
    if type_ is None:
        return None
    collation = "C" if field.name in ordered and isinstance(kind, spark.StringType) else None
    return Carried(
        column=Column(name=field.name, type=type_, nullable=field.nullable, collation=collation),
        sql=f"{sql} AS {name}",
    )


def _text_type(field: spark.StructField) -> str:
    found = _LENGTH.fullmatch(_find_declared_type(field))
    if found is None or int(found[2]) > _MOST_LETTERS:
        return "text"
    return f"{'character varying' if found[1] == 'varchar' else 'character'}({found[2]})"


def _find_declared_type(field: spark.StructField) -> str:
    return str((field.metadata or {}).get(_DECLARED, "")).lower()


def _collation(kind: spark.StringType) -> str:
    return str(getattr(kind, "collation", BINARY))


def _is_nested(kind: spark.DataType) -> bool:
    return isinstance(kind, spark.ArrayType | spark.MapType | spark.StructType)


def _fits_json(kind: spark.DataType) -> bool:
    """Whether JSON keeps every value of a type apart from every other one."""
    if isinstance(kind, spark.ArrayType):
        return _fits_json(kind.elementType)
    if isinstance(kind, spark.MapType):
        return isinstance(kind.keyType, spark.StringType) and _fits_json(kind.valueType)
    if isinstance(kind, spark.StructType):
        return len(set(kind.names)) == len(kind.names) and all(_fits_json(field.dataType) for field in kind.fields)
    return isinstance(kind, _LEAVES)
