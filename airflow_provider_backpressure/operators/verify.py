"""The task that verifies what was committed, ends the hydration and triggers other DAGs."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from airflow.sdk import Asset, Context

from airflow_provider_backpressure.airflow_compat import keep_asset_state
from airflow_provider_backpressure.assets import has_asset, hydration_asset, hydrations_of, make_event_extra
from airflow_provider_backpressure.base_operator import HydrationTask, may_retry
from airflow_provider_backpressure.core.default_limits import TABLES_VERIFIED_AT_ONCE
from airflow_provider_backpressure.core.execution.concurrent_hydrations import WorkPool
from airflow_provider_backpressure.core.gate.hydration_record import Hydration, Phase
from airflow_provider_backpressure.core.gate.task_activity import Step
from airflow_provider_backpressure.core.monitoring.source_observer import nobodys_error
from airflow_provider_backpressure.core.planning.catch_up_windows import Stand, check_caught_up
from airflow_provider_backpressure.core.planning.preconditions import check_held
from airflow_provider_backpressure.core.planning.shared_log_windows import check_member
from airflow_provider_backpressure.core.ports.ledger import every_range
from airflow_provider_backpressure.core.progress.displayed_state import State, describe_verified
from airflow_provider_backpressure.core.progress.rates_and_eta import rows_received
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.core.snapshot.ranges import RangeState
from airflow_provider_backpressure.core.verification.mismatch_report import Report, mismatch_sentence
from airflow_provider_backpressure.core.verification.verifier import Verify
from airflow_provider_backpressure.exceptions import (
    BackpressureError,
    InvalidDeclaration,
    LedgerRefused,
    VerificationFailed,
)
from airflow_provider_backpressure.hooks.hydration_session import HydrationSession
from airflow_provider_backpressure.openlineage import Lineage
from airflow_provider_backpressure.operators.failed_tables import check_failed
from airflow_provider_backpressure.operators.several_tables import (
    OBSERVED_AFTER,
    PlannedTables,
    TablePair,
    TableSet,
    is_several,
    open_tables,
)
from airflow_provider_backpressure.operators.shared_log_hydration import TableStream, as_stream


@dataclass(frozen=True, kw_only=True)
class Verified:
    """A hydration that was found complete and equal."""

    facts: dict[str, Any]
    """What its event carries."""
    checksum: str | None
    """``None`` where nothing was read back."""


class VerifyHydrationOperator(HydrationTask):
    """Verifies every range, ends the hydration, and emits the event of its asset.

    Where the names are known only to a run, the event goes by the alias :func:`..assets.hydrations_of` of the DAG.

    Under ``replace`` the shadow is verified and then takes the target's place; where it differs, the target stays.

    The event's extra holds ``hydration_id``, ``plan_id``, ``phase`` (of the run: ``steady_state`` for an increment),
    ``state`` (``succeeded`` or ``following``), ``rows``, ``frontier`` (rows by table, or a log's offsets by partition)
    and ``verified``; the frontier is kept in the state store of an asset that the DAG knows too. Ranges that differ are
    named and fail the task for good.

    Of several tables each is verified and published by itself. Those that differ, or were not drained, fail the task at
    its end, which names every one with its cause; a retry verifies what is left.

    :param tables: of a source with several tables what was planned of them: ``plan.output["tables"]``
    :param verify: ``"target"`` (or ``True``) reads the target back and compares it with the markers, which hold what
        was read from the source; ``"full"`` reads the source once more too; ``"none"`` (``False``) trusts the
        markers. In any case ranges, markers and totals have to agree before anything ends or is published
    """

    template_fields: Collection[str] = (*HydrationTask.template_fields, "tables")

    def __init__(self, *, verify: str | bool = Verify.TARGET, tables: Any = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.verify = as_verify(verify)
        self.tables = tables
        # Made from a mapped operator: its names came too late for the DAG, and so for Airflow's list of assets.
        from_mapped = getattr(self, "_BaseOperator__from_mapped", False)
        # Of several tables only those that had something to do have an event, which the alias can say.
        if not from_mapped and not is_several(self.source) and has_asset(self.source, self.sink):
            self.outlets = [*self.outlets, hydration_asset(self.source, self.sink)]
        elif not from_mapped and self.has_dag():  # type: ignore[no-untyped-call]
            self.outlets = [*self.outlets, hydrations_of(self.dag.dag_id)]

    def execute(self, context: Context) -> dict[str, Any]:
        """Verify."""
        if is_several(self.source):
            return self._verify_tables(context, PlannedTables.from_json(self.tables))
        with self.open_ports(context) as opened:
            hydration, plan = opened.hydration()
            self.take_turn(context, opened, hydration.id)
            verified = self._verify(context, opened, hydration, plan)
            self._tell(context, hydration_asset(self.source, self.sink), verified.facts)
            return {**verified.facts, "checksum": verified.checksum}

    def _verify(
        self,
        context: Context,
        opened: HydrationSession,
        hydration: Hydration,
        plan: Plan,
        log: tuple[Plan, Stand] | None = None,
    ) -> Verified:
        """Verify one hydration, which this run has, and let it go. ``log``: of a table that shares one, its windows."""
        rows = opened.completion(plan).check()
        if log is not None and plan.stream:
            check_member(plan, opened.sink, log)
        else:
            check_caught_up(plan, opened.sink)
        opened.sink.complete(plan)
        self.lineages[hydration.id] = Lineage(plan=plan, moved=False)
        report = None if self.verify is Verify.NONE else self._report(context, opened, hydration.id, plan)
        opened.sink.publish(plan)
        opened.ledger.finish(hydration.id, plan_id=plan.plan_id)
        facts = self._facts(hydration, rows, log)
        opened.ledger.let_go(hydration.id, run=context["ti"].run_id)
        with nobodys_error("What is committed is not seen now"):
            opened.observation(hydration.id).observer.settle()
        with nobodys_error("Earlier plans are not removed now"):
            opened.prune(hydration.id, plan)
        return Verified(facts=facts, checksum=report.checksum if report else None)

    def _verify_tables(self, context: Context, planned: PlannedTables) -> dict[str, Any]:
        """Verify every planned table that this run has not verified yet; one that differs fails by itself.

        Where it has verified all of them the task was cleared, and all are verified again.
        """
        with open_tables(self, context, retries=may_retry(context["ti"])) as tables:
            known = {found.id: found for found in tables.hydrations()}
            every = {pair: known[id_] for pair, id_ in planned.ids.items() if id_ in known}
            stream = as_stream(tables, planned)
            held = {**{found.id: found for found in every.values()}, **({planned.stream: known.get(planned.stream)})}
            tables.heard |= {found.id for found in held.values() if found is not None and found.holder is not None}
            tables.over = self.await_runs([found for found in held.values() if found is not None], context["ti"])
            log, lost = self._find_stand(stream, planned)
            left = len(every) < len(planned.ids) or any(not _is_verified(tables, found) for found in every.values())

            def verify(pair: TablePair) -> Verified:
                if lost is not None and stream is not None and pair in stream.pairs:
                    raise lost
                return self._verify_table(context, tables, pair, every.get(pair), log, again=not left)

            pool: WorkPool[TablePair, Verified] = WorkPool(
                work=verify, most=lambda: TABLES_VERIFIED_AT_ONCE, on_end=tables.report
            )
            found = pool.run(planned.ids)
            ended = self._end_log(stream, log, found.failed) if stream is not None and lost is None else None
            check_failed(found.failed, total=len(planned.ids) + len(planned.failed), before=planned.failed, log=ended)
            facts = {pair: verified.facts for pair, verified in found.done.items()}
            for declared, extra in ((tables.declare(pair), facts[pair]) for pair in planned.ids):
                self._tell(context, hydration_asset(declared.source, declared.sink), extra)
            return {"tables": len(facts), "rows": sum(extra["rows"] for extra in facts.values())}

    def _end_log(
        self, stream: TableStream, log: tuple[Plan, Stand] | None, failed: Collection[TablePair]
    ) -> BackpressureError | None:
        """End the log that tables share; return why that was not possible: the tables' own errors are named with it."""
        try:
            if log is not None:
                stream.finish(*log, failed=failed)
            if not {*stream.pairs} & {*failed}:
                stream.let_go()
        except BackpressureError as error:
            return error
        return None

    def _find_stand(
        self, stream: TableStream | None, planned: PlannedTables
    ) -> tuple[tuple[Plan, Stand] | None, BackpressureError | None]:
        """Return how far the log that tables share brings them, or why it does not."""
        if stream is None or not any(pair in planned.ids for pair in stream.pairs):
            return None, None
        try:
            return stream.find_stand(), None
        except BackpressureError as error:
            return None, error

    def _verify_table(
        self,
        context: Context,
        tables: TableSet,
        pair: TablePair,
        hydration: Hydration | None,
        log: tuple[Plan, Stand] | None = None,
        *,
        again: bool,
    ) -> Verified:
        """Verify one of the tables.

        One that an earlier try has verified has its event again, which Airflow lost, unless it is verified ``again``.
        """
        if hydration is None:
            raise LedgerRefused(
                "The ledger has no plan of it for this DAG any more: it was restored, or the hydration was forgotten "
                "or given to another DAG. Clear plan_snapshot and what follows it."
            )
        with tables.open(pair) as opened:
            if not again and hydration.plan is not None and _is_verified(tables, hydration):
                # Nobody has it any more. A ledger that was restored to before the run says so too, of another plan.
                check_held(hydration.plan, opened.sink)
                rows = rows_received(opened.ledger.statistics(hydration.id))
                return Verified(facts=self._facts(hydration, rows, log), checksum=None)
            tables.hold(hydration)
            failure = hydration.failure
            if failure is not None and opened.ledger.counts(hydration.plan.plan_id if hydration.plan else "").open:
                # It says why the ranges are not committed.
                raise VerificationFailed(failure)
            if failure is not None:
                opened.ledger.keep_failure(hydration.id, None)
            try:
                return self._verify(context, opened, *opened.hydration(), log)
            except LedgerRefused as error:
                # It says why the log is not replayed into the table.
                raise VerificationFailed(failure) if failure is not None and log is not None else error from None

    def _facts(self, hydration: Hydration, rows: int, log: tuple[Plan, Stand] | None = None) -> dict[str, Any]:
        """Return what the event of a verified hydration carries. ``rows``: that its ranges have brought."""
        assert hydration.plan is not None, "it was verified"
        plan = hydration.plan
        state = State.FOLLOWING if plan.follows else State.SUCCEEDED
        if log is not None and plan.stream and log[0].replays:
            # What is committed is what was planned of the log.
            plan = replace(plan, frontier=log[0].frontier, path=log[0].path)
        return make_event_extra(hydration, plan, rows=rows, verified=self.verify.value, state=state.value)

    def _report(self, context: Context, opened: HydrationSession, hydration_id: str, plan: Plan) -> Report:
        ranges = every_range(opened.ledger, plan.plan_id, [RangeState.COMMITTED, RangeState.REVOKED])
        total = opened.ledger.counts(plan.plan_id).committed

        def write() -> None:
            self.log.info("Verifying %s: %s.", opened.sink.identity, describe_verified(heartbeat.activity))

        delay = OBSERVED_AFTER if is_several(self.source) else 0.0
        heartbeat = self.report(context, opened, hydration_id, Step.VERIFYING, write=write, delay=delay)
        self.log.info("Verifying %s (%s): %s committed ranges.", opened.sink.identity, self.verify, total)
        with heartbeat:
            verifier = opened.verifier(
                plan, hydration_id, on_range=lambda done, of: heartbeat.count(done, total if of is None else of)
            )
            report = verifier.verify(ranges, self.verify)
        self.lineages[hydration_id] = Lineage(plan=plan, rows=report.rows, moved=False, equal=report.equal)
        for mismatch in report.mismatches:
            self.log.error("%s", mismatch.sentence)
        if not report.equal:
            raise VerificationFailed(mismatch_sentence(report))
        if report.compared:
            found = f"{report.ranges} ranges with {report.rows} rows are equal, checksum {report.checksum}"
        else:
            found = f"{report.ranges} ranges are in by their markers, and no rows were compared"
        self.log.info("%s: %s.", opened.sink.identity, found)
        return report

    def _tell(self, context: Context, asset: Asset, facts: dict[str, Any]) -> None:
        events = context["outlet_events"]
        if asset in self.outlets:
            events[asset].extra.update(facts)
            keep_asset_state(context, asset, "committed_frontier", facts["frontier"])
            return
        # Its name was not known when the DAG was parsed: Airflow learns of the asset by the event.
        alias = hydrations_of(context["ti"].dag_id)
        if alias not in self.outlets:
            # Of a mapped operator Airflow knows only the outlets that the author gave; those of the run count.
            self.outlets = [*self.outlets, alias]
        events[alias].add(asset, extra=facts)


def as_verify(verify: str | bool) -> Verify:
    """Return how far verification goes; :class:`InvalidDeclaration` lists the choices."""
    if isinstance(verify, bool):
        return Verify.TARGET if verify else Verify.NONE
    try:
        return Verify(verify)
    except ValueError as error:
        raise InvalidDeclaration(f"verify must be one of {', '.join(Verify)}, not {verify!r}.") from error


def _is_verified(tables: TableSet, hydration: Hydration) -> bool:
    """Whether an earlier try of this run has verified a table."""
    verified = hydration.phase is Phase.STEADY_STATE and hydration.verified and hydration.failure is None
    return verified and hydration.plan is not None and tables.is_done(hydration)
