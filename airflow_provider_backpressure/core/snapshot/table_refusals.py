"""Errors that are about one of the tables that share a log, so that the others can be replayed without it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from airflow_provider_backpressure.core.snapshot.messages import StreamTable
from airflow_provider_backpressure.exceptions import Terminal

_SENTENCE = "The log cannot be replayed into {}: "
"""Begins such an error: from Spark's tasks an error comes back by its class and its text."""


@contextmanager
def name_table(table: StreamTable) -> Iterator[None]:
    """Let errors from inside say which table they are about. Transient ones pass: they may be gone the next time."""
    try:
        yield
    except Terminal as error:
        if _names(error, table):
            raise
        raise type(error)(f"{_SENTENCE.format(table.write.fence)}{error}") from error


def find_refused(error: Exception, tables: Sequence[StreamTable]) -> StreamTable | None:
    """Return the table that an error is about; ``None`` where it is about the log, or about no table of these."""
    if not isinstance(error, Terminal):
        return None
    return next((table for table in tables if _names(error, table)), None)


def _names(error: Exception, table: StreamTable) -> bool:
    return str(error).startswith(_SENTENCE.format(table.write.fence))
