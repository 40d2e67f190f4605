"""Attempts as PostgreSQL sees them: connections whose ``application_name`` is an attempt's tag."""

from collections.abc import Iterable
from typing import Any

from psycopg import sql

from airflow_provider_backpressure.connectors.postgres.connect import AS_LOGIN, Session
from airflow_provider_backpressure.connectors.relational.errors import where
from airflow_provider_backpressure.core.poll_policy import Clock, PollPolicy
from airflow_provider_backpressure.core.ports.sink import Activity
from airflow_provider_backpressure.core.snapshot.ranges import attempt_tag
from airflow_provider_backpressure.exceptions import SinkUnavailable

LOOK_SECONDS = 5.0
"""Longest wait for rows on their way: they are part of the statistics only."""
END_SECONDS = 30.0
"""How long a connection may take to go: it rolls back what it has written."""


def slice_prefix(plan_id: str, slice_id: str) -> str:
    """Return what the tags of all attempts at a slice begin with."""
    return attempt_tag(plan_id, slice_id, 0).removesuffix("0")


def plan_prefix(plan_id: str) -> str:
    """Return what the tags of all attempts of a plan begin with."""
    return slice_prefix(plan_id, "").removesuffix(":")


def end_connections(session: Session, prefix: str, *, poll: PollPolicy, clock: Clock) -> int:
    """End our role's connections whose tag begins so, wait until they are gone, and return how many there were.

    ``SinkUnavailable`` where one is still there after :data:`END_SECONDS`: what it has written may yet be committed.
    """
    seen: set[int] = set()

    def gone() -> bool | None:
        pids = {row[0] for row in session.rows(_TERMINATE, {"prefix": prefix})}
        seen.update(pids)
        return None if pids else True

    if poll.until(gone, timeout=END_SECONDS, clock=clock) is None:
        raise SinkUnavailable(
            f"Connections {prefix}* at {where(session.endpoint)} did not end within {END_SECONDS:g} s."
        )
    return len(seen)


def rows_in_flight(session: Session, prefix: str) -> dict[str, int]:
    """Return the rows that COPYs under such a tag have taken in and not yet committed, by slice id."""
    return dict(session.rows(_IN_FLIGHT, {"prefix": prefix}, seconds=LOOK_SECONDS))


def read_activities(session: Session, prefix: str) -> dict[str, Activity]:
    """Return what the target's server does for the attempts under such a tag, by slice id."""
    return _to_activities(session.rows(_ACTIVITIES, {"prefix": prefix}, seconds=LOOK_SECONDS))


def read_readers(session: Session, prefix: str) -> dict[str, Activity]:
    """Return what targets do with the attempts that read from a source under such a tag, by slice id."""
    return _to_activities(session.rows(_READERS, {"prefix": prefix}, seconds=LOOK_SECONDS))


def _to_activities(rows: Iterable[tuple[Any, ...]]) -> dict[str, Activity]:
    return {slice_id: Activity(found) for slice_id, found in rows}


# pg_terminate_backend only sends a signal: a pid that is listed is still there.
_TERMINATE = sql.SQL(
    """
    SELECT a.pid, pg_terminate_backend(a.pid)
    FROM {}, pg_stat_activity a
    WHERE starts_with(a.application_name, %(prefix)s) AND a.usename = session_user AND a.pid <> pg_backend_pid()
    """
).format(AS_LOGIN)
_IN_FLIGHT = sql.SQL(
    """
    SELECT split_part(a.application_name, ':', 3), sum(p.tuples_processed)::bigint
    FROM pg_stat_progress_copy p
    JOIN pg_stat_activity a ON a.pid = p.pid
    WHERE starts_with(a.application_name, %(prefix)s) AND p.command = 'COPY FROM' AND p.datname = current_database()
    GROUP BY 1
    """
)
# A source of the same database has sessions under the same tag. Queries of our own role are shown to it.
_ACTIVITIES = sql.SQL(
    """
    SELECT split_part(a.application_name, ':', 3),
        (ARRAY['loading', 'ending', 'waiting'])[min(
            CASE WHEN a.state <> 'active' OR a.wait_event = 'ClientRead' THEN 3
                 WHEN a.query ~* '^\\s*copy\\y.*\\yfrom\\s+stdin' THEN 1
                 ELSE 2 END)]
    FROM pg_stat_activity a
    WHERE starts_with(a.application_name, %(prefix)s) AND a.usename = session_user AND a.datname = current_database()
        AND a.query !~* '\\yto\\s+stdout'
    GROUP BY 1
    """
)
# A server that cannot send waits for a task that writes.
_READERS = sql.SQL(
    """
    SELECT split_part(a.application_name, ':', 3),
        CASE WHEN bool_or(a.wait_event = 'ClientWrite') THEN 'loading' ELSE 'waiting' END
    FROM pg_stat_activity a
    WHERE starts_with(a.application_name, %(prefix)s) AND a.usename = session_user AND a.datname = current_database()
        AND a.state = 'active'
    GROUP BY 1
    """
)
