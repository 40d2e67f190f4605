"""Other tools that load one PostgreSQL table into another, each installed beside this project and run as its users do.

A turn is one command: the tool's own start is part of it, as it is for its users. Connections go by environment.
"""

import os
import resource
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.sides.side import SCHEMA, Login, Order
from dev.services import Server

FOLDER = Path(__file__).resolve().parents[2] / ".cache" / "peers"
DLT = """
import os, dlt
from dlt.sources.sql_database import sql_database, sql_table
table, schema = os.environ["BENCHMARK_TABLE"], os.environ["BENCHMARK_SCHEMA"]
way = {"schema": "public", "backend": "pyarrow", "chunk_size": 50_000}
at = os.environ["BENCHMARK_SOURCE"]
source = sql_table(at, table=table, **way) if table else sql_database(at, **way)
pipeline = dlt.pipeline(
    "benchmark",
    destination=dlt.destinations.postgres(os.environ["BENCHMARK_SINK"]),
    dataset_name=schema,
    pipelines_dir=os.environ["BENCHMARK_FOLDER"],
)
pipeline.run(source, write_disposition="replace", loader_file_format="csv")
"""


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A tool. ``command`` is made of its environment's folder and the order."""

    packages: tuple[str, ...]
    command: Callable[[Path, Order], list[str]]


def _dlt(home: Path, order: Order) -> list[str]:
    return [str(home / "bin" / "python"), "-c", DLT]


def _ingestr(home: Path, order: Order) -> list[str]:
    names = ["--source-table", f"public.{order.table}", "--dest-table", f"{SCHEMA}.{order.table}"]
    return [str(home / "bin" / "ingestr"), "ingest", "--yes", "--progress", "log", "--full-refresh", *names]


def _sling(home: Path, order: Order) -> list[str]:
    (binary,) = home.glob("lib/python*/site-packages/sling_linux_amd64/bin/sling-linux-amd64")
    source = ["--src-conn", "BENCHMARK_SOURCE", "--src-stream", f"public.{order.table}"]
    sink = ["--tgt-conn", "BENCHMARK_SINK", "--tgt-object", f"{SCHEMA}.{order.table}", "--mode", "full-refresh"]
    return [str(binary), "run", *source, *sink]


TOOLS: Mapping[str, Tool] = {
    "dlt": Tool(packages=("dlt[sql_database,postgres]==1.31.0", "pyarrow", "psycopg[binary]"), command=_dlt),
    "ingestr": Tool(packages=("ingestr==0.15.9",), command=_ingestr),
    "sling": Tool(packages=("sling-linux-amd64==1.4.11",), command=_sling),
}


LAST_WORDS = 2000
"""Characters of what a tool has printed that are shown where it fails: the last line alone seldom says why."""


def run(command: list[str], *, folder: str, environment: Mapping[str, str]) -> None:
    """Run a tool to its end; ``RuntimeError`` with its last words where it fails."""
    done = subprocess.run(
        command, env={**os.environ, **environment}, cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode:
        words = (done.stderr or done.stdout).strip()[-LAST_WORDS:]
        raise RuntimeError(f"it ended with {done.returncode}: {words or 'it said nothing'}")


def make_order(server: Server, *, source: str, sink: str, table: str, rows: int, folder: Path) -> Order:
    """Return the order of a tool that copies between two databases of one server."""
    login = Login(host=server.host, port=server.port, user=server.user or "", password=server.password or "")
    return Order(
        postgres=login,
        source=source,
        sink=sink,
        ledger="",
        table=table,
        rows=rows,
        folder=str(folder),
        credits=1,
        range_rows=rows,
    )


def read_child_seconds() -> float:
    """Return the CPU seconds of the tools that have ended, and of what they have started."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Peer:
    """One tool at work."""

    def __init__(self, name: str, order: Order) -> None:
        """Install it where it is not there yet; no figure counts this."""
        self._tool, self._order, self._home = TOOLS[name], order, FOLDER / name
        if not (self._home / "installed").exists():
            python = self._home / "bin" / "python"
            subprocess.run([sys.executable, "-m", "venv", "--without-pip", self._home], check=True)
            install = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--compile-bytecode"]
            subprocess.run([*install, "--python", python, *self._tool.packages], check=True)
            (self._home / "installed").touch()

    def open(self) -> None:
        """Nothing is kept between two tables."""

    def run(self) -> dict[str, Any]:
        """Load the table, into one that the tool makes for itself. What it keeps between two runs is in the folder."""
        folder = self._order.folder
        Path(folder).mkdir(parents=True, exist_ok=True)
        command = self._tool.command(self._home, self._order)
        run(command, folder=folder, environment=self._environment(folder))
        return {}

    def close(self) -> None:
        """Nothing is kept."""

    def _environment(self, folder: str) -> dict[str, str]:
        order = self._order
        source, sink = (f"{order.url(name)}?sslmode=disable" for name in (order.source, order.sink))
        return {
            "BENCHMARK_SOURCE": source,
            "BENCHMARK_SINK": sink,
            "BENCHMARK_TABLE": order.table,
            "BENCHMARK_SCHEMA": SCHEMA,
            "BENCHMARK_FOLDER": folder,
            "SOURCE_URI": source,
            "DESTINATION_URI": sink,
            # dlt begins with all tables at once by itself, each with a connection: too many for a schema of a thousand.
            "EXTRACT__NEXT_ITEM_MODE": "fifo",
            # None of them may report its use.
            "RUNTIME__DLTHUB_TELEMETRY": "false",
            "INGESTR_DISABLE_TELEMETRY": "true",
            "SLING_DISABLE_TELEMETRY": "true",
            "DO_NOT_TRACK": "1",
            "HOME": folder,
        }
