"""The log as a server sends it to a replica: events from behind a set of transactions on, up to the log's end."""

import struct
import uuid
import zlib
from collections.abc import Iterator
from io import BufferedReader

import pymysql

from airflow_provider_backpressure.connectors.mysql.binlog.events import HEAD, Event, Kind, changes_nothing
from airflow_provider_backpressure.connectors.mysql.connect import Connection, connect
from airflow_provider_backpressure.connectors.mysql.errors import Errors
from airflow_provider_backpressure.connectors.mysql.gtid_set import GtidSet
from airflow_provider_backpressure.connectors.mysql.packet_stream import READ, WHOLE
from airflow_provider_backpressure.core.endpoints import Endpoint

_DUMP_GTID = 0x1E
_AT_END = 1
"""Flag: end the stream where the log ends, instead of waiting for more."""
_FIRST = 4
"""The offset of the first event of every file."""
_CHECKSUM = 4
"""Bytes behind an event, in files that have it."""
_OK, _END = 0, 0xFE


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


def begun(connection: Connection, name: str, file: str) -> int:
    """Return when a file was begun, in seconds by the server's clock. The connection is of no other use afterwards."""
    _ask(connection, name, GtidSet({}), file, _FIRST)
    for packet in _packets(connection._rfile):
        if packet[0] != _OK:
            pymysql.err.raise_mysql_exception(packet)
        if packet[5] == Kind.FORMAT:
            return int.from_bytes(packet[1:5], "little")
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
                yield Event(kind, packet[HEAD + 1 : len(packet) - checked])
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
