"""PostgreSQL to PostgreSQL: raw COPY, Spark JDBC, other tools and this product's two paths, in one interleaved run.

``python -m benchmarks.pg_to_pg --rows 5000000 --rounds 3``. Every round gives each side one turn, in another order;
the table shows medians over the rounds.
"""

import sys
from dataclasses import dataclass
from typing import ClassVar

from benchmarks.command import main
from benchmarks.comparison import Comparison
from benchmarks.results import Goal, cpu, steady, total, wall
from benchmarks.sides.side import SCHEMA, Order
from benchmarks.stage import SINK, Stage
from dev import tpch
from dev.fingerprints import Fingerprint
from dev.services import Server

SOURCE = "source"


@dataclass(kw_only=True)
class PgToPg(Stage):
    """Source and target are databases of one PostgreSQL."""

    sparkless: ClassVar[tuple[str, ...]] = ("raw", "pgcopydb", "dlt", "ingestr", "sling")

    def fill(self, table: str, rows: int) -> Fingerprint:
        """Generate a table."""
        with self.connected("postgres") as connection:
            if not connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [SOURCE]).fetchone():
                connection.execute(f"CREATE DATABASE {SOURCE}")
        with self.connected(SOURCE) as connection:
            tpch.fill(connection, table, rows=rows)
            return tpch.fingerprint(connection, "public", table)

    def create(self, table: str) -> None:
        """Make a table of the same columns."""
        with self.connected(SINK) as connection:
            tpch.create_empty(connection, SCHEMA, table)

    def fingerprint(self, table: str) -> Fingerprint:
        """Ask PostgreSQL."""
        with self.connected(SINK) as connection:
            return tpch.fingerprint(connection, SCHEMA, table)

    def order(self, table: str, spark: Server | None) -> Order:
        """Name the source's database."""
        return Order(**self.told(table, spark), source=SOURCE)


COMPARISON = Comparison(
    module="pg_to_pg",
    heading="PostgreSQL to PostgreSQL",
    moved="rows of TPC-H's `lineitem` go from one database into another",
    stage=PgToPg,
    rows=5_000_000,
    sides={
        "raw": "raw COPY | COPY",
        "jdbc-default": "Spark JDBC, default",
        "jdbc-tuned": "Spark JDBC, tuned",
        "copy": "ours, copy path",
        "frame": "ours, frame path",
        "pgcopydb": "pgcopydb",
        "dlt": "dlt",
        "ingestr": "ingestr",
        "sling": "Sling",
    },
    ours=("copy", "frame"),
    parts={"spark": "Spark", "postgres": "PostgreSQL", "client": "client"},
    steady=("raw", "copy", "frame"),
    speed_against="jdbc-tuned",
    cpu_against="raw",
    goals=(
        Goal(
            sentence="copy path: at least 2 times as fast as tuned Spark JDBC",
            figure=wall,
            over="jdbc-tuned",
            under="copy",
            least=2,
        ),
        Goal(
            sentence="copy path: CPU of Spark, PostgreSQL and lane at most 1.7 times that of raw COPY",
            figure=cpu,
            over="copy",
            under="raw",
            most=1.7,
        ),
        Goal(
            sentence="copy path: at least 0.50 of raw COPY's rows per CPU second, the session's start included",
            figure=total,
            over="raw",
            under="copy",
            least=0.5,
        ),
        Goal(
            sentence="copy path: at least 0.60 of raw COPY's rows per CPU second, steady",
            figure=steady,
            over="raw",
            under="copy",
            least=0.6,
        ),
        *(
            Goal(
                sentence=f"copy path: at least {least:g} times the rows per CPU second of {title}",
                figure=total,
                over=side,
                under="copy",
                least=least,
            )
            for side, title, least in (
                ("jdbc-tuned", "tuned Spark JDBC", 3),
                ("dlt", "dlt", 4),
                ("ingestr", "ingestr", 1.3),
                ("sling", "Sling", 2),
            )
        ),
    ),
    target="a new, empty table without a key",
    check="a query that belongs to none of the sides",
    ways="""
- **raw COPY | COPY**: one client (asyncpg) passes a binary COPY from one connection to the other. The floor.
- **Spark JDBC, default**: `read.jdbc` and `write.jdbc` without any option. It holds the whole table in memory.
- **Spark JDBC, tuned**: 8 partitions with bounds, `fetchsize` and `batchsize` 10,000, `reWriteBatchedInserts=true`.
- **ours, copy path**: no transform.
- **ours, frame path**: the transform `SELECT * FROM source`.
- **pgcopydb** (of the system): `copy table-data` of this table, four jobs, read in parts of 64 MB, into an empty table.
- **dlt** (1.31): `sql_table` with the backend `pyarrow` and chunks of 50,000 rows, files of CSV, `replace`.
- **ingestr** (0.15.9) and **Sling** (1.4.11): a full refresh with what they come with.

The last three make their target themselves. The turn of the last four is one command with its start, and its CPU is the
client's.
""",
)

if __name__ == "__main__":
    sys.exit(main(COMPARISON))
