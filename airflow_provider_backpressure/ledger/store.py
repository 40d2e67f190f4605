"""The ledger on a database: each method of the port is one short transaction.

What happens is decided by :mod:`.law`; the modules named after nouns hold the statements. Whoever changes a range locks
its hydration first, so nothing here can deadlock by itself. Databases may see a deadlock all the same: MySQL where many
register at once, a cluster of them at any commit.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from sqlalchemy.engine import URL, Connection, Engine
from sqlalchemy.exc import IntegrityError

from airflow_provider_backpressure.core.hydration import GateState, Hydration, Permit, RangeCounts
from airflow_provider_backpressure.core.limits import Limit
from airflow_provider_backpressure.core.phases import Phase
from airflow_provider_backpressure.core.ranges import PlannedRange, RangeRecord, RangeState
from airflow_provider_backpressure.core.signals import Decision
from airflow_provider_backpressure.core.snapshot import Plan
from airflow_provider_backpressure.core.statistics import WorkerStatistics, total_progress
from airflow_provider_backpressure.ledger import (
    controls,
    decisions,
    gate,
    hydrations,
    law,
    planning,
    ranges,
    samples,
    statistics,
)
from airflow_provider_backpressure.ledger.database import Database, Deadlock

log = logging.getLogger(__name__)

ATTEMPTS = 5
"""How often a transaction is begun in all, if the database undoes it for a deadlock each time."""

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")


def repeatable(method: Callable[Arguments, Answer]) -> Callable[Arguments, Answer]:
    """Begin a method's one transaction again where a deadlock undid it; it must take nothing that can be read once."""

    @wraps(method)
    def run(*args: Arguments.args, **values: Arguments.kwargs) -> Answer:
        for _ in range(ATTEMPTS - 1):
            try:
                return method(*args, **values)
            except Deadlock as error:
                log.debug("Once more: %s", error)
        return method(*args, **values)

    return run


class SqlLedger:
    """The ledger on PostgreSQL, SQLite or MySQL. See ``core.ports.Ledger`` for what each method promises.

    ``source`` is a URL or an engine; an engine stays the caller's to dispose of. Nothing is opened before the first
    call. Threads may share one; after a fork make a new one.
    """

    def __init__(self, source: str | URL | Engine) -> None:
        self._database = Database(source)

    # Reading

    def hydration(self, hydration_id: str) -> Hydration:
        """See ``LedgerReader.hydration``."""
        with self._database.read() as connection:
            return hydrations.by_id(connection, hydration_id)

    def find(self, *, environment: str, source_identity: str, sink_identity: str) -> Hydration | None:
        """See ``LedgerReader.find``."""
        digest = hydrations.identity(
            environment=environment, source_identity=source_identity, sink_identity=sink_identity
        )
        with self._database.read() as connection:
            return hydrations.by_identity(connection, digest)

    def hydrations(self) -> list[Hydration]:
        """See ``LedgerReader.hydrations``."""
        with self._database.read() as connection:
            return hydrations.latest_first(connection)

    def gate(self, hydration_id: str) -> GateState:
        """See ``LedgerReader.gate``."""
        with self._database.read() as connection:
            return gate.state(connection, hydration_id)

    def counts(self, plan_id: str) -> RangeCounts:
        """See ``LedgerReader.counts``."""
        with self._database.read() as connection:
            return ranges.count(connection, plan_id)

    def ranges(
        self, plan_id: str, *, states: Sequence[RangeState] | None = None, after_seq: int = -1, limit: int | None = None
    ) -> list[RangeRecord]:
        """See ``LedgerReader.ranges``."""
        with self._database.read() as connection:
            return ranges.page(connection, plan_id, states=states, after_seq=after_seq, limit=limit)

    def range(self, plan_id: str, seq: int) -> RangeRecord:
        """See ``LedgerReader.range``."""
        with self._database.read() as connection:
            return ranges.one(connection, plan_id, seq)[0]

    def abandoned(self, hydration_id: str, *, lane: str | None = None) -> list[RangeRecord]:
        """See ``LedgerReader.abandoned``."""
        with self._database.read() as connection:
            return ranges.abandoned(connection, hydration_id=hydration_id, lane=lane)

    def statistics(self, hydration_id: str) -> list[WorkerStatistics]:
        """See ``LedgerReader.statistics``."""
        with self._database.read() as connection:
            return statistics.of(connection, hydration_id)

    def rate(self, hydration_id: str, *, seconds: float = 60.0) -> float | None:
        """See ``LedgerReader.rate``."""
        with self._database.read() as connection:
            return samples.rate(connection, hydration_id, seconds=seconds)

    # Writing

    @repeatable
    def register(
        self, *, environment: str, source_identity: str, sink_identity: str, owner: str, cluster: str, credits: int
    ) -> Hydration:
        """See ``Ledger.register``."""
        key = {"environment": environment, "source_identity": source_identity, "sink_identity": sink_identity}
        digest = hydrations.identity(**key)
        with self._database.write() as connection:
            found = hydrations.by_identity(connection, digest)
            if found is None:
                try:
                    with connection.begin_nested():
                        hydrations.add(
                            connection, identity=digest, owner=owner, cluster=cluster, credits=credits, **key
                        )
                except IntegrityError:
                    log.debug("Another process registered the same hydration at this very moment.")
                found = hydrations.by_identity(connection, digest)
                assert found is not None, "added here or by the other process"
            if found.owner != owner:
                raise law.owned(
                    source_identity=source_identity, sink_identity=sink_identity, owner=found.owner, asking=owner
                )
            figures = hydrations.lock(connection, found.id)
            if (figures.credits_max, found.cluster) != (credits, cluster):
                hydrations.save(connection, law.rescaled(figures, credits))
                hydrations.change(connection, found.id, cluster=cluster)
            return hydrations.by_id(connection, found.id)

    @repeatable
    def hold(self, hydration_id: str, *, run: str, over: str | None = None) -> str:
        """See ``Ledger.hold``."""
        with self._database.write() as connection:
            hydrations.lock(connection, hydration_id)
            found = hydrations.holder(connection, hydration_id)
            holder = law.holder(found, run=run, over=over)
            if holder != found:
                hydrations.change(connection, hydration_id, holder=holder)
            return holder

    @repeatable
    def let_go(self, hydration_id: str, *, run: str) -> bool:
        """See ``Ledger.let_go``."""
        with self._database.write() as connection:
            hydrations.lock(connection, hydration_id)
            if hydrations.holder(connection, hydration_id) != run:
                return False
            hydrations.change(connection, hydration_id, holder=None)
            return True

    def save_plan(self, hydration_id: str, plan: Plan, ranges: Iterable[PlannedRange]) -> int:
        """See ``Ledger.save_plan``. The hydration is locked only when every range is stored.

        Not repeatable: the ranges come from an iterator.
        """
        with self._database.write() as connection:
            hydrations.by_id(connection, hydration_id)
            number = planning.add_ranges(connection, ranges, hydration_id=hydration_id, plan_id=plan.plan_id)
            figures = law.planned_anew(hydrations.lock(connection, hydration_id), plan)
            hydrations.save(connection, figures)
            hydrations.change(connection, hydration_id, plan=plan.to_json())
            statistics.begin(connection, law.totals(hydration_id, plan))
        return number

    @repeatable
    def take_over(self, hydration_id: str, plan: Plan) -> None:
        """See ``Ledger.take_over``."""
        with self._database.write() as connection:
            if hydrations.lock(connection, hydration_id).plan_id == plan.plan_id:
                hydrations.change(connection, hydration_id, plan=plan.to_json())

    @repeatable
    def admit(
        self,
        hydration_id: str,
        *,
        lane: str,
        session_id: str,
        lease_seconds: float,
        memory_bytes: int = 0,
        seq: int | None = None,
    ) -> Permit | None:
        """See ``Ledger.admit``."""
        request = law.Request(
            lane=lane, session_id=session_id, lease_seconds=lease_seconds, memory_bytes=memory_bytes, seq=seq
        )
        with self._database.write() as connection:
            figures = hydrations.lock(connection, hydration_id)
            return None if figures.shut else _admit(connection, figures, request)

    @repeatable
    def renew(self, hydration_id: str, *, lane: str, lease_seconds: float) -> int:
        """See ``Ledger.renew``."""
        with self._database.write() as connection:
            hydrations.lock(connection, hydration_id)
            return ranges.renew(connection, hydration_id=hydration_id, lane=lane, seconds=lease_seconds)

    @repeatable
    def commit(
        self,
        plan_id: str,
        seq: int,
        *,
        worker: str,
        attempt: int,
        rows: int,
        bytes: int,
        checksum: str,
        limit: Limit,
        pressure: float,
        memory_bytes: int | None = None,
    ) -> bool:
        """See ``Ledger.commit``. A range of an earlier plan is written down, and nothing is learned from it."""
        with self._database.write() as connection:
            figures = hydrations.lock_by_range(connection, plan_id, seq)
            record, now = ranges.one(connection, plan_id, seq)
            if record.state is RangeState.COMMITTED:
                return False
            ranges.save(
                connection,
                law.committed(record, attempt=attempt, rows=rows, bytes=bytes, checksum=checksum, now=now),
            )
            if figures.plan_id != plan_id:
                return True
            own = law.worked(
                statistics.worker(connection, figures.id, worker), record.progress(rows), rows=rows, bytes=bytes
            )
            statistics.save(connection, own)
            figures = law.after_commit(
                figures, record, attempt=attempt, limit=limit, pressure=pressure, memory_bytes=memory_bytes, now=now
            )
            if figures.sample_due(now):
                figures = _sampled(connection, figures, now, pressure=pressure)
            hydrations.save(connection, figures)
            return True

    @repeatable
    def release(self, plan_id: str, seq: int, *, attempt: int, error: str, fail: bool = False) -> bool:
        """See ``Ledger.release``."""
        with self._database.write() as connection:
            figures = hydrations.lock_by_range(connection, plan_id, seq)
            record = law.released(ranges.one(connection, plan_id, seq)[0], attempt=attempt, error=error, fail=fail)
            if record is None:
                return False
            ranges.save(connection, record)
            if figures.plan_id == plan_id and record.state is RangeState.PLANNED:
                hydrations.save(connection, law.planned_again(figures, seq))
            return True

    @repeatable
    def retry_failed(self, plan_id: str) -> int:
        """See ``Ledger.retry_failed``. Ranges of an earlier plan stay as they are: nobody would run them."""
        with self._database.write() as connection:
            figures = hydrations.lock_by_plan(connection, plan_id)
            if figures is None:
                return 0
            seqs = ranges.retry_failed(connection, hydration_id=figures.id, plan_id=plan_id)
            if seqs:
                hydrations.save(connection, law.planned_again(figures, min(seqs)))
            return len(seqs)

    @repeatable
    def reopen(self, plan_id: str, seq: int, *, who: str, why: str | None = None) -> bool:
        """See ``Ledger.reopen``."""
        with self._database.write() as connection:
            figures = hydrations.lock_by_range(connection, plan_id, seq)
            before = ranges.one(connection, plan_id, seq)[0]
            record = law.reopened(before) if figures.plan_id == plan_id else None
            if record is None:
                return False
            ranges.save(connection, record)
            hydrations.save(connection, law.planned_again(figures, seq))
            for row in law.taken_back(statistics.of(connection, figures.id), before.lane, before.rows or 0):
                statistics.save(connection, row)
            controls.add(
                connection, hydration_id=figures.id, who=who, action="retry-range", why=why, values={"seq": seq}
            )
            return True

    @repeatable
    def finish(self, hydration_id: str) -> Hydration:
        """See ``Ledger.finish``."""
        with self._database.write() as connection:
            figures = hydrations.lock(connection, hydration_id)
            plan = hydrations.by_id(connection, hydration_id).plan
            if figures.phase is not Phase.STEADY_STATE or (plan is not None and plan.increment):
                _finish(connection, figures)
            return hydrations.by_id(connection, hydration_id)

    @repeatable
    def record_decision(self, hydration_id: str, decision: Decision) -> None:
        """See ``Ledger.record_decision``."""
        with self._database.write() as connection:
            hydrations.keep_decision(connection, hydration_id, decisions.to_json(decision))

    @repeatable
    def record_read(self, hydration_id: str, *, worker: str, in_flight_rows: int) -> None:
        """See ``Ledger.record_read``."""
        with self._database.write() as connection:
            hydrations.lock(connection, hydration_id)
            own = statistics.worker(connection, hydration_id, worker)
            statistics.save(connection, law.reading(own, in_flight_rows))

    def pause(self, hydration_id: str, *, who: str, why: str | None = None) -> None:
        """See ``Ledger.pause``."""
        self._steer(hydration_id, "pause", who, why, paused_by=who, paused_why=why)

    def resume(self, hydration_id: str, *, who: str, why: str | None = None) -> None:
        """See ``Ledger.resume``."""
        self._steer(hydration_id, "resume", who, why, paused_by=None, paused_why=None)

    def close(self) -> None:
        """See ``Ledger.close``."""
        self._database.close()

    @repeatable
    def _steer(self, hydration_id: str, action: str, who: str, why: str | None, **values: Any) -> None:
        with self._database.write() as connection:
            hydrations.lock(connection, hydration_id)
            hydrations.change(connection, hydration_id, **values)
            controls.add(connection, hydration_id=hydration_id, who=who, action=action, why=why, values=values)


def _admit(connection: Connection, figures: law.Figures, request: law.Request) -> Permit | None:
    found = ranges.candidate(connection, figures, seq=request.seq)
    if found is None:
        return None
    ready = not found.range.ordered or law.settles(ranges.state_before(connection, found.range))
    record = request.admitted(
        found.range, in_flight=found.in_flight, credits=figures.credits, now=found.now, ready=ready
    )
    if record is None:
        return None
    ranges.save(connection, record)
    figures = law.after_admission(figures, record.seq, first=request.seq is None)
    if figures.sampled_at is None:
        figures = _sampled(connection, figures, found.now)
    hydrations.save(connection, figures)
    return Permit(range=record)


def _sampled(
    connection: Connection, figures: law.Figures, now: datetime, *, pressure: float | None = None
) -> law.Figures:
    """Keep a sample of what stands in the tables at this point of the transaction."""
    samples.add(
        connection,
        hydration_id=figures.id,
        plan_id=figures.plan_id or "",
        at=now,
        progress=total_progress(statistics.of(connection, figures.id)),
        in_flight=ranges.in_flight(connection, figures.id),
        credits=figures.credits,
        pressure=pressure,
    )
    return replace(figures, sampled_at=now)


def _finish(connection: Connection, figures: law.Figures) -> None:
    if figures.plan_id is None:
        raise law.without_plan(figures.id)
    found = ranges.any_open(connection, figures)
    if found is not None:
        raise law.still_open(*found)
    totals = law.made_exact(statistics.of(connection, figures.id))
    if totals is not None:
        statistics.save(connection, totals)
    now = ranges.now(connection)
    if figures.sampled_at is None or now > figures.sampled_at:
        figures = _sampled(connection, figures, now)
    hydrations.save(connection, law.finished(figures, now))
