"""PostgreSQL to a folder of Parquet: this product, a plain client, and Spark's own JDBC source and Parquet writer.

``python -m benchmarks.pg_to_parquet --rows 3000000 --rounds 3``. The figure that counts is CPU time: where cores are
free both sides wait for the same server.
"""

import sys
from dataclasses import dataclass

from benchmarks.command import main
from benchmarks.comparison import Comparison
from benchmarks.pg_to_pg import SOURCE, PgToPg
from benchmarks.results import Goal, cpu
from dev import fingerprints, tpch
from dev.fingerprints import Fingerprint


@dataclass(kw_only=True)
class PgToParquet(PgToPg):
    """The source is a database of PostgreSQL, the target a folder."""

    sparkless = ("parquet-raw",)

    def fill(self, table: str, rows: int) -> Fingerprint:
        """Generate a table; the fingerprint is one that files have too."""
        super().fill(table, rows)
        with self.connected(SOURCE) as connection:
            return fingerprints.in_postgres(connection, "public", table, tpch.COLUMNS)

    def create(self, table: str) -> None:
        """Do nothing: the folder was removed, and the writer creates it."""

    def fingerprint(self, table: str) -> Fingerprint:
        """Read the files by pyarrow."""
        return fingerprints.in_files(self.folder, tpch.COLUMNS)


COMPARISON = Comparison(
    module="pg_to_parquet",
    heading="PostgreSQL to Parquet",
    moved="rows of TPC-H's `lineitem` go from a database into a folder of Parquet",
    stage=PgToParquet,
    rows=3_000_000,
    sides={
        "parquet-raw": "raw COPY, Arrow",
        "parquet": "ours",
        "parquet-jdbc": "Spark JDBC to Parquet",
        "parquet-jdbc-zstd": "Spark JDBC to Parquet, zstd",
    },
    ours=("parquet",),
    parts={"spark": "Spark", "postgres": "PostgreSQL", "client": "client"},
    steady=("parquet-raw", "parquet", "parquet-jdbc", "parquet-jdbc-zstd"),
    speed_against="parquet-jdbc",
    cpu_against="parquet-raw",
    goals=(
        Goal(
            sentence="ours: at least 1.7 times the rows per CPU second of tuned Spark JDBC to Parquet",
            figure=cpu,
            over="parquet-jdbc",
            under="parquet",
            least=1.7,
        ),
    ),
    target="a folder that is not there yet",
    check="a reader that belongs to none of the sides (pyarrow, MD5 of each row)",
    ways="""
- **raw COPY, Arrow**: one client (asyncpg) takes a COPY as CSV, Arrow types it, and one file of Parquet is written,
  compressed by zstd. The floor.
- **ours**: `ParquetSink`: the task that reads a range writes its file, compressed by zstd.
- **Spark JDBC to Parquet**: `read.jdbc` with 8 partitions, bounds and `fetchsize` 10,000, then Spark's own writer as it
  comes: snappy, which takes less CPU than zstd and makes larger files. **zstd**: the same, compressed as ours is.
""",
)

if __name__ == "__main__":
    sys.exit(main(COMPARISON))
