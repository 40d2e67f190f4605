"""Admission of a range: its turn on the cluster, the limits that hydrations share, and its row."""

from sqlalchemy.engine import Connection

from airflow_provider_backpressure.core.default_limits import TOKEN_SECONDS
from airflow_provider_backpressure.core.gate.cluster_queue import Shared
from airflow_provider_backpressure.core.gate.hydration_record import Permit
from airflow_provider_backpressure.core.snapshot.ranges import RangeState
from airflow_provider_backpressure.core.transitions import hydration_transitions as hydrating
from airflow_provider_backpressure.core.transitions import range_transitions as attempts
from airflow_provider_backpressure.core.transitions.hydration_transitions import Figures
from airflow_provider_backpressure.ledger.manual_control import Outbox
from airflow_provider_backpressure.ledger.tables import hydration as hydrations
from airflow_provider_backpressure.ledger.tables import queue as turns
from airflow_provider_backpressure.ledger.tables import range as ranges
from airflow_provider_backpressure.ledger.tables.sample import taken


def free_token(connection: Connection, figures: Figures) -> None:
    """Let a hydration that is to get ranges take its turn again where it had none left: its token was free for others.

    One that has not had a plan yet keeps it: it was waiting for this.
    """
    if figures.plan_id is not None and ranges.any_open(connection, figures.id) is None:
        turns.leave(connection, figures.id)


def admit_range(connection: Connection, before: Figures, request: attempts.Request, told: Outbox) -> Permit | None:
    figures = before
    found = ranges.candidate(connection, figures, seq=request.seq)
    if found is None or not turns.take_turn(connection, figures, seconds=TOKEN_SECONDS, now=found.now).granted:
        return None
    first = found.range.seq
    if request.seq is None:
        found = ranges.choose_ready(connection, figures, found)
    ready = ranges.may_begin(connection, found.range)
    record = request.admit(found.range, in_flight=found.in_flight, credits=figures.credits, now=found.now, ready=ready)
    if record is None or (found.range.state is RangeState.PLANNED and not _has_room(connection, figures, request)):
        return None
    ranges.save(connection, record)
    figures = hydrating.after_admission(figures, record.seq, first=request.seq is None and record.seq == first)
    if figures.sampled_at is None:
        more = found.range.state is RangeState.PLANNED
        figures = taken(connection, figures, found.now, in_flight=found.in_flight + more)
    if found.range.state is RangeState.PLANNED:
        figures = told.add(before, figures, in_flight=1, seq=record.seq)
    hydrations.save(connection, figures)
    return Permit(range=record)


def _has_room(connection: Connection, figures: Figures, request: attempts.Request) -> bool:
    """Whether what hydrations share has room for one more range; locks it, so that it still has at the commit."""
    if turns.read_limit(connection, Shared.CONNECTIONS, figures.sink_server) is not None:
        most = turns.lock_limit(connection, Shared.CONNECTIONS, figures.sink_server)
        if most is not None:
            # Those that wait longer have the next ones, each one.
            before = turns.before(connection, figures.id)
            if turns.held_into(connection, figures.sink_server) + before >= most:
                return False
    if not request.weighs:
        return True
    turns.lock_limit(connection, Shared.MEMORY, figures.cluster)
    return attempts.fits(reserved_bytes=turns.held_on_cluster(connection, figures.cluster), request=request)
