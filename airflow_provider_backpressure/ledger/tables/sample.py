"""Statements on ``backpressure_sample``: the course of a hydration over time, for rates and charts."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import IntegrityError

from airflow_provider_backpressure.core.gate.signals import MemoryReading
from airflow_provider_backpressure.core.progress.rates_and_eta import RECENT_SECONDS, STEP_SECONDS, Sample, recent_rates
from airflow_provider_backpressure.core.progress.source_position import Seen, Upstream
from airflow_provider_backpressure.core.transitions import statistics as tallies
from airflow_provider_backpressure.core.transitions.hydration_transitions import Figures
from airflow_provider_backpressure.core.transitions.statistics import rate_between
from airflow_provider_backpressure.ledger.models import hydration, sample, upstream
from airflow_provider_backpressure.ledger.sql_types import (
    Unsigned64,
    UtcDateTime,
    seconds_between,
    utc_now,
    whole_seconds,
)
from airflow_provider_backpressure.ledger.tables import hydration as hydrations
from airflow_provider_backpressure.ledger.tables import range as ranges
from airflow_provider_backpressure.ledger.tables import statistics
from airflow_provider_backpressure.ledger.tables.range import now

_COLUMNS = {"committed": "committed_rows", "read": "read_rows"}
"""Columns that are called otherwise than the field."""
FIELDS = {field.name: sample.c[_COLUMNS.get(field.name, field.name)] for field in fields(Sample)}
_OF_PLAN = sa.and_(hydration.c.id == sample.c.hydration_id, hydration.c.plan_id == sample.c.plan_id)


def add(connection: Connection, *, hydration_id: str, plan_id: str, row: Sample) -> None:
    """Keep one sample."""
    values = {_COLUMNS.get(name, name): value for name, value in asdict(row).items()}
    connection.execute(sa.insert(sample), {"hydration_id": hydration_id, "plan_id": plan_id, **values})


def latest(connection: Connection, hydration_id: str, *, seconds: float) -> list[Sample]:
    """Return the current plan's samples of the last seconds, the oldest first."""
    since = connection.execute(sa.select(utc_now())).scalar_one() - timedelta(seconds=seconds)
    rows = connection.execute(
        sa.select(*(column.label(name) for name, column in FIELDS.items()))
        .join(hydration, _OF_PLAN)
        .where(hydration.c.id == hydration_id, sample.c.hydration_id == hydration_id, sample.c.at >= since)
        .order_by(sample.c.at)
    )
    return [Sample(**row._mapping) for row in rows]


def rate(connection: Connection, hydration_id: str, *, seconds: float) -> float | None:
    """Return rows per second of the current plan over its latest samples; ``None`` with fewer than two.

    From the latest sample back to the newest one that is ``seconds`` older; without one, to the plan's first.
    """
    newest = _one(connection, hydration_id, order=sample.c.at.desc())
    if newest is None:
        return None
    last, now = newest
    cut = last.at - timedelta(seconds=seconds)
    base = _one(connection, hydration_id, sample.c.at <= cut, order=sample.c.at.desc()) or _one(
        connection, hydration_id, order=sample.c.at
    )
    return rate_between(base[0], last, now=now, seconds=seconds) if base else None


def find_cut(connection: Connection, hydration_id: str, *, seconds: float, rows: int) -> datetime | None:
    """Return from when on backwards samples are older, or more, than is kept; ``None`` where none is."""
    row = connection.execute(_KEPT, {"id": hydration_id, "rows": rows}).one()
    cut: datetime = max(filter(None, (row.now - timedelta(seconds=seconds), row.beyond)))
    return cut if row.first is not None and row.first <= cut else None


def prune(connection: Connection, hydration_id: str, *, seconds: float, rows: int, most: int) -> int:
    """Forget at most so many samples that are older, or more, than is kept; return how many went."""
    mine = sample.c.hydration_id == hydration_id
    cut = find_cut(connection, hydration_id, seconds=seconds, rows=rows)
    if cut is None:
        return 0
    ats = sa.select(sample.c.at).where(mine)
    old = [row.at for row in connection.execute(ats.where(sample.c.at <= cut).order_by(sample.c.at).limit(most))]
    if old:
        connection.execute(sa.delete(sample).where(mine, sample.c.at <= old[-1]))
    return len(old)


_OF_ID = sa.select(sample.c.at).where(sample.c.hydration_id == sa.bindparam("id"))
_KEPT = sa.select(
    utc_now().label("now"),
    _OF_ID.order_by(sample.c.at).limit(1).scalar_subquery().label("first"),
    _OF_ID.order_by(sample.c.at.desc()).offset(sa.bindparam("rows")).limit(1).scalar_subquery().label("beyond"),
)


@dataclass(frozen=True, kw_only=True)
class Latest:
    """What the latest samples of a hydration show."""

    now: datetime
    """On the ledger's clock, when they were read."""
    rate: float | None = None
    memory_used: int | None = None
    memory_limit: int | None = None


def latest_of_many(connection: Connection, hydration_ids: Sequence[str], *, seconds: float) -> dict[str, Latest]:
    """Return what the latest samples show, by hydration, in one statement; the rate as :func:`rate` gives it."""
    rows = connection.execute(_LATEST, {"ids": list(hydration_ids), "seconds": seconds})
    return {
        row.id: Latest(
            now=row.now,
            rate=rate_between(
                Sample(at=row.base_at, committed=row.base_rows),
                Sample(at=row.at, committed=row.rows),
                now=row.now,
                seconds=seconds,
            ),
            memory_used=row.memory_used,
            memory_limit=row.memory_limit,
        )
        for row in rows
    }


def recent_of_many(connection: Connection, plans: Mapping[str, str], *, now: datetime) -> dict[str, list[float]]:
    """Return ``recent_rates`` of hydrations, given with their plans, in one statement that reads only those minutes."""
    if not plans:
        return {}
    # Pairs that are known, not a join: every database then looks up each plan's last minutes by the primary key.
    meant = sa.tuple_(sample.c.hydration_id, sample.c.plan_id).in_(list(plans.items()))
    rows = connection.execute(
        sa.select(
            sample.c.hydration_id,
            sa.func.min(sample.c.at, type_=UtcDateTime()).label("at"),
            sa.func.min(sample.c.committed_rows, type_=Unsigned64()).label("committed"),
        )
        .where(meant, sample.c.at >= now - timedelta(seconds=RECENT_SECONDS))
        .group_by(
            sample.c.hydration_id, whole_seconds(sample.c.at) // sa.literal_column(str(STEP_SECONDS), sa.Integer())
        )
    )
    found: dict[str, list[Sample]] = {}
    for row in rows:
        found.setdefault(row.hydration_id, []).append(Sample(at=row.at, committed=row.committed))
    return {one: recent_rates(sorted(firsts, key=lambda each: each.at)) for one, firsts in found.items()}


def _one_at(of: sa.FromClause, column: Any, *conditions: sa.ColumnElement[bool], order: Callable[..., Any]) -> Any:
    """Return a column of the first or last sample, which is one step in the primary key."""
    same = sa.and_(sample.c.hydration_id == of.c.id, sample.c.plan_id == of.c.plan_id)
    # By the whole key, though two parts of it are the same: MySQL would sort all samples of the plan by the third.
    whole = (order(sample.c.hydration_id), order(sample.c.plan_id), order(sample.c.at))
    return sa.select(column).where(same, *conditions).order_by(*whole).limit(1).scalar_subquery()


def _latest() -> Any:
    """Return the statement. No join: databases looked for its rows among all samples of each plan."""
    newest, oldest, rows = sa.desc, sa.asc, sample.c.committed_rows
    late = (
        sa.select(
            hydration.c.id,
            hydration.c.plan_id,
            _one_at(hydration, sample.c.at, order=newest).label("at"),
            _one_at(hydration, rows, order=newest).label("rows"),
            _one_at(hydration, sample.c.memory_used, order=newest).label("memory_used"),
            _one_at(hydration, sample.c.memory_limit, order=newest).label("memory_limit"),
            _one_at(hydration, sample.c.at, order=oldest).label("first_at"),
            _one_at(hydration, rows, order=oldest).label("first_rows"),
        )
        .where(hydration.c.id.in_(sa.bindparam("ids", expanding=True)))
        .cte("late")
        # Otherwise it is computed again for each sample that is compared with it.
        .prefix_with("MATERIALIZED", dialect="postgresql")
    )
    apart = seconds_between(sample.c.at, late.c.at) >= sa.bindparam("seconds")
    base_at, base_rows = (_one_at(late, column, apart, order=newest) for column in (sample.c.at, rows))
    return sa.select(
        late.c.id,
        late.c.at,
        late.c.rows,
        late.c.memory_used,
        late.c.memory_limit,
        sa.func.coalesce(base_at, late.c.first_at, type_=UtcDateTime()).label("base_at"),
        sa.func.coalesce(base_rows, late.c.first_rows, type_=Unsigned64()).label("base_rows"),
        utc_now().label("now"),
    ).where(late.c.at.is_not(None))


_LATEST = _latest()


def _one(
    connection: Connection, hydration_id: str, *conditions: sa.ColumnElement[bool], order: Any
) -> tuple[Sample, datetime] | None:
    row = connection.execute(
        sa.select(sample.c.at, sample.c.committed_rows, utc_now().label("now"))
        .join(hydration, _OF_PLAN)
        .where(hydration.c.id == hydration_id, sample.c.hydration_id == hydration_id, *conditions)
        .order_by(order)
        .limit(1)
    ).one_or_none()
    return None if row is None else (Sample(at=row.at, committed=row.committed_rows), row.now)


def taken(
    connection: Connection,
    figures: Figures,
    now: datetime,
    *,
    pressure: float | None = None,
    memory: MemoryReading | None = None,
    in_flight: int | None = None,
) -> Figures:
    """Keep a sample and return the figures after it, which the caller has to save.

    ``in_flight``: how many ranges hold a credit now, where the caller knows that.
    """
    row = tallies.sample(
        now,
        statistics.read_statistics(connection, figures.id),
        in_flight=ranges.in_flight(connection, figures.id) if in_flight is None else in_flight,
        credits=figures.credits,
        pressure=pressure,
        memory=memory,
    )
    add(connection, hydration_id=figures.id, plan_id=figures.plan_id or "", row=row)
    return replace(figures, sampled_at=now)


def keep_sample(
    connection: Connection, figures: Figures, now: datetime, *, memory: MemoryReading | None = None
) -> None:
    """Keep a sample, but not two at the same moment; the figures are saved."""
    if figures.plan_id is not None and (figures.sampled_at is None or now > figures.sampled_at):
        taken(connection, figures, now, memory=memory)
        hydrations.keep_sampled(connection, figures.id, now)


def _digest(source_identity: str) -> str:
    return hashlib.sha256(source_identity.encode()).hexdigest()


def claim(connection: Connection, source_identity: str, *, seconds: float) -> bool:
    """Claim the source's next poll; ``False`` where another process has claimed it in the last seconds."""
    source, at = _digest(source_identity), now(connection)
    stale = upstream.c.asked_at <= at - timedelta(seconds=seconds)
    mine = sa.update(upstream).where(upstream.c.source == source, stale).values(asked_at=utc_now())
    if connection.execute(mine).rowcount:
        return True
    if connection.execute(sa.select(upstream.c.source).where(upstream.c.source == source)).one_or_none():
        return False
    try:
        with connection.begin_nested():
            values = {"source": source, "source_identity": source_identity}
            connection.execute(sa.insert(upstream).values(asked_at=utc_now(), **values))
    except IntegrityError:
        return False
    return True


def keep(connection: Connection, source_identity: str, seen: Upstream) -> None:
    """Keep how far a source is now; it was claimed before."""
    own = sa.update(upstream).where(upstream.c.source == _digest(source_identity))
    connection.execute(own.values(frontier=seen.to_json(), seen_at=utc_now()))


def forget(connection: Connection, source_identity: str) -> None:
    """Remove what is known of a source, unless a hydration reads it."""
    read = sa.select(hydration.c.id).where(hydration.c.source_identity == source_identity)
    if connection.execute(read.limit(1)).one_or_none() is None:
        connection.execute(sa.delete(upstream).where(upstream.c.source == _digest(source_identity)))


def strays(connection: Connection, *, seconds: float) -> int:
    """Remove sources that no hydration reads and no process has polled lately; return how many there were."""
    read = sa.exists().where(hydration.c.source_identity == upstream.c.source_identity)
    old = upstream.c.asked_at <= now(connection) - timedelta(seconds=seconds)
    return connection.execute(sa.delete(upstream).where(~read, old)).rowcount


def read_position(connection: Connection, source_identity: str) -> Seen | None:
    """Return how far a source was seen to be; ``None`` before the first time."""
    found = sa.select(upstream.c.frontier, upstream.c.seen_at).where(upstream.c.source == _digest(source_identity))
    row = connection.execute(found).one_or_none()
    if row is None or row.frontier is None:
        return None
    return Seen(upstream=Upstream.from_json(row.frontier), at=row.seen_at)
