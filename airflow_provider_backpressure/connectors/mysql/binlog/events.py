"""Events of the log: what each begins with, and those that say where a transaction begins and ends."""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from functools import cache

import pyarrow

from airflow_provider_backpressure.connectors.mysql.binlog.byte_reader import Bytes

HEAD = 19
"""Bytes before an event's body."""
_SIZE_FIELD, _CODEC_FIELD, _ZSTD = 1, 2, 0
_IGNORABLE = 0x80
"""Flag of an event that a reader may pass over where it does not know its kind."""
_SILENT = frozenset({3, 4, 5, 9, 11, 13, 14, 15, 16, 17, 27, 28, 29, 35, 36, 37, 41})
"""Numbers of the events that change no row: STOP, ROTATE, INTVAR, APPEND_BLOCK, DELETE_FILE, RAND, USER_VAR,
FORMAT_DESCRIPTION, XID, BEGIN_LOAD_QUERY, HEARTBEAT, IGNORABLE, ROWS_QUERY, PREVIOUS_GTIDS, TRANSACTION_CONTEXT,
VIEW_CHANGE, HEARTBEAT_V2. A statement or a row that they prepare has an event of its own."""
_LOAD_FIELDS = 13
"""Bytes that an EXECUTE_LOAD_QUERY event has behind the fixed part of a QUERY event: where the text names its file."""


class Kind(IntEnum):
    """Numbers of the events that are looked at."""

    QUERY = 2
    FORMAT = 15
    LOAD = 18
    TABLE_MAP = 19
    OLD_WRITE = 23
    OLD_UPDATE = 24
    OLD_DELETE = 25
    INCIDENT = 26
    WRITE = 30
    UPDATE = 31
    DELETE = 32
    GTID = 33
    ANONYMOUS = 34
    XA_PREPARE = 38
    PARTIAL_UPDATE = 39
    PAYLOAD = 40
    TAGGED = 42


_KINDS = frozenset(int(kind) for kind in Kind)


@dataclass(frozen=True, slots=True)
class Event:
    """One event: its number and its body, without head and checksum."""

    kind: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement that is in the log as text."""

    database: str
    text: str


def gtid_of(body: bytes) -> tuple[str, int]:
    """Return the server and the number of a transaction."""
    return _server(body[1:17]), int.from_bytes(body[17:25], "little")


@cache
def _server(raw: bytes) -> str:
    return str(uuid.UUID(bytes=raw))


def changes_nothing(kind: int, head: bytes) -> bool:
    """Whether an event can be passed over: by its number, or by the flag that an unknown one bears.

    ``head``: the event's head, whose last two bytes are its flags.
    """
    if kind in _SILENT:
        return True
    return kind not in _KINDS and bool(int.from_bytes(head[HEAD - 2 : HEAD], "little") & _IGNORABLE)


def statement_of(body: bytes, kind: int = Kind.QUERY) -> Statement:
    """Return the statement of a QUERY event, or of an EXECUTE_LOAD_QUERY event, which is LOAD DATA."""
    database, variables = body[8], int.from_bytes(body[11:13], "little")
    at = 13 + variables + (_LOAD_FIELDS if kind == Kind.LOAD else 0)
    name = body[at : at + database].decode(errors="replace")
    return Statement(name, body[at + database + 1 :].decode(errors="replace"))


def unpack_transaction(body: bytes) -> Iterator[Event]:
    """Yield the events of a compressed transaction, without holding all of them."""
    fields, head = {}, Bytes(body)
    while (field := head.read_packed_integer()) != 0:
        fields[field] = Bytes(head.text())
    plain = _CODEC_FIELD in fields and fields[_CODEC_FIELD].read_packed_integer() != _ZSTD
    source = pyarrow.BufferReader(body[head.at :])
    stream = source if plain else pyarrow.CompressedInputStream(source, "zstd")
    while len(start := stream.read(HEAD)) == HEAD:
        rest = stream.read(int.from_bytes(start[9:13], "little") - HEAD)
        if not changes_nothing(start[4], start):
            yield Event(start[4], rest)
