"""Statements that the gate and the summaries of hydrations are read by."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from airflow_provider_backpressure.core.default_limits import HYDRATIONS_AT_ONCE
from airflow_provider_backpressure.core.gate.cluster_queue import (
    NOT_QUEUED,
    QueueEntry,
    QueuePlace,
    Shared,
    Work,
    estimate_seconds,
    estimate_starts,
    place,
)
from airflow_provider_backpressure.core.gate.hydration_record import GateState, Hydration, Phase
from airflow_provider_backpressure.core.progress.displayed_state import State
from airflow_provider_backpressure.core.progress.lag import Course
from airflow_provider_backpressure.core.progress.rates_and_eta import total_progress
from airflow_provider_backpressure.core.progress.summary import HydrationSummary
from airflow_provider_backpressure.core.snapshot.ranges import RangeState
from airflow_provider_backpressure.core.transitions import unknown
from airflow_provider_backpressure.ledger.models import hydration, limit, queue, range_
from airflow_provider_backpressure.ledger.sql_types import UtcDateTime, utc_now
from airflow_provider_backpressure.ledger.tables import phase as phases
from airflow_provider_backpressure.ledger.tables import queue as turns
from airflow_provider_backpressure.ledger.tables import sample as samples
from airflow_provider_backpressure.ledger.tables import statistics
from airflow_provider_backpressure.ledger.tables.control_log import memory_closed
from airflow_provider_backpressure.ledger.tables.queue import HAS_TOKEN, count_before, stands
from airflow_provider_backpressure.ledger.tables.range import BY_STATE, FIRST_PLANNED, held_by, is_in

_HELD = (
    sa.select(
        sa.func.count().label("in_flight"),
        sa.func.min(range_.c.admitted_at, type_=UtcDateTime()).label("oldest"),
    )
    .where(held_by(sa.bindparam("id")))
    .subquery("held")
)
_OTHERS, _THEIRS = hydration.alias("others"), range_.alias("theirs")
_SHARING = _OTHERS.join(_THEIRS, held_by(_OTHERS.c.id, _THEIRS))
_RESERVED = (
    sa.select(sa.func.coalesce(sa.func.sum(_THEIRS.c.memory_bytes), 0))
    .select_from(_SHARING)
    .with_hint(_THEIRS, BY_STATE, "mysql")
    .where(_OTHERS.c.cluster == hydration.c.cluster)
    .scalar_subquery()
)
_LARGEST = (
    sa.select(sa.func.coalesce(sa.func.max(_THEIRS.c.memory_bytes), 0))
    .select_from(_SHARING)
    .with_hint(_THEIRS, BY_STATE, "mysql")
    .where(_OTHERS.c.cluster == hydration.c.cluster)
    .scalar_subquery()
)
_CONNECTIONS = (
    sa.select(sa.func.count())
    .select_from(_SHARING)
    .with_hint(_THEIRS, BY_STATE, "mysql")
    .where(_OTHERS.c.sink_server == hydration.c.sink_server)
    .scalar_subquery()
)
_MOST_CONNECTIONS = (
    sa.select(limit.c.most)
    .where(limit.c.kind == Shared.CONNECTIONS.value, limit.c.name == hydration.c.sink_server)
    .scalar_subquery()
)
_GATE: sa.Select[Any] = (
    sa.select(
        hydration.c.phase,
        hydration.c.cluster,
        hydration.c.credits,
        hydration.c.slots,
        hydration.c.commit_seconds,
        hydration.c.range_memory_bytes,
        hydration.c.range_rows_set,
        hydration.c.paused_by,
        hydration.c.paused_why,
        hydration.c.decision,
        hydration.c.gate_changes,
        _HELD,
        FIRST_PLANNED.label("waiting"),
        _RESERVED.label("reserved_bytes"),
        _LARGEST.label("largest_bytes"),
        _CONNECTIONS.label("connections"),
        _MOST_CONNECTIONS.label("connections_max"),
        # Without a limit nothing waits, and the rows of hydrations are not read once more.
        sa.case((_MOST_CONNECTIONS.is_not(None), count_before()), else_=0).label("connections_before"),
        HAS_TOKEN.label("has_token"),
        utc_now().label("now"),
    )
    .select_from(hydration.join(_HELD, sa.true()))
    .where(hydration.c.id == sa.bindparam("id"))
)


def state(connection: Connection, hydration_id: str) -> GateState:
    """Return the gate's state at one moment; ``LedgerRefused`` for an unknown id."""
    row: Any = connection.execute(_GATE, {"id": hydration_id}).one_or_none()
    if row is None:
        raise unknown(hydration_id)
    passes = row.has_token or Phase(row.phase) is Phase.STEADY_STATE
    return _state(row, NOT_QUEUED if passes else stands(connection, hydration_id, row.cluster))


def _state(row: Row[Any], place: QueuePlace) -> GateState:
    return GateState(
        phase=Phase(row.phase),
        place=place,
        credits=row.credits,
        slots=row.slots,
        in_flight=row.in_flight,
        waiting=int(row.waiting is not None),
        reserved_bytes=int(row.reserved_bytes),
        largest_bytes=int(row.largest_bytes),
        connections=row.connections,
        connections_max=row.connections_max,
        connections_before=row.connections_before,
        oldest_seconds=None if row.oldest is None else max(0.0, (row.now - row.oldest).total_seconds()),
        commit_seconds=row.commit_seconds,
        range_memory_bytes=row.range_memory_bytes,
        range_rows=row.range_rows_set,
        paused_by=row.paused_by,
        paused_why=row.paused_why,
        memory_closed=memory_closed(row.decision),
        number=row.gate_changes,
    )


RECENT_SECONDS = 60.0
"""Over how long rates and flow are taken."""


@dataclass(frozen=True, kw_only=True)
class _Queues:
    """What a place in a queue is computed from."""

    entries: Mapping[str, Sequence[QueueEntry]]
    """By cluster."""
    limits: Mapping[str, int | None]
    tokens: set[str]
    """Hydrations that have one."""

    def place(self, one: Hydration) -> QueuePlace:
        """Return the place of a hydration."""
        if one.phase is Phase.STEADY_STATE or one.id in self.tokens:
            return NOT_QUEUED
        entries, most = self.entries.get(one.cluster, ()), self.limits.get(one.cluster)
        return place(entries, one.id, concurrency=most, cluster=one.cluster)


def read_summaries(connection: Connection, chosen: Sequence[Hydration]) -> list[HydrationSummary]:
    """Return the state of each of them, in the same order."""
    if not chosen:
        return []
    ids = [one.id for one in chosen]
    rows = statistics.of_many(connection, ids)
    sampled = samples.latest_of_many(connection, ids, seconds=RECENT_SECONDS)
    recent = _recent(connection, chosen, sampled)
    held, failed = _held(connection, ids), _count_failed(connection, chosen)
    limits, courses = _limits(connection), _courses(connection, ids)
    spent = statistics.read_flows(connection, ids, seconds=RECENT_SECONDS)
    queues, most = _queues(connection, limits[Shared.HYDRATIONS]), limits[Shared.CONNECTIONS]
    taken, before = _into_servers(connection, most), turns.before_each(connection, ids) if most else {}
    at, spans = connection.execute(sa.select(utc_now())).scalar_one(), phases.read_snapshot_spans(connection, ids)
    found = [
        HydrationSummary(
            hydration=one,
            read_at=at,
            span=spans.get(one.id),
            progress=total_progress(rows[one.id]),
            speed=sampled[one.id].rate if one.id in sampled else None,
            recent=recent.get(one.id, ()),
            memory_used=sampled[one.id].memory_used if one.id in sampled else None,
            memory_limit=sampled[one.id].memory_limit if one.id in sampled else None,
            in_flight=held.get(one.id, 0),
            failed=failed.get(one.id, 0),
            place=queues.place(one),
            connections=taken.get(one.sink_server, 0),
            connections_max=most.get(one.sink_server),
            connections_before=before.get(one.id, 0),
            flow=spent[one.id],
            course=courses.get(one.id),
        )
        for one in chosen
    ]
    return _with_starts(connection, found, queues)


def _with_starts(connection: Connection, found: list[HydrationSummary], queues: _Queues) -> list[HydrationSummary]:
    """Add when those that wait in a queue are expected to start, by the time that the running ones have left."""
    waiting = {now.hydration.cluster for now in found if now.state is State.QUEUED}
    if not waiting:
        return found
    entries = [entry for name in waiting for entry in queues.entries.get(name, ())]
    ids = [entry.hydration_id for entry in entries]
    rows = statistics.of_many(connection, ids) if ids else {}
    sampled = samples.latest_of_many(connection, ids, seconds=RECENT_SECONDS) if ids else {}
    works = {
        entry.hydration_id: Work(
            left=total_progress(rows[entry.hydration_id]).left,
            rate=sampled[entry.hydration_id].rate if entry.running and entry.hydration_id in sampled else None,
        )
        for entry in entries
    }
    starts: dict[str, float | None] = {}
    for name in waiting:
        own, most = queues.entries.get(name, ()), queues.limits.get(name)
        seconds = estimate_seconds(own, {each.hydration_id: works[each.hydration_id] for each in own})
        starts |= estimate_starts(own, seconds, concurrency=HYDRATIONS_AT_ONCE if most is None else most)
    return [
        replace(now, starts_in_seconds=starts.get(now.hydration.id)) if now.state is State.QUEUED else now
        for now in found
    ]


def _recent(
    connection: Connection, chosen: Sequence[Hydration], sampled: Mapping[str, samples.Latest]
) -> dict[str, list[float]]:
    """Return the recent rates of the hydrations whose end can be estimated."""
    rated = {
        one.id: one.plan.plan_id
        for one in chosen
        if one.plan and one.phase is not Phase.STEADY_STATE and one.id in sampled and sampled[one.id].rate
    }
    now = max((sampled[each].now for each in rated), default=None)
    return {} if now is None else samples.recent_of_many(connection, rated, now=now)


def _held(connection: Connection, ids: Sequence[str]) -> dict[str, int]:
    query = (
        sa.select(range_.c.hydration_id, sa.func.count().label("number"))
        .with_hint(range_, BY_STATE, "mysql")
        .where(range_.c.hydration_id.in_(ids), is_in(RangeState.ADMITTED))
        .group_by(range_.c.hydration_id)
    )
    return {row.hydration_id: row.number for row in connection.execute(query)}


def _count_failed(connection: Connection, chosen: Sequence[Hydration]) -> dict[str, int]:
    plans = [one.plan.plan_id for one in chosen if one.plan]
    query = (
        sa.select(range_.c.hydration_id, sa.func.count().label("number"))
        .with_hint(range_, BY_STATE, "mysql")
        .where(
            range_.c.hydration_id.in_([one.id for one in chosen]),
            range_.c.plan_id.in_(plans),
            is_in(RangeState.FAILED),
        )
        .group_by(range_.c.hydration_id)
    )
    return {row.hydration_id: row.number for row in connection.execute(query)}


def _courses(connection: Connection, ids: Sequence[str]) -> dict[str, Course]:
    query = sa.select(hydration.c.id, hydration.c.course).where(
        hydration.c.id.in_(ids), hydration.c.course.is_not(None)
    )
    return {row.id: Course.from_json(row.course) for row in connection.execute(query)}


def _queues(connection: Connection, limits: Mapping[str, int | None]) -> _Queues:
    by_cluster: dict[str, list[QueueEntry]] = {}
    for entry in turns.entries(connection, None):
        by_cluster.setdefault(entry.cluster, []).append(entry)
    has_token = sa.select(queue.c.hydration_id).where(queue.c.started_at.is_not(None), queue.c.lease_until > utc_now())
    tokens = set(connection.scalars(has_token))
    return _Queues(entries=by_cluster, limits=limits, tokens=tokens)


def _limits(connection: Connection) -> dict[Shared, dict[str, int | None]]:
    """Return limits by what they are of."""
    found: dict[Shared, dict[str, int | None]] = {Shared.HYDRATIONS: {}, Shared.CONNECTIONS: {}}
    query = sa.select(limit.c.kind, limit.c.name, limit.c.most)
    for row in connection.execute(
        query.where(limit.c.kind.in_([kind.value for kind in found]), limit.c.most.is_not(None))
    ):
        found[Shared(row.kind)][row.name] = row.most
    return found


def _into_servers(connection: Connection, servers: Mapping[str, int | None]) -> dict[str, int]:
    """Count what is in flight into servers that have a limit."""
    if not servers:
        return {}
    query = (
        sa.select(hydration.c.sink_server, sa.func.count().label("number"))
        .join(range_, held_by(hydration.c.id))
        .with_hint(range_, BY_STATE, "mysql")
        .where(hydration.c.sink_server.in_(servers))
        .group_by(hydration.c.sink_server)
    )
    return {row.sink_server: row.number for row in connection.execute(query)}
