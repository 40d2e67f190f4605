"""Changes of a log on their way into the sink: rows of a binary COPY, every value as text.

A row is :data:`FIELDS` of its own, then the old key where the key was changed, then the columns as planned. A reader
of a log makes such rows by :func:`change`, or bytes that are the same; the sink alone folds them by key, so that
nothing of a window has to be held in memory.
"""

from collections.abc import Collection, Iterator, Sequence
from struct import Struct
from typing import Protocol, cast

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.snapshot.spark_messages import ReadSpec, Slice, StreamTable
from airflow_provider_backpressure.spark.readers_and_writers import task_module

DELETE, UPSERT, MOVE, TRUNCATE = 0, 1, 2, 3
"""What was done: ``MOVE`` is the upsert of a row whose key was another one before; the ``DELETE`` of that one has the
number just below its own. ``TRUNCATE`` has no values."""
FIELDS = ("seq bigint", "op smallint", "kept smallint[]")
"""Number in the window, rising; what was done; numbers from 0 of columns that the log leaves out as unchanged."""
NULL = b"\xff\xff\xff\xff"
_HEAD = Struct(">hiqih")
_LENGTH = Struct(">i")
_SMALLINT = 21


class _Kept:
    """Stands for a value that the log leaves out since it did not change."""


KEPT = _Kept()
Value = bytes | None | _Kept


class Changes(Protocol):
    """One window's changes, being read."""

    read_at: str
    """The log's position after the latest row that was read again; empty where none was."""
    xids: Collection[int]
    """Transactions whose changes were returned: a row is read again once readers see them. May be set by a reader of
    rows that was not the one of the window; empty where no row is ever read again."""

    def __iter__(self) -> Iterator[Sequence[bytes]]:
        """Yield rows of a binary COPY, some at a time, in the log's order; some may be :class:`.ColumnarChanges`."""
        ...

    def again(self, keys: Sequence[Sequence[str]]) -> Iterator[Sequence[bytes]]:
        """Yield the rows of these keys as they are in the source now, as ``UPSERT``; none for a key that is gone."""
        ...

    def await_seen(self) -> None:
        """Wait until every reader of the source that begins now sees the changes that were returned.

        ``SourceUnavailable`` where that takes too long.
        """
        ...


class LogReader(Protocol):
    """What a module of a kind that can be replayed has beside its ``read``."""

    def position(self, source: Endpoint, name: str) -> str:
        """Return the log's position, once everything before that is safe on the source's disk (a ``LogPosition``)."""
        ...

    def changes(self, source: Endpoint, read: ReadSpec, piece: Slice, key: Sequence[str], name: str) -> Changes:
        """Return the changes of a window; ``key``: the columns that the target is upserted by.

        Errors: ``SourceRefused``, ``SourceUnavailable``, ``LogLost``.
        """
        ...


class SharedChanges(Protocol):
    """One window's changes of several tables, being read."""

    tables: Sequence[Changes]
    """For reading rows of each again."""

    def __iter__(self) -> Iterator[tuple[int, Sequence[bytes]]]:
        """Yield rows as :class:`Changes` does, with the place of their table; each table's in the log's order."""
        ...

    def await_visible(self, numbers: Collection[int]) -> None:
        """Wait until every reader of the source that begins now sees the changes of these tables that were returned.

        ``SourceUnavailable`` where that takes too long.
        """
        ...


class SharedLogReader(Protocol):
    """What the module of a :class:`LogReader` has beside, where several tables can share the log."""

    def stream_changes(self, source: Endpoint, tables: Sequence[StreamTable], piece: Slice, name: str) -> SharedChanges:
        """Return the changes of a window, which is read once."""
        ...


def log_reader(kind: str) -> LogReader:
    """Return the reader of a log; :class:`InvalidDeclaration` where there is none."""
    return cast("LogReader", task_module(kind.removesuffix("_log"), "changes"))


def change(seq: int, op: int, values: Sequence[Value], old_key: Sequence[Value]) -> bytes:
    """Return a row. ``old_key``: as many values as the key has columns, each ``None`` but for a ``MOVE``."""
    kept = [number for number, value in enumerate(values) if value is KEPT]
    parts = [head(seq, op, 3 + len(old_key) + len(values)), numbers(kept) if kept else NULL]
    for value in (*old_key, *values):
        parts.append(NULL if value is None or isinstance(value, _Kept) else _LENGTH.pack(len(value)) + value)
    return b"".join(parts)


def head(seq: int, op: int, fields: int) -> bytes:
    """Return a row's beginning, up to what it keeps: the number of its fields, its own number, what was done."""
    return _HEAD.pack(fields, 8, seq, 2, op)


def numbers(values: Sequence[int]) -> bytes:
    """Return a field that holds an array of small integers."""
    body = Struct(">iiiii").pack(1, 0, _SMALLINT, len(values), 1)
    body += b"".join(Struct(">ih").pack(2, value) for value in values)
    return _LENGTH.pack(len(body)) + body


def get_shared_reader(kind: str) -> SharedLogReader:
    """Return the reader of a log that several tables share; :class:`InvalidDeclaration` where there is none."""
    return cast("SharedLogReader", task_module(kind.removesuffix("_log"), "changes"))
