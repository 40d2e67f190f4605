r"""How each of MySQL's types travels: the PostgreSQL type that holds every value of it, and the text that carries it.

The server itself makes a line of CSV of each row. Every text is in quotes, NULL is nothing at all, bytes are ``\x``
and hexadecimal digits, floating-point numbers the digits of their 8 bytes; other numbers, dates and times are as
PostgreSQL prints them, so that both sides compare.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from airflow_provider_backpressure.connectors.mysql.catalog import CatalogColumn
from airflow_provider_backpressure.connectors.mysql.identifiers import quote

_INTEGERS = {
    "tinyint": ("smallint", "smallint"),
    "smallint": ("smallint", "integer"),
    "mediumint": ("integer", "integer"),
    "int": ("integer", "bigint"),
    "bigint": ("bigint", "numeric(20,0)"),
}
"""Signed and unsigned."""
_TEXTS = frozenset({"tinytext", "text", "mediumtext", "longtext", "enum", "set"})
_LISTS = frozenset({"enum", "set"})
_BYTES = frozenset({"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"})
_SHAPES = frozenset(
    {
        "geometry",
        "point",
        "linestring",
        "polygon",
        "multipoint",
        "multilinestring",
        "multipolygon",
        "geometrycollection",
        "geomcollection",
    }
)
DATES = {
    "date": "date",
    "datetime": "timestamp without time zone",
    "timestamp": "timestamp with time zone",
}
_SHORT_TEXT = ("char", "varchar")
_WHOLE = frozenset({"utf8mb3", "utf8", "latin1"})
"""Character sets of which every byte or character is one of utf8mb4; of others the server makes some a ``?``, and of
tis620 the replacement character."""


@dataclass(frozen=True, kw_only=True)
class Carried:
    """A column's way into a line of CSV."""

    type: str
    """PostgreSQL's spelling."""
    parts: tuple[str, ...]
    """Expressions that make its text where it is not NULL, to be joined."""
    nullable: bool
    null: str | None = None
    """Condition under which it counts as NULL, where that is not NULL itself."""

    def sql(self, name: str) -> tuple[str, ...]:
        """Return the parts of a line that stand for the column."""
        if not self.nullable:
            return self.parts
        empty = f"{quote(name)} IS NULL" if self.null is None else self.null
        return (f"IF({empty}, '', CONCAT({', '.join(self.parts)}))",)


def carry_column(column: CatalogColumn, *, as_text: bool = False, zero_dates: str = "refuse") -> Carried | None:
    """Return how a column travels; ``None`` where its type cannot."""
    name, type_ = quote(column.name), column.data_type
    nullable, null = not column.not_null, None
    if type_ in _LISTS and column.charset is None:
        # In the character set binary: values are bytes, which the server itself shows as characters of latin1.
        return None
    if as_text:
        if type_ in _BYTES or type_ in _SHAPES:
            return None
        return Carried(type="text", parts=_parse_values(_text(column, name)), nullable=nullable)
    if type_ in _INTEGERS:
        plain = f"{name} + 0" if "zerofill" in column.column_type else name
        return Carried(type=_INTEGERS[type_][column.unsigned], parts=(plain,), nullable=nullable)
    if type_ in DATES:
        if zero_dates == "null":
            null = f"{name} IS NULL OR YEAR({name}) = 0 OR MONTH({name}) = 0 OR DAYOFMONTH({name}) = 0"
        else:
            # Arrow would take year 0 for one, and PostgreSQL has none; day 0 of a month is refused by both.
            name = f"IF(YEAR({name}) = 0, '0000-00-00', {name})"
        parts = (name, "'+00'") if type_ == "timestamp" else (name,)
        return Carried(type=DATES[type_], parts=parts, nullable=nullable or null is not None, null=null)
    made = _made(column, name)
    return None if made is None else Carried(type=made[0], parts=made[1], nullable=nullable)


def line(columns: Sequence[tuple[str, Carried]]) -> str:
    """Return the expression for a row's line of CSV; it is NULL only where the line is longer than a packet."""
    parts: list[str] = []
    for name, way in columns:
        parts += [*way.sql(name), "','"]
    return f"CONCAT({', '.join([*parts[:-1], _END])})"


def size(column: CatalogColumn) -> str:
    """Return the expression for the bytes of a value."""
    name = quote(column.name)
    if column.data_type == "json":
        return f"IFNULL(JSON_STORAGE_SIZE({name}), 0)"
    return f"IFNULL(LENGTH({name}), 0)" if column.octets or column.data_type in _SHAPES else "8"


def long(column: CatalogColumn, bytes: int) -> bool:
    """Whether a value may be longer than so many bytes."""
    return column.data_type in _SHAPES or column.data_type == "json" or (column.octets or 0) > bytes


def _made(column: CatalogColumn, name: str) -> tuple[str, tuple[str, ...]] | None:
    for fits, make in _WAYS:
        if fits(column.data_type):
            return make(column, name)
    return None


def _float(column: CatalogColumn, name: str) -> tuple[str, tuple[str, ...]]:
    # MySQL prints floats with six digits, and doubles in 22 characters, which some need more of. In a point it keeps
    # the 8 bytes of the number itself, behind 9 others.
    type_ = "real" if column.data_type == "float" else "double precision"
    return type_, (f"SUBSTR(HEX(POINT({name}, 0)), 19, 16)",)


def _decimal(column: CatalogColumn, name: str) -> tuple[str, tuple[str, ...]]:
    plain = f"{name} + 0" if "zerofill" in column.column_type else name
    return f"numeric({column.precision},{column.scale})", (plain,)


def _time(column: CatalogColumn, name: str) -> tuple[str, tuple[str, ...]]:
    if not column.fraction:
        return "interval", (name,)
    return "interval", (f"TRIM(TRAILING '.' FROM TRIM(TRAILING '0' FROM {name}))",)


def _bit(column: CatalogColumn, name: str) -> tuple[str, tuple[str, ...]]:
    return f"bit({column.precision})", (f"LPAD(BIN({name} + 0), {column.precision}, '0')",)


def _short_text(column: CatalogColumn, name: str) -> tuple[str, tuple[str, ...]]:
    spelled = f"character varying({column.characters})" if column.characters else "text"
    return spelled, _parse_values(_text(column, name))


def _hex(column: CatalogColumn, name: str) -> tuple[str, tuple[str, ...]]:
    return "bytea", ("'\\\\x'", f"HEX({name})")


def _shape(column: CatalogColumn, name: str) -> tuple[str, tuple[str, ...]]:
    """MySQL keeps 4 bytes of SRID before WKB. PostGIS has it within: behind the type, announced by a bit of it."""
    known = f"CONCAT(SUBSTR(HEX({name}), 9, 8), '20', SUBSTR(HEX({name}), 1, 8), SUBSTR(HEX({name}), 19))"
    return "bytea", ("'\\\\x'", f"IF(ST_SRID({name}) = 0, SUBSTR(HEX({name}), 9), {known})")


def _text(column: CatalogColumn, name: str) -> str:
    if column.data_type in ("float", "double"):
        return f"CAST({name} * 1e0 AS CHAR CHARACTER SET utf8mb4)"
    if column.data_type == "bit":
        return _bit(column, name)[1][0]
    if column.charset is None:
        return f"CAST({name} AS CHAR CHARACTER SET utf8mb4)"
    if column.charset == "utf8mb4":
        return name
    text = f"CONVERT({name} USING utf8mb4)"
    if column.charset in _WHOLE:
        return text
    # A byte that is no UTF-8, and so refused by its reader, in place of text with a ? that is none of its own.
    mark = "X'EFBFBD'" if column.charset == "tis620" else "X'3F'"
    own = f"CONVERT(REPLACE({name}, '?', ' ') USING utf8mb4)"
    return f"IF(LOCATE({mark}, {text}) AND LOCATE({mark}, {own}), UNHEX('FF'), IFNULL({text}, UNHEX('FF')))"


def _parse_values(text: str) -> tuple[str, ...]:
    return "'\"'", f"REPLACE({text}, '\"', '\"\"')", "'\"'"


_END = "'\\n'"
_Make = Callable[[CatalogColumn, str], tuple[str, tuple[str, ...]]]
_WAYS: tuple[tuple[Callable[[str], bool], _Make], ...] = (
    (_SHORT_TEXT.__contains__, _short_text),
    (_TEXTS.__contains__, lambda column, name: ("text", _parse_values(_text(column, name)))),
    ("decimal".__eq__, _decimal),
    (("float", "double").__contains__, _float),
    (_BYTES.__contains__, _hex),
    ("time".__eq__, _time),
    ("year".__eq__, lambda column, name: ("smallint", (f"{name} + 0",))),
    ("bit".__eq__, _bit),
    ("json".__eq__, lambda column, name: ("json", _parse_values(_text(column, name)))),
    (_SHAPES.__contains__, _shape),
)
