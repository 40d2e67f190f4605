"""A hydration in each state that the page shows, made by the ledger's methods: what takes minutes is not waited for."""

from datetime import UTC, datetime, timedelta

import sqlalchemy as sa

from airflow_provider_backpressure.core.gate.cluster_queue import Shared
from airflow_provider_backpressure.core.gate.signals import Decision, Signal
from airflow_provider_backpressure.core.gate.task_activity import Activity, Step
from airflow_provider_backpressure.core.progress.lag import Sight
from airflow_provider_backpressure.core.progress.source_position import Unit
from airflow_provider_backpressure.ledger import models
from tests.conformance.ledger.support import commit, cut, make_plan, take
from tests.support.page import PageServer, registered

TASK = "orders/manual__2026-01-01T06:00:00+00:00/hydrate_orders.{}/-1"
SLOW = Signal(name="sink commit", utilisation=1.02, sentence="oldest uncommitted range 10.2 s >= 10 s", learned=True)
WORDS = {
    "planning": ("Planning", ""),
    "queued": ("Queued", "number 1 on spark_busy, blocked: its limit is 0 at once"),
    "running": ("Running", "2 ranges in flight"),
    "throttled": ("Throttled", "by oldest uncommitted range 10.2 s >= 10 s"),
    "paused": ("Paused", "by ada: release night"),
    "verifying": ("Verifying", "7 of 12 ranges"),
    "failed": ("Failed", "Range 4 failed 3 times"),
    "unplanned": ("Failed", "There is no table public.unplanned"),
    "succeeded": ("Succeeded", ""),
    "following": ("Following", "lag 1.2 MiB"),
    "stale": ("Stale", "nothing heard for"),
}
"""What the reader sees of each, by the table's name."""


def make_states(server: PageServer) -> dict[str, str]:
    """Make them; return their ids by the table's name."""
    server.ledger.share(Shared.HYDRATIONS, "spark_states", 50, who="ada")
    # Nobody may start there.
    server.ledger.share(Shared.HYDRATIONS, "spark_busy", 0, who="ada")
    return {name: _make(server, name) for name in WORDS}


def beat(server: PageServer, made: dict[str, str]) -> None:
    """Let those be heard now whose tasks are alive."""
    for name in ("planning", "running", "throttled", "queued"):
        server.ledger.keep_activity(made[name])


def _make(server: PageServer, name: str) -> str:
    ledger = server.ledger
    cluster = "spark_busy" if name == "queued" else "spark_states"
    made = registered(ledger, f"states.{name}", owner="orders", cluster=cluster)
    ledger.hold(made, run="run")
    if name in ("planning", "unplanned"):
        ledger.keep_activity(made, Activity(step=Step.PLANNING, lane=TASK.format("plan_snapshot"), try_number=1))
        if name == "unplanned":
            ledger.keep_failure(made, "There is no table public.unplanned (connection shop).")
        return made
    plan = make_plan(total=120)
    ledger.save_plan(made, plan, cut(12))
    ledger.keep_activity(made, Activity(step=Step.RANGES, lane=TASK.format("hydrate_ranges"), try_number=2))
    if name == "queued":
        ledger.enqueue(made, run="run", lease_seconds=3600)
        return made
    for _ in range(12 if name in ("verifying", "succeeded", "following") else 4):
        commit(ledger, plan.plan_id, take(ledger, made).seq)
    _go_on(server, name, made, plan.plan_id)
    return made


def _go_on(server: PageServer, name: str, made: str, plan_id: str) -> None:
    ledger = server.ledger
    if name in ("running", "throttled", "paused", "stale"):
        for _ in range(2):
            take(ledger, made, lease_seconds=3600)
    if name == "throttled":
        ledger.record_decision(made, Decision(open=False, pressure=1.02, signals=(SLOW,)))
    elif name == "paused":
        ledger.pause(made, who="ada", why="release night")
    elif name == "verifying":
        verifying = Activity(step=Step.VERIFYING, lane=TASK.format("verify"), try_number=1, done=7, total=12)
        ledger.keep_activity(made, verifying)
    elif name == "failed":
        poor = take(ledger, made)
        error = "A value of column amount is too long for the target: 'x' * 300 > varchar(255)."
        for attempt in (1, 2, 3):
            ledger.release(plan_id, poor.seq, attempt=attempt, error=error, fail=attempt == 3)
            if attempt < 3:
                take(ledger, made)
        ledger.keep_failure(made, f"Range 4 failed 3 times; the last time: {error}")
    elif name in ("succeeded", "following"):
        ledger.finish(made)
        ledger.let_go(made, run="run")
    if name == "following":
        known = {"log": 9_000_000}
        sight = Sight(at=datetime.now(UTC), unit=Unit.BYTES, known=known, committed={"log": 9_000_000 - 1_258_291})
        ledger.record_sight(made, sight, least_seconds=1)
    elif name == "stale":
        engine = sa.create_engine(ledger._database.engine.url)
        with engine.begin() as connection:
            before = datetime.now(UTC) - timedelta(seconds=400)
            table = models.hydration
            connection.execute(
                sa.update(table).where(table.c.id == made).values(heard_at=before, updated_at=before, sampled_at=before)
            )
        engine.dispose()
