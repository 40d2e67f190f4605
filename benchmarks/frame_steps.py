"""Where the frame path's CPU goes: `lineitem` from PostgreSQL into a file of Parquet, a step more in each turn.

`python -m benchmarks.frame_steps --rows 1000000 --rounds 3`, without Spark: what a row costs in a worker, beside the
worker's start. The server's CPU is that of the one backend which reads.
"""

import argparse
import os
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import psycopg
import pyarrow

from airflow_provider_backpressure.connectors.lake.base_table import address_of, open_table
from airflow_provider_backpressure.connectors.lake.markers import Attempt
from airflow_provider_backpressure.connectors.lake.tasks.parquet_writer import Files
from airflow_provider_backpressure.connectors.postgres.tasks.copy_streams import CopyOut
from airflow_provider_backpressure.connectors.postgres.tasks.read import CSV, way_out
from airflow_provider_backpressure.connectors.relational.csv_blocks import parse, pieces
from airflow_provider_backpressure.core.endpoints import NOWHERE
from airflow_provider_backpressure.core.snapshot.spark_messages import Column
from airflow_provider_backpressure.spark.column_types import arrow_schema
from airflow_provider_backpressure.spark.value_hash import BatchSum
from benchmarks import machine, page, report
from benchmarks.copy_loop import SETTINGS, TABLE, Clock
from dev import tpch
from dev.databases import open_database
from dev.services import Server, Services

HEADING = "The frame path's steps"
ABOUT = """What a row of `lineitem` costs on its way from PostgreSQL into a file of Parquet, without Spark and
beside a worker's start, in microseconds of CPU; each line holds those above it:

```sh
{command}
```"""
COLUMNS = (
    "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute"
    " WHERE attrelid = %s::regclass AND attnum > 0 ORDER BY attnum"
)


class Steps:
    """What a range's task does, up to a step."""

    def __init__(self, connection: psycopg.Connection, folder: Path) -> None:
        self._connection, self._folder = connection, folder
        found = connection.execute(COLUMNS, (TABLE,)).fetchall()
        self._columns = [Column(name=name, type=type_) for name, type_ in found]

    def texts(self) -> Iterator[bytes]:
        """Take the rows' text from the server."""
        return pieces(b"".join(messages) for messages in CopyOut(self._connection, f"COPY {TABLE} TO STDOUT ({CSV})"))

    def typed(self) -> Iterator[pyarrow.RecordBatch]:
        """Make Arrow batches of it."""
        for text in self.texts():
            yield from parse(text, self._columns, way_out).to_batches()

    def hashed(self) -> Iterator[BatchSum]:
        """Count and hash them."""
        total = BatchSum()
        for batch in self.typed():
            total.update(batch)
            yield total

    def written(self) -> Iterator[Files]:
        """Write them as well."""
        attempt = Attempt(plan_id="p" * 32, epoch=1, slice_id="0.0", attempt=1, bounds={})
        table = open_table("parquet", address_of(path=str(self._folder / "lake")), NOWHERE)
        files = Files(table=table, attempt=attempt, schema=arrow_schema(self._columns))
        for batch in self.typed():
            files.put(batch)
            yield files
        files.finish()
        files.drop()


STEPS: dict[str, Callable[[Steps], Iterator[object]]] = {
    "text from the server": Steps.texts,
    "… typed": Steps.typed,
    "… typed, hashed": Steps.hashed,
    "… typed, hashed, written": Steps.written,
}


def measure(server: Server, rows: int, rounds: int, folder: Path) -> dict[str, tuple[float, float]]:
    """Return for each step the microseconds of CPU that a row takes up to it, of the worker and of the server."""
    found: dict[str, list[tuple[float, float]]] = {step: [] for step in STEPS}
    with open_database(server, "postgres") as connection:
        tpch.fill(connection, TABLE, rows=rows)
    for _ in range(rounds):
        for step, go in STEPS.items():
            with open_database(server, "postgres") as connection:
                pid = connection.info.backend_pid
                clock = Clock(pid, pid)
                deque(go(Steps(connection, folder)), maxlen=0)
                turn = clock.turn(rows, "")
            found[step].append((turn.worker / rows * 1e6, turn.source / rows * 1e6))
    return {step: (median(own for own, _ in each), median(other for _, other in each)) for step, each in found.items()}


def table(found: dict[str, tuple[float, float]]) -> str:
    """Return the figures as Markdown."""
    rows = [(step, f"{own:.2f}", f"{other:.2f}", f"{own + other:.2f}") for step, (own, other) in found.items()]
    return report.markdown(("up to", "worker", "server", "both"), rows)


def main() -> int:
    """Measure and print."""
    arguments = argparse.ArgumentParser(prog="python -m benchmarks.frame_steps", description=__doc__)
    arguments.add_argument("--rows", type=int, default=1_000_000)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--write-docs", action="store_true", help=f"write the section {HEADING!r} of benchmarks.md")
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="frame-steps-") as home:
        services = Services(Path(home) / "services", owner_pid=os.getpid())
        try:
            server = services.up("postgres", settings={"postgres": SETTINGS})["postgres"]
            found = measure(server, given.rows, given.rounds, Path(home))
        finally:
            services.down(remove=True)
    print(table(found))
    if given.write_docs:
        command = f"python -m benchmarks.frame_steps --rows {given.rows} --rounds {given.rounds}"
        page.write(
            HEADING, "\n\n".join([ABOUT.format(command=command), table(found), report.machine(machine.describe())])
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
