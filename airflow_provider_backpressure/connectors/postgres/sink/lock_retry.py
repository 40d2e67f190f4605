"""Requests locks without blocking others for long: short waits, pauses between them, and an end."""

import logging
from collections.abc import Callable
from typing import TypeVar

import psycopg

from airflow_provider_backpressure.connectors.postgres.identifiers import QualifiedName
from airflow_provider_backpressure.connectors.postgres.shared_connection import Connection, Session
from airflow_provider_backpressure.core.clock import Clock
from airflow_provider_backpressure.exceptions import SinkUnavailable

log = logging.getLogger(__name__)

T = TypeVar("T")

LOCK_WAIT = "500ms"
"""How long a lock is waited for, with readers behind it; less than the second after which deadlocks are looked for."""
PAUSES = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Seconds between two tries, in which readers get through."""


def patiently(session: Session, work: Callable[[Connection], T], *, about: QualifiedName, clock: Clock) -> T:
    """Do it in a transaction of a session with :data:`LOCK_WAIT`; where others are in the way, try again a few times.

    ``SinkUnavailable`` where they are in the way each time.
    """
    for pause in (*PAUSES, None):
        try:
            return session.transaction(work)
        except SinkUnavailable as error:
            if not isinstance(error.__cause__, psycopg.errors.LockNotAvailable | psycopg.errors.DeadlockDetected):
                raise
            if pause is None:
                raise SinkUnavailable(
                    f"{about} was locked by other transactions at each of {len(PAUSES) + 1} tries to publish its new "
                    "rows, which must not keep its readers waiting: a retry continues from here."
                ) from error
        log.info("%s is in use: the next try to publish its new rows is in %g s.", about, pause)
        clock.sleep(pause)
    raise AssertionError("the last one returns or raises")
