"""Rows of one column as the server sends them, joined without a look at each: MySQL's protocol, cut into packets.

The driver makes Python objects of each row, at ten times the cost. What follows the head of a result is read here from
its buffered socket; the connection is of no other use afterwards.
"""

from io import BufferedReader

import pymysql
from pymysql.cursors import SSCursor

from airflow_provider_backpressure.connectors.mysql.connect import Connection
from airflow_provider_backpressure.exceptions import SourceRefused

READ = 256 * 1024
"""Bytes asked of the socket at a time."""
WHOLE = 0xFFFFFF
"""Length of a packet that continues in the next one."""
_NULL, _END, _ERROR = 0xFB, 0xFE, 0xFF
_LENGTHS = {0xFC: 3, 0xFD: 4, 0xFE: 9}
"""Bytes of a value's length by its first one; any other is the length itself."""


def sent(connection: Connection, query: str) -> "RowStream":
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
