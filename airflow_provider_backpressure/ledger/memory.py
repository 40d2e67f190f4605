"""The ledger in memory: for tests of this package and of those who build on it. Public in ``testing``."""

import threading
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from airflow_provider_backpressure.core.hydration import GateState, Hydration, Permit, RangeCounts
from airflow_provider_backpressure.core.limits import Limit
from airflow_provider_backpressure.core.phases import Phase
from airflow_provider_backpressure.core.ranges import PlannedRange, RangeRecord, RangeState
from airflow_provider_backpressure.core.signals import Decision
from airflow_provider_backpressure.core.snapshot import Plan
from airflow_provider_backpressure.core.statistics import WorkerStatistics
from airflow_provider_backpressure.exceptions import LedgerRefused
from airflow_provider_backpressure.ledger import decisions, law
from airflow_provider_backpressure.ledger.memory_tables import Control, Entry, Tables


class MemoryLedger:
    """Keeps the contract of ``core.ports.Ledger`` within one process. ``now`` is its database's clock."""

    def __init__(self, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self.controls: list[Control] = []
        """Every pause and resume, as the control table has them."""
        self._tables = Tables(now)
        self._lock = threading.RLock()

    # Reading

    def hydration(self, hydration_id: str) -> Hydration:
        """See ``LedgerReader.hydration``."""
        with self._lock:
            return self._tables.entry(hydration_id).hydration()

    def find(self, *, environment: str, source_identity: str, sink_identity: str) -> Hydration | None:
        """See ``LedgerReader.find``."""
        with self._lock:
            entry = self._tables.find(environment, source_identity, sink_identity)
            return None if entry is None else entry.hydration()

    def hydrations(self) -> list[Hydration]:
        """See ``LedgerReader.hydrations``."""
        with self._lock:
            entries = sorted(self._tables.entries.values(), key=lambda entry: entry.updated_at, reverse=True)
            return [entry.hydration() for entry in entries]

    def gate(self, hydration_id: str) -> GateState:
        """See ``LedgerReader.gate``."""
        with self._lock:
            entry, now = self._tables.entry(hydration_id), self._tables.now()
            figures, held = entry.figures, self._tables.held(hydration_id)
            ages = [(now - record.admitted_at).total_seconds() for record in held if record.admitted_at]
            return GateState(
                phase=figures.phase,
                credits=figures.credits,
                in_flight=len(held),
                waiting=int(self._tables.next_planned(figures) is not None),
                reserved_bytes=sum(record.memory_bytes for record in held),
                oldest_seconds=max(ages, default=None),
                commit_seconds=figures.commit_seconds,
                range_memory_bytes=figures.range_memory_bytes,
                paused_by=figures.paused_by,
                paused_why=entry.paused_why,
                memory_closed=decisions.memory_closed(entry.decision),
            )

    def counts(self, plan_id: str) -> RangeCounts:
        """See ``LedgerReader.counts``."""
        with self._lock:
            states = [record.state for record in self._tables.ranges.get(plan_id, {}).values()]
        return RangeCounts(**{state.value: states.count(state) for state in RangeState})

    def ranges(
        self, plan_id: str, *, states: Sequence[RangeState] | None = None, after_seq: int = -1, limit: int | None = None
    ) -> list[RangeRecord]:
        """See ``LedgerReader.ranges``."""
        with self._lock:
            records = [
                self._tables.ranges[plan_id][seq] for seq in self._tables.order.get(plan_id, ()) if seq > after_seq
            ]
        return [record for record in records if states is None or record.state in states][:limit]

    def range(self, plan_id: str, seq: int) -> RangeRecord:
        """See ``LedgerReader.range``."""
        with self._lock:
            record = self._tables.ranges.get(plan_id, {}).get(seq)
        if record is None:
            raise law.unknown_range(plan_id, seq)
        return record

    def abandoned(self, hydration_id: str, *, lane: str | None = None) -> list[RangeRecord]:
        """See ``LedgerReader.abandoned``."""
        with self._lock:
            now = self._tables.now()
            return [
                record
                for record in self._tables.held(hydration_id)
                if (record.lease_until and record.lease_until <= now) or (lane is not None and record.lane == lane)
            ]

    def statistics(self, hydration_id: str) -> list[WorkerStatistics]:
        """See ``LedgerReader.statistics``."""
        with self._lock:
            entry = self._tables.entries.get(hydration_id)
            return [entry.statistics[worker] for worker in sorted(entry.statistics)] if entry else []

    def rate(self, hydration_id: str, *, seconds: float = 60.0) -> float | None:
        """See ``LedgerReader.rate``."""
        with self._lock:
            entry = self._tables.entries.get(hydration_id)
            if entry is None or not entry.samples:
                return None
            samples = entry.samples
            latest = samples[-1]
            older = [sample for sample in samples if sample.at <= latest.at - timedelta(seconds=seconds)]
            base = older[-1] if older else samples[0]
            return law.rate_between(base, latest, now=self._tables.now(), seconds=seconds)

    # Writing

    def register(
        self, *, environment: str, source_identity: str, sink_identity: str, owner: str, cluster: str, credits: int
    ) -> Hydration:
        """See ``Ledger.register``."""
        with self._lock:
            entry = self._tables.find(environment, source_identity, sink_identity)
            if entry is None:
                now = self._tables.now()
                entry = Entry(
                    environment=environment,
                    source_identity=source_identity,
                    sink_identity=sink_identity,
                    owner=owner,
                    cluster=cluster,
                    figures=law.registered(uuid.uuid4().hex, credits),
                    created_at=now,
                    updated_at=now,
                )
                self._tables.entries[entry.figures.id] = entry
            if entry.owner != owner:
                raise law.owned(
                    source_identity=source_identity, sink_identity=sink_identity, owner=entry.owner, asking=owner
                )
            if (entry.figures.credits_max, entry.cluster) != (credits, cluster):
                entry.cluster = cluster
                self._tables.save(entry, law.rescaled(entry.figures, credits))
            return entry.hydration()

    def hold(self, hydration_id: str, *, run: str, over: str | None = None) -> str:
        """See ``Ledger.hold``."""
        with self._lock:
            entry = self._tables.entry(hydration_id)
            entry.holder = law.holder(entry.holder, run=run, over=over)
            return entry.holder

    def let_go(self, hydration_id: str, *, run: str) -> bool:
        """See ``Ledger.let_go``."""
        with self._lock:
            entry = self._tables.entry(hydration_id)
            if entry.holder != run:
                return False
            entry.holder = None
            return True

    def save_plan(self, hydration_id: str, plan: Plan, ranges: Iterable[PlannedRange]) -> int:
        """See ``Ledger.save_plan``."""
        records = [
            RangeRecord(
                hydration_id=hydration_id,
                plan_id=plan.plan_id,
                seq=planned.seq,
                bounds=planned.bounds,
                state=RangeState.PLANNED,
                planned_rows=planned.rows,
                planned_bytes=planned.bytes,
            )
            for planned in ranges
        ]
        with self._lock:
            entry = self._tables.entry(hydration_id)
            if plan.plan_id in self._tables.ranges:
                raise LedgerRefused(f"The ledger has the plan {plan.plan_id} already.")
            self._tables.ranges[plan.plan_id] = {record.seq: record for record in records}
            self._tables.order[plan.plan_id] = sorted(self._tables.ranges[plan.plan_id])
            entry.plan, entry.samples = plan, []
            total = replace(law.totals(hydration_id, plan), updated_at=self._tables.now())
            entry.statistics = {total.worker_id: total}
            self._tables.save(entry, law.planned_anew(entry.figures, plan))
        return len(records)

    def take_over(self, hydration_id: str, plan: Plan) -> None:
        """See ``Ledger.take_over``."""
        with self._lock:
            entry = self._tables.entry(hydration_id)
            if entry.figures.plan_id == plan.plan_id:
                entry.plan = plan

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
        with self._lock:
            entry, now = self._tables.entry(hydration_id), self._tables.now()
            figures, plan = entry.figures, self._tables.ranges.get(entry.figures.plan_id or "", {})
            candidate = self._tables.next_planned(figures) if seq is None else plan.get(seq)
            if figures.shut or candidate is None:
                return None
            before = plan.get(candidate.seq - 1)
            ready = not candidate.ordered or law.settles(before.state if before else None)
            record = request.admitted(
                candidate, in_flight=len(entry.in_flight), credits=figures.credits, now=now, ready=ready
            )
            if record is None:
                return None
            self._tables.put(entry, record)
            if figures.sampled_at is None:
                figures = self._tables.sampled(entry, now)
            self._tables.save(entry, law.after_admission(figures, record.seq, first=seq is None))
            return Permit(range=record)

    def renew(self, hydration_id: str, *, lane: str, lease_seconds: float) -> int:
        """See ``Ledger.renew``."""
        with self._lock:
            entry, until = self._tables.entry(hydration_id), self._tables.now() + timedelta(seconds=lease_seconds)
            mine = [record for record in self._tables.held(hydration_id) if record.lane == lane]
            for record in mine:
                self._tables.put(entry, replace(record, lease_until=until))
            return len(mine)

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
        """See ``Ledger.commit``."""
        with self._lock:
            record, now = self.range(plan_id, seq), self._tables.now()
            entry = self._tables.entry(record.hydration_id)
            if record.state is RangeState.COMMITTED:
                return False
            self._tables.put(
                entry, law.committed(record, attempt=attempt, rows=rows, bytes=bytes, checksum=checksum, now=now)
            )
            if entry.figures.plan_id != plan_id:
                return True
            own = law.worked(self._tables.worker(entry, worker), record.progress(rows), rows=rows, bytes=bytes)
            entry.statistics[worker] = replace(own, updated_at=now)
            self._tables.save(
                entry,
                law.after_commit(
                    self._tables.sampled(entry, now) if entry.figures.sample_due(now) else entry.figures,
                    record,
                    attempt=attempt,
                    limit=limit,
                    pressure=pressure,
                    memory_bytes=memory_bytes,
                    now=now,
                ),
            )
            return True

    def release(self, plan_id: str, seq: int, *, attempt: int, error: str, fail: bool = False) -> bool:
        """See ``Ledger.release``."""
        with self._lock:
            held = self.range(plan_id, seq)
            entry = self._tables.entry(held.hydration_id)
            record = law.released(held, attempt=attempt, error=error, fail=fail)
            if record is None:
                return False
            self._tables.put(entry, record)
            if entry.figures.plan_id == plan_id and record.state is RangeState.PLANNED:
                self._tables.save(entry, law.planned_again(entry.figures, seq))
            return True

    def retry_failed(self, plan_id: str) -> int:
        """See ``Ledger.retry_failed``."""
        with self._lock:
            entry = next((entry for entry in self._tables.entries.values() if entry.figures.plan_id == plan_id), None)
            failed = self.ranges(plan_id, states=[RangeState.FAILED]) if entry else []
            for record in failed:
                assert entry is not None
                self._tables.put(entry, replace(record, state=RangeState.PLANNED))
                self._tables.save(entry, law.planned_again(entry.figures, record.seq))
            return len(failed)

    def reopen(self, plan_id: str, seq: int, *, who: str, why: str | None = None) -> bool:
        """See ``Ledger.reopen``."""
        with self._lock:
            before, now = self.range(plan_id, seq), self._tables.now()
            entry = self._tables.entry(before.hydration_id)
            record = law.reopened(before) if entry.figures.plan_id == plan_id else None
            if record is None:
                return False
            self._tables.put(entry, record)
            self._tables.save(entry, law.planned_again(entry.figures, seq))
            for row in law.taken_back(list(entry.statistics.values()), before.lane, before.rows or 0):
                entry.statistics[row.worker_id] = replace(row, updated_at=now)
            self.controls.append(
                Control(hydration_id=before.hydration_id, at=now, who=who, action="retry-range", why=why)
            )
            return True

    def finish(self, hydration_id: str) -> Hydration:
        """See ``Ledger.finish``."""
        with self._lock:
            entry, now = self._tables.entry(hydration_id), self._tables.now()
            increment = entry.plan is not None and entry.plan.increment
            if entry.figures.phase is Phase.STEADY_STATE and not increment:
                return entry.hydration()
            if entry.plan is None:
                raise law.without_plan(hydration_id)
            for record in self.ranges(entry.plan.plan_id):
                if record.state not in (RangeState.COMMITTED, RangeState.REVOKED):
                    raise law.still_open(record.seq, record.state)
            totals = law.made_exact(list(entry.statistics.values()))
            if totals is not None:
                entry.statistics[law.PLAN_WORKER] = replace(totals, updated_at=now)
            self._tables.save(entry, law.finished(self._tables.sampled(entry, now), now))
            return entry.hydration()

    def record_decision(self, hydration_id: str, decision: Decision) -> None:
        """See ``Ledger.record_decision``."""
        with self._lock:
            self._tables.entry(hydration_id).decision = decisions.to_json(decision)

    def record_read(self, hydration_id: str, *, worker: str, in_flight_rows: int) -> None:
        """See ``Ledger.record_read``."""
        with self._lock:
            entry = self._tables.entry(hydration_id)
            own = law.reading(self._tables.worker(entry, worker), in_flight_rows)
            entry.statistics[worker] = replace(own, updated_at=self._tables.now())

    def pause(self, hydration_id: str, *, who: str, why: str | None = None) -> None:
        """See ``Ledger.pause``."""
        self._steer(hydration_id, "pause", who, why, paused_by=who, paused_why=why)

    def resume(self, hydration_id: str, *, who: str, why: str | None = None) -> None:
        """See ``Ledger.resume``."""
        self._steer(hydration_id, "resume", who, why, paused_by=None, paused_why=None)

    def close(self) -> None:
        """See ``Ledger.close``."""

    def _steer(
        self,
        hydration_id: str,
        action: str,
        who: str,
        why: str | None,
        *,
        paused_by: str | None,
        paused_why: str | None,
    ) -> None:
        with self._lock:
            entry = self._tables.entry(hydration_id)
            entry.paused_why = paused_why
            self._tables.save(entry, replace(entry.figures, paused_by=paused_by))
            self.controls.append(
                Control(hydration_id=hydration_id, at=self._tables.now(), who=who, action=action, why=why)
            )
