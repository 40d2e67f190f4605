"""MySQL's packets cut into rows, however the network cuts them."""

import io
import random

import pymysql
import pytest

from airflow_provider_backpressure.connectors.mysql.binlog.event_stream import WHOLE, RowStream
from airflow_provider_backpressure.exceptions import SourceRefused

END = b"\xfe\x00\x00\x02\x00"


class Trickle(io.BytesIO):
    """A socket's file that gives a little at a time."""

    def read1(self, size: int | None = -1, /) -> bytes:
        """Return some bytes, fewer than are asked for."""
        return self.read(random.Random(self.tell()).randint(1, 7))


def packets(*payloads: bytes) -> bytes:
    """Return payloads as the server sends them: long ones in several packets."""
    sent = b""
    for payload in payloads:
        while True:
            part, payload = payload[:WHOLE], payload[WHOLE:]
            sent += len(part).to_bytes(3, "little") + b"\x00" + part
            if len(part) < WHOLE:
                break
    return sent


def value(text: bytes) -> bytes:
    """Return a value behind its length."""
    size = len(text)
    if size < 251:
        return bytes([size]) + text
    for mark, width in ((0xFC, 2), (0xFD, 3), (0xFE, 8)):
        if size < 1 << (8 * width):
            return bytes([mark]) + size.to_bytes(width, "little") + text
    raise AssertionError


@pytest.mark.parametrize("file", [io.BytesIO, Trickle])
def test_rows_of_every_length_are_whole(file: type[io.BytesIO]) -> None:
    rows = [b"\n", b"x" * 250 + b"\n", b"x" * 251, b"y" * 65_536, b"", b"last\n"]
    stream = RowStream(file(packets(*map(value, rows), END)))  # type: ignore[arg-type]
    blocks = list(stream)
    assert b"".join(blocks) == b"".join(rows)
    assert stream.rows == len(rows)


@pytest.mark.parametrize("size", [WHOLE - 5, WHOLE - 4, WHOLE, WHOLE + 9, 2 * WHOLE - 9])
def test_a_row_of_several_packets_is_joined(size: int) -> None:
    """Also where it ends just with a packet, and an empty one says so."""
    rows = [b"a", b"\xfe" * size, b"b"]
    stream = RowStream(io.BytesIO(packets(*map(value, rows), END)))  # type: ignore[arg-type]
    assert b"".join(stream) == b"".join(rows)
    assert stream.rows == 3


def test_what_breaks_off_is_no_end() -> None:
    with pytest.raises(pymysql.OperationalError, match="Lost connection"):
        list(RowStream(io.BytesIO(packets(value(b"a"), value(b"b"))[:-1])))  # type: ignore[arg-type]


def test_the_server_s_error_in_mid_stream_is_raised() -> None:
    error = b"\xff" + (1317).to_bytes(2, "little") + b"#70100Query execution was interrupted"
    with pytest.raises(pymysql.Error, match="interrupted"):
        list(RowStream(io.BytesIO(packets(value(b"a"), error))))  # type: ignore[arg-type]


def test_null_is_a_row_that_is_too_long() -> None:
    with pytest.raises(SourceRefused, match="max_allowed_packet"):
        list(RowStream(io.BytesIO(packets(value(b"a"), b"\xfb", END))))  # type: ignore[arg-type]
