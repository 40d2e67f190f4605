"""The demo: TPC-H's lineitem goes from one PostgreSQL database into another through Airflow and Spark, verified.

``up`` is idempotent: what runs is used, what is filled stays, and a table that is in already is only verified.
"""

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn

from airflow_provider_backpressure.core.statistics import total_progress
from airflow_provider_backpressure.ledger.store import SqlLedger
from dev import processes, tpch
from dev.airflow import PID_FILE, USER, Airflow, AirflowError
from dev.services import Server, ServiceError, Services

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / ".demo"
ROWS = 3_000_000
DATABASES = ("airflow", "shop", "warehouse")
DAGS = {"postgres_hydrate": "raw.lineitem", "postgres_task_per_range": "raw.lineitem_by_task"}
"""Example DAGs and the targets they fill."""
console = Console()


@dataclass(frozen=True, kw_only=True)
class Demo:
    """Everything that is up."""

    postgres: Server
    connect: Server
    airflow: Airflow

    def url(self, database: str) -> str:
        """Return the SQLAlchemy URL of a database."""
        server = self.postgres
        return f"postgresql+psycopg://{server.user}:{server.password}@{server.host}:{server.port}/{database}"

    def database(self, name: str) -> "psycopg.Connection[Any]":
        """Open a database."""
        return open_database(self.postgres, name)


def open_database(server: Server, name: str) -> "psycopg.Connection[Any]":
    """Connect to a database of the demo's server."""
    return psycopg.connect(
        host=server.host, port=server.port, user=server.user, password=server.password, dbname=name, autocommit=True
    )


def connections(postgres: Server, connect: Server) -> dict[str, dict[str, Any]]:
    """Return the Airflow connections that the example DAGs name."""

    def database(name: str) -> dict[str, Any]:
        return {
            "conn_type": "postgres",
            "host": postgres.host,
            "port": postgres.port,
            "login": postgres.user,
            "password": postgres.password,
            "schema": name,
        }

    spark = {
        "conn_type": "spark_connect",
        "host": connect.host,
        "port": connect.port,
        "extra": json.dumps({"ui_url": connect.ui_url}),
    }
    return {"shop_db": database("shop"), "warehouse": database("warehouse"), "spark_connect_default": spark}


def start() -> Demo:
    """Start what is not up yet: the servers, the databases, Airflow with its ledger."""
    with console.status("PostgreSQL and Spark Connect …"):
        servers = Services(HOME / "services").up("postgres", "connect")
    postgres, connect = servers["postgres"], servers["connect"]
    with open_database(postgres, "postgres") as connection:
        there = {name for (name,) in connection.execute("SELECT datname FROM pg_database")}
        for name in DATABASES:
            if name not in there:
                connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    airflow = Airflow(
        home=HOME / "airflow",
        dags=ROOT / "dags",
        metadata_url=f"postgresql+psycopg://{postgres.user}:{postgres.password}@{postgres.host}:{postgres.port}/airflow",
        connections=connections(postgres, connect),
    )
    if not airflow.running():
        with console.status("Airflow: migrating its database and the ledger's tables …"):
            airflow.command("db", "migrate")
        with console.status("Airflow: `airflow backpressure setup` …"):
            airflow.command("backpressure", "setup")
        with console.status("Airflow: scheduler, triggerer and page …"):
            airflow.start()
    return Demo(postgres=postgres, connect=connect, airflow=airflow)


def fill(demo: Demo) -> None:
    """Fill the source with TPC-H's lineitem, once."""
    with demo.database("shop") as connection:
        there = connection.execute("SELECT to_regclass('public.lineitem') IS NOT NULL").fetchone() == (True,)
        if not there:
            with console.status(f"TPC-H lineitem, {ROWS:,} rows …"):
                tpch.fill(connection, "lineitem", rows=ROWS)


def watch(demo: Demo, ledger: SqlLedger, dag_id: str, target: str) -> str:
    """Trigger a DAG, show its hydration's progress while it runs, and return the run's last state."""
    demo.airflow.wait_for_dag(dag_id)
    run_id = demo.airflow.trigger(dag_id)
    bar = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        TaskProgressColumn(),
        TextColumn("{task.fields[facts]}"),
        TimeElapsedColumn(),
        console=console,
    )
    with bar:
        line = bar.add_task(f"{dag_id} → {target}", total=100.0, facts="")
        while (state := demo.airflow.run_state(dag_id, run_id)) not in ("success", "failed"):
            for facts, percent in status(ledger, target):
                bar.update(line, completed=percent, facts=facts)
            time.sleep(0.5)
        for facts, percent in status(ledger, target):
            bar.update(line, completed=percent, facts=facts)
    return state


def status(ledger: SqlLedger, target: str) -> Iterator[tuple[str, float]]:
    """Yield a hydration's figures in words and its percentage, once it is there."""
    for hydration in ledger.hydrations():
        if hydration.plan is None or not hydration.sink_identity.endswith(f"/{target}"):
            continue
        progress, gate = total_progress(ledger.statistics(hydration.id)), ledger.gate(hydration.id)
        counts, speed = ledger.counts(hydration.plan.plan_id), ledger.rate(hydration.id)
        facts = f"{progress.committed:,} rows · range {counts.committed}/{counts.total} · {gate.in_flight} in flight"
        yield facts + (f" · {speed:,.0f} rows/s" if speed else ""), progress.percent or 0.0


def verify(demo: Demo) -> bool:
    """Compare every target with the source and say so."""
    with demo.database("shop") as connection:
        source = tpch.fingerprint(connection, "public", "lineitem")
    console.print(f"source public.lineitem: {source[0]:,} rows, checksum {source[1]}")
    equal = True
    for target in DAGS.values():
        with demo.database("warehouse") as connection:
            found = tpch.fingerprint(connection, *target.split("."))
        verdict = "[green]equal" if found == source else "[red]DIFFERENT"
        console.print(f"target {target}: {found[0]:,} rows, checksum {found[1]} {verdict}")
        equal = equal and found == source
    return equal


def up() -> int:
    """Run the whole demo; 0 where every target is equal to its source."""
    began = time.monotonic()
    demo = start()
    fill(demo)
    ledger = SqlLedger(demo.url("airflow"))
    try:
        states = {dag_id: watch(demo, ledger, dag_id, target) for dag_id, target in DAGS.items()}
    finally:
        ledger.close()
    for dag_id, state in states.items():
        if state != "success":
            console.print(f"[red]The DAG {dag_id} ended as {state}: see its tasks' logs on the page.")
    good = verify(demo) and set(states.values()) == {"success"}
    console.print(f"{demo.airflow.url}  user {USER}  password {demo.airflow.password}")
    console.print(f"Took {time.monotonic() - began:.0f} s. All stays up; `make demo-down` ends it.")
    return 0 if good else 1


def down() -> int:
    """End everything that the demo started. Data stay for the next time."""
    processes.end(HOME / "airflow" / PID_FILE)
    Services(HOME / "services").down()
    console.print("Nothing of the demo is running.")
    return 0


def main(words: list[str]) -> int:
    """Carry out `up` or `down`."""
    try:
        return {"up": up, "down": down}[words[0]]()
    except KeyboardInterrupt:
        console.print("Interrupted. `make demo` goes on from here, `make demo-down` ends what is up.")
        return 130
    except (AirflowError, ServiceError) as error:
        console.print(f"[red]{error}")
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
