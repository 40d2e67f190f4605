"""A whole installation for the system tests: PostgreSQL, Spark Connect, Airflow with its ledger, tables to hydrate."""

import json
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import psycopg

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.gate.hydration_record import Hydration
from airflow_provider_backpressure.core.snapshot.ranges import RangeRecord, RangeState
from airflow_provider_backpressure.ledger.repository import SqlLedger
from dev import erp
from dev.airflow import Airflow, free_port
from dev.services import Server
from tests.support import waiting

ROOT = Path(__file__).resolve().parents[2]
DAGS = Path(__file__).resolve().parent / "dags"
PREFIX = "system_"
LINEITEM_ROWS, SMALL_ROWS = 600_000, 20_000
FINISHED = ("success", "failed")
EARLY = (
    "postgres_hydrate",
    "postgres_task_per_range",
    "no_tables",
    "no_spark",
    "templated",
    "mapped",
    "mapped_operators",
    "ten_thousand",
)

QUICK = {
    # How soon a task hears that a person has ended it.
    "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "1",
    # The files do not change: parsing them again and again would take a good part of two cores.
    "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "3600",
    "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.5",
    # How soon a new triggerer takes over from a dead one.
    "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "15",
}
"""Settings by which tests wait less. None of them changes what is tested."""
COLUMNS = "(l_id bigint PRIMARY KEY, amount numeric(15,2), comment text)"
TABLES = {
    "lineitem": LINEITEM_ROWS,
    "small": SMALL_ROWS,
    "slow": SMALL_ROWS,
    "mapped_a": 1_000,
    "mapped_b": 2_000,
    "gestured": 4_000,
    "timed": 1_000,
    "killed": 10_000,
    "followed": 10_000,
}
"""Rows of the source's tables."""


@dataclass(kw_only=True)
class Installation:
    """Everything of one test session. Databases carry a prefix, so that other tests' servers may be shared."""

    home: Path
    postgres: Server
    connect: Server
    kafka: Server
    mysql: Server
    airflow: Airflow = field(init=False)
    _begun: "dict[str, Run]" = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Make databases and Airflow's home; start nothing."""
        self.lake.mkdir(parents=True)
        dags = self.home / "dags"
        dags.mkdir(parents=True, exist_ok=True)
        for file in (*(ROOT / "dags").glob("*.py"), *DAGS.glob("[a-z]*.py")):
            shutil.copy(file, dags)
        self.airflow = Airflow(
            home=self.home / "airflow",
            dags=dags,
            metadata_url=self.url("airflow"),
            connections=self._connections(),
            settings={
                "AIRFLOW__BACKPRESSURE__INLINE_WAIT": "3",
                **QUICK,
                "PYTHONPATH": str(ROOT),
                "LAKE_FOLDER": str(self.lake),
                "EVENTS_FILE": str(self.events),
                "AIRFLOW__BACKPRESSURE__GATE_CLOSED_SECONDS": "6",
                "AIRFLOW__METRICS__STATSD_ON": "True",
                "AIRFLOW__METRICS__STATSD_HOST": "127.0.0.1",
                "AIRFLOW__METRICS__STATSD_PORT": str(self.statsd.getsockname()[1]),
            },
        )

    def endpoint(self, database: str) -> Endpoint:
        """Return where one of the databases is."""
        server = self.postgres
        return Endpoint(
            conn_id=database,
            host=server.host,
            port=server.port,
            database=PREFIX + database,
            user=server.user or "",
            password=server.password or "",
        )

    def url(self, database: str) -> str:
        """Return a database's URL for SQLAlchemy."""
        place = self.endpoint(database)
        return f"postgresql+psycopg://{place.user}:{place.password}@{place.address}"

    def open(self, database: str) -> "psycopg.Connection[Any]":
        """Connect to a database."""
        place = self.endpoint(database)
        return psycopg.connect(
            host=place.host,
            port=place.port,
            dbname=place.database,
            user=place.user,
            password=place.password,
            autocommit=True,
        )

    @property
    def lake(self) -> Path:
        """The folder of tables of files."""
        return self.home / "lake"

    @property
    def events(self) -> Path:
        """The file to which a notifier of the tests writes."""
        return self.home / "events.txt"

    @cached_property
    def statsd(self) -> socket.socket:
        """The socket to which Airflow sends its metrics."""
        server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        server.bind(("127.0.0.1", 0))
        return server

    def metric(self, name: str, *, timeout: float = 60.0) -> str:
        """Return the next value of a metric that Airflow sends from now on."""
        self.statsd.setblocking(False)
        with suppress(BlockingIOError):
            while self.statsd.recv(65536):
                pass
        self.statsd.settimeout(timeout)
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            found, _, value = self.statsd.recv(65536).decode().partition(":")
            if found == name:
                return value
        raise AssertionError(f"{name} was not sent")

    @cached_property
    def ledger(self) -> SqlLedger:
        """The ledger, opened as the metadata database's owner."""
        return SqlLedger(self.url("airflow"))

    def close(self) -> None:
        """End Airflow."""
        self.ledger.close()
        self.airflow.stop()
        self.statsd.close()

    def create(self) -> None:
        """Create and fill the databases."""
        server = self.postgres
        with psycopg.connect(
            host=server.host, port=server.port, user=server.user, password=server.password, dbname="postgres"
        ) as link:
            link.autocommit = True
            for name in ("airflow", "shop", "warehouse", "empty"):
                link.execute(f"CREATE DATABASE {PREFIX}{name}")
            # A killed scheduler leaves its connection to its tasks, and with it the transaction that was open.
            link.execute(f"ALTER DATABASE {PREFIX}airflow SET idle_in_transaction_session_timeout = '15s'")
        with self.open("shop") as link:
            for table, rows in TABLES.items():
                link.execute(f"CREATE TABLE {table} {COLUMNS}")
                link.execute(
                    f"INSERT INTO {table} SELECT i, i * 1.25, repeat(md5(i::text), 2) FROM generate_series(1, %s) i",
                    (rows,),
                )
                link.execute(f"ANALYZE {table}")

    def start(self) -> None:
        """Start Airflow, which makes its tables and the ledger's, and set up the ledger's role and connection."""
        self.airflow.start()
        self.airflow.command("backpressure", "setup")

    def cli(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """Run `airflow backpressure …`."""
        return subprocess.run(
            [sys.executable, "-m", "airflow", "backpressure", *words],
            env=self.airflow.environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def begin(self) -> None:
        """Trigger the DAGs that need nothing but time, so that they run beside each other."""
        # Airflow queues events for DAGs that are not paused.
        self.airflow.wait_for_dag("told")
        for dag_id in EARLY:
            self._begun[dag_id] = self._trigger(dag_id, {"most": 15_000})

    def first(self, dag_id: str) -> "Run":
        """Return the run that was begun early."""
        return self._begun[dag_id]

    def run(self, dag_id: str, **conf: Any) -> "Run":
        """Trigger a DAG."""
        return self._trigger(dag_id, conf)

    def _trigger(self, dag_id: str, conf: dict[str, Any]) -> "Run":
        self.airflow.wait_for_dag(dag_id)
        return Run(airflow=self.airflow, dag_id=dag_id, run_id=self.airflow.trigger(dag_id, conf))

    def hydration(self, target: str) -> Hydration | None:
        """Return the hydration of a target, if the ledger knows it."""
        found = [one for one in self.ledger.hydrations() if one.sink_identity.endswith(f"/{target}")]
        assert len(found) <= 1
        return found[0] if found else None

    def ranges(self, target: str) -> list[RangeRecord]:
        """Return the ranges of a target's plan; none before it is planned."""
        found = self.hydration(target)
        return self.ledger.ranges(found.plan.plan_id) if found and found.plan else []

    def committed(self, target: str) -> int:
        """Count the committed ranges of a target's plan."""
        return sum(record.state is RangeState.COMMITTED for record in self.ranges(target))

    def in_flight(self, target: str) -> int:
        """Count the credits that are out for a target."""
        found = self.hydration(target)
        return self.ledger.gate(found.id).in_flight if found else 0

    def paused(self, dag_id: str, source: str, target: str) -> Hydration:
        """Return the hydration of a DAG that was not run yet, registered and paused by a person."""
        made = self.ledger.register(
            environment="default",
            source_identity=f"postgres://{self.endpoint('shop').address}/public.{source}",
            sink_identity=f"postgres://{self.endpoint('warehouse').address}/{target}",
            owner=dag_id,
            cluster="spark_connect_default",
            credits=4,
        )
        self.ledger.pause(made.id, who="ada", why="release night")
        return made

    @contextmanager
    def locked(self, target: str) -> Iterator[None]:
        """Lock a target, so that what is submitted into it stays in flight."""
        with self.open("warehouse") as link, link.transaction():
            link.execute(f"LOCK TABLE {target} IN EXCLUSIVE MODE")
            yield

    def rows(self, table: str) -> int:
        """Count the rows of a target."""
        with self.open("warehouse") as link:
            found = link.execute(f"SELECT count(*) FROM {table}").fetchone()
            assert found is not None
            return int(found[0])

    def committed_rows(self, dag_id: str, target: str) -> int:
        """Count a target's rows; none before it is there. Fails where a run of the DAG has."""
        states = [run["state"] for run in self.dag_runs(dag_id)]
        assert "failed" not in states
        with suppress(psycopg.errors.UndefinedTable):
            return self.rows(target)
        return 0

    def runs(self, dag_id: str) -> int:
        """Count the runs of a DAG."""
        return len(self.dag_runs(dag_id))

    def dag_runs(self, dag_id: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.airflow.request("GET", f"/api/v2/dags/{dag_id}/dagRuns")["dag_runs"]
        return found

    def fingerprint(self, database: str, table: str) -> tuple[int, int]:
        """Return count and order-independent checksum, by a query that shares nothing with the product's own."""
        with self.open(database) as link:
            found = link.execute(f"SELECT count(*), sum(hashtextextended(t::text, 0)) FROM {table} t").fetchone()
            assert found is not None
            return int(found[0]), int(found[1])

    def _connections(self) -> dict[str, dict[str, Any]]:
        def database(name: str, conn_type: str = "postgres") -> dict[str, Any]:
            place = self.endpoint(name)
            return {
                "conn_type": conn_type,
                "host": place.host,
                "port": place.port,
                "login": place.user,
                "password": place.password,
                "schema": place.database,
            }

        spark = {"conn_type": "spark_connect", "host": self.connect.host}
        return {
            "shop_db": database("shop"),
            "warehouse": database("warehouse"),
            "locked_out": {**database("shop"), "password": f"wrong-{secrets.token_urlsafe(12)}"},
            "events": {"conn_type": "kafka", "extra": json.dumps({"bootstrap.servers": self.kafka.url})},
            "erp": {
                "conn_type": "mysql",
                "host": self.mysql.host,
                "port": self.mysql.port,
                "login": self.mysql.user,
                "password": self.mysql.password,
                "schema": erp.DATABASE,
            },
            "ledger_without_tables": database("empty", "backpressure"),
            "spark_connect_default": {
                **spark,
                "port": self.connect.port,
                "extra": json.dumps({"ui_url": self.connect.ui_url}),
            },
            "no_spark": {**spark, "port": free_port()},
            "memory": {"conn_type": "memory"},
        }


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of a DAG."""

    airflow: Airflow
    dag_id: str
    run_id: str

    @property
    def path(self) -> str:
        """Where the REST API has it."""
        return f"/api/v2/dags/{self.dag_id}/dagRuns/{self.run_id}"

    def ends(self, *, timeout: float = 900.0) -> str:
        """Wait for the run's end and return its state."""
        return until(lambda: (state := self.airflow.run_state(self.dag_id, self.run_id)) in FINISHED and state, timeout)

    def reaches(self, task_id: str, states: Iterable[str], *, timeout: float = 900.0) -> str:
        """Wait until a task is in one of the states, and return which."""
        wanted = set(states)
        return until(lambda: (state := self.states().get(task_id)) in wanted and state, timeout)

    def states(self) -> dict[str, str | None]:
        """Return the tasks' states."""
        return self.airflow.task_states(self.dag_id, self.run_id)

    def log(self, task_id: str, number: int = 1, *, map_index: int = -1) -> str:
        """Return a task's log."""
        place = f"{self.path}/taskInstances/{task_id}/logs/{number}?map_index={map_index}"
        return json.dumps(self.airflow.request("GET", place))

    def links(self, task_id: str, *, map_index: int = -1) -> dict[str, str]:
        """Return a task's links, as Airflow's page shows them."""
        place = f"{self.path}/taskInstances/{task_id}/links?map_index={map_index}"
        found: dict[str, str] = self.airflow.request("GET", place)["extra_links"]
        return found

    def mark(self, task_id: str, state: str) -> None:
        """Mark a task, as a person does on the page."""
        self.airflow.request("PATCH", f"{self.path}/taskInstances/{task_id}", {"new_state": state})

    def delete(self) -> None:
        """Mark the run failed and delete it at once, as Airflow asks of a run that is not over."""
        self.airflow.request("PATCH", self.path, {"state": "failed"})
        self.airflow.request("DELETE", self.path)

    def tries(self, task_id: str) -> int:
        """Return the number of a task's latest try."""
        return int(self.airflow.request("GET", f"{self.path}/taskInstances/{task_id}")["try_number"])

    def clear(self, *task_ids: str) -> None:
        """Clear tasks, as a person does on the page."""
        self.airflow.request(
            "POST",
            f"/api/v2/dags/{self.dag_id}/clearTaskInstances",
            {"dry_run": False, "dag_run_id": self.run_id, "task_ids": list(task_ids), "only_failed": False},
        )


def until(look: Callable[[], Any], timeout: float) -> Any:
    """Return what ``look`` gives as soon as it is true. It may ask Airflow, which has other things to do."""
    return waiting.until(look, timeout, pause=0.3)
