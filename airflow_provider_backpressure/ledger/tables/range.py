"""Statements on ``backpressure_range``."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from airflow_provider_backpressure.core.gate.hydration_record import RangeCounts
from airflow_provider_backpressure.core.snapshot.bounds import bounds_from_json
from airflow_provider_backpressure.core.snapshot.ranges import RangeRecord, RangeState
from airflow_provider_backpressure.core.transitions import unknown_range
from airflow_provider_backpressure.core.transitions.hydration_transitions import Figures
from airflow_provider_backpressure.core.transitions.range_transitions import LOOK_AHEAD, find_ready, settles
from airflow_provider_backpressure.ledger.models import UNSETTLED, hydration, is_unsettled, range_
from airflow_provider_backpressure.ledger.sql_types import utc_now


def is_in(state: RangeState, table: sa.FromClause = range_) -> sa.ColumnElement[bool]:
    """Compare with a constant rather than a parameter, so that a partial index can be proved to serve.

    SQLite needs to see the index's own condition for that, word for word. ``table``: the ranges, or an alias of them.
    """
    condition = table.c.state == sa.literal_column(f"'{state.value}'")
    return sa.and_(is_unsettled(table), condition) if state in UNSETTLED else condition


def held_by(owner: sa.ColumnElement[str], table: sa.FromClause = range_) -> sa.ColumnElement[bool]:
    """Ranges of any of its plans that hold a credit: an older plan's jobs take their place until they are reaped."""
    return sa.and_(table.c.hydration_id == owner, is_in(RangeState.ADMITTED, table))


BY_STATE = "FORCE INDEX (ix_backpressure_range_unsettled)"
"""For MySQL, which by the statistics of a small table would read every range there is."""
_IN_FLIGHT = sa.select(sa.func.count()).select_from(range_).where(held_by(sa.bindparam("hydration_id")))
_NOW = utc_now().label("now")

# The count must be a later statement than the lock: within the same one it would still see the time before the wait.
_CANDIDATES = sa.select(range_, _IN_FLIGHT.scalar_subquery().correlate(None).label("in_flight"), _NOW).where(
    range_.c.plan_id == sa.bindparam("plan_id")
)
_NEXT = (
    _CANDIDATES.where(range_.c.seq >= sa.bindparam("next_seq"), is_in(RangeState.PLANNED))
    .order_by(range_.c.seq)
    .limit(1)
)
_AHEAD = (
    sa.select(range_)
    .where(
        range_.c.plan_id == sa.bindparam("plan_id"),
        range_.c.seq >= sa.bindparam("next_seq"),
        is_in(RangeState.PLANNED),
    )
    .order_by(range_.c.seq)
    .limit(LOOK_AHEAD)
)
_THIS = _CANDIDATES.where(range_.c.seq == sa.bindparam("seq"))
_ONE = sa.select(range_, _NOW).where(range_.c.plan_id == sa.bindparam("plan_id"), range_.c.seq == sa.bindparam("seq"))
_UPDATE = sa.update(range_).where(range_.c.plan_id == sa.bindparam("key_plan"), range_.c.seq == sa.bindparam("key_seq"))

_PLANNED = (
    sa.select(range_.c.seq)
    .where(
        range_.c.plan_id == hydration.c.plan_id,
        range_.c.seq >= hydration.c.next_seq,
        is_in(RangeState.PLANNED),
    )
    .limit(1)
)
# Ordered, so that no planner looks for it among a million committed ones.
FIRST_PLANNED = _PLANNED.order_by(range_.c.seq).scalar_subquery()
"""The plan's next range; ``NULL`` where none is planned."""
_OTHER = range_.alias("other")
_IS_LEFT = sa.and_(
    _OTHER.c.hydration_id == hydration.c.id, is_unsettled(_OTHER), _OTHER.c.plan_id == hydration.c.plan_id
)
# One statement: who asks without the hydration's lock would miss, between two of them, a range that was planned at the
# first and is in flight at the second, or the other way round.
_OPEN = (
    sa.select(_OTHER.c.seq, _OTHER.c.state, FIRST_PLANNED.label("waiting"))
    .select_from(hydration.outerjoin(_OTHER, _IS_LEFT))
    .with_hint(_OTHER, BY_STATE, "mysql")
    .where(hydration.c.id == sa.bindparam("id"))
    .limit(1)
)
# Where there are several hydrations, MySQL would look at all planned ranges of each, and sort them: it begins no search
# at a number that another table's row has. It finds the first one by all columns of this index.
_FIRST_OF_EACH = (
    _PLANNED.with_hint(range_, BY_STATE, "mysql")
    .where(range_.c.hydration_id == hydration.c.id)
    .order_by(range_.c.hydration_id, range_.c.state, range_.c.plan_id, range_.c.seq)
    .scalar_subquery()
)
HAS_OPEN: sa.ColumnElement[bool] = sa.or_(
    _FIRST_OF_EACH.is_not(None),
    sa.select(_OTHER.c.seq)
    .with_hint(_OTHER, BY_STATE, "mysql")
    .where(_IS_LEFT)
    .limit(1)
    .correlate(hydration)
    .scalar_subquery()
    .is_not(None),
)
"""Whether a range of the hydration's plan is still to be committed."""
_ABANDONED = sa.select(range_).where(
    held_by(sa.bindparam("hydration_id")),
    sa.or_(range_.c.lease_until <= utc_now(), range_.c.lane == sa.bindparam("lane")),
)
_FAILED = sa.and_(
    range_.c.hydration_id == sa.bindparam("own"),
    is_in(RangeState.FAILED),
    range_.c.plan_id == sa.bindparam("of_plan"),
)
_FAILED_SEQS = sa.select(range_.c.seq).where(_FAILED)
_PLAN_AGAIN = sa.update(range_).where(_FAILED)
_OWNER = (
    sa.select(_OTHER.c.hydration_id)
    .where(_OTHER.c.plan_id == sa.bindparam("of_plan"))
    .order_by(_OTHER.c.seq)
    .limit(1)
    .scalar_subquery()
)
_ANY_FAILED = (
    sa.select(range_.c.seq)
    .where(range_.c.hydration_id == _OWNER, is_in(RangeState.FAILED), range_.c.plan_id == sa.bindparam("of_plan"))
    .limit(1)
)
_RENEW = sa.update(range_).where(held_by(sa.bindparam("own")), range_.c.lane == sa.bindparam("mine"))
_CLOCK = sa.select(_NOW)


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A range that may be admitted, as it is under the lock."""

    range: RangeRecord
    in_flight: int
    """Ranges of the hydration that hold a credit."""
    now: datetime


def candidate(connection: Connection, figures: Figures, *, seq: int | None) -> Candidate | None:
    """Return the range ``seq``, or without it the first planned one, with the credits that are taken."""
    values = {"hydration_id": figures.id, "plan_id": figures.plan_id}
    if seq is None:
        row = connection.execute(_NEXT, {**values, "next_seq": figures.next_seq}).one_or_none()
    else:
        row = connection.execute(_THIS, {**values, "seq": seq}).one_or_none()
    return None if row is None else Candidate(range=_record(row), in_flight=row.in_flight, now=row.now)


def may_begin(connection: Connection, record: RangeRecord) -> bool:
    """Whether the range that this one waits for is settled."""
    if record.waits_for is None:
        return True
    row = connection.execute(_ONE, {"plan_id": record.plan_id, "seq": record.waits_for}).one_or_none()
    return settles(None if row is None else RangeState(row.state))


def choose_ready(connection: Connection, figures: Figures, first: Candidate) -> Candidate:
    """Return the first planned range that may begin, in place of the first one of all; that one where none may.

    Only of ranges that go in side by side others may begin before the first one.
    """
    if not first.range.is_side_by_side or may_begin(connection, first.range):
        return first
    rows = connection.execute(_AHEAD, {"plan_id": figures.plan_id, "next_seq": figures.next_seq})
    planned = [record for record in map(_record, rows) if record.is_side_by_side]
    waited = {record.waits_for for record in planned} - {None}
    query = sa.select(range_.c.seq, range_.c.state).where(range_.c.plan_id == figures.plan_id, range_.c.seq.in_(waited))
    states = {row.seq: RangeState(row.state) for row in connection.execute(query)}
    return replace(first, range=find_ready(planned, states) or first.range)


def one(connection: Connection, plan_id: str, seq: int) -> tuple[RangeRecord, datetime]:
    """Return one range and the database's time; ``LedgerRefused`` where there is none."""
    row = connection.execute(_ONE, {"plan_id": plan_id, "seq": seq}).one_or_none()
    if row is None:
        raise unknown_range(plan_id, seq)
    return _record(row), row.now


def save(connection: Connection, record: RangeRecord) -> None:
    """Write a range back under its hydration's lock."""
    connection.execute(
        _UPDATE,
        {
            "key_plan": record.plan_id,
            "key_seq": record.seq,
            "state": record.state.value,
            "attempt": record.attempt,
            "lane": record.lane,
            "session_id": record.session_id,
            "tag": record.tag,
            "lease_until": record.lease_until,
            "memory_bytes": record.memory_bytes,
            "committed_rows": record.rows,
            "committed_bytes": record.bytes,
            "checksum": record.checksum,
            "error": record.error,
            "admitted_at": record.admitted_at,
            "committed_at": record.committed_at,
        },
    )


def in_flight(connection: Connection, hydration_id: str) -> int:
    """Count the ranges that hold a credit."""
    return connection.execute(_IN_FLIGHT, {"hydration_id": hydration_id}).scalar_one()


def count_leased(connection: Connection, hydration_id: str) -> int:
    """Count the ranges in flight whose lease has not run out."""
    held = held_by(sa.literal(hydration_id))
    query = sa.select(sa.func.count()).select_from(range_).where(held, range_.c.lease_until > utc_now())
    return connection.execute(query).scalar_one()


def renew(connection: Connection, *, hydration_id: str, lane: str, until: datetime) -> int:
    """Renew the leases of what a lane has in flight and return how many there are."""
    return connection.execute(_RENEW, {"own": hydration_id, "mine": lane, "lease_until": until}).rowcount


def now(connection: Connection) -> datetime:
    """Return the database's time."""
    return connection.execute(_CLOCK).scalar_one()


def find_abandoned(connection: Connection, *, hydration_id: str, lane: str | None) -> list[RangeRecord]:
    """Return ranges in flight whose lease has run out, and all that ``lane`` holds."""
    # No lane is called None: nothing equals NULL.
    rows = connection.execute(_ABANDONED, {"hydration_id": hydration_id, "lane": lane})
    # Not ordered by the database, which would rather read every range by key than sort a few.
    return sorted((_record(row) for row in rows), key=lambda record: (record.plan_id, record.seq))


def has_failed(connection: Connection, plan_id: str) -> bool:
    """Whether a range of a plan has failed. Its hydration is found by its first range, and the failed ones by that."""
    return connection.execute(_ANY_FAILED, {"of_plan": plan_id}).first() is not None


def retry_failed(connection: Connection, *, hydration_id: str, plan_id: str) -> list[int]:
    """Plan failed ranges again and return their sequence numbers."""
    values = {"own": hydration_id, "of_plan": plan_id}
    seqs = list(connection.scalars(_FAILED_SEQS, values))
    if seqs:
        again = {"state": RangeState.PLANNED.value, "lane": None, "session_id": None}
        connection.execute(_PLAN_AGAIN, {**values, **again})
    return seqs


def reopen_committed(connection: Connection, plan_id: str) -> int:
    """Plan every committed range of a plan again, as :func:`..transitions.range.reopen` does; return their number."""
    gone = dict.fromkeys(
        ("lane", "session_id", "committed_rows", "committed_bytes", "checksum", "error", "committed_at")
    )
    committed = sa.and_(range_.c.plan_id == plan_id, is_in(RangeState.COMMITTED))
    return connection.execute(
        sa.update(range_).where(committed).values(state=RangeState.PLANNED.value, **gone)
    ).rowcount


def last_seq(connection: Connection, plan_id: str) -> int:
    """Return the number of the plan's last range; looks into the key only."""
    newest = sa.select(range_.c.seq).where(range_.c.plan_id == plan_id).order_by(range_.c.seq.desc()).limit(1)
    last: int = connection.execute(newest).scalar_one()
    return last


def any_open(connection: Connection, hydration_id: str) -> tuple[int, RangeState] | None:
    """Return a range of the hydration's plan that is still to be committed, and its state."""
    row = connection.execute(_OPEN, {"id": hydration_id}).one_or_none()
    if row is None or (row.seq is None and row.waiting is None):
        return None
    return (row.waiting, RangeState.PLANNED) if row.seq is None else (row.seq, RangeState(row.state))


def count(connection: Connection, plan_id: str) -> RangeCounts:
    """Count a plan's ranges by state; reads the whole plan."""
    row = connection.execute(_COUNT, {"plan_id": plan_id}).one()
    return RangeCounts(**{name: int(number or 0) for name, number in row._mapping.items()})


def by_state(table: sa.FromClause) -> list[sa.Label[int]]:
    """Return sums that count ranges by state, named as the states are.

    To group by the state would have the database sort them by a text, which takes most of the time.
    """
    return [sa.func.sum(sa.case((table.c.state == state.value, 1), else_=0)).label(state.value) for state in RangeState]


_COUNT = sa.select(*by_state(range_)).where(range_.c.plan_id == sa.bindparam("plan_id"))
_PAGE = (
    sa.select(range_)
    .where(range_.c.plan_id == sa.bindparam("plan_id"), range_.c.seq > sa.bindparam("after_seq"))
    .order_by(range_.c.seq)
)
_PAGE_OF_STATES = _PAGE.where(range_.c.state.in_(sa.bindparam("states", expanding=True)))


def page(
    connection: Connection, plan_id: str, *, states: Sequence[RangeState] | None, after_seq: int, limit: int | None
) -> list[RangeRecord]:
    """Return ranges in the order of ``seq``."""
    values: dict[str, Any] = {"plan_id": plan_id, "after_seq": after_seq}
    if states is not None:
        values["states"] = [state.value for state in states]
    query = _PAGE if states is None else _PAGE_OF_STATES
    return [_record(row) for row in connection.execute(query.limit(limit), values)]


def _record(row: Row[Any]) -> RangeRecord:
    """Build the value from a row."""
    return RangeRecord(
        hydration_id=row.hydration_id,
        plan_id=row.plan_id,
        seq=row.seq,
        bounds=bounds_from_json(json.loads(row.bounds)),
        state=RangeState(row.state),
        planned_rows=row.planned_rows,
        planned_bytes=row.planned_bytes,
        attempt=row.attempt,
        lane=row.lane,
        session_id=row.session_id,
        tag=row.tag,
        lease_until=row.lease_until,
        memory_bytes=row.memory_bytes,
        rows=row.committed_rows,
        bytes=row.committed_bytes,
        checksum=row.checksum,
        error=row.error,
        admitted_at=row.admitted_at,
        committed_at=row.committed_at,
    )
