"""The ledger on a database: each method of the port is one short transaction.

What happens is decided by :mod:`..core.transitions`; the modules named after nouns hold the statements. A change of a
range locks its hydration first, so nothing here can deadlock by itself. Databases may see a deadlock all the same:
MySQL where many register at once, a cluster of them at any commit.
"""

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from itertools import chain, islice

from sqlalchemy.engine import URL, Connection, Engine
from sqlalchemy.exc import IntegrityError

from airflow_provider_backpressure.core import transitions as refusals
from airflow_provider_backpressure.core.default_limits import TOKEN_SECONDS
from airflow_provider_backpressure.core.gate.cluster_queue import Shared
from airflow_provider_backpressure.core.gate.credit_limits import Limit
from airflow_provider_backpressure.core.gate.hydration_record import Hydration, Permit, Phase
from airflow_provider_backpressure.core.gate.signals import Decision
from airflow_provider_backpressure.core.gate.task_activity import Activity
from airflow_provider_backpressure.core.snapshot.bounds import Bounds
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.core.snapshot.ranges import PlannedRange, RangeRecord, RangeState
from airflow_provider_backpressure.core.stage_metrics import Flow
from airflow_provider_backpressure.core.transitions import hydration_transitions as hydrating
from airflow_provider_backpressure.core.transitions import range_transitions as attempts
from airflow_provider_backpressure.core.transitions import statistics as tallies
from airflow_provider_backpressure.core.transitions.hydration_transitions import Figures
from airflow_provider_backpressure.exceptions import BackpressureError
from airflow_provider_backpressure.ledger.database import Database, Deadlock, repeatable
from airflow_provider_backpressure.ledger.manual_control import Outbox, Publish, SqlSteering, nobody
from airflow_provider_backpressure.ledger.reader import SqlReader, SqlViews
from airflow_provider_backpressure.ledger.source_observations import SqlObserving, SqlPruning
from airflow_provider_backpressure.ledger.tables import control_log as controls
from airflow_provider_backpressure.ledger.tables import hydration as hydrations
from airflow_provider_backpressure.ledger.tables import queue as turns
from airflow_provider_backpressure.ledger.tables import range as ranges
from airflow_provider_backpressure.ledger.tables import range_insert as planning
from airflow_provider_backpressure.ledger.tables import statistics
from airflow_provider_backpressure.ledger.tables.admission import admit_range, free_token
from airflow_provider_backpressure.ledger.tables.sample import taken


class SqlLedger(SqlReader, SqlSteering, SqlObserving, SqlViews, SqlPruning):
    """The ledger on PostgreSQL, SQLite or MySQL. See ``core.ports.ledger.Ledger`` for what each method promises.

    ``source`` is a URL or an engine; an engine stays the caller's to dispose of. Nothing is opened before the first
    call. Threads may share one; after a fork make a new one.

    ``publish`` is called for each change of a gate, after it was committed; it must neither raise nor wait.
    """

    def __init__(self, source: str | URL | Engine, *, publish: Publish = nobody) -> None:
        self._database = Database(source)
        self._publish = publish

    @repeatable
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
        key = {"environment": environment, "source_identity": source_identity, "sink_identity": sink_identity}
        digest = hydrations.identity(**key)
        with self._write() as (connection, told):
            known = hydrations.lock_by_identity(connection, digest)
            if known is None:
                try:
                    known = hydrations.add(
                        connection,
                        identity=digest,
                        owner=owner,
                        cluster=cluster,
                        credits=credits,
                        sink_server=sink_server,
                        had=hydration_id,
                        run=run,
                        **key,
                    )
                except IntegrityError as error:
                    raise Deadlock("Another process registered the same hydration at this very moment.") from error
            figures, found = known
            if found.owner != owner:
                raise refusals.ownership_error(
                    source_identity=source_identity, sink_identity=sink_identity, owner=found.owner, asking=owner
                )
            if cluster != figures.cluster:
                if ranges.in_flight(connection, found.id):
                    # They run where they were admitted: it moves when they are over.
                    cluster = figures.cluster
                else:
                    turns.leave(connection, found.id)
            declared = hydrating.rescale(figures, credits_declared=credits, cluster=cluster, sink_server=sink_server)
            if declared != figures:
                hydrations.save(connection, told.add(figures, declared))
            if connections is not None:
                turns.set_limit(connection, Shared.CONNECTIONS, sink_server, connections, who=None)
            takes = run is not None and found.holder is None
            if takes:
                hydrations.keep_holder(connection, found.id, str(run), heard=True)
            return hydrations.by_id(connection, found.id) if takes or declared != figures else found

    @repeatable
    def hold(self, hydration_id: str, *, run: str, over: str | None = None) -> str:
        with self._database.write() as connection:
            found = hydrations.lock_holder(connection, hydration_id)
            holder = hydrating.holder(found, run=run, over=over)
            if holder != found:
                hydrations.keep_holder(connection, hydration_id, holder, heard=holder == run)
            elif holder == run:
                hydrations.keep_activity(connection, hydration_id, None)
            return holder

    @repeatable
    def let_go(self, hydration_id: str, *, run: str) -> bool:
        with self._database.write_once() as connection:
            return hydrations.release_holder(connection, hydration_id, run)

    def save_plan(self, hydration_id: str, plan: Plan, ranges: Iterable[PlannedRange]) -> int:
        """See ``Ledger.save_plan``. The hydration is locked only when every range is known, and of many stored.

        Not repeatable: the ranges come from an iterator.
        """
        coming = iter(ranges)
        first = list(islice(coming, planning.FEW + 1))
        if len(first) <= planning.FEW:
            self._lead_to(hydration_id, plan, len(first), first)
            return len(first)
        ranges = chain(iter(first), coming)
        # A chain keeps its parts to its end, and of many ranges only a batch is held.
        del first
        with self._database.read() as connection:
            hydrations.by_id(connection, hydration_id)
        number = 0
        try:
            for stored in planning.store(self._database, ranges, hydration_id=hydration_id, plan_id=plan.plan_id):
                number += stored
            self._lead_to(hydration_id, plan, number)
        except BaseException:
            if number:
                # Not those of a plan that the hydration leads to: the answer to the commit may have been lost.
                with suppress(BackpressureError):
                    self.prune_plan(plan.plan_id, most=number)
            raise
        return number

    @repeatable
    def _lead_to(self, hydration_id: str, plan: Plan, number: int, few: Sequence[PlannedRange] | None = None) -> None:
        """Let a hydration lead to a plan whose ranges are stored; ``few`` go in with it."""
        with self._write() as (connection, told):
            before = hydrations.lock(connection, hydration_id)
            if few is None:
                planning.check_stored(connection, plan.plan_id, number)
            else:
                planning.insert_ranges(connection, few, hydration_id=hydration_id, plan_id=plan.plan_id)
            free_token(connection, before)
            after = told.add(before, hydrating.start_plan(before, plan), waiting=int(number > 0))
            hydrations.save_moved(connection, before, after, plan=plan.to_json())
            earlier = statistics.read_statistics(connection, hydration_id)
            statistics.begin(connection, tallies.totals(hydration_id, plan, earlier), clear=bool(earlier))

    @repeatable
    def restore(self, hydration_id: str, plan: Plan, records: Iterable[RangeRecord], *, who: str, why: str) -> None:
        every = list(records)
        with self._write() as (connection, told):
            before = hydrations.lock(connection, hydration_id)
            leased = ranges.count_leased(connection, hydration_id)
            if leased:
                raise refusals.in_flight_still(hydration_id, leased)
            free_token(connection, before)
            planning.put_records(connection, every, plan_id=plan.plan_id)
            hydrations.save_moved(connection, before, told.add(before, hydrating.restore(before, plan), known=False))
            hydrations.change(connection, hydration_id, plan=plan.to_json())
            earlier = tallies.before_restored(before, plan, statistics.read_statistics(connection, hydration_id))
            statistics.begin(connection, tallies.totals(hydration_id, plan, earlier))
            statistics.save(connection, tallies.found_committed(hydration_id, every))
            values = {"plan_id": plan.plan_id, "epoch": plan.epoch}
            controls.add(connection, hydration_id=hydration_id, who=who, action="reindex", why=why, values=values)

    @repeatable
    def take_over(self, hydration_id: str, plan: Plan, *, before: Plan | None = None) -> None:
        if before is not None and plan.takes_over(before):
            with self._database.write_once() as connection:
                if hydrations.exchange_plan(connection, hydration_id, before=before.to_json(), plan=plan.to_json()):
                    return
        with self._database.write() as connection:
            if plan.takes_over(hydrations.lock_whole(connection, hydration_id)[1].plan):
                hydrations.change(connection, hydration_id, plan=plan.to_json())

    @repeatable
    def begin_snapshot(self, hydration_id: str, plan: Plan) -> int | None:
        with self._write() as (connection, told):
            before, found = hydrations.lock_whole(connection, hydration_id)
            if not plan.takes_over(found.plan):
                return None
            hydrations.change(connection, hydration_id, plan=plan.to_json())
            again = ranges.reopen_committed(connection, plan.plan_id)
            if again:
                hydrations.save(connection, told.add(before, hydrating.reopen_range(before, 0), waiting=1))
                earlier = statistics.read_statistics(connection, hydration_id)
                statistics.begin(connection, tallies.totals(hydration_id, plan, earlier))
            return again

    @repeatable
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
        request = attempts.Request(
            lane=lane,
            session_id=session_id,
            lease_seconds=lease_seconds,
            memory_bytes=memory_bytes,
            memory_limit=memory_limit,
            seq=seq,
        )
        with self._write() as (connection, told):
            figures = hydrations.lock(connection, hydration_id)
            return None if figures.shut else admit_range(connection, figures, request, told)

    @repeatable
    def renew(self, hydration_id: str, *, lane: str, lease_seconds: float) -> int:
        with self._database.write() as connection:
            figures, now = hydrations.lock(connection, hydration_id), ranges.now(connection)
            until = now + timedelta(seconds=lease_seconds)
            held = ranges.renew(connection, hydration_id=hydration_id, lane=lane, until=until)
            if held:
                turns.take_turn(connection, figures, seconds=TOKEN_SECONDS, now=now)
            return held

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
        epoch: int | None = None,
    ) -> bool:
        """See ``Ledger.commit``. A range of an earlier plan is written down, and nothing is learned from it."""
        with self._write() as (connection, told):
            figures = before = hydrations.lock_by_range(connection, plan_id, seq)
            record, now = ranges.one(connection, plan_id, seq)
            back = attempts.credits_back(record)
            if record.state is RangeState.COMMITTED:
                return False
            if epoch is not None and figures.plan_id == plan_id:
                hydrations.check_epoch(connection, figures.id, epoch)
            ranges.save(
                connection,
                attempts.commit(record, attempt=attempt, rows=rows, bytes=bytes, checksum=checksum, now=now),
            )
            if figures.plan_id != plan_id:
                hydrations.save(connection, told.add(before, figures, in_flight=back, seq=seq))
                return True
            own = tallies.with_commit(
                statistics.worker(connection, figures.id, worker), record.progress(rows), rows=rows, bytes=bytes
            )
            statistics.save(connection, own)
            figures = hydrating.after_commit(
                figures, record, attempt=attempt, limit=limit, pressure=pressure, memory_bytes=memory_bytes, now=now
            )
            if figures.sample_due(now):
                figures = taken(connection, figures, now, pressure=pressure)
            hydrations.save(connection, told.add(before, figures, in_flight=back, seq=seq))
            return True

    @repeatable
    def release(self, plan_id: str, seq: int, *, attempt: int, error: str, fail: bool = False) -> bool:
        with self._write() as (connection, told):
            figures = hydrations.lock_by_range(connection, plan_id, seq)
            record = attempts.release(ranges.one(connection, plan_id, seq)[0], attempt=attempt, error=error, fail=fail)
            if record is None:
                return False
            ranges.save(connection, record)
            again = figures.plan_id == plan_id and record.state is RangeState.PLANNED
            after = hydrating.reopen_range(figures, seq) if again else figures
            news = {"waiting": 1} if again else {}
            hydrations.save(connection, told.add(figures, after, in_flight=-1, seq=seq, **news))
            return True

    @repeatable
    def retry_failed(self, plan_id: str) -> int:
        """See ``Ledger.retry_failed``. Ranges of an earlier plan stay as they are: no lane would run them."""
        with self._database.read() as connection:
            if not ranges.has_failed(connection, plan_id):
                return 0
        with self._write() as (connection, told):
            figures = hydrations.lock_by_plan(connection, plan_id)
            if figures is None:
                return 0
            seqs = ranges.retry_failed(connection, hydration_id=figures.id, plan_id=plan_id)
            if seqs:
                hydrations.save(connection, told.add(figures, hydrating.reopen_range(figures, min(seqs)), waiting=1))
            return len(seqs)

    @repeatable
    def recut(self, plan_id: str, seq: int, *, attempt: int, pieces: Sequence[Bounds]) -> list[int]:
        with self._write() as (connection, told):
            figures = hydrations.lock_by_range(connection, plan_id, seq)
            before, first = ranges.one(connection, plan_id, seq)[0], ranges.last_seq(connection, plan_id) + 1
            record = attempts.recut(before, attempt=attempt, first=first, number=len(pieces))
            if record is None or figures.plan_id != plan_id:
                return []
            ranges.save(connection, record)
            made = attempts.pieces_of(before, pieces, first=first)
            planning.add_ranges(connection, made, hydration_id=figures.id, plan_id=plan_id)
            hydrations.save(
                connection, told.add(figures, figures, in_flight=attempts.credits_back(before), seq=seq, waiting=1)
            )
            return [piece.seq for piece in made]

    @repeatable
    def reopen(self, plan_id: str, seq: int, *, who: str, why: str | None = None) -> bool:
        with self._write() as (connection, told):
            figures = hydrations.lock_by_range(connection, plan_id, seq)
            before = ranges.one(connection, plan_id, seq)[0]
            record = attempts.reopen(before) if figures.plan_id == plan_id else None
            if record is None:
                return False
            free_token(connection, figures)
            ranges.save(connection, record)
            hydrations.save(connection, told.add(figures, hydrating.reopen_range(figures, seq), seq=seq, waiting=1))
            for row in tallies.taken_back(
                statistics.read_statistics(connection, figures.id), before.lane, before.counted
            ):
                statistics.save(connection, row)
            controls.add(
                connection, hydration_id=figures.id, who=who, action="retry-range", why=why, values={"seq": seq}
            )
            return True

    @repeatable
    def finish(self, hydration_id: str, *, plan_id: str | None = None) -> Hydration:
        with self._write() as (connection, told):
            figures, found = hydrations.lock_whole(connection, hydration_id)
            refusals.check_verified(figures.plan_id, plan_id)
            if figures.phase is Phase.STEADY_STATE and figures.verified:
                return found
            _finish(connection, figures, told)
            return hydrations.by_id(connection, hydration_id)

    @repeatable
    def record_decision(self, hydration_id: str, decision: Decision) -> None:
        with self._database.write_once() as connection:
            hydrations.keep_decision(connection, hydration_id, controls.to_json(decision))

    @repeatable
    def record_flow(self, hydration_id: str, *, worker: str, times: Flow) -> None:
        with self._database.write() as connection:
            statistics.add(connection, hydration_id, worker=worker, times=times)

    @repeatable
    def record_read(self, hydration_id: str, *, worker: str, in_flight_rows: int) -> None:
        with self._database.write() as connection:
            hydrations.lock(connection, hydration_id)
            own = statistics.worker(connection, hydration_id, worker)
            statistics.save(connection, tallies.with_read(own, in_flight_rows))

    @repeatable
    def keep_probe(self, hydration_id: str, curve: str) -> None:
        with self._database.write() as connection:
            hydrations.keep_probe(connection, hydration_id, curve)

    @repeatable
    def keep_preview(self, hydration_id: str, facts: str) -> None:
        with self._database.write() as connection:
            hydrations.keep_preview(connection, hydration_id, facts)

    @repeatable
    def keep_declaration(self, hydration_id: str, declaration: str | None, *, activity: Activity | None = None) -> None:
        with self._database.write_once() as connection:
            hydrations.keep_declaration(connection, hydration_id, declaration, activity)

    @repeatable
    def keep_failure(self, hydration_id: str, failure: str | None) -> None:
        with self._database.write_once() as connection:
            hydrations.keep_failure(connection, hydration_id, failure)

    @repeatable
    def keep_activity(self, hydration_id: str, activity: Activity | None = None) -> None:
        with self._database.write_once() as connection:
            hydrations.keep_activity(connection, hydration_id, activity)

    @repeatable
    def hear(self, ids: Collection[str]) -> None:
        with self._database.write_once() as connection:
            hydrations.hear(connection, ids)

    @repeatable
    def keep_push(self, process: str, counts: str) -> None:
        with self._database.write() as connection:
            statistics.keep(connection, process, counts)

    def close(self) -> None:
        self._database.close()


def _finish(connection: Connection, figures: Figures, told: Outbox) -> None:
    if figures.plan_id is None:
        raise refusals.without_plan(figures.id)
    found = ranges.any_open(connection, figures.id)
    if found is not None:
        raise refusals.still_open(*found)
    totals = tallies.made_exact(statistics.read_statistics(connection, figures.id))
    if totals is not None:
        statistics.save(connection, totals)
    now = ranges.now(connection)
    if figures.sampled_at is None or now > figures.sampled_at:
        figures = taken(connection, figures, now)
    hydrations.save_moved(connection, figures, told.add(figures, hydrating.finish(figures, now)))
    turns.forget(connection, figures.id)
