"""The log as a server sends it to a replica: events from behind a set of transactions on, up to the log's end."""

import struct
import uuid
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from io import BufferedReader
from types import MappingProxyType

import pyarrow
import pymysql
from pymysql.cursors import SSCursor

from airflow_provider_backpressure.connectors.mysql.binlog.character_sets import BYTES, UTF8, Charset
from airflow_provider_backpressure.connectors.mysql.binlog.value_formats import Bytes
from airflow_provider_backpressure.connectors.mysql.connect import Connection, connect
from airflow_provider_backpressure.connectors.mysql.errors import Errors, words
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.snapshot.gtid_set import GtidSet
from airflow_provider_backpressure.exceptions import SourceRefused

HEAD = 19
"""Bytes before an event's body."""
_SIZE_FIELD, _CODEC_FIELD, _ZSTD = 1, 2, 0
_IGNORABLE = 0x80
"""Flag of an event that a reader may pass over where it does not know its kind."""
_OF_SESSION = 0x04
"""Flag of a statement that means a temporary table of its session."""
_SILENT = frozenset({3, 4, 5, 9, 11, 13, 14, 15, 16, 17, 27, 28, 29, 35, 36, 37, 41})
"""Numbers of the events that change no row: STOP, ROTATE, INTVAR, APPEND_BLOCK, DELETE_FILE, RAND, USER_VAR,
FORMAT_DESCRIPTION, XID, BEGIN_LOAD_QUERY, HEARTBEAT, IGNORABLE, ROWS_QUERY, PREVIOUS_GTIDS, TRANSACTION_CONTEXT,
VIEW_CHANGE, HEARTBEAT_V2. A statement or a row that they prepare has an event of its own."""
_VARIABLE_BYTES = {0: 4, 1: 8, 3: 4}
"""Bytes of what a QUERY event says of its session, by code, as far as it comes before the character set."""
_CLIENT_VARIABLE, _CATALOG_VARIABLE = 4, 6
_NO_CHARSETS: Mapping[int, Charset] = MappingProxyType({})
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
    of_session: bool = False
    """Whether a statement means a temporary table, which only its session has; its text does not show that."""


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement that is in the log as text."""

    database: str
    text: str


def gtid_of(body: bytes) -> tuple[str, int]:
    """Return the server and the number of a transaction."""
    return _server(body[1:17]), int.from_bytes(body[17:25], "little")


def xid_of(body: bytes) -> str | None:
    """Return the name of an XA transaction that was prepared, as statements have it; ``None`` where it committed."""
    if body[0]:
        return None
    number, *sizes = struct.unpack_from("<III", body, 1)
    end = 13 + sizes[0]
    return f"X'{body[13:end].hex()}',X'{body[end : end + sizes[1]].hex()}',{number}"


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


def statement_of(body: bytes, kind: int = Kind.QUERY, charsets: Mapping[int, Charset] = _NO_CHARSETS) -> Statement:
    """Return the statement of a QUERY event, or of an EXECUTE_LOAD_QUERY event, which is LOAD DATA.

    Its text is in the character set of the client that sent it, by the number of a collation. Bytes of another set may
    look like UTF-8. What cannot be read becomes U+FFFD.
    """
    database, variables = body[8], int.from_bytes(body[11:13], "little")
    at = 13 + variables + (_LOAD_FIELDS if kind == Kind.LOAD else 0)
    name = body[at : at + database].decode(errors="replace")
    text, collation = body[at + database + 1 :], _find_client_collation(body[at - variables : at])
    charset = charsets.get(collation) if collation is not None else None
    if charset is None or charset.name in UTF8 or charset.name == BYTES:
        return Statement(name, text.decode(errors="replace"))
    if charset.known:
        with suppress(UnicodeDecodeError):
            return Statement(name, charset.decoder()(text))
    return Statement(name, text.decode("ascii", errors="replace"))


def _find_client_collation(variables: bytes) -> int | None:
    """Return the number of the client's collation, from what an event says of the session; ``None`` without one."""
    left = Bytes(variables)
    while left.left:
        code = left.number(1)
        if code == _CLIENT_VARIABLE:
            return left.number(2)
        if code not in _VARIABLE_BYTES and code != _CATALOG_VARIABLE:
            return None
        left.take(_VARIABLE_BYTES.get(code) or left.number(1))
    return None


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
            yield Event(start[4], rest, bool(start[HEAD - 2] & _OF_SESSION))


READ = 256 * 1024
"""Bytes asked of the socket at a time."""
WHOLE = 0xFFFFFF
"""Length of a packet that continues in the next one."""
_NULL, _END, _ERROR = 0xFB, 0xFE, 0xFF
_LENGTHS = {0xFC: 3, 0xFD: 4, 0xFE: 9}
"""Bytes of a value's length by its first one; any other is the length itself."""


def stream_rows(connection: Connection, query: str) -> "RowStream":
    """Send the statement and return its rows; errors of the driver where the server refuses it."""
    cursor = connection.cursor(SSCursor)
    cursor.execute(query)
    # Otherwise the driver would read the rest of the result when it is closed.
    cursor._result.unbuffered_active = False
    cursor._result = None
    return RowStream(connection._rfile)


class RowStream:
    """The rows of a result with one column, in blocks of whole rows. Iterates once.

    The column is never NULL but where a value is too long for the server.
    """

    def __init__(self, file: BufferedReader) -> None:
        """Take the socket's file, positioned before the first row."""
        self._file = file
        self._left = b""
        self._parts: list[bytes] = []
        self._ended = False
        self.rows = 0

    def __iter__(self) -> "RowStream":
        """Return itself."""
        return self

    def __next__(self) -> bytes:
        """Return the next rows, perhaps none of them yet; errors of the driver where the stream breaks off."""
        if self._ended:
            raise StopIteration
        data = self._more()
        rows: list[bytes] = []
        at, size = 0, len(data)
        while at + 5 <= size:
            length = data[at] | data[at + 1] << 8 | data[at + 2] << 16
            end = at + 4 + length
            if end > size:
                break
            first = data[at + 4]
            if length and first < _NULL and length < WHOLE and not self._parts:
                rows.append(data[at + 5 : end])
            elif self._odd(data[at + 4 : end], rows):
                break
            at = end
        self._left = data[at:]
        self.rows += len(rows)
        return b"".join(rows)

    def _more(self) -> bytes:
        """Return what was left with more behind it: at least one packet's rest where that is known to be long."""
        left = self._left
        length = int.from_bytes(left[:3], "little") + 4 if len(left) >= 4 else 0
        missing = length - len(left)
        data = self._file.read(missing) if missing > READ else self._file.read1(READ)
        if not data:
            raise pymysql.OperationalError(2013, "Lost connection to MySQL server during query")
        return left + data if left else data

    def _odd(self, packet: bytes, rows: list[bytes]) -> bool:
        """Take a packet that is no short row; whether it is the last."""
        if len(packet) == WHOLE:
            self._parts.append(packet)
            return False
        if self._parts:
            packet = b"".join([*self._parts, packet])
            self._parts.clear()
        elif packet[0] == _ERROR:
            pymysql.err.raise_mysql_exception(packet)
        elif packet[0] == _END and len(packet) < 9:
            self._ended = True
            return True
        if packet[0] == _NULL:
            raise SourceRefused(
                "A row is longer, as text, than the server's max_allowed_packet, and MySQL gives nothing of it: let it "
                "be larger, or leave the long column out."
            )
        rows.append(packet[_LENGTHS.get(packet[0], 1) :])
        return False


def is_about_unnumbered(error: Exception) -> bool:
    """Whether a server refuses to send a transaction since that has no GTID."""
    return "anonymous transaction" in words(error)


_DUMP_GTID = 0x1E
_AT_END = 1
"""Flag: end the stream where the log ends, instead of waiting for more."""
_FIRST = 4
"""The offset of the first event of every file."""
_CHECKSUM = 4
"""Bytes behind an event, in files that have it."""
_OK = 0


def open_stream(source: Endpoint, errors: Errors, name: str) -> Connection:
    """Return a connection that is taken for a replica's; ``name`` also stands for it in the server's eyes.

    The server ends an older stream of the same replica, so an attempt takes the place of the one before.
    """
    connection = connect(source, errors=errors, name=name)
    slice_ = name.rpartition(":")[0] or name
    with errors.translate_errors(source), connection.cursor() as cursor:
        # A server sends checksums wherever a file has them, and nothing to who has not said that it knows them.
        cursor.execute("SET @source_binlog_checksum = 'CRC32', @master_binlog_checksum = 'CRC32'")
        cursor.execute("SET @replica_uuid = %s, @slave_uuid = %s", (_uuid(slice_), _uuid(slice_)))
    return connection


def sent(connection: Connection, name: str, start: GtidSet, file: str = "", at: int = _FIRST) -> Iterator[Event]:
    """Ask for what lies behind ``start`` and yield its events; errors of the driver where the server refuses.

    The connection is of no other use afterwards.

    ``file``, ``at``: where to begin looking for it; by itself the server looks for the file, and begins at its head.
    """
    _ask(connection, name, start, file, at)
    yield from _events(connection._rfile)


def find_maker(connection: Connection, name: str, file: str) -> str:
    """Return which server began a file, and when: ``<server_uuid>/<seconds>``, by its clock.

    The connection is of no other use afterwards.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT @@GLOBAL.server_uuid")
        ((server,),) = cursor.fetchall()
    _ask(connection, name, GtidSet({}), file, _FIRST)
    for packet in _packets(connection._rfile):
        if packet[0] != _OK:
            pymysql.err.raise_mysql_exception(packet)
        if packet[5] == Kind.FORMAT:
            return f"{server}/{int.from_bytes(packet[1:5], 'little')}"
    raise AssertionError("packets never end by themselves")


def _ask(connection: Connection, name: str, start: GtidSet, file: str, at: int) -> None:
    known, place = start.encode(), file.encode()
    head = struct.pack("<HII", _AT_END, _number(name), len(place)) + place
    connection._execute_command(_DUMP_GTID, head + struct.pack("<QI", at, len(known)) + known)


def _events(file: BufferedReader) -> Iterator[Event]:
    parts: list[bytes] = []
    checked = 0
    for packet in _packets(file):
        if len(packet) == WHOLE:
            parts.append(packet)
            continue
        if parts:
            packet = b"".join([*parts, packet])
            parts.clear()
        if packet[0] == _OK:
            kind = packet[5]
            if kind == Kind.FORMAT:
                checked = _CHECKSUM if packet[-5] else 0
            elif not changes_nothing(kind, packet[1 : HEAD + 1]):
                if checked:
                    _check(packet)
                of_session = bool(packet[HEAD - 1] & _OF_SESSION)
                yield Event(kind, packet[HEAD + 1 : len(packet) - checked], of_session)
        elif packet[0] == _END:
            return
        else:
            pymysql.err.raise_mysql_exception(packet)


def _check(packet: bytes) -> None:
    if zlib.crc32(memoryview(packet)[1:-_CHECKSUM]) != int.from_bytes(packet[-_CHECKSUM:], "little"):
        raise pymysql.OperationalError(
            2013, "an event of the binlog arrived with another checksum than it was sent with"
        )


def _packets(file: BufferedReader) -> Iterator[bytes]:
    """Yield the packets of the stream, without their heads."""
    left = b""
    while True:
        missing = int.from_bytes(left[:3], "little") + 4 - len(left) if len(left) >= 4 else 0
        more = file.read(missing) if missing > READ else file.read1(READ)
        if not more:
            raise pymysql.OperationalError(2013, "Lost connection to MySQL server during the replay of its binlog")
        data, at = left + more, 0
        while len(data) - at >= 4:
            end = at + 4 + int.from_bytes(data[at : at + 3], "little")
            if end > len(data):
                break
            yield data[at + 4 : end]
            at = end
        left = data[at:]


def _number(name: str) -> int:
    """Return a replica's number: not 0, and hardly that of another."""
    return zlib.crc32(name.encode()) | 0x80000000


def _uuid(name: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_OID, name))
