"""XA transactions that were prepared before a log begins: it begins behind them."""

import pymysql

from airflow_provider_backpressure.connectors.mysql.connect import Session
from airflow_provider_backpressure.connectors.mysql.errors import code
from airflow_provider_backpressure.connectors.relational.errors import where
from airflow_provider_backpressure.core.poll_policy import Clock, PollPolicy
from airflow_provider_backpressure.exceptions import SourceRefused, SourceUnavailable

XA_SECONDS = 600
"""Longest wait for XA transactions that were prepared before: their rows are in the log before its start."""
_DENIED = frozenset({1227, 1401})


def await_prepared(session: Session, clock: Clock) -> bool:
    """Wait for the XA transactions that are prepared now; whether there were any."""
    before = list_prepared(session)

    def over() -> bool | None:
        return True if not before & list_prepared(session) else None

    if before and PollPolicy().until(over, timeout=XA_SECONDS, clock=clock) is None:
        raise SourceUnavailable(
            f"XA transactions in MySQL at {where(session.endpoint)} that were prepared before the log was "
            f"kept did not end within {XA_SECONDS} s: commit them or roll them back (XA RECOVER lists them)."
        )
    return bool(before)


def list_prepared(session: Session) -> set[tuple[str, ...]]:
    """Return the XA transactions that are prepared and not over; ``SourceRefused`` where they cannot be known.

    No counter shows that there are none: a restart of the server resets counters, and ends no prepared transaction.
    """
    try:
        return {tuple(map(str, row)) for row in session.raw("XA RECOVER")}
    except pymysql.Error as error:
        if code(error) not in _DENIED:
            raise session.errors.translate(error, session.endpoint) from error
        user = session.endpoint.user
        raise SourceRefused(
            f"MySQL at {where(session.endpoint)} does not let {user} see whether XA transactions are "
            f"prepared, whose rows would be missed: GRANT XA_RECOVER_ADMIN ON *.* TO {user}."
        ) from error
