"""An API server of Airflow with the page, over a ledger of made-up hydrations: no Spark, nothing that is scheduled."""

import json
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from airflow_provider_backpressure.core.config import Consistency
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.gate.signals import Decision, Signal
from airflow_provider_backpressure.core.progress.lag import Sight
from airflow_provider_backpressure.core.progress.source_position import Unit
from airflow_provider_backpressure.core.push.hub import Push
from airflow_provider_backpressure.core.snapshot.spark_messages import Transform
from airflow_provider_backpressure.hooks.push_transport import push_at
from airflow_provider_backpressure.ledger import models
from airflow_provider_backpressure.ledger.repository import SqlLedger
from dev.airflow import Airflow
from tests.conformance.ledger.support import address, commit, cut, make_plan, take

DAG = '''
from airflow.sdk import DAG, task

with DAG("orders", schedule=None):

    @task
    def nothing() -> None:
        """The page is about its hydration."""

    nothing()
'''
GIBIBYTE = 1024**3
LANE = "orders/manual__2026-01-01T06:00:00+00:00/hydrate_orders.hydrate_ranges"
SESSION = "3f0c2a8e-5a42-4a6e-9f0b-1d0a6f1c9b11"
USERS = {"admin": "admin", "viewer": "viewer"}


@dataclass(kw_only=True)
class PageServer:
    """The server, and the ledger that it reads."""

    airflow: Airflow
    ledger: SqlLedger
    push: Push
    """The channel by which what this process writes is heard of."""
    hydration_id: str = ""
    """The one that is under way."""

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        user: str | None = None,
        cookie: bool = False,
        headers: dict[str, str] | None = None,
    ) -> tuple[int, Any]:
        """Send a request as a user, or as nobody; return status and answer."""
        sent = {"Content-Type": "application/json", **(headers or {})}
        if user is not None:
            token = self.airflow.token(user)
            sent |= {"Cookie": f"_token={token}"} if cookie else {"Authorization": f"Bearer {token}"}
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(f"{self.airflow.url}{path}", method=method, headers=sent, data=data)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, _read(answer)
        except urllib.error.HTTPError as error:
            return error.code, _read(error)


def _read(answer: Any) -> Any:
    text = answer.read()
    return json.loads(text) if answer.headers.get_content_type() == "application/json" else text


@contextmanager
def page_server(home: Path, database: Endpoint) -> Iterator[PageServer]:
    """Start one over a database of PostgreSQL; it ends with the context."""
    dags = home / "dags"
    dags.mkdir(parents=True)
    (dags / "orders.py").write_text(DAG)
    url = address(database).set(drivername="postgresql+psycopg")
    airflow = Airflow(
        home=home / "airflow",
        dags=dags,
        metadata_url=url.render_as_string(hide_password=False),
        connections={
            "warehouse": {
                "conn_type": "postgres",
                "host": database.host,
                "port": database.port,
                "login": database.user,
                "password": database.password,
                "schema": database.database,
            },
            "spark_default": {
                "conn_type": "spark_connect",
                "host": "spark.example",
                "extra": json.dumps({"ui_url": "http://spark.example:4040"}),
            },
        },
        users=USERS,
    )
    push = push_at(url)
    assert push is not None
    made = PageServer(airflow=airflow, ledger=SqlLedger(url, publish=push.publish), push=push)
    try:
        airflow.start_page()
        airflow.command("dags", "reserialize")
        made.hydration_id = under_way(made.ledger)
        yield made
    finally:
        push.close()
        made.ledger.close()
        airflow.stop()


def under_way(ledger: SqlLedger) -> str:
    """Make hydrations: one under way with a course behind it, one that is complete, and some that wait."""
    for name in ("raw.invoices", "raw.customers", "raw.returns"):
        other = registered(ledger, name, owner="billing")
        ledger.save_plan(other, make_plan(), cut(5))
        ledger.enqueue(other, run="run", lease_seconds=3600)
    complete = registered(ledger, "raw.regions", owner="orders")
    plan = make_plan()
    ledger.save_plan(complete, plan, cut(10))
    for _ in range(10):
        commit(ledger, plan.plan_id, take(ledger, complete).seq)
    ledger.finish(complete)
    _not_begun(ledger)
    _log(ledger)
    main = registered(ledger, "raw.orders", owner="orders", credits=6)
    plan = make_plan(total=4_000_000, path="frame", transform=Transform(sql="SELECT * FROM source WHERE NOT test"))
    ledger.save_plan(main, plan, cut(400, 10_000))
    for number in range(254):
        taken = take(ledger, main, lane=f"{LANE}/{number % 2}", session_id=SESSION, lease_seconds=3600)
        if number in (90, 91, 170):
            ledger.release(
                plan.plan_id, taken.seq, attempt=taken.attempt, error="the target hung up", fail=number == 170
            )
        elif number < 250:
            commit(ledger, plan.plan_id, taken.seq, attempt=taken.attempt, rows=10_000, bytes=1_000_000)
    ledger.record_decision(main, DECISION)
    _sights(ledger, main)
    course(ledger, main, plan.plan_id)
    return main


DECISION = Decision(
    open=False,
    pressure=1.02,
    signals=(
        Signal(name="sink commit", utilisation=1.02, sentence="oldest uncommitted range 10.2 s >= 10 s", learned=True),
        Signal(name="executor memory", utilisation=0.81, sentence="executor memory 65% of 4.0 GiB on 1 < 80%"),
        Signal(name="predicted memory", utilisation=0.66, sentence="predicted memory 2.10 GiB <= 3.20 GiB budget"),
        Signal(name="replica lag", utilisation=0.2, sentence="replica lag on source 2.0 s < 10 s", declared=True),
    ),
)


def _not_begun(ledger: SqlLedger) -> None:
    """Make one that a run has only foretold."""
    new = registered(ledger, "raw.visits", owner="orders")
    facts = {
        "at": datetime.now(UTC).isoformat(),
        "source": "postgres://shop.example:5432/shop/public.visits",
        "target": "postgres://warehouse.example:5432/warehouse/raw.visits",
        "mode": "append",
        "consistency": "snapshot",
        "rows": 18_400_000,
        "exact": False,
        "key": "id",
        "columns": 12,
        "range_rows": 500_000,
        "ranges": 37,
        "path": "copy",
        "credits": 4,
        "python": "3.11",
    }
    ledger.keep_preview(new, json.dumps(facts))


def _log(ledger: SqlLedger) -> None:
    """Make one that reads a topic whose partitions are behind, each by another distance."""
    made = ledger.register(
        environment="default",
        source_identity="kafka://broker.example:9092/clicks",
        sink_identity="postgres://warehouse.example:5432/warehouse/raw.clicks",
        owner="clicks",
        cluster="spark_billing",
        credits=4,
    ).id
    ledger.save_plan(made, make_plan(consistency=Consistency.OFFSETS, total=3_000), cut(30, 100))
    for step in range(3):
        sight = Sight(
            at=datetime.now(UTC) - timedelta(seconds=30 * (2 - step)),
            unit=Unit.OFFSETS,
            known={str(part): 40_000 + 1_000 * step for part in range(6)},
            committed={str(part): 40_000 + 1_000 * step - part * 1_700 for part in range(6)},
            working=True,
        )
        ledger.record_sight(made, sight, least_seconds=1)


def registered(ledger: SqlLedger, target: str, *, owner: str, credits: int = 4, cluster: str | None = None) -> str:
    """Register a hydration."""
    return ledger.register(
        environment="default",
        source_identity=f"postgres://shop.example:5432/shop/public.{target.partition('.')[2]}",
        sink_identity=f"postgres://warehouse.example:5432/warehouse/{target}",
        owner=owner,
        cluster=cluster or ("spark_default" if owner == "orders" else "spark_billing"),
        credits=credits,
    ).id


TOTALS = sa.text(
    """INSERT INTO backpressure_source_statistics
       SELECT (jsonb_populate_record(s, jsonb_build_object('hydration_id', h.id))).*
       FROM backpressure_source_statistics s JOIN backpressure_hydration h ON h.owner = 'many' AND h.id <> :first
       WHERE s.hydration_id = :first"""
)
SAMPLES = sa.text(
    """INSERT INTO backpressure_sample (hydration_id, plan_id, at, committed_rows, read_rows, in_flight, credits)
       SELECT id, plan_id, clock_timestamp() - make_interval(secs => 300 - n), 10 * n + n * n / 100, 0, 1, 1
       FROM backpressure_hydration, generate_series(1, 300) n WHERE owner = 'many'"""
)
"""Five minutes of each, a second apart, as if all of them were under way."""


def many(ledger: SqlLedger, *, hydrations: int, ranges: int) -> tuple[list[str], str]:
    """Make so many hydrations, the first with so many ranges; return their ids, and its plan's."""
    first = registered(ledger, "raw.many", owner="many")
    plan = make_plan(total=ranges * 10)
    ledger.save_plan(first, plan, cut(ranges))
    engine = sa.create_engine(ledger._database.engine.url)
    table = models.hydration
    with engine.begin() as connection:
        row = dict(connection.execute(sa.select(table).where(table.c.id == first)).one()._mapping)
        rows = [
            {**row, "id": uuid.uuid4().hex, "identity": f"{number}", "sink_identity": f"postgres://w:1/w/raw.m{number}"}
            for number in range(hydrations - 1)
        ]
        connection.execute(sa.insert(table), rows)
        connection.execute(TOTALS, {"first": first})
        connection.execute(SAMPLES)
    engine.dispose()
    return [first, *(one["id"] for one in rows)], plan.plan_id


def _sights(ledger: SqlLedger, hydration_id: str) -> None:
    """See its source four times, each time further ahead."""
    for step in range(4):
        sight = Sight(
            at=datetime.now(UTC) - timedelta(seconds=30 * (3 - step)),
            unit=Unit.BYTES,
            known={"log": 9_000_000 + 19_000_000 * step},
            committed={"log": 8_000_000 + 14_000_000 * step},
            working=True,
        )
        ledger.record_sight(hydration_id, sight, least_seconds=1)


def course(ledger: SqlLedger, hydration_id: str, plan_id: str) -> None:
    """Write samples of the last ten minutes, and what the stages did: time cannot be waited for."""
    now, rows, looks = datetime.now(UTC), [], []
    done = sum(one.snapshot_progress for one in ledger.statistics(hydration_id))
    for step in range(120):
        at = now - timedelta(seconds=5 * (120 - step))
        wave = abs((step % 40) - 20) / 20
        rows.append(
            {
                "hydration_id": hydration_id,
                "plan_id": plan_id,
                "at": at,
                "committed_rows": int(done * (step / 119) ** 1.2),
                "read_rows": int(done * (step / 119) ** 1.2),
                "in_flight": min(6, 2 + step // 25),
                "credits": min(6, 2 + step // 20),
                "pressure": 0.4 + 0.5 * wave,
                "memory_used": int((1.2 + 1.5 * wave) * GIBIBYTE),
                "memory_limit": 4 * GIBIBYTE,
                "upstream_rate": 30_000.0 + 4_000 * wave,
                "process_rate": 24_000.0 + 9_000 * (1 - wave),
            }
        )
        looks.append((at, wave))
    engine = sa.create_engine(ledger._database.engine.url)
    with engine.begin() as connection:
        connection.execute(sa.delete(models.sample).where(models.sample.c.hydration_id == hydration_id))
        connection.execute(sa.insert(models.sample), rows)
        for at, wave in looks:
            _look(connection, hydration_id, at, wave)
    engine.dispose()


def fresh(server: PageServer) -> None:
    """Let a lane have looked just now: what the stages did is told of the last minute, rates of the last five."""
    server.ledger.keep_activity(server.hydration_id)
    engine, table = sa.create_engine(server.ledger._database.engine.url), models.sample
    mine, now = table.c.hydration_id == server.hydration_id, datetime.now(UTC)
    with engine.begin() as connection:
        _look(connection, server.hydration_id, now, 0.8)
        late = now - connection.execute(sa.select(sa.func.max(table.c.at)).where(mine)).scalar_one()
        connection.execute(sa.update(table).where(mine).values(at=table.c.at + sa.literal(late, sa.Interval())))
    engine.dispose()


def _look(connection: sa.Connection, hydration_id: str, at: datetime, wave: float) -> None:
    times = {
        "admit": (0.5, 0.5, 4 * wave + 0.2),
        "read": (2.5, 1, 1.5 + wave),
        "transform": (1.5, 0.5, 3),
        "sink": (4.5, 0.4, 0.1),
    }
    row = {"hydration_id": hydration_id, "at": at, "worker_id": "lane-0", "times": json.dumps(times)}
    connection.execute(sa.insert(models.flow), row)
