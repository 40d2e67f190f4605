"""A table of MySQL with random columns into a table of PostgreSQL."""

import random
from dataclasses import dataclass, field, replace
from typing import Any

import pymysql

from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.snapshot.plan import Plan
from tests.chaos.subjects.subject import Content, TableOracle
from tests.support import mysql
from tests.support.composed import Composed
from tests.support.postgres import connected, run

TYPES = {
    "int": "FLOOR(RAND() * 1000000)",
    "bigint": "FLOOR(RAND() * 1000000000000)",
    "varchar(60)": "MD5(RAND())",
    "longtext": "REPEAT(MD5(RAND()), 60)",
    "decimal(20,4)": "ROUND(RAND() * 1000000, 4)",
    "datetime(6)": "TIMESTAMPADD(SECOND, -FLOOR(RAND() * 1000000), '2026-01-01 00:00:00.123456')",
    "date": "DATE_SUB('2026-01-01', INTERVAL FLOOR(RAND() * 900) DAY)",
    "varbinary(40)": "UNHEX(MD5(RAND()))",
}
PAIRS = (
    ("append", "static"),
    ("upsert", "static"),
    ("replace", "static"),
    ("upsert", "catch_up"),
    ("upsert", "catch_up"),
    ("upsert", "catch_up"),
)
SETTINGS = ("SET SESSION lock_wait_timeout = 1", "SET SESSION innodb_lock_wait_timeout = 1")
SPACE = 100_000


@dataclass(kw_only=True)
class MySQLSubject:
    """See ``subject.Subject``."""

    seed: int
    database: Endpoint
    target: Endpoint
    system: str = "mysql"
    history: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Draw what it is."""
        self.draw = draw = random.Random(f"mysql {self.seed}")
        self.mode, self.consistency = draw.choice(PAIRS)
        self.key = draw.choice(("k int PRIMARY KEY", "k bigint PRIMARY KEY", "k varchar(40) PRIMARY KEY"))
        self.columns = {f"c{number}": draw.choice(list(TYPES)) for number in range(draw.randint(1, 4))}
        self.cascades = "varchar" not in self.key and draw.random() < 0.1
        self.rows = draw.randint(60, 500)
        self.restarts = self.consistency != "catch_up"
        self._oracle = TableOracle(mode=self.mode, consistency=self.consistency)
        self._next, self._number = SPACE, 0

    def composed(self) -> Composed:
        """See ``Subject``."""
        body = ", ".join([self.key, *(f"{name} {type_}" for name, type_ in self.columns.items())])
        statements = [f"CREATE TABLE t ({body})"]
        if self.cascades:
            type_ = self.key.split()[1]
            statements = [
                f"CREATE TABLE parent (k {type_} PRIMARY KEY)",
                f"CREATE TABLE t ({body}, FOREIGN KEY (k) REFERENCES parent (k) ON DELETE CASCADE ON UPDATE CASCADE)",
            ]
        self.history += statements
        self._run(*statements, *self._filled(1, self.rows))
        rows = max(1, self.rows // self.draw.randint(2, 6))
        return Composed(
            source=replace(self.database, conn_id="source"),
            sink=replace(self.target, conn_id="sink"),
            ledger_url="",
            remote="",
            kind="mysql",
            table="t",
            mode=self.mode,
            consistency=self.consistency,
            budget=Budget(range_rows=rows, credits=self.draw.choice((1, 1, 2, 3))),
        )

    def change(self, *, define: bool, between: bool) -> str:
        """See ``Subject``."""
        if self.consistency == "static" and not between:
            return ""
        if define:
            choices = [
                *(self._add, self._drop, self._add_again, self._rename, self._expand, self._retype),
                *(self._truncate, self._swap, self._anew, self._rebuild, self._load, self._statement),
            ]
        else:
            choices = [self._insert, self._update, self._move, self._delete, self._replace, self._undone]
        statements = self.draw.choice(choices)()
        try:
            self._run(*statements)
        except (pymysql.Error, OSError) as error:
            return f"(not possible in full: {statements}: {error})"
        return "; ".join(statements)

    def empty_target(self) -> str:
        """See ``Subject``."""
        if self.mode != "append" or not run(self.target, "SELECT to_regclass('raw.t')")[0][0]:
            return ""
        run(self.target, "TRUNCATE raw.t")
        return "the target is emptied"

    def capture(self, plan_id: str) -> None:
        """See ``Subject``."""
        self._oracle.captured[plan_id].append(self._source())

    def check_finished(self, plan: Plan) -> None:
        """See ``Subject``."""
        self._oracle.check_finished(plan, self._target())

    def check_settled(self, plan_id: str) -> None:
        """See ``Subject``."""
        self._oracle.check_settled(self._source(), self._target())

    def _run(self, *statements: str) -> list[tuple[Any, ...]]:
        return mysql.run(self.database, *SETTINGS, *statements)

    def _source(self) -> Content:
        names = [name for name, _ in self._types()]
        rows = self._run(f"SELECT {', '.join(f'`{name}`' for name in names)} FROM t")
        return Content.of(names, [tuple(map(_text, row)) for row in rows])

    def _target(self) -> Content:
        with connected(self.target) as connection:
            cursor = connection.execute("SELECT * FROM raw.t")
            names = [column.name for column in cursor.description or ()]
            return Content.of(names, [tuple(map(_text, row)) for row in cursor.fetchall()])

    def _types(self) -> list[tuple[str, str]]:
        query = (
            "SELECT COLUMN_NAME, COLUMN_TYPE FROM information_schema.COLUMNS"
            " WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = 't' ORDER BY ORDINAL_POSITION"
        )
        return [(name, type_ if isinstance(type_, str) else type_.decode()) for name, type_ in self._run(query)]

    def _filled(self, low: int, high: int, table: str = "t") -> list[str]:
        columns = self._types()
        names = ", ".join(f"`{name}`" for name, _ in columns)
        values = ", ".join(self._key("i") if name == "k" else self._made(type_) for name, type_ in columns)
        if not columns:  # it is just being made
            names = ", ".join(["k", *self.columns])
            values = ", ".join([self._key("i"), *map(self._made, self.columns.values())])
        numbers = f"WITH RECURSIVE n AS (SELECT {low} i UNION ALL SELECT i + 1 FROM n WHERE i < {high})"
        made = [f"INSERT IGNORE INTO {table} ({names}) {numbers} SELECT {values} FROM n"]
        return [f"INSERT IGNORE INTO parent {numbers} SELECT i FROM n", *made] if self.cascades else made

    def _key(self, number: str) -> str:
        return f"CONCAT('key', {number})" if "varchar" in self.key else number

    def _made(self, type_: str) -> str:
        return f"IF(RAND() < 0.1, NULL, {TYPES.get(type_, '1')})"

    def _some(self, share: float = 0.03) -> str:
        return f"CRC32(CONCAT(k, 's{self.draw.randint(1, 9999)}')) % 1000 < {int(share * 1000)}"

    def _column(self) -> tuple[str, str] | None:
        others = [(name, type_) for name, type_ in self._types() if name != "k"]
        return self.draw.choice(others) if others else None

    def _insert(self) -> list[str]:
        number = self.draw.randint(1, 40)
        self._next += number
        return self._filled(self._next, self._next + number)

    def _update(self) -> list[str]:
        column = self._column()
        return [f"UPDATE t SET `{column[0]}` = {self._made(column[1])} WHERE {self._some()}"] if column else []

    def _move(self) -> list[str]:
        if "varchar" in self.key:
            return [f"UPDATE t SET k = CONCAT(k, 'm{self.draw.randint(1, 999)}') WHERE {self._some()}"]
        table = "parent" if self.cascades else "t"
        return [f"UPDATE {table} SET k = -k - {self.draw.randint(1, SPACE // 2)} WHERE {self._some()}"]

    def _delete(self) -> list[str]:
        return [f"DELETE FROM {'parent' if self.cascades else 't'} WHERE {self._some(self.draw.choice((0.01, 0.2)))}"]

    def _replace(self) -> list[str]:
        low = self.draw.randint(1, self.rows)
        return [each.replace("INSERT IGNORE INTO t ", "REPLACE INTO t ") for each in self._filled(low, low + 5)]

    def _undone(self) -> list[str]:
        return ["BEGIN", *self._delete(), "SAVEPOINT s", *self._update(), "ROLLBACK TO s", *self._insert(), "COMMIT"]

    def _add(self) -> list[str]:
        self._number += 1
        default = self.draw.choice(("", " DEFAULT NULL", " DEFAULT 7"))
        return [f"ALTER TABLE t ADD COLUMN a{self._number} {'int' if default else 'varchar(60)'}{default}"]

    def _drop(self) -> list[str]:
        column = self._column()
        return [f"ALTER TABLE t DROP COLUMN `{column[0]}`"] if column else []

    def _add_again(self) -> list[str]:
        column = self._column()
        if column is None:
            return []
        return [f"ALTER TABLE t DROP COLUMN `{column[0]}`", "ALTER TABLE t ADD COLUMN `{}` {}".format(*column)]

    def _rename(self) -> list[str]:
        column = self._column()
        self._number += 1
        return [f"ALTER TABLE t RENAME COLUMN `{column[0]}` TO r{self._number}"] if column else []

    def _expand(self) -> list[str]:
        column = self._column()
        if column is None:
            return []
        name, type_ = column
        return [
            f"ALTER TABLE t ADD COLUMN xx {type_}",
            f"UPDATE t SET xx = {self._made(type_)}",
            f"ALTER TABLE t DROP COLUMN `{name}`",
            f"ALTER TABLE t RENAME COLUMN xx TO `{name}`",
        ]

    def _retype(self) -> list[str]:
        found = [name for name, type_ in self._types() if type_ == "int" and name != "k"]
        return [f"ALTER TABLE t MODIFY `{self.draw.choice(found)}` bigint"] if found else []

    def _truncate(self) -> list[str]:
        return ["TRUNCATE TABLE t", *(self._filled(1, self.rows) if self.draw.random() < 0.5 else [])]

    def _swap(self) -> list[str]:
        self._number += 1
        return [
            "CREATE TABLE t_new LIKE t",
            *self._filled(1, 60, "t_new"),
            f"RENAME TABLE t TO t_old{self._number}, t_new TO t",
        ]

    def _anew(self) -> list[str]:
        return ["CREATE TABLE t_new LIKE t", "DROP TABLE t", "RENAME TABLE t_new TO t", *self._filled(1, 60)[:1]]

    def _rebuild(self) -> list[str]:
        return ["ALTER TABLE t ENGINE = InnoDB"]

    def _load(self) -> list[str]:
        """Insert in one of the log's formats: a statement may stand where rows are expected."""
        format_ = self.draw.choice(("ROW", "STATEMENT", "MIXED"))
        return [f"SET SESSION binlog_format = {format_}", *self._filled(self._next + 50, self._next + 60)]

    def _statement(self) -> list[str]:
        return ["SET SESSION binlog_format = STATEMENT", *self._update()]


def _text(value: Any) -> Any:
    """Return a value as both databases' drivers can be compared by."""
    return bytes(value) if isinstance(value, (bytes, bytearray, memoryview)) else None if value is None else str(value)
