"""Errors that are about one of the tables that share a log, so that the others can be replayed without it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from airflow_provider_backpressure.core.snapshot.spark_messages import StreamTable
from airflow_provider_backpressure.exceptions import BackpressureError, RangeFailed, Terminal

_SENTENCE = "The log cannot be replayed into {}: "
"""Begins such an error: from Spark's tasks an error comes back by its class and its text."""


def is_of_table(error: BackpressureError) -> bool:
    """Whether an error is about the table that was worked on when it was raised, and not about a server."""
    return isinstance(error, Terminal | RangeFailed)


@contextmanager
def name_table(table: StreamTable, *, names: Callable[[BackpressureError], bool] = is_of_table) -> Iterator[None]:
    """Let errors from inside say which table they are about. Others pass: a server does not answer for all tables.

    ``names``: which errors are about the table.
    """
    try:
        yield
    except BackpressureError as error:
        if not names(error) or _names(error, table):
            raise
        raise type(error)(f"{_SENTENCE.format(table.write.fence)}{error}") from error


def find_refused(error: Exception, tables: Sequence[StreamTable]) -> StreamTable | None:
    """Return the table that an error is about; ``None`` where it is about the log, or about no table of these.

    An error that may pass is about a table where the last attempt of a window failed for it: it is the cause then.
    """
    cause = error if isinstance(error, Terminal) else error.__cause__
    return next((table for table in tables if cause is not None and _names(cause, table)), None)


def _names(error: BaseException, table: StreamTable) -> bool:
    return str(error).startswith(_SENTENCE.format(table.write.fence))
