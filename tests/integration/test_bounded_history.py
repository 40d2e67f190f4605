"""Hundreds of runs of one hydration: what target and ledger keep of them stays bounded by itself."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import sqlalchemy as sa

from airflow_provider_backpressure.core.config import Budget, Mode, Refresh
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.monitoring.ledger_pruning import end_run
from airflow_provider_backpressure.core.monitoring.source_observer import Kept
from airflow_provider_backpressure.core.ports.ledger import History
from airflow_provider_backpressure.core.snapshot.spark_messages import RangeSpec
from airflow_provider_backpressure.core.verification.completeness_check import Completion
from airflow_provider_backpressure.exceptions import PlanSuperseded
from airflow_provider_backpressure.ledger.models import metadata
from airflow_provider_backpressure.ledger.tables.phase import MOST_PHASES
from tests.support.composed import Composed, Ports, difference
from tests.support.local_runner import LocalRunner, carry_out
from tests.support.marks import mark_long
from tests.support.postgres import connected, run

pytestmark = pytest.mark.integration

KEPT = History(plans=3)
SAMPLES = Kept(rows=50)
CHANGE = {
    "append": "INSERT INTO t SELECT {0} * 100 + i, 'new' FROM generate_series(1, 5) i",
    "upsert": "UPDATE t SET code = 'run {0}' WHERE id % 7 = {0} % 7",
    "mirror": "UPDATE t SET code = 'run {0}' WHERE id % 7 = {0} % 7",
}


@contextmanager
def opened(composed: Composed) -> Iterator[tuple[Ports, LocalRunner]]:
    """The hydration's ports, open for every run; ranges are copied by the tasks' own code in this process."""
    logins = {"source": replace(composed.source, conn_id="source"), "sink": replace(composed.sink, conn_id="sink")}
    runner = LocalRunner(logins=logins)
    with composed.open(runner) as ports:
        yield ports, runner
    runner.close()


def hydrate(ports: Ports, name: str) -> None:
    """Do what the tasks of one scheduled run do: plan, drain, check, end."""
    refresh = Refresh.ONCE if ports.composed.mode == Mode.APPEND else Refresh.EACH_RUN
    replace(ports.planner(), run=name, refresh=refresh).plan()
    ports.hydrator().run()
    hydration, plan = ports.hydration, ports.plan
    Completion(plan=plan, ledger=ports.ledger, sink=ports.sink).check()
    ports.sink.complete(plan)
    ports.ledger.finish(hydration.id)
    end_run(ports.ledger, ports.sink, hydration.id, plan, kept=KEPT, samples=SAMPLES)


def count_rows(target: Endpoint, ledger_url: str) -> dict[str, int]:
    """Count the rows of every table of the product."""
    engine, counts = sa.create_engine(ledger_url), {}
    with engine.connect() as ledger, connected(target) as sink:
        for name in (table.name for table in metadata.sorted_tables):
            counts[name] = int(ledger.execute(sa.text(f"SELECT count(*) FROM {name}")).scalar_one())
        for name in ("raw.backpressure_commit", "raw.backpressure_plan"):
            counts[name] = sink.execute(f"SELECT count(*) FROM {name}").fetchall()[0][0]
    engine.dispose()
    return counts


@pytest.mark.parametrize("runs", [10, pytest.param(1000, marks=pytest.mark.long)])
@pytest.mark.parametrize("mode", mark_long(sorted(CHANGE), quick=["mirror"]))
def test_the_bookkeeping_of_many_runs_stays_bounded(mode: str, runs: int, database: Endpoint, ledger_url: str) -> None:
    """L5: increments and copies that are made again; a writer of a plan that was removed is refused by the target."""
    run(
        database,
        "CREATE TABLE t AS SELECT i AS id, md5(i::text) AS code FROM generate_series(1::bigint, 90) i",
        "ALTER TABLE t ADD PRIMARY KEY (id)",
        "CREATE SCHEMA raw",
    )
    reading = {"increment_column": "id"} if mode == "append" else {}
    composed = Composed(
        source=database,
        sink=database,
        ledger_url=ledger_url,
        remote="",
        mode=mode,
        reading=reading,
        budget=Budget(range_rows=30),
    )
    early: dict[str, int] = {}
    with opened(composed) as (ports, runner):
        for number in range(1, runs + 1):
            hydrate(ports, f"run {number}")
            run(database, CHANGE[mode].format(number))
            if number == 6:
                early = count_rows(database, ledger_url)
        hydrate(ports, "last")
        late, first = count_rows(database, ledger_url), runner.submitted[0][1]
        assert first.plan_id not in plans_of(database), "its markers are gone"
        check_refused(first, runner)
    assert difference(database, "t", database, "raw.t") == (0, 0)
    # These grow to bounds of their own: a setting, an hour, a number.
    grown = {name: (early[name], late[name]) for name in late if late[name] > early[name]}
    assert set(grown) <= {"backpressure_sample", "backpressure_flow", "backpressure_phase"}, grown
    assert late["backpressure_sample"] <= SAMPLES.rows + 1
    assert late["backpressure_phase"] <= MOST_PHASES + 1


def plans_of(target: Endpoint) -> set[str]:
    """The plans that the target has markers of."""
    with connected(target) as connection:
        return {row[0] for row in connection.execute("SELECT DISTINCT plan_id FROM raw.backpressure_commit")}


def check_refused(spec: RangeSpec, runner: LocalRunner) -> None:
    """Let an attempt of a plan that was removed write late."""
    with pytest.raises(PlanSuperseded, match="no longer holds"):
        carry_out(spec, runner.logins["source"], runner.logins["sink"], timed=False)
