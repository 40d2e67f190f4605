"""The ledger in plain Python. It decides by the same rules (``core.transitions``) and keeps no tables."""

import threading
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from airflow_provider_backpressure.core import transitions as refusals
from airflow_provider_backpressure.core.gate.cluster_queue import Shared
from airflow_provider_backpressure.core.gate.credit_limits import Limit
from airflow_provider_backpressure.core.gate.hydration_record import Hydration, Permit, Phase
from airflow_provider_backpressure.core.gate.signals import Decision, MemoryReading
from airflow_provider_backpressure.core.progress.rates_and_eta import PLAN_WORKER
from airflow_provider_backpressure.core.snapshot.bounds import Bounds
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.core.snapshot.ranges import PlannedRange, RangeRecord, RangeState
from airflow_provider_backpressure.core.stage_metrics import Flow
from airflow_provider_backpressure.core.transitions import hydration_transitions as hydrating
from airflow_provider_backpressure.core.transitions import range_transitions as attempts
from airflow_provider_backpressure.core.transitions import statistics as tallies
from airflow_provider_backpressure.exceptions import LedgerRefused
from airflow_provider_backpressure.ledger.manual_control import Publish, nobody
from airflow_provider_backpressure.ledger.tables import control_log as decisions
from tests.support.ledger_model.reading import ModelReader
from tests.support.ledger_model.steering import ModelSteering
from tests.support.ledger_model.tables import Entry, Tables


class LedgerModel(ModelReader, ModelSteering):
    """Keeps the contract of ``core.ports.ledger.Ledger`` within one process. ``now`` is its database's clock."""

    def __init__(self, now: Callable[[], datetime] = lambda: datetime.now(UTC), *, publish: Publish = nobody) -> None:
        self._tables = Tables(now)
        self._publish = publish
        self._lock = threading.RLock()

    def register(
        self,
        *,
        environment: str,
        source_identity: str,
        sink_identity: str,
        owner: str,
        cluster: str,
        credits: int,
        sink_server: str = "",
        connections: int | None = None,
        hydration_id: str | None = None,
        run: str | None = None,
    ) -> Hydration:
        """See ``Ledger.register``."""
        with self._writing() as told:
            entry = self._tables.find(environment, source_identity, sink_identity)
            if entry is None:
                now = self._tables.now()
                taken = hydration_id in self._tables.entries
                new_id = hydration_id if hydration_id and not taken else uuid.uuid4().hex
                entry = Entry(
                    environment=environment,
                    source_identity=source_identity,
                    sink_identity=sink_identity,
                    owner=owner,
                    figures=hydrating.create(new_id, credits, cluster=cluster, sink_server=sink_server),
                    created_at=now,
                    updated_at=now,
                )
                self._tables.entries[entry.figures.id] = entry
                self._tables.enter(entry, entry.figures.phase, now)
            if entry.owner != owner:
                raise refusals.ownership_error(
                    source_identity=source_identity, sink_identity=sink_identity, owner=entry.owner, asking=owner
                )
            if cluster != entry.figures.cluster:
                if self._tables.held(entry.figures.id):
                    cluster = entry.figures.cluster
                else:
                    self._tables.leave(entry.figures.id)
            declared = hydrating.rescale(
                entry.figures, credits_declared=credits, cluster=cluster, sink_server=sink_server
            )
            if declared != entry.figures:
                self._tables.save(entry, told.add(entry.figures, declared))
            if connections is not None:
                self._tables.set_limit(Shared.CONNECTIONS, sink_server, connections, who=None)
            if run is not None:
                entry.holder = hydrating.holder(entry.holder, run=run, over=None)
            return entry.hydration()

    def hold(self, hydration_id: str, *, run: str, over: str | None = None) -> str:
        """See ``Ledger.hold``."""
        with self._lock:
            entry = self._tables.entry(hydration_id)
            entry.holder = hydrating.holder(entry.holder, run=run, over=over)
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
        records = [_planned(planned, hydration_id, plan.plan_id) for planned in ranges]
        with self._writing() as told:
            entry = self._tables.entry(hydration_id)
            if plan.plan_id in self._tables.ranges:
                raise LedgerRefused(f"The ledger has the plan {plan.plan_id} already.")
            self._tables.free_token(entry)
            self._tables.ranges[plan.plan_id] = {record.seq: record for record in records}
            self._tables.order[plan.plan_id] = sorted(self._tables.ranges[plan.plan_id])
            entry.plan, entry.samples = plan, []
            now, before = self._tables.now(), list(entry.statistics.values())
            total = replace(tallies.totals(hydration_id, plan, before), updated_at=now)
            entry.statistics = {total.worker_id: total}
            anew = hydrating.start_plan(entry.figures, plan)
            self._tables.save(entry, told.add(entry.figures, anew, waiting=int(bool(records))))
        return len(records)

    def restore(self, hydration_id: str, plan: Plan, records: Iterable[RangeRecord], *, who: str, why: str) -> None:
        """See ``Ledger.restore``."""
        every = list(records)
        with self._writing() as told:
            entry, now = self._tables.entry(hydration_id), self._tables.now()
            leased = self._tables.leased(hydration_id)
            if leased:
                raise refusals.in_flight_still(hydration_id, leased)
            self._tables.free_token(entry)
            for key in [key for key in entry.in_flight | entry.failed if key[0] == plan.plan_id]:
                entry.in_flight.discard(key)
                entry.failed.discard(key)
            self._tables.ranges[plan.plan_id] = {}
            for record in every:
                self._tables.put(entry, record)
            self._tables.order[plan.plan_id] = sorted(self._tables.ranges[plan.plan_id])
            entry.plan, entry.samples = plan, []
            before = tallies.before_restored(entry.figures, plan, list(entry.statistics.values()))
            found = (tallies.totals(hydration_id, plan, before), tallies.found_committed(hydration_id, every))
            entry.statistics = {each.worker_id: replace(each, updated_at=now) for each in found}
            self._tables.save(entry, told.add(entry.figures, hydrating.restore(entry.figures, plan), known=False))
            self._act(hydration_id, who, "reindex", why, {"plan_id": plan.plan_id, "epoch": plan.epoch})

    def take_over(self, hydration_id: str, plan: Plan, *, before: Plan | None = None) -> None:
        """See ``Ledger.take_over``."""
        with self._lock:
            entry = self._tables.entry(hydration_id)
            if plan.takes_over(entry.plan):
                entry.plan = plan

    def begin_snapshot(self, hydration_id: str, plan: Plan) -> int | None:
        """See ``Ledger.begin_snapshot``."""
        with self._writing() as told:
            entry, now = self._tables.entry(hydration_id), self._tables.now()
            if not plan.takes_over(entry.plan):
                return None
            entry.plan = plan
            committed = self.ranges(plan.plan_id, states=[RangeState.COMMITTED])
            for record in committed:
                again = attempts.reopen(record)
                assert again is not None, "it is committed"
                self._tables.put(entry, again)
            if committed:
                total = replace(tallies.totals(hydration_id, plan, list(entry.statistics.values())), updated_at=now)
                entry.statistics = {total.worker_id: total}
                anew = hydrating.reopen_range(entry.figures, 0)
                self._tables.save(entry, told.add(entry.figures, anew, waiting=1))
            return len(committed)

    def admit(
        self,
        hydration_id: str,
        *,
        lane: str,
        session_id: str,
        lease_seconds: float,
        memory_bytes: int = 0,
        memory_limit: int | None = None,
        seq: int | None = None,
    ) -> Permit | None:
        """See ``Ledger.admit``."""
        request = attempts.Request(
            lane=lane,
            session_id=session_id,
            lease_seconds=lease_seconds,
            memory_bytes=memory_bytes,
            memory_limit=memory_limit,
            seq=seq,
        )
        with self._writing() as told:
            entry, now = self._tables.entry(hydration_id), self._tables.now()
            figures, plan = entry.figures, self._tables.ranges.get(entry.figures.plan_id or "", {})
            candidate = self._tables.next_planned(figures) if seq is None else plan.get(seq)
            if figures.shut or candidate is None or not self._tables.take_turn(entry).granted:
                return None
            first = candidate.seq
            if seq is None and candidate.is_side_by_side:
                states = {each.seq: each.state for each in plan.values()}
                planned = [each for _, each in sorted(plan.items()) if each.state is RangeState.PLANNED]
                candidate = attempts.find_ready(planned[: attempts.LOOK_AHEAD], states) or candidate
            before = plan.get(candidate.waits_for) if candidate.waits_for is not None else None
            ready = attempts.settles(before.state if before else None)
            record = request.admit(
                candidate, in_flight=len(entry.in_flight), credits=figures.credits, now=now, ready=ready
            )
            if record is None or (candidate.state is RangeState.PLANNED and not self._room(entry, request)):
                return None
            self._tables.put(entry, record)
            if figures.sampled_at is None:
                figures = self._tables.sampled(entry, now)
            after = hydrating.after_admission(figures, record.seq, first=seq is None and record.seq == first)
            if candidate.state is RangeState.PLANNED:
                after = told.add(entry.figures, after, in_flight=1, seq=record.seq)
            self._tables.save(entry, after)
            return Permit(range=record)

    def renew(self, hydration_id: str, *, lane: str, lease_seconds: float) -> int:
        """See ``Ledger.renew``."""
        with self._lock:
            entry, until = self._tables.entry(hydration_id), self._tables.now() + timedelta(seconds=lease_seconds)
            mine = [record for record in self._tables.held(hydration_id) if record.lane == lane]
            for record in mine:
                self._tables.put(entry, replace(record, lease_until=until))
            if mine:
                self._tables.take_turn(entry)
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
        epoch: int | None = None,
    ) -> bool:
        """See ``Ledger.commit``."""
        with self._writing() as told:
            record, now = self.range(plan_id, seq), self._tables.now()
            entry, back = self._tables.entry(record.hydration_id), attempts.credits_back(record)
            if record.state is RangeState.COMMITTED:
                return False
            plan = entry.plan
            if epoch is not None and plan is not None and plan.plan_id == plan_id and plan.epoch != epoch:
                raise refusals.supersession_error(plan_id, epoch)
            self._tables.put(
                entry, attempts.commit(record, attempt=attempt, rows=rows, bytes=bytes, checksum=checksum, now=now)
            )
            before = entry.figures
            if before.plan_id != plan_id:
                self._tables.save(entry, told.add(before, before, in_flight=back, seq=seq))
                return True
            own = tallies.with_commit(self._tables.worker(entry, worker), record.progress(rows), rows=rows, bytes=bytes)
            entry.statistics[worker] = replace(own, updated_at=now)
            after = hydrating.after_commit(
                self._tables.sampled(entry, now) if before.sample_due(now) else before,
                record,
                attempt=attempt,
                limit=limit,
                pressure=pressure,
                memory_bytes=memory_bytes,
                now=now,
            )
            self._tables.save(entry, told.add(before, after, in_flight=back, seq=seq))
            return True

    def release(self, plan_id: str, seq: int, *, attempt: int, error: str, fail: bool = False) -> bool:
        """See ``Ledger.release``."""
        with self._writing() as told:
            held = self.range(plan_id, seq)
            entry = self._tables.entry(held.hydration_id)
            record = attempts.release(held, attempt=attempt, error=error, fail=fail)
            if record is None:
                return False
            self._tables.put(entry, record)
            again = entry.figures.plan_id == plan_id and record.state is RangeState.PLANNED
            after = hydrating.reopen_range(entry.figures, seq) if again else entry.figures
            news = {"waiting": 1} if again else {}
            self._tables.save(entry, told.add(entry.figures, after, in_flight=-1, seq=seq, **news))
            return True

    def recut(self, plan_id: str, seq: int, *, attempt: int, pieces: Sequence[Bounds]) -> list[int]:
        """See ``Ledger.recut``."""
        with self._writing() as told:
            before, order = self.range(plan_id, seq), self._tables.order[plan_id]
            entry, first = self._tables.entry(before.hydration_id), order[-1] + 1
            record = attempts.recut(before, attempt=attempt, first=first, number=len(pieces))
            if record is None or entry.figures.plan_id != plan_id:
                return []
            self._tables.put(entry, record)
            made = [
                _planned(piece, before.hydration_id, plan_id)
                for piece in attempts.pieces_of(before, pieces, first=first)
            ]
            for piece in made:
                self._tables.put(entry, piece)
            order += [piece.seq for piece in made]
            recut = told.add(entry.figures, entry.figures, in_flight=attempts.credits_back(before), seq=seq, waiting=1)
            self._tables.save(entry, recut)
            return [piece.seq for piece in made]

    def retry_failed(self, plan_id: str) -> int:
        """See ``Ledger.retry_failed``."""
        with self._writing() as told:
            entry = next((entry for entry in self._tables.entries.values() if entry.figures.plan_id == plan_id), None)
            failed = self.ranges(plan_id, states=[RangeState.FAILED]) if entry else []
            if entry is not None and failed:
                for record in failed:
                    self._tables.put(entry, replace(record, state=RangeState.PLANNED, lane=None, session_id=None))
                after = hydrating.reopen_range(entry.figures, min(record.seq for record in failed))
                self._tables.save(entry, told.add(entry.figures, after, waiting=1))
            return len(failed)

    def reopen(self, plan_id: str, seq: int, *, who: str, why: str | None = None) -> bool:
        """See ``Ledger.reopen``."""
        with self._writing() as told:
            before, now = self.range(plan_id, seq), self._tables.now()
            entry = self._tables.entry(before.hydration_id)
            record = attempts.reopen(before) if entry.figures.plan_id == plan_id else None
            if record is None:
                return False
            self._tables.free_token(entry)
            self._tables.put(entry, record)
            again = hydrating.reopen_range(entry.figures, seq)
            self._tables.save(entry, told.add(entry.figures, again, seq=seq, waiting=1))
            for row in tallies.taken_back(list(entry.statistics.values()), before.lane, before.counted):
                entry.statistics[row.worker_id] = replace(row, updated_at=now)
            self._act(before.hydration_id, who, "retry-range", why, {"seq": seq})
            return True

    def finish(self, hydration_id: str, *, plan_id: str | None = None) -> Hydration:
        """See ``Ledger.finish``."""
        with self._writing() as told:
            entry, now = self._tables.entry(hydration_id), self._tables.now()
            refusals.check_verified(entry.figures.plan_id, plan_id)
            if entry.figures.phase is Phase.STEADY_STATE and entry.figures.verified:
                return entry.hydration()
            if entry.plan is None:
                raise refusals.without_plan(hydration_id)
            for record in self.ranges(entry.plan.plan_id):
                if record.state not in (RangeState.COMMITTED, RangeState.REVOKED):
                    raise refusals.still_open(record.seq, record.state)
            totals = tallies.made_exact(list(entry.statistics.values()))
            if totals is not None:
                entry.statistics[PLAN_WORKER] = replace(totals, updated_at=now)
            finished = hydrating.finish(self._tables.sampled(entry, now), now)
            self._tables.save(entry, told.add(entry.figures, finished))
            self._tables.turns.pop(hydration_id, None)
            return entry.hydration()

    def record_decision(self, hydration_id: str, decision: Decision) -> None:
        """See ``Ledger.record_decision``."""
        with self._lock:
            self._tables.entry(hydration_id).decision = decisions.to_json(decision)

    def record_flow(self, hydration_id: str, *, worker: str, times: Flow) -> None:
        """See ``Ledger.record_flow``."""
        with self._lock:
            self._tables.entry(hydration_id).flows.append((self._tables.now(), dict(times)))

    def record_memory(self, hydration_id: str, reading: MemoryReading) -> None:
        """See ``Observed.record_memory``."""
        with self._lock:
            entry, now = self._tables.entry(hydration_id), self._tables.now()
            last = entry.figures.sampled_at
            if entry.figures.plan_id is not None and (last is None or now > last):
                entry.figures = self._tables.sampled(entry, now, memory=reading)

    def record_read(self, hydration_id: str, *, worker: str, in_flight_rows: int) -> None:
        """See ``Ledger.record_read``."""
        with self._lock:
            entry = self._tables.entry(hydration_id)
            own = tallies.with_read(self._tables.worker(entry, worker), in_flight_rows)
            entry.statistics[worker] = replace(own, updated_at=self._tables.now())

    def close(self) -> None:
        """See ``Ledger.close``."""

    def _room(self, entry: Entry, request: attempts.Request) -> bool:
        """Whether what hydrations share has room for one more range, and those before it for theirs."""
        figures = entry.figures
        most = self._tables.limit(Shared.CONNECTIONS, figures.sink_server)
        taken = self._tables.connections(figures.sink_server)
        if most is not None and taken + self._tables.waiting_before(entry) >= most:
            return False
        return attempts.fits(reserved_bytes=self._tables.reserved(figures.cluster), request=request)


def _planned(planned: PlannedRange, hydration_id: str, plan_id: str) -> RangeRecord:
    return RangeRecord(
        hydration_id=hydration_id,
        plan_id=plan_id,
        seq=planned.seq,
        bounds=planned.bounds,
        state=RangeState.PLANNED,
        planned_rows=planned.rows,
        planned_bytes=planned.bytes,
    )
