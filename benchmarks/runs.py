"""Runs of one hydration between two tables of one database, as the tasks of a DAG do them, without Airflow."""

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass

from airflow_provider_backpressure.core.admission.permits_and_reservations import Limiter
from airflow_provider_backpressure.core.config import Budget, Consistency, Mode, Refresh
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.execution.lane_runner import Hydrator
from airflow_provider_backpressure.core.planning.planner import Planner
from airflow_provider_backpressure.core.ports import Runner
from airflow_provider_backpressure.core.verification.completeness_check import Completion
from airflow_provider_backpressure.core.verification.mismatch_report import Report
from airflow_provider_backpressure.core.verification.verifier import Verifier, Verify
from airflow_provider_backpressure.ledger.repository import SqlLedger
from airflow_provider_backpressure.sinks import PostgresSink
from airflow_provider_backpressure.sources import PostgresSource


@dataclass(frozen=True, kw_only=True)
class Runs:
    """``public.t`` into tables of the schema ``raw``."""

    url: str
    """Of the ledger."""
    at: Endpoint
    runner: Runner
    budget: Budget

    def copy(self, mode: Mode, run: str, table: str) -> None:
        """Let one run plan, drain, check and publish."""
        with self._planner(mode, run, table) as planner:
            planned, ledger, sink = planner.plan(), planner.ledger, planner.sink
            hydration_id = planned.hydration.id
            Hydrator(
                hydration_id=hydration_id,
                plan=planned.plan,
                lane="lane",
                ledger=ledger,
                source=planner.source,
                sink=sink,
                runner=self.runner,
                limiter=Limiter(
                    ledger=ledger, hydration_id=hydration_id, budget=self.budget, memory=self.runner.memory
                ),
                budget=self.budget,
                share=self.budget.credits,
                inline_wait=3600,
            ).run()
            Completion(plan=planned.plan, ledger=ledger, sink=sink).check()
            sink.complete(planned.plan)
            sink.publish(planned.plan)
            ledger.finish(hydration_id)

    def verify(self, mode: Mode, run: str, table: str, how: Verify) -> Report:
        """Verify what this run has copied."""
        with self._planner(mode, run, table) as planner:
            plan = planner.register().plan
            assert plan is not None, "it was copied"
            verifier = Verifier(plan=plan, source=planner.source, sink=planner.sink, runner=self.runner)
            return verifier.verify(planner.ledger.ranges(plan.plan_id), how)

    @contextmanager
    def _planner(self, mode: Mode, run: str, table: str) -> Iterator[Planner]:
        with ExitStack() as stack:
            ledger = stack.enter_context(closing(SqlLedger(self.url)))
            source = stack.enter_context(closing(PostgresSource(conn_id="db", table="public.t").open(self.at)))
            sink = stack.enter_context(closing(PostgresSink(conn_id="db", table=f"raw.{table}").open(self.at)))
            yield Planner(
                source=source,
                sink=sink,
                runner=self.runner,
                ledger=ledger,
                budget=self.budget,
                mode=mode,
                consistency=Consistency.STATIC,
                owner="benchmark",
                cluster="spark",
                run=run,
                refresh=Refresh.EACH_RUN,
            )
