"""`make matrix`: hydrations with each version of Airflow, of Spark's client and of Spark's server.

Prints the tables that docs/reference/versions.md shows: first what an installation changes, then the cells.
`MATRIX_ONLY=3.2/4.0/4.1` runs one cell alone: Airflow, client and server.
"""

import json
import os
import secrets
import subprocess
import sys
from contextlib import closing
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from dev import events
from dev.databases import open_database
from dev.matrix import additions, environments
from dev.matrix.environments import AIRFLOWS, CACHE, CLIENTS, ROOT, SERVERS
from dev.services import Server, Services

ROWS = 20_000
EXPECTED = {
    "copy": "SELECT id, amount, comment, at FROM public.orders",
    "sql": "SELECT id, amount, upper(comment), at FROM public.orders",
    "python": "SELECT id, amount, upper(comment), at FROM public.orders",
}
START = """
import json, sys
from pathlib import Path
from dev.services import Services
server = Services(Path(sys.argv[1])).up("connect")["connect"]
print(json.dumps({"host": server.host, "port": server.port, "ui": server.ui_url}))
"""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """Versions that run together."""

    airflow: str
    client: str
    server: str

    def __str__(self) -> str:
        return f"{self.airflow}/{self.client}/{self.server}"


def main() -> int:
    """Run the cells by server, print what failed at once and the table in the end; 1 where anything was wrong."""
    only = os.environ.get("MATRIX_ONLY", "").split()
    every = [Cell(server=s, airflow=a, client=c) for s, a, c in product(SERVERS, AIRFLOWS, CLIENTS)]
    if unknown := set(only) - set(map(str, every)):
        raise SystemExit(f"There is no cell {', '.join(sorted(unknown))}; there are {', '.join(map(str, every))}.")
    only_adds = bool(only) or additions.run()
    cells = [cell for cell in every if not only or str(cell) in only]
    services = Services(CACHE / "services", owner_pid=os.getpid())
    try:
        running = services.up("postgres", "kafka")
        _fill(running["postgres"], running["kafka"])
        found = {}
        for version in SERVERS:
            mine = [cell for cell in cells if cell.server == version]
            if mine:
                with _Connect(version) as connect:
                    for cell in mine:
                        found[cell] = _run(cell, running["postgres"], running["kafka"], connect)
                        print(f"{cell}: {found[cell] or 'equal'}", flush=True)
    finally:
        services.down()
    print("\n".join(_table(found)))
    return int(any(found.values()) or not only_adds)


class _Connect:
    """A Spark Connect server of one version, while this is open."""

    def __init__(self, version: str) -> None:
        self._python, self._home = environments.spark(version), CACHE / f"connect-{version}"

    def __enter__(self) -> dict[str, Any]:
        done = subprocess.run(
            [self._python, "-c", START, self._home],
            cwd=ROOT,
            env=_environ(),
            capture_output=True,
            text=True,
            check=True,
        )
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def __exit__(self, *_: object) -> None:
        Services(self._home).down()


def _run(cell: Cell, postgres: Server, kafka: Server, connect: dict[str, Any]) -> str:
    """Run one cell and return what was wrong, empty where every target is equal."""
    name = f"run_{secrets.token_hex(4)}"
    home = CACHE / "runs" / name
    (home / "lake").mkdir(parents=True)
    with closing(open_database(postgres, "postgres")) as link:
        link.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    with closing(open_database(postgres, "warehouse")) as link:
        link.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(name)))
    python = environments.airflow(cell.airflow, cell.client)
    done = subprocess.run(
        [python, "-m", "dev.matrix.cell"],
        input=json.dumps(_wanted(name, home, postgres, kafka, connect)),
        cwd=ROOT,
        env=_environ(),
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


def _wanted(name: str, home: Path, postgres: Server, kafka: Server, connect: dict[str, Any]) -> dict[str, Any]:
    def database(schema: str, conn_type: str = "postgres") -> dict[str, Any]:
        place = {"host": postgres.host, "port": postgres.port, "login": postgres.user, "password": postgres.password}
        return {"conn_type": conn_type, "schema": schema, **place}

    return {
        "home": str(home),
        "lake": str(home / "lake"),
        "schema": name,
        "metadata": f"postgresql+psycopg://{postgres.user}:{postgres.password}@{postgres.host}:{postgres.port}/{name}",
        "connections": {
            "shop_db": database("shop"),
            "warehouse": database("warehouse"),
            "backpressure_default": database(name, "backpressure"),
            "events": {"conn_type": "kafka", "extra": json.dumps({"bootstrap.servers": kafka.url})},
            "spark": {
                "conn_type": "spark_connect",
                "host": connect["host"],
                "port": connect["port"],
                "extra": json.dumps({"ui_url": connect["ui"]}),
            },
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
    return {**kept, "PYTHONPATH": str(ROOT)}


def _table(found: dict[Cell, str]) -> list[str]:
    """Return the table, in Markdown."""
    lines = [f"| Airflow | Client of Spark | {' | '.join(SERVERS)} |", "|---" * (2 + len(SERVERS)) + "|"]
    for airflow, client in product(AIRFLOWS, CLIENTS):
        cells = [found.get(Cell(airflow=airflow, client=client, server=server)) for server in SERVERS]
        said = ["" if cell is None else cell or "equal" for cell in cells]
        if any(said):
            lines.append(f"| {airflow} | {client} | {' | '.join(said)} |")
    return lines


if __name__ == "__main__":
    sys.exit(main())
