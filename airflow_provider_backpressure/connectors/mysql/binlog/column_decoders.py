"""Rows of the log as texts: one reader for each table as a TABLE_MAP event describes it."""

import struct
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date

from airflow_provider_backpressure.connectors.mysql.binlog.character_sets import BYTES, UTF8, Charset
from airflow_provider_backpressure.connectors.mysql.binlog.table_map import Code, LoggedColumn, LoggedTable
from airflow_provider_backpressure.connectors.mysql.binlog.value_formats import (
    Bytes,
    date_text,
    datetime_text,
    decimal_bytes,
    decimal_text,
    document,
    double_text,
    time_text,
    timestamp_text,
)
from airflow_provider_backpressure.connectors.mysql.errors import TEXT_REMEDY
from airflow_provider_backpressure.connectors.mysql.identifiers import join_names
from airflow_provider_backpressure.exceptions import SourceRefused

Text = Callable[[bytes], bytes | None]
"""Returns ``None`` for a value that counts as NULL."""
Charsets = Mapping[int, Charset]
"""By the number of a collation."""
_INTEGERS = {
    Code.TINY: (1, "smallint", "smallint"),
    Code.SHORT: (2, "smallint", "integer"),
    Code.INT24: (3, "integer", "integer"),
    Code.LONG: (4, "integer", "bigint"),
    Code.LONGLONG: (8, "bigint", "numeric(20,0)"),
}
"""Bytes, and the type that holds the signed and the unsigned ones."""


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What a plan wants of a column."""

    as_text: bool = False
    null_zero_dates: bool = False


@dataclass(frozen=True, kw_only=True)
class Way:
    """Where a value ends, and what becomes of it."""

    type: str
    """PostgreSQL's spelling, as a plan has it."""
    size: int = 0
    prefix: int = 0
    """Bytes of the length before a value; 0 where every value takes ``size`` bytes."""
    text: Text


def way(column: LoggedColumn, charsets: Charsets, wish: Wish) -> Way:
    """Return how a column is read; ``SourceRefused`` names one that cannot be."""
    code, meta = column.code, column.meta
    if code in _INTEGERS:
        size, *types = _INTEGERS[Code(code)]
        return _as(wish, types[column.unsigned], size, _integer(signed=not column.unsigned))
    if code in _NUMERIC:
        return _NUMERIC[Code(code)](column, wish)
    if code in _TIMES:
        return _TIMES[Code(code)](column, wish)
    match code:
        case Code.BIT:
            bits = meta[0] + 8 * meta[1]
            return _as(wish, f"bit({bits})", (bits + 7) // 8, lambda raw: f"{int.from_bytes(raw):0{bits}b}".encode())
        case Code.JSON:
            return Way(type=_type(wish, "json"), prefix=meta[0], text=lambda raw: document(raw).encode())
        case Code.GEOMETRY:
            return Way(type="bytea", prefix=meta[0], text=_shape)
        case Code.ENUM | Code.SET:
            return _choice(column, charsets)
        case Code.VARCHAR | Code.VAR_STRING | Code.STRING | Code.BLOB:
            return _letters(column, charsets, wish)
    raise SourceRefused(f"Column {column.name} is of a type (number {code}) that cannot be read from the binlog.")


def length(column: LoggedColumn) -> tuple[int, int]:
    """Return size and prefix of a column that is passed over."""
    if column.code == Code.VECTOR:
        return 0, column.meta[0]
    found = way(column, _ANY, Wish())
    return found.size, found.prefix


def _type(wish: Wish, own: str) -> str:
    return "text" if wish.as_text else own


def _as(wish: Wish, own: str, size: int, text: Text) -> Way:
    return Way(type=_type(wish, own), size=size, text=text)


def _integer(*, signed: bool) -> Text:
    def text(raw: bytes) -> bytes:
        return b"%d" % int.from_bytes(raw, "little", signed=signed)

    return text


def _year(column: LoggedColumn, wish: Wish) -> Way:
    def text(raw: bytes) -> bytes:
        year = raw[0] + 1900 if raw[0] else 0
        return b"%04d" % year if wish.as_text else b"%d" % year

    return _as(wish, "smallint", 1, text)


def _decimal(column: LoggedColumn, wish: Wish) -> Way:
    precision, scale = column.meta
    size = decimal_bytes(precision, scale)
    return _as(wish, f"numeric({precision},{scale})", size, lambda raw: decimal_text(raw, precision, scale).encode())


def _float(column: LoggedColumn, wish: Wish) -> Way:
    form, type_ = ("<f", "real") if column.code == Code.FLOAT else ("<d", "double precision")
    shown = double_text if wish.as_text else repr
    return _as(wish, type_, struct.calcsize(form), lambda raw: shown(struct.unpack(form, raw)[0]).encode())


def _time(column: LoggedColumn, wish: Wish) -> Way:
    digits = column.meta[0]

    def text(raw: bytes) -> bytes:
        found = time_text(raw, digits)
        # As a range spells it: a lake keeps an interval as its text.
        return (found if wish.as_text or not digits else found.rstrip("0").rstrip(".")).encode()

    return _as(wish, "interval", 3 + (digits + 1) // 2, text)


def _date(column: LoggedColumn, wish: Wish) -> Way:
    return _as(wish, "date", 3, _calendar(column, wish, date_text, ""))


def _datetime(column: LoggedColumn, wish: Wish) -> Way:
    digits = column.meta[0]
    text = _calendar(column, wish, lambda raw: datetime_text(raw, digits), "")
    return _as(wish, "timestamp without time zone", 5 + (digits + 1) // 2, text)


def _timestamp(column: LoggedColumn, wish: Wish) -> Way:
    digits = column.meta[0]
    text = _calendar(column, wish, lambda raw: timestamp_text(raw, digits), "+00")
    return _as(wish, "timestamp with time zone", 4 + (digits + 1) // 2, text)


def _calendar(column: LoggedColumn, wish: Wish, shown: Callable[[bytes], str], zone: str) -> Text:
    """Return the text of days that a calendar has; the others are what the user wishes."""
    known: set[str] = set()

    def text(raw: bytes) -> bytes | None:
        found = shown(raw)
        if wish.as_text:
            return found.encode()
        day = found[:10]
        if day not in known:
            if wish.null_zero_dates and (day[:4] == "0000" or "-00" in day):
                return None
            _check_day(day, column.name)
            if len(known) < _KNOWN_DAYS:
                known.add(day)
        return (found + zone).encode()

    return text


def _check_day(day: str, name: str) -> None:
    try:
        date.fromisoformat(day)
    except ValueError as error:
        raise SourceRefused(
            f"Column {name} holds {day} (a zero date or one that no calendar has): read such dates as NULL, with "
            f'zero_dates="null" on the source, or carry the column as text, with as_text=("{name}",).'
        ) from error


def _shape(raw: bytes) -> bytes:
    """MySQL keeps 4 bytes of SRID before WKB. PostGIS has it within: behind the type, announced by a bit of it."""
    known = any(raw[:4])
    return _hex(raw[4:8] + b"\x20" + raw[:4] + raw[9:] if known else raw[4:])


def _hex(raw: bytes) -> bytes:
    return b"\\x" + raw.hex().encode()


def _choice(column: LoggedColumn, charsets: Charsets) -> Way:
    """Return how an enum's number and a set's bits become the texts that they stand for."""
    charset = charsets.get(column.collation, Charset(name="utf8mb4", longest=4))
    decode = (lambda raw: raw.decode("latin-1").encode()) if charset.name == BYTES else _plain(column, charset)
    names = [decode(each) for each in column.elements]
    if column.code == Code.ENUM:
        by_number = [b"", *names]
        return Way(type="text", size=column.meta[1], text=lambda raw: by_number[int.from_bytes(raw, "little")])

    def chosen(raw: bytes) -> bytes:
        bits = int.from_bytes(raw, "little")
        return b",".join(name for number, name in enumerate(names) if bits >> number & 1)

    return Way(type="text", size=column.meta[1], text=chosen)


def _letters(column: LoggedColumn, charsets: Charsets, wish: Wish) -> Way:
    """Return how text, and bytes, are read."""
    charset = charsets[column.collation]
    if column.code == Code.BLOB:
        text = _hex if charset.name == BYTES else _plain(column, charset)
        return Way(type="bytea" if charset.name == BYTES else "text", prefix=column.meta[0], text=text)
    most = _most(column)
    prefix = 1 if most < 256 else 2
    if charset.name == BYTES:
        # The log leaves the zeros out with which a BINARY is filled up.
        filled = most if column.code == Code.STRING else 0
        return Way(type="bytea", prefix=prefix, text=lambda raw: _hex(raw.ljust(filled, b"\0")))
    characters = most // charset.longest
    own = f"character varying({characters})" if characters else "text"
    plain = _plain(column, charset)
    text = (lambda raw: plain(raw).rstrip(b" ")) if column.code == Code.STRING else plain
    return Way(type=_type(wish, own), prefix=prefix, text=text)


def _most(column: LoggedColumn) -> int:
    """Return the most bytes of a value; of a CHAR two bits of it are, inverted, in the number of its type."""
    if column.code != Code.STRING:
        return int.from_bytes(column.meta, "little")
    return column.meta[1] | ((column.meta[0] & 0x30) ^ 0x30) << 4


def _plain(column: LoggedColumn, charset: Charset) -> Callable[[bytes], bytes]:
    if charset.name in UTF8:
        return lambda raw: raw
    decode = charset.decoder()

    def text(raw: bytes) -> bytes:
        try:
            return decode(raw).encode()
        except ValueError as error:
            raise SourceRefused(
                f"Column {column.name} holds text of {charset.name} that has no counterpart in Unicode: {TEXT_REMEDY}"
            ) from error

    return text


_KNOWN_DAYS = 100_000
_ANY: Charsets = defaultdict(lambda: Charset(name=BYTES, longest=1))
_Make = Callable[[LoggedColumn, Wish], Way]
_NUMERIC: Mapping[Code, _Make] = {
    Code.YEAR: _year,
    Code.DECIMAL: _decimal,
    Code.FLOAT: _float,
    Code.DOUBLE: _float,
}
_TIMES: Mapping[Code, _Make] = {
    Code.DATE: _date,
    Code.TIME: _time,
    Code.DATETIME: _datetime,
    Code.TIMESTAMP: _timestamp,
}


Row = list[bytes | None]
"""The text of each column that is read, in the plan's order."""
_Step = tuple[int, int, int, Text | None, int]
"""A column's bit among the NULLs, its size, its prefix, how it is read (``None``: passed over), and its place."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a plan reads of a table."""

    types: Mapping[str, str]
    """PostgreSQL's spelling of each column's type, in the plan's order."""
    key: tuple[str, ...]
    wishes: Mapping[str, Wish] = field(default_factory=dict)
    added: frozenset[str] = frozenset()
    """Columns that an earlier row may lack: they are NULL then."""


class RowReader:
    """Reads the rows of one table. Raises ``SourceRefused`` where it is not the one that was planned."""

    def __init__(self, table: LoggedTable, wanted: Wanted, charsets: Charsets) -> None:
        self._name = f"{table.database}.{table.name}"
        self._width = len(table.columns)
        _check_names(table, wanted)
        self._places = len(wanted.types)
        places = {name: place for place, name in enumerate(wanted.types)}
        self._steps: list[_Step] = []
        self._key_steps: list[_Step] = []
        for number, column in enumerate(table.columns):
            if column.name in places:
                found = way(column, charsets, wanted.wishes.get(column.name, Wish()))
                _check_type(self._name, column.name, found.type, wanted.types[column.name])
                step: _Step = (1 << number, found.size, found.prefix, found.text, places[column.name])
            else:
                step = (1 << number, *length(column), None, 0)
            self._steps.append(step)
            self._key_steps.append(step if column.name in wanted.key else (*step[:3], None, 0))

    def rows(self, body: bytes) -> Iterator[Row]:
        """Yield the rows of an event that wrote or deleted some."""
        at, size = self._begin(body, images=1), len(body)
        while at < size:
            row, at = self._row(body, at, self._steps)
            yield row

    def pairs(self, body: bytes) -> Iterator[tuple[Row, Row]]:
        """Yield each row of an update as it was, with nothing but its key, and as it became."""
        at, size = self._begin(body, images=2), len(body)
        while at < size:
            before, at = self._row(body, at, self._key_steps)
            after, at = self._row(body, at, self._steps)
            yield before, after

    def _begin(self, body: bytes, *, images: int) -> int:
        """Return where the rows begin, once every column is in them."""
        head = Bytes(body, 8)
        head.take(head.number(2) - 2)
        width = head.read_packed_integer()
        present = [head.number((width + 7) // 8) for _ in range(images)]
        every = (1 << width) - 1
        if width != self._width or any(bits & every != every for bits in present):
            raise SourceRefused(
                f"A change of {self._name} is in the binlog without all its columns: a session has set "
                'binlog_row_image to another value than FULL. Trigger the DAG with {"backpressure": "restart"}.'
            )
        return head.at

    def _row(self, data: bytes, at: int, steps: Sequence[_Step]) -> tuple[Row, int]:
        values: Row = [None] * self._places
        end = at + (self._width + 7) // 8
        nulls, at = int.from_bytes(data[at:end], "little"), end
        for bit, size, prefix, text, place in steps:
            if nulls & bit:
                continue
            if prefix:
                end = at + prefix
                size, at = int.from_bytes(data[at:end], "little"), end
            end = at + size
            if text is not None:
                values[place] = text(data[at:end])
            at = end
        return values, at


def _check_names(table: LoggedTable, wanted: Wanted) -> None:
    if not table.named:
        raise SourceRefused(
            f"Changes of {table.database}.{table.name} are in the binlog without the names of its columns: set "
            'binlog_row_metadata to FULL, and trigger the DAG with {"backpressure": "restart"}.'
        )
    there = {column.name for column in table.columns}
    missing = [name for name in wanted.types if name not in there and name not in wanted.added]
    if missing:
        raise SourceRefused(
            f"{table.database}.{table.name} had no column {join_names(missing)} when a change was logged: trigger the "
            'DAG with {"backpressure": "restart"} to plan again.'
        )


def _check_type(table: str, name: str, found: str, planned: str) -> None:
    if found != planned:
        raise SourceRefused(
            f"Column {join_names([name])} of {table} was logged as {found}, and the plan reads {planned}: trigger the "
            'DAG with {"backpressure": "restart"} to plan again.'
        )
