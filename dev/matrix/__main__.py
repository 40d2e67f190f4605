"""`make matrix`: hydrations with each version of Airflow, of Spark's client and of Spark's server.

Prints the tables that docs/reference/versions.md shows: first what an installation changes, then the cells.
`MATRIX_ONLY=3.2/4.0/4.1` runs one cell alone: Airflow, client and server, or `3.2/4.0/submit-3.5` for applications.
`MATRIX_PYTHON=3.13`, or a path, is the Python of all of them, or of Airflow alone beside `MATRIX_SPARK_PYTHON=3.11`.
"""

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from dev import events
from dev.databases import open_database
from dev.matrix import additions, environments
from dev.matrix.environments import AIRFLOWS, CACHE, CLIENTS, ROOT, SERVERS, SUBMITS
from dev.servers.spark import home as home_of_spark
from dev.services import Server, Services

ROWS = 20_000
TRANSFORMS = Path(__file__).parent / "dags" / "matrix_transforms.py"
COLUMNS = (*SERVERS, *(f"submit-{version}" for version in SUBMITS))
AS_THEY_ARE = "SELECT id, amount, comment, at FROM public.orders"
CAPITALS = "SELECT id, amount, upper(comment), at FROM public.orders"
EXPECTED = {"copy": AS_THEY_ARE, "held": AS_THEY_ARE, "sql": CAPITALS, "python": CAPITALS}


@dataclass(frozen=True, kw_only=True)
class Cell:
    """Versions that run together."""

    airflow: str
    client: str
    server: str
    """Version of the Spark Connect server, or ``submit-`` and that of the applications' Spark."""

    def __str__(self) -> str:
        return f"{self.airflow}/{self.client}/{self.server}"


def main() -> int:
    """Run the cells by server, print what failed at once and the table in the end; 1 where anything was wrong."""
    only = os.environ.get("MATRIX_ONLY", "").split()
    every = [Cell(server=s, airflow=a, client=c) for s, a, c in product(COLUMNS, AIRFLOWS, CLIENTS)]
    if unknown := set(only) - set(map(str, every)):
        raise SystemExit(f"There is no cell {', '.join(sorted(unknown))}; there are {', '.join(map(str, every))}.")
    only_adds = bool(only) or additions.run()
    cells = [cell for cell in every if not only or str(cell) in only]
    services = Services(CACHE / "services", owner_pid=os.getpid())
    try:
        running = services.up("postgres", "kafka")
        _fill(running["postgres"], running["kafka"])
        found = {}
        for column in COLUMNS:
            mine = [cell for cell in cells if cell.server == column]
            if mine:
                with _spark(column) as spark:
                    for cell in mine:
                        found[cell] = _run(cell, running["postgres"], running["kafka"], spark)
                        print(f"{cell}: {found[cell] or 'equal'}", flush=True)
    finally:
        services.down()
    print("\n".join(_table(found)))
    return int(any(found.values()) or not only_adds)


@dataclass(frozen=True, kw_only=True)
class _Spark:
    """A Spark: Airflow's connection to it, and what the tasks of its DAGs have in their environment."""

    connection: dict[str, Any]
    settings: dict[str, str]
    programs: Path | None = None
    """Where ``spark-submit`` is."""


@contextmanager
def _spark(column: str) -> Iterator[_Spark]:
    """Give the Spark of a column: a server while this is open, or what applications need."""
    kind, _, version = column.rpartition("-")
    if kind:
        python = environments.application(version)
        conf = {
            "spark.pyspark.python": str(python),
            "spark.pyspark.driver.python": str(python),
            # A driver by another Python than Airflow's does not find what lies beside the DAGs.
            "spark.submit.pyFiles": str(TRANSFORMS),
        }
        connection = {"conn_type": "spark", "host": "local[2]", "extra": json.dumps({"conf": conf})}
        # An application takes ten seconds, so that a table is one.
        # spark-submit would look for it in the environment of the first python3 in PATH, which is Airflow's.
        settings = {"MATRIX_RANGE_ROWS": str(ROWS), "SPARK_HOME": str(home_of_spark(str(python)))}
        yield _Spark(connection=connection, settings=settings, programs=python.parent)
        return
    services = Services(CACHE / f"connect-{version}", owner_pid=os.getpid())
    try:
        server = services.up("connect", spark_python=str(environments.spark(version)))["connect"]
        place = {"host": server.host, "port": server.port, "extra": json.dumps({"ui_url": server.ui_url})}
        yield _Spark(connection={"conn_type": "spark_connect", **place}, settings={})
    finally:
        services.down()


def _run(cell: Cell, postgres: Server, kafka: Server, spark: _Spark) -> str:
    """Run one cell and return what was wrong, empty where every target is equal."""
    name = f"run_{secrets.token_hex(4)}"
    home = CACHE / "runs" / name
    (home / "lake").mkdir(parents=True)
    with closing(open_database(postgres, "postgres")) as link:
        link.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    with closing(open_database(postgres, "warehouse")) as link:
        link.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(name)))
    python = environments.airflow(cell.airflow, cell.client)
    environ = _environ()
    if spark.programs:
        environ["PATH"] = f"{spark.programs}{os.pathsep}{environ['PATH']}"
    done = subprocess.run(
        [python, "-m", "dev.matrix.cell"],
        input=json.dumps(_wanted(name, home, postgres, kafka, spark)),
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        return f"Airflow failed: {done.stderr.strip()[-500:]}"
    failures = {flow: why for flow, why in map(json.loads, done.stdout.splitlines()) if why}
    with closing(open_database(postgres, "shop")) as source, closing(open_database(postgres, "warehouse")) as target:
        for flow in {*EXPECTED, "kafka"} - set(failures):
            failures |= {flow: "differs"} if _differs(source, target, f"{name}.{flow}", flow) else {}
    return "; ".join(f"{flow} {why}" for flow, why in sorted(failures.items()))


def _differs(source: "psycopg.Connection[Any]", target: "psycopg.Connection[Any]", table: str, flow: str) -> bool:
    """Compare by a query that shares nothing with the product's own; of a topic, offsets are counted."""
    if flow == "kafka":
        found = target.execute(f'SELECT count(DISTINCT (partition, "offset")), count(*) FROM {table}').fetchone()
        return found != (ROWS, ROWS)
    checksum = "SELECT count(*), sum(hashtextextended(t::text, 0)) FROM ({}) t"
    expected = source.execute(checksum.format(EXPECTED[flow])).fetchone()
    return target.execute(checksum.format(f"SELECT id, amount, comment, at FROM {table}")).fetchone() != expected


def _wanted(name: str, home: Path, postgres: Server, kafka: Server, spark: _Spark) -> dict[str, Any]:
    def database(schema: str, conn_type: str = "postgres") -> dict[str, Any]:
        place = {"host": postgres.host, "port": postgres.port, "login": postgres.user, "password": postgres.password}
        return {"conn_type": conn_type, "schema": schema, **place}

    return {
        "home": str(home),
        "lake": str(home / "lake"),
        "schema": name,
        "settings": spark.settings,
        "metadata": f"postgresql+psycopg://{postgres.user}:{postgres.password}@{postgres.host}:{postgres.port}/{name}",
        "connections": {
            "shop_db": database("shop"),
            "warehouse": database("warehouse"),
            "backpressure_default": database(name, "backpressure"),
            "events": {"conn_type": "kafka", "extra": json.dumps({"bootstrap.servers": kafka.url})},
            "spark": spark.connection,
        },
    }


def _fill(postgres: Server, kafka: Server) -> None:
    """Make the databases, the source's table and the topic, where they are missing."""
    with closing(open_database(postgres, "postgres")) as link:
        for name in ("shop", "warehouse"):
            if link.execute("SELECT FROM pg_database WHERE datname = %s", [name]).fetchone() is None:
                link.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    with closing(open_database(postgres, "shop")) as link:
        link.execute("DROP TABLE IF EXISTS orders")
        link.execute("CREATE TABLE orders (id bigint PRIMARY KEY, amount numeric(12,2), comment text, at timestamptz)")
        link.execute(
            "INSERT INTO orders SELECT i, i * 1.25, 'comment ' || i, now() FROM generate_series(1, %s) i", [ROWS]
        )
    events.fill(kafka.url, records=ROWS)


def _environ() -> dict[str, str]:
    # Without a virtual environment's own variables: each interpreter has its own.
    kept = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    # Each Java lives for seconds: its second compiler and a parallel collector would cost more than they save.
    short = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC"
    return {**kept, "PYTHONPATH": str(ROOT), "JDK_JAVA_OPTIONS": short}


def _table(found: dict[Cell, str]) -> list[str]:
    """Return the table, in Markdown."""
    lines = [f"| Airflow | Client of Spark | {' | '.join(COLUMNS)} |", "|---" * (2 + len(COLUMNS)) + "|"]
    for airflow, client in product(AIRFLOWS, CLIENTS):
        cells = [found.get(Cell(airflow=airflow, client=client, server=column)) for column in COLUMNS]
        said = ["" if cell is None else cell or "equal" for cell in cells]
        if any(said):
            lines.append(f"| {airflow} | {client} | {' | '.join(said)} |")
    return lines


if __name__ == "__main__":
    sys.exit(main())
