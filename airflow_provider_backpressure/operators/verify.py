"""The task that verifies what was committed, ends the hydration and triggers other DAGs."""

from typing import Any

from airflow.sdk import Context

from airflow_provider_backpressure.airflow_compat import keep_asset_state
from airflow_provider_backpressure.assets import has_asset, hydration_asset, hydrations_of, make_event_extra
from airflow_provider_backpressure.base_operator import HydrationTask
from airflow_provider_backpressure.core.monitoring.source_poller import nobodys_error
from airflow_provider_backpressure.core.planning.change_windows import check_caught_up
from airflow_provider_backpressure.core.ports.ledger import every_range
from airflow_provider_backpressure.core.progress.samples import rows_received
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.core.snapshot.ranges import RangeState
from airflow_provider_backpressure.core.verification.verifier import Report, Verify
from airflow_provider_backpressure.exceptions import InvalidDeclaration, VerificationFailed
from airflow_provider_backpressure.hooks.hydration_session import HydrationSession
from airflow_provider_backpressure.openlineage import Lineage

NAMED = 20
"""Most ranges that are named in the error; the log has them all."""


class VerifyHydrationOperator(HydrationTask):
    """Verifies every range, ends the hydration, and emits the event of its asset.

    Where the names are known only to a run, the event goes by the alias :func:`..assets.hydrations_of` of the DAG.

    Under ``replace`` the shadow is verified and then takes the target's place; where it differs, the target stays.

    The event's extra holds ``hydration_id``, ``plan_id``, ``phase`` (of the run: ``steady_state`` for an increment),
    ``rows``, ``frontier`` (rows by table, or a log's offsets by partition) and ``verified``; the frontier is kept in
    the state store of an asset that the DAG knows too. Ranges that differ are named and fail the task for good.

    :param verify: ``"target"`` (or ``True``) reads the target back and compares it with the markers, which hold what
        was read from the source; ``"full"`` reads the source once more too; ``"none"`` (``False``) trusts the
        markers. In any case ranges, markers and totals have to agree before anything ends or is published
    """

    def __init__(self, *, verify: str | bool = Verify.TARGET, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.verify = as_verify(verify)
        # Made from a mapped operator: its names came too late for the DAG, and so for Airflow's list of assets.
        from_mapped = getattr(self, "_BaseOperator__from_mapped", False)
        if not from_mapped and has_asset(self.source, self.sink):
            self.outlets = [*self.outlets, hydration_asset(self.source, self.sink)]
        elif not from_mapped and self.has_dag():  # type: ignore[no-untyped-call]
            self.outlets = [*self.outlets, hydrations_of(self.dag.dag_id)]

    def execute(self, context: Context) -> dict[str, Any]:
        """Verify."""
        with self.open_ports(context) as opened:
            hydration, plan = opened.hydration()
            self.take_turn(context, opened, hydration.id)
            opened.completion().check()
            check_caught_up(plan, opened.sink)
            opened.sink.complete(plan)
            self.lineage = Lineage(plan=plan, moved=False)
            report = None if self.verify is Verify.NONE else self._report(opened, plan)
            opened.sink.publish(plan)
            opened.ledger.finish(hydration.id)
            rows = rows_received(opened.ledger.statistics(hydration.id))
            facts = make_event_extra(hydration, plan, rows=rows, verified=self.verify.value)
            self._tell(context, facts)
            opened.ledger.let_go(hydration.id, run=context["ti"].run_id)
            with nobodys_error("What is committed is not seen now"):
                opened.observation(hydration.id).observer.settle()
            with nobodys_error("Earlier plans are not removed now"):
                opened.prune(hydration.id, plan)
            return {**facts, "checksum": report.checksum if report else None}

    def _report(self, opened: HydrationSession, plan: Plan) -> Report:
        committed = every_range(opened.ledger, plan.plan_id, [RangeState.COMMITTED])
        report = opened.verifier().verify(committed, self.verify)
        self.lineage = Lineage(plan=plan, rows=report.rows, moved=False, equal=report.equal)
        for mismatch in report.mismatches:
            self.log.error("%s", mismatch.sentence)
        if not report.equal:
            raise VerificationFailed(mismatch_sentence(report))
        self.log.info("%s ranges with %s rows are equal, checksum %s.", report.ranges, report.rows, report.checksum)
        return report

    def _tell(self, context: Context, facts: dict[str, Any]) -> None:
        asset, events = hydration_asset(self.source, self.sink), context["outlet_events"]
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


def mismatch_sentence(report: Report) -> str:
    """Return the error's sentence; it names the ranges, where any differs by itself."""
    numbers = [str(mismatch.seq) for mismatch in report.mismatches if mismatch.seq >= 0]
    if not numbers:
        return f"The target differs: {report.mismatches[0].sentence}."
    more = f" and {len(numbers) - NAMED} more" if len(numbers) > NAMED else ""
    return (
        f"{len(numbers)} of {report.ranges} ranges differ: {', '.join(numbers[:NAMED])}{more}; "
        f"the first: {report.mismatches[0].sentence}."
    )
