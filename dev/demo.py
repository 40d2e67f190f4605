"""The demo: PostgreSQL, MySQL and Kafka go into PostgreSQL and tables of files through Airflow and Spark, verified.

``up`` is idempotent: what runs is used, what is filled stays, and a table that is in already is only verified.
"""

import io
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn

from airflow_provider_backpressure.core.progress.rates_and_eta import total_progress
from airflow_provider_backpressure.ledger.repository import SqlLedger
from dev import environments, erp, events, lake, lake_connectors, processes, sources, stock, tpch
from dev.airflow import PID_FILE, USER, Airflow, AirflowError
from dev.databases import open_database
from dev.services import Server, ServiceError, Services

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / ".demo"
LAKE = HOME / "lake"
CLUSTER_LAKE = LAKE / "cluster"
"""Tables of the catalog that Spark has."""
ENVIRONMENTS = ROOT / ".cache" / "demo"
FORMATS = ("confluent-kafka", "deltalake", "pyiceberg[sql-sqlite]", "pymysql")
SERVERS = ("postgres", "mysql", "kafka", "connect")
DATABASES = ("airflow", "shop", "warehouse")
COPIES = {"postgres_hydrate": "raw.lineitem", "postgres_task_per_range": "raw.lineitem_by_task"}
ERP, ORDERS, STOCK = "raw.lineitem_mysql", "raw.orders", "lake.raw.stock"
FOLLOWED = "iceberg_follow"
"""The DAG whose source changes while it runs."""
DAGS = {
    **{dag_id: {"postgres": target} for dag_id, target in COPIES.items()},
    "mysql_hydrate": {"postgres": ERP},
    "kafka_hydrate": {"postgres": ORDERS},
    "lake_hydrate": {"parquet": "lineitem", "delta": "lineitem", "iceberg": "raw.lineitem"},
    FOLLOWED: {"spark": STOCK},
}
"""Example DAGs, and the targets that they fill by their kind."""
ENVIRONMENT = HOME / "env.sh"
SIZE = "6 GB of disk"
# Into a file whole lines are written: nobody can widen it later.
console = Console(width=None if sys.stdout.isatty() else 160)


@contextmanager
def stage(text: str) -> Iterator[None]:
    """Show what is under way, also in a file that somebody follows."""
    if console.is_terminal:
        with console.status(text):
            yield
        return
    console.print(text)
    yield


@dataclass(frozen=True, kw_only=True)
class Demo:
    """Everything that is up."""

    postgres: Server
    mysql: Server
    kafka: Server
    airflow: Airflow

    def url(self, database: str) -> str:
        """Return the SQLAlchemy URL of a database."""
        server = self.postgres
        return f"postgresql+psycopg://{server.user}:{server.password}@{server.host}:{server.port}/{database}"

    def database(self, name: str) -> "psycopg.Connection[Any]":
        """Open a database."""
        return open_database(self.postgres, name)


def connections(postgres: Server, mysql: Server, kafka: Server, connect: Server) -> dict[str, dict[str, Any]]:
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
    return {
        "shop_db": database("shop"),
        "warehouse": database("warehouse"),
        "erp": {
            "conn_type": "mysql",
            "host": mysql.host,
            "port": mysql.port,
            "login": mysql.user,
            "password": mysql.password,
            "schema": erp.DATABASE,
        },
        "events": {"conn_type": "kafka", "extra": json.dumps({"bootstrap.servers": kafka.url})},
        "spark_connect_default": spark,
    }


def interpreters() -> tuple[str, str]:
    """Return those of Airflow, which has the package and Spark's light client, and of Spark, which has no Airflow.

    As in a company, neither has what only the other one needs. Their versions are those of the lock.
    """
    locked = ("--constraint", str(ROOT / "requirements.lock"))
    package = ("--editable", f"{ROOT}[kafka,mysql,delta,iceberg]")
    airflow = environments.make(
        ENVIRONMENTS / "airflow", *locked, *package, "apache-airflow", "asyncpg", "psycopg[binary]"
    )
    readers = ("psycopg[binary]", "numpy", "pyarrow", "xxhash", "pandas", *FORMATS)
    spark = environments.make(ENVIRONMENTS / "spark", *locked, "pyspark[connect]", *readers)
    return str(airflow), str(spark)


def start() -> Demo:
    """Start what is not up yet: the servers, the databases, Airflow with its ledger."""
    with stage("An environment for Airflow, and one for Spark …"):
        python, spark_python = interpreters()
    with stage("PostgreSQL, MySQL, Kafka and Spark Connect …"):
        connectors = lake_connectors.make_iceberg_conf(CLUSTER_LAKE)
        servers = Services(HOME / "services").up(*SERVERS, spark_python=spark_python, spark_conf=connectors)
    postgres, mysql, kafka, connect = (servers[name] for name in SERVERS)
    for folder in (LAKE, ROOT / "dags" / "own"):
        folder.mkdir(parents=True, exist_ok=True)
    with open_database(postgres, "postgres") as connection:
        there = {name for (name,) in connection.execute("SELECT datname FROM pg_database")}
        for name in DATABASES:
            if name not in there:
                connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    airflow = Airflow(
        home=HOME / "airflow",
        dags=ROOT / "dags",
        metadata_url=f"postgresql+psycopg://{postgres.user}:{postgres.password}@{postgres.host}:{postgres.port}/airflow",
        connections=connections(postgres, mysql, kafka, connect),
        settings={"LAKE_FOLDER": str(LAKE)},
        python=python,
    )
    airflow.write_environment(ENVIRONMENT)
    if not airflow.running():
        with stage("Airflow: migrating its database and the ledger's tables …"):
            airflow.command("db", "migrate")
        with stage("Airflow: `airflow backpressure setup` …"):
            airflow.command("backpressure", "setup")
        with stage("Airflow: scheduler, triggerer and page …"):
            airflow.start()
    console.print(f"Airflow is up: {airflow.url}  user {USER}  password {airflow.password}")
    console.print(f"For its command line: source {ENVIRONMENT.relative_to(ROOT)} && airflow backpressure status")
    return Demo(postgres=postgres, mysql=mysql, kafka=kafka, airflow=airflow)


def fill(demo: Demo) -> None:
    """Fill the sources, once."""
    with demo.database("shop") as shop:
        sources.fill(shop, demo.mysql, demo.kafka.url, sizes=sources.Sizes(), status=stage)


def watch(demo: Demo, ledger: SqlLedger, dag_id: str, targets: dict[str, str]) -> str:
    """Trigger a DAG, show the progress of its hydrations while it runs, and return the run's last state."""
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
        lines = {
            (kind, target): bar.add_task(f"{dag_id} → {kind} {target}", total=100.0, facts="")
            for kind, target in targets.items()
        }
        while True:
            state = demo.airflow.run_state(dag_id, run_id)
            for (kind, target), line in lines.items():
                for facts, percent in status(ledger, kind, target):
                    bar.update(line, completed=percent, facts=facts)
            if state in ("success", "failed"):
                return state
            time.sleep(0.5)


def follow(demo: Demo, ledger: SqlLedger, dag_id: str, targets: dict[str, str]) -> str:
    """Run a DAG while its source changes, and once more for what came last; return the last state."""
    with stock.changing(lambda: demo.database("shop")):
        state = watch(demo, ledger, dag_id, targets)
    return watch(demo, ledger, dag_id, targets) if state == "success" else state


def status(ledger: SqlLedger, kind: str, target: str) -> Iterator[tuple[str, float]]:
    """Yield a hydration's figures in words and its percentage, once it is there."""
    for hydration in ledger.hydrations():
        identity = hydration.sink_identity
        if hydration.plan is None or not (identity.startswith(f"{kind}:") and identity.endswith(f"/{target}")):
            continue
        progress, gate = total_progress(ledger.statistics(hydration.id)), ledger.gate(hydration.id)
        counts, speed = ledger.counts(hydration.plan.plan_id), ledger.rate(hydration.id)
        unit = hydration.plan.unit
        facts = f"{progress.committed:,} {unit} · range {counts.committed}/{counts.total} · {gate.in_flight} in flight"
        yield facts + (f" · {speed:,.0f} {unit}/s" if speed else ""), progress.percent or 0.0


def verify(demo: Demo) -> bool:
    """Compare every target with the source and say so."""
    with demo.database("shop") as connection:
        source = tpch.fingerprint(connection, "public", "lineitem")
        outcomes = list(lake.compared(LAKE, connection))
        outcomes.append((STOCK, *stock.compared(connection, CLUSTER_LAKE / "raw" / stock.TABLE)))
    with demo.database("warehouse") as connection:
        for target in COPIES.values():
            found = tpch.fingerprint(connection, *target.split("."))
            outcomes.append((target, found[0], found == source))
        outcomes.append((ERP, *erp.equal(demo.mysql, connection, ERP)))
        orders = events.copied(connection, ORDERS)
        outcomes.append((ORDERS, orders[0], orders == events.fingerprint(demo.kafka.url)))
    for target, rows, equal in outcomes:
        console.print(f"target {target}: {rows:,} rows, {'[green]equal' if equal else '[red]DIFFERENT'}")
    return all(equal for *_, equal in outcomes)


def up() -> int:
    """Run the whole demo; 0 where every target is equal to its source."""
    began = time.monotonic()
    console.print(f"Five to fifteen minutes on two cores, {SIZE}: servers, Airflow, sources, then {len(DAGS)} DAGs.")
    demo = start()
    fill(demo)
    ledger = SqlLedger(demo.url("airflow"))
    try:
        states = {
            dag_id: (follow if dag_id == FOLLOWED else watch)(demo, ledger, dag_id, targets)
            for dag_id, targets in DAGS.items()
        }
    finally:
        ledger.close()
    for dag_id, state in states.items():
        if state != "success":
            console.print(f"[red]The DAG {dag_id} ended as {state}: see its tasks' logs on the page.")
    good = set(states.values()) == {"success"} and verify(demo)
    server = demo.postgres
    console.print(
        f"Took {time.monotonic() - began:.0f} s, without the installation. All stays up; `make demo-down` ends it."
    )
    console.print(f"  Page           {demo.airflow.url}  user {USER}  password {demo.airflow.password}")
    console.print(f"  Command line   source {ENVIRONMENT.relative_to(ROOT)} && airflow backpressure status")
    console.print(
        "  Your own DAG   put it into dags/own/: the connections shop_db, warehouse and spark_connect_default are there"
    )
    console.print(
        f"  PostgreSQL     {server.host}:{server.port}, databases shop and warehouse, user {server.user}; the password"
    )
    console.print(f"                 is in {(demo.airflow.home / 'connections.json').relative_to(ROOT)}")
    return 0 if good else 1


def down() -> int:
    """End everything that the demo started. Data stay for the next time."""
    services = Services(HOME / "services")
    names = ", ".join(services.status()) if HOME.exists() else ""
    processes.end(HOME / "airflow" / PID_FILE)
    services.down()
    if not names:
        console.print("Nothing of the demo was running.")
        return 0
    console.print(f"Ended: Airflow, {names}. Their data stay in {HOME.relative_to(ROOT)} for the next `make demo`.")
    return 0


def main(words: list[str]) -> int:
    """Carry out `up` or `down`."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    try:
        return {"up": up, "down": down}[words[0]]()
    except KeyboardInterrupt:
        console.print("Interrupted. `make demo` continues from here, `make demo-down` ends what is up.")
        return 130
    except (AirflowError, ServiceError) as error:
        console.print(f"[red]{error}")
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
