"""MySQL to PostgreSQL: this product, a plain client, and Spark's own JDBC source and sink, both tuned.

``python -m benchmarks.mysql_to_pg --rows 2000000 --rounds 3``. Every round gives each side one turn, in another order;
the table shows medians over the rounds, and where the CPU time goes.
"""

import sys
from dataclasses import dataclass

from benchmarks.command import main
from benchmarks.comparison import Comparison
from benchmarks.results import Goal, wall
from benchmarks.sides.side import SCHEMA, Order
from benchmarks.stage import SETTINGS, SINK, Stage, login
from dev import erp, fingerprints, tpch
from dev.fingerprints import Fingerprint
from dev.services import Server


@dataclass(kw_only=True)
class MysqlToPg(Stage):
    """The source is a MySQL whose cache holds the table, the target a database of PostgreSQL."""

    beside = ("mysql",)
    # The floor lets MySQL write a file, for which there must be no rule where to.
    settings = {**SETTINGS, "mysql": {"innodb_buffer_pool_size": "2G", "secure_file_priv": ""}}
    sparkless = ("mysql-raw",)
    jars = ("postgres", "mysql")

    def fill(self, table: str, rows: int) -> Fingerprint:
        """Generate a table."""
        erp.fill(self.servers["mysql"], rows=rows, table=table)
        return erp.fingerprint(self.servers["mysql"], table=table)

    def create(self, table: str) -> None:
        """Make a table of the same columns."""
        self.create_table(table, erp.COPIED)

    def fingerprint(self, table: str) -> Fingerprint:
        """Ask PostgreSQL."""
        with self.connected(SINK) as connection:
            return fingerprints.in_postgres(connection, SCHEMA, table, tpch.COLUMNS)

    def order(self, table: str, spark: Server | None) -> Order:
        """Say where MySQL is."""
        return Order(**self.told(table, spark), mysql=login(self.servers["mysql"]), source=erp.DATABASE)


COMPARISON = Comparison(
    module="mysql_to_pg",
    heading="MySQL to PostgreSQL",
    moved="rows of TPC-H's `lineitem` go from MySQL into PostgreSQL",
    stage=MysqlToPg,
    rows=2_000_000,
    sides={"mysql-raw": "raw OUTFILE, COPY", "mysql": "ours", "mysql-jdbc": "Spark JDBC, tuned"},
    ours=("mysql",),
    parts={"spark": "Spark", "mysql": "MySQL", "postgres": "PostgreSQL", "client": "client"},
    steady=("mysql-raw", "mysql", "mysql-jdbc"),
    speed_against="mysql-jdbc",
    cpu_against="mysql-raw",
    goals=(
        Goal(
            sentence="ours: at least 2 times as fast as tuned Spark JDBC",
            figure=wall,
            over="mysql-jdbc",
            under="mysql",
            least=2,
        ),
    ),
    target="a new, empty table without a key",
    check="queries that belong to none of the sides (MD5 of each row, on either server)",
    ways="""
- **raw OUTFILE, COPY**: MySQL writes a file as COPY takes it, and one client (asyncpg) passes that on. The floor.
- **ours**: no transform. MySQL makes text of the rows, which goes into COPY.
- **Spark JDBC, tuned**: `read.jdbc` with 8 partitions and bounds, `useCursorFetch=true` and `fetchsize` 10,000;
  `write.jdbc` with `reWriteBatchedInserts=true` and `batchsize` 10,000.
""",
    jars=("postgres", "mysql"),
    packages=("pymysql",),
)

if __name__ == "__main__":
    sys.exit(main(COMPARISON))
