"""The part of the ledger on a database that those use who look at sources. See ``core.ports.observed``."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_provider_backpressure.core import transitions as refusals
from airflow_provider_backpressure.core.gate.signals import MemoryReading
from airflow_provider_backpressure.core.monitoring.ledger_pruning import KEPT
from airflow_provider_backpressure.core.ports.ledger import History
from airflow_provider_backpressure.core.progress.lag import Course, Sight, advance
from airflow_provider_backpressure.core.progress.notified_events import Notice, note_alerts
from airflow_provider_backpressure.core.progress.rates_and_eta import PLAN_WORKER, Sample
from airflow_provider_backpressure.core.progress.source_position import Seen, Upstream
from airflow_provider_backpressure.core.snapshot.ranges import RangeState
from airflow_provider_backpressure.core.transitions import statistics as tallies
from airflow_provider_backpressure.ledger.database import Database, repeatable
from airflow_provider_backpressure.ledger.models import control, flow, hydration, is_first, push, range_
from airflow_provider_backpressure.ledger.tables import hydration as hydrations
from airflow_provider_backpressure.ledger.tables import range as ranges
from airflow_provider_backpressure.ledger.tables import sample as samples
from airflow_provider_backpressure.ledger.tables import statistics
from airflow_provider_backpressure.ledger.tables.range import is_in, now
from airflow_provider_backpressure.ledger.tables.sample import keep_sample


class SqlObserving:
    """Methods of :class:`..repository.SqlLedger`, which has the database.

    Implements ``ObservedReader`` and ``Observed``.
    """

    _database: Database

    def upstream(self, source_identity: str) -> Seen | None:
        with self._database.read() as connection:
            return samples.read_position(connection, source_identity)

    def course(self, hydration_id: str) -> Course | None:
        with self._database.read() as connection:
            return hydrations.course(connection, hydration_id)

    def samples(self, hydration_id: str, *, seconds: float) -> list[Sample]:
        with self._database.read() as connection:
            return samples.latest(connection, hydration_id, seconds=seconds)

    @repeatable
    def claim_look(self, source_identity: str, *, seconds: float) -> bool:
        with self._database.write() as connection:
            return samples.claim(connection, source_identity, seconds=seconds)

    @repeatable
    def keep_upstream(self, source_identity: str, upstream: Upstream) -> None:
        with self._database.write() as connection:
            samples.keep(connection, source_identity, upstream)

    @repeatable
    def record_sight(self, hydration_id: str, sight: Sight, *, least_seconds: float) -> Course:
        with self._database.write() as connection:
            figures = hydrations.lock(connection, hydration_id)
            before = hydrations.course(connection, hydration_id)
            course = advance(before, sight, least_seconds=least_seconds)
            if course is before:
                return course
            hydrations.keep_course(connection, hydration_id, course)
            row = statistics.worker(connection, hydration_id, PLAN_WORKER)
            statistics.save(connection, tallies.with_course(row, course))
            keep_sample(connection, figures, ranges.now(connection))
            return course

    @repeatable
    def record_memory(self, hydration_id: str, reading: MemoryReading) -> None:
        with self._database.write() as connection:
            figures = hydrations.lock(connection, hydration_id)
            keep_sample(connection, figures, ranges.now(connection), memory=reading)

    @repeatable
    def note(self, hydration_id: str, present: Mapping[str, float], *, looked: Collection[str]) -> Notice:
        with self._database.write() as connection:
            hydrations.lock(connection, hydration_id)
            before = hydrations.read_alerts(connection, hydration_id)
            after, notice = note_alerts(before, present, frozenset(looked), ranges.now(connection))
            if after != before:
                hydrations.keep_occurring(connection, hydration_id, after)
            return notice

    @repeatable
    def prune_samples(self, hydration_id: str, *, seconds: float, rows: int, most: int = 1000) -> int:
        with self._database.read() as connection:
            if samples.find_cut(connection, hydration_id, seconds=seconds, rows=rows) is None:
                return 0
        with self._database.write() as connection:
            return samples.prune(connection, hydration_id, seconds=seconds, rows=rows, most=most)


HOUR = 3600.0
_FIRST = range_.alias("first")
_EARLIER = (
    sa.select(_FIRST.c.plan_id)
    .join(hydration, hydration.c.id == _FIRST.c.hydration_id)
    .where(
        _FIRST.c.hydration_id == sa.bindparam("id"),
        is_first(_FIRST),
        sa.or_(hydration.c.plan_id.is_(None), hydration.c.plan_id != _FIRST.c.plan_id),
    )
    .limit(1)
)


class SqlPruning:
    """Methods of :class:`..repository.SqlLedger`, which has the database. Implements ``Pruning``, and what removes or
    moves a hydration.
    """

    _database: Database

    def find_superseded(self, kept: History, *, hydration_id: str | None = None) -> list[str]:
        """See ``Pruning.find_superseded``. Reads every range of a hydration that is named, otherwise of all."""
        with self._database.read() as connection:
            if hydration_id is not None and not connection.execute(_EARLIER, {"id": hydration_id}).first():
                return []
            return _find_superseded(connection, kept, hydration_id=hydration_id)

    @repeatable
    def prune_plan(self, plan_id: str, *, most: int = 1000) -> int:
        with self._database.write() as connection:
            figures = hydrations.lock_by_any_range(connection, plan_id)
            if figures is None or figures.plan_id == plan_id or _held(connection, figures.id, plan_id):
                return 0
            return _remove(connection, plan_id, most=most)

    @repeatable
    def forget(self, hydration_id: str) -> None:
        with self._database.write() as connection:
            if hydrations.lock_if_there(connection, hydration_id):
                held = ranges.count_leased(connection, hydration_id)
                if held:
                    raise refusals.still_held(hydration_id, held)
                source = hydrations.by_id(connection, hydration_id).source_identity
                hydrations.forget(connection, hydration_id)
                samples.forget(connection, source)

    @repeatable
    def move(self, hydration_id: str, *, source_identity: str, sink_identity: str) -> None:
        with self._database.write() as connection:
            found = hydrations.lock_whole(connection, hydration_id)[1]
            key = {"source_identity": source_identity, "sink_identity": sink_identity}
            digest = hydrations.identity(environment=found.environment, **key)
            there = hydrations.by_identity(connection, digest)
            if there is not None and there.id != hydration_id:
                if there.plan is not None:
                    raise refusals.taken_address(there.id, **key)
                hydrations.forget(connection, there.id)
            hydrations.change(connection, hydration_id, identity=digest, **key)
            if found.plan is not None:
                plan = replace(found.plan, source_identity=source_identity, sink_identity=sink_identity)
                hydrations.change(connection, hydration_id, plan=plan.to_json())
            samples.forget(connection, found.source_identity)

    @repeatable
    def sweep(self, *, seconds: float, acts: bool = False) -> int:
        with self._database.write() as connection:
            at = now(connection)
            cuts = {flow: at - KEPT, push: at - KEPT}
            if acts:
                cuts[control] = at - timedelta(seconds=seconds)
            gone = sum(connection.execute(sa.delete(of).where(of.c.at < cut)).rowcount for of, cut in cuts.items())
            return gone + samples.strays(connection, seconds=HOUR)


def _find_superseded(connection: Connection, kept: History, *, hydration_id: str | None) -> list[str]:
    cut = now(connection) - timedelta(seconds=kept.seconds)
    begun, ended = sa.func.max(range_.c.admitted_at), sa.func.max(range_.c.committed_at)
    held = sa.func.max(sa.case((is_in(RangeState.ADMITTED), 1), else_=0))
    never = sa.and_(begun.is_(None), ended.is_(None), sa.func.max(hydration.c.holder).is_(None))
    quiet = sa.or_(
        never, sa.and_(sa.or_(begun.is_not(None), ended.is_not(None)), _before(begun, cut), _before(ended, cut))
    )
    query: sa.Select[Any] = (
        sa.select(
            range_.c.plan_id,
            range_.c.hydration_id,
            sa.func.coalesce(ended, begun).label("at"),
            held.label("held"),
            sa.case((quiet, 1), else_=0).label("quiet"),
        )
        .join(hydration, hydration.c.id == range_.c.hydration_id)
        .where(sa.or_(hydration.c.plan_id.is_(None), hydration.c.plan_id != range_.c.plan_id))
        .group_by(range_.c.plan_id, range_.c.hydration_id)
    )
    if hydration_id is not None:
        firsts = sa.select(_FIRST.c.plan_id).where(_FIRST.c.hydration_id == hydration_id, is_first(_FIRST))
        query = query.where(range_.c.plan_id.in_(firsts))
    # Plans are few; the newest of each hydration come first, and those that were never begun last.
    rows = sorted(connection.execute(query), key=lambda row: row.at.timestamp() if row.at else 0.0, reverse=True)
    newer: Counter[str] = Counter()
    found = []
    for row in rows:
        surplus = kept.plans is not None and row.at is not None and newer[row.hydration_id] >= kept.plans
        newer[row.hydration_id] += 1
        if not row.held and (row.quiet or surplus):
            found.append(row.plan_id)
    return found


def _before(latest: Any, cut: Any) -> sa.ColumnElement[bool]:
    return sa.or_(latest.is_(None), latest <= cut)


def _held(connection: Connection, hydration_id: str, plan_id: str) -> bool:
    """Whether a range of the plan holds a credit."""
    held = sa.and_(range_.c.hydration_id == hydration_id, is_in(RangeState.ADMITTED), range_.c.plan_id == plan_id)
    return connection.execute(sa.select(range_.c.seq).where(held).limit(1)).first() is not None


def _remove(connection: Connection, plan_id: str, *, most: int) -> int:
    """Remove the last ranges of a plan; looks into the key only.

    The first range, by which the plan is found, goes last: what a kill leaves is found again.
    """
    mine = range_.c.plan_id == plan_id
    first = sa.select(range_.c.seq).where(mine).order_by(range_.c.seq.desc()).offset(most - 1).limit(1)
    seq = connection.execute(first).scalar_one_or_none()
    return connection.execute(sa.delete(range_).where(mine, sa.true() if seq is None else range_.c.seq >= seq)).rowcount
