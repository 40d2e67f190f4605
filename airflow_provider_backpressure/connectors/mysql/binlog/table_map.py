"""A table as the log describes it before its rows: names, types and what each needs to be understood."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import islice

from airflow_provider_backpressure.connectors.mysql.binlog.value_formats import Bytes


class Code(IntEnum):
    """Numbers of the types."""

    TINY = 1
    SHORT = 2
    LONG = 3
    FLOAT = 4
    DOUBLE = 5
    LONGLONG = 8
    INT24 = 9
    DATE = 10
    YEAR = 13
    VARCHAR = 15
    BIT = 16
    TIMESTAMP = 17
    DATETIME = 18
    TIME = 19
    VECTOR = 242
    JSON = 245
    DECIMAL = 246
    ENUM = 247
    SET = 248
    BLOB = 252
    VAR_STRING = 253
    STRING = 254
    GEOMETRY = 255


_NUMBERS = frozenset({1, 2, 3, 4, 5, 8, 9, 13, 246})
_TEXTS = frozenset({15, 252, 253, 254})
_CHOICES = frozenset({247, 248})
_META = {
    4: 1,
    5: 1,
    15: 2,
    16: 2,
    17: 1,
    18: 1,
    19: 1,
    242: 1,
    245: 1,
    246: 2,
    247: 2,
    248: 2,
    252: 1,
    253: 2,
    254: 2,
    255: 1,
}
"""Bytes of a type's own description; none for the others."""
_SIGNS, _CHARSET, _CHARSETS, _NAMES, _SETS, _ENUMS, _CHOICE_CHARSET, _CHOICE_CHARSETS = 1, 2, 3, 4, 5, 6, 10, 11


@dataclass(frozen=True, kw_only=True)
class LoggedColumn:
    """One column of a row in the log."""

    name: str
    code: int
    meta: bytes
    unsigned: bool = False
    collation: int = 0
    """The number of a text's collation; 63 for bytes."""
    elements: tuple[bytes, ...] = ()
    """What an enum or a set may hold, in the column's character set."""


@dataclass(frozen=True, kw_only=True)
class LoggedTable:
    """A table as rows behind it have it."""

    database: str
    name: str
    columns: tuple[LoggedColumn, ...]
    named: bool
    """Whether the log says what the columns are called (``binlog_row_metadata=FULL``)."""


def table_number(body: bytes) -> int:
    """Return the number by which events of rows name their table."""
    return int.from_bytes(body[:6], "little")


def table_name(body: bytes) -> tuple[bytes, bytes]:
    """Return database and name, without a look at the rest."""
    end = 9 + body[8]
    return body[9:end], body[end + 2 : end + 2 + body[end + 1]]


def table_of(body: bytes) -> LoggedTable:
    """Return what a TABLE_MAP event says."""
    database, name = table_name(body)
    data = Bytes(body, 8 + 2 + len(database) + 2 + len(name))
    codes = data.take(data.read_packed_integer())
    described = Bytes(data.text())
    metas = [described.take(_META.get(code, 0)) for code in codes]
    data.take((len(codes) + 7) // 8)
    kinds = [_real(code, meta) for code, meta in zip(codes, metas, strict=True)]
    more = {}
    while data.left:
        field = data.number(1)
        more[field] = data.text()
    return LoggedTable(
        database=database.decode(),
        name=name.decode(),
        columns=_columns(kinds, metas, more),
        named=_NAMES in more,
    )


def _real(code: int, meta: bytes) -> int:
    """Return the type itself: enums and sets are logged as strings."""
    return meta[0] if code == Code.STRING and meta[0] in _CHOICES else code


def _columns(codes: Sequence[int], metas: Sequence[bytes], more: dict[int, bytes]) -> tuple[LoggedColumn, ...]:
    names = _texts(more.get(_NAMES, b""))
    signs = _bits(more.get(_SIGNS, b""))
    texts = _collations(more, _CHARSET, _CHARSETS, sum(code in _TEXTS for code in codes))
    choices = _collations(more, _CHOICE_CHARSET, _CHOICE_CHARSETS, sum(code in _CHOICES for code in codes))
    elements = {Code.ENUM: _elements(more.get(_ENUMS, b"")), Code.SET: _elements(more.get(_SETS, b""))}

    def column(number: int, code: int) -> LoggedColumn:
        return LoggedColumn(
            name=next(names, b"").decode() or f"@{number}",
            code=code,
            meta=metas[number],
            unsigned=code in _NUMBERS and next(signs, False),
            collation=next(texts, 0) if code in _TEXTS else next(choices, 0) if code in _CHOICES else 0,
            elements=next(elements[Code(code)], ()) if code in _CHOICES else (),
        )

    return tuple(column(number, code) for number, code in enumerate(codes))


def _texts(data: bytes) -> Iterator[bytes]:
    reader = Bytes(data)
    while reader.left:
        yield reader.text()


def _bits(data: bytes) -> Iterator[bool]:
    return (bool(byte & 0x80 >> bit) for byte in data for bit in range(8))


def _elements(data: bytes) -> Iterator[tuple[bytes, ...]]:
    reader = Bytes(data)
    while reader.left:
        yield tuple(reader.text() for _ in range(reader.read_packed_integer()))


def _collations(more: dict[int, bytes], common: int, each: int, number: int) -> Iterator[int]:
    """Yield the collation of each column that has one: one for all with exceptions, or one for each."""
    numbers = list(_read_packed_integers(more.get(each, b"")))
    if not numbers and common in more:
        first, *others = _read_packed_integers(more[common])
        others_by_column = dict(zip(islice(others, 0, None, 2), islice(others, 1, None, 2), strict=True))
        numbers = [others_by_column.get(column, first) for column in range(number)]
    return iter(numbers)


def _read_packed_integers(data: bytes) -> Iterator[int]:
    reader = Bytes(data)
    while reader.left:
        yield reader.read_packed_integer()
