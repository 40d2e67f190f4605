"""COPY as two streams of blocks, on libpq's own level: one message is one row, and nothing is decoded.

psycopg's ``Copy`` costs 2 µs a row; these loops cost 0.4 µs. Both ends wait in ``poll``, never inside libpq, and the
writing end passes one block at a time: while the sink is slow the loop waits in :meth:`CopyIn.put`, nothing is
read, TCP fills up and the source's server waits.
"""

import select
from collections.abc import Iterator

import psycopg
from psycopg import errors, pq

BLOCK = 32 * 1024
"""Bytes collected before they are handed on: they and their messages stay in the processor's cache, and the memory of
each message is used again for a later one. With 256 KiB the same loop takes twice the CPU time."""


class CopyOut:
    """Messages of a ``COPY … TO STDOUT``, in lists of about :data:`BLOCK` bytes."""

    def __init__(self, connection: psycopg.Connection, statement: str) -> None:
        """Start the statement; psycopg's errors where the server refuses it."""
        self.rows = -1
        """Rows by the server's count, known at the end."""
        self._pgconn = connection.pgconn
        _start(self._pgconn, statement, pq.ExecStatus.COPY_OUT)

    def __iter__(self) -> Iterator[list[memoryview]]:
        """Yield non-empty lists of messages until the server has sent all."""
        get, wait = self._pgconn.get_copy_data, _Wait(self._pgconn)
        messages: list[memoryview] = []
        size = 0
        while True:
            length, message = get(1)
            if length > 0:
                messages.append(message)
                size += length
                if size >= BLOCK:
                    yield messages
                    messages, size = [], 0
            elif length == 0:
                wait.readable()
            else:
                break
        if messages:
            yield messages
        self.rows = _finish(self._pgconn, wait)


class CopyIn:
    """A ``COPY … FROM STDIN`` that is fed block by block."""

    def __init__(self, connection: psycopg.Connection, statement: str) -> None:
        """Start the statement; waits for the target's lock. psycopg's errors where the server refuses it."""
        self.rows = -1
        """Rows by the server's count, known after :meth:`end`."""
        self._pgconn = connection.pgconn
        _start(self._pgconn, statement, pq.ExecStatus.COPY_IN)
        self._wait = _Wait(self._pgconn)

    def put(self, block: bytes | memoryview) -> None:
        """Pass a block on; return when the operating system has taken all of it."""
        while self._pgconn.put_copy_data(block) == 0:
            self._wait.writable()
        self._flush()

    def end(self) -> None:
        """Say that this was all; psycopg's errors where the server refused a row."""
        while self._pgconn.put_copy_end(None) == 0:
            self._wait.writable()
        self._flush()
        self.rows = _finish(self._pgconn, self._wait)

    def _flush(self) -> None:
        while self._pgconn.flush():
            self._wait.writable()


class _Wait:
    """Waits until a connection's socket can be read or written."""

    def __init__(self, pgconn: pq.abc.PGconn) -> None:
        self._pgconn = pgconn
        self._reading, self._writing = select.poll(), select.poll()
        self._reading.register(pgconn.socket, select.POLLIN)
        self._writing.register(pgconn.socket, select.POLLIN | select.POLLOUT)

    def readable(self) -> None:
        """Wait for input and take it in."""
        self._reading.poll()
        self._pgconn.consume_input()

    def writable(self) -> None:
        """Wait for room; input is taken in too, or a server that reports something would never read on."""
        for _, events in self._writing.poll():
            if events & ~select.POLLOUT:
                self._pgconn.consume_input()


def _start(pgconn: pq.abc.PGconn, statement: str, expected: pq.ExecStatus) -> None:
    result = pgconn.exec_(statement.encode())
    if result.status == pq.ExecStatus.FATAL_ERROR:
        raise _error(pgconn, result)
    if result.status != expected:
        raise psycopg.ProgrammingError(f"The server answered {pq.ExecStatus(result.status).name} to a COPY.")


def _finish(pgconn: pq.abc.PGconn, wait: _Wait) -> int:
    """Take the statement's results and return the row count; the first error is raised."""
    rows, failed = 0, None
    while True:
        while pgconn.is_busy():
            wait.readable()
        result = pgconn.get_result()
        if result is None:
            break
        if result.status == pq.ExecStatus.FATAL_ERROR:
            failed = failed or result
        else:
            rows = result.command_tuples or 0
    if failed is not None:
        raise _error(pgconn, failed)
    return rows


def _error(pgconn: pq.abc.PGconn, result: pq.abc.PGresult) -> psycopg.Error:
    """Return the error of a failed result.

    Where the server went away without a word it has no SQLSTATE: taken as it is, it would not look like a loss.
    """
    error = errors.error_from_result(result)
    if error.sqlstate is None and pgconn.status == pq.ConnStatus.BAD:
        return psycopg.OperationalError(str(error))
    return error
