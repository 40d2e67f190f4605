"""Stages whose rows take 370 bytes as text: ``lineitem`` with comments of ten times their length."""

from dataclasses import dataclass

from benchmarks.mysql_to_pg import MysqlToPg
from benchmarks.pg_to_pg import SOURCE, PgToPg
from benchmarks.sides.side import SCHEMA
from benchmarks.stage import SINK, Stage
from dev import erp, tpch
from dev.fingerprints import Fingerprint

COMMENT = 265
"""Characters of a comment, beside the 105 or so of all other columns."""
TYPE, LONGER = f"varchar({COMMENT})", f"rpad(l_comment, {COMMENT}, l_comment)"


class Wide(Stage):
    """What both have: a target that can hold such comments. Comes before the stage whose target it changes."""

    def create(self, table: str) -> None:
        """Make the target as ever, and widen its column."""
        super().create(table)  # type: ignore[safe-super]  # the stage behind this class has one
        with self.connected(SINK) as connection:
            connection.execute(f"ALTER TABLE {SCHEMA}.{table} ALTER l_comment TYPE {TYPE}")


@dataclass(kw_only=True)
class WidePgToPg(Wide, PgToPg):
    """From one database of PostgreSQL into another."""

    def fill(self, table: str, rows: int) -> Fingerprint:
        """Lengthen the comments of a table that was just filled."""
        super().fill(table, rows)
        with self.connected(SOURCE) as connection:
            connection.execute(f"ALTER TABLE {table} ALTER l_comment TYPE {TYPE} USING {LONGER}")
            connection.execute(f"VACUUM (ANALYZE) {table}")
            return tpch.fingerprint(connection, "public", table)


@dataclass(kw_only=True)
class WideMysqlToPg(Wide, MysqlToPg):
    """From MySQL into PostgreSQL."""

    def fill(self, table: str, rows: int) -> Fingerprint:
        """Lengthen the comments of a table that was just filled."""
        super().fill(table, rows)
        server = self.servers["mysql"]
        with erp.connect(server) as connection, connection.cursor() as cursor:
            cursor.execute(f"ALTER TABLE {table} MODIFY l_comment {TYPE} NOT NULL")
            cursor.execute(f"UPDATE {table} SET l_comment = {LONGER}")
            cursor.execute(f"ANALYZE TABLE {table}")
        return erp.fingerprint(server, table=table)
