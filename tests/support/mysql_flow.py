"""The tasks of a group of followed MySQL tables, and what changes their sources: as ``operator_flow``, of a server."""

import json
import random
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pymysql

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.sources import MySQLSource
from tests.support import mysql
from tests.support.ledgers import new_ledger
from tests.support.operator_flow import OperatorFlow
from tests.support.postgres import run
from tests.support.waiting import beside

TABLE = "CREATE TABLE {} (id int PRIMARY KEY, v int, doc longtext)"
FILL = (
    "INSERT INTO {} WITH RECURSIVE n AS (SELECT 1 i UNION ALL SELECT i + 1 FROM n WHERE i < 100)"
    " SELECT i, 0, REPEAT('x', 3000) FROM n"
)
_IN_THE_WAY = frozenset({1062, 1205, 1213})
"""Codes of a key that is taken, of a lock that does not come, of a deadlock."""


@dataclass(frozen=True, kw_only=True)
class MySQLFlow(OperatorFlow):
    """One task group of tables of a MySQL database into those of ``raw``."""

    server: Endpoint
    """The source's database. ``database`` is the target's."""

    @classmethod
    def make_from(cls, server: Endpoint, database: Endpoint, folder: Path, **values: Any) -> "MySQLFlow":
        """Make the tables, each with some rows, and a ledger."""
        new_ledger(folder / "ledger.db")
        made = cls(server=server, database=database, ledger=str(folder / "ledger.db"), **values)
        for name in made.names:
            made.make_table(name)
        return made

    def make_table(self, name: str) -> None:
        """Make a table."""
        self.change(TABLE.format(name), FILL.format(name))

    def change(self, *statements: str) -> list[tuple[Any, ...]]:
        """Do things to the source."""
        return mysql.run(self.server, *statements)

    def declare_source(self) -> Any:
        """Return the declared source."""
        tables = self.tables or tuple(f"{self.server.database}.{name}" for name in self.names)
        return MySQLSource(conn_id="source", tables=tables)

    @classmethod
    def read(cls, path: Path) -> "MySQLFlow":
        """Read what :meth:`process` wrote."""
        value: dict[str, Any] = json.loads(path.read_text())
        places = {name: Endpoint(**value[name]) for name in ("database", "server")}
        return cls(**{**value, **places, "names": tuple(value["names"]), "tables": ()})

    def differs(self, *names: str) -> dict[str, tuple[int, int]]:
        """Return how many rows only the source and only the target has, of the tables that are not the same."""
        found = {}
        for name in names or self.names:
            ours = set(self.change(f"SELECT id, v, doc FROM {name}"))
            theirs = run(self.database, f"SELECT id, v, doc FROM raw.{name}")
            assert len(theirs) == len(set(theirs))
            found[name] = len(ours - set(theirs)), len(set(theirs) - ours)
        return {name: each for name, each in found.items() if each != (0, 0)}

    def close(self) -> None:
        """Do nothing: nothing was made in the server."""

    def _environment(self) -> dict[str, str]:
        at, server = self.database, self.server
        login = {"conn_type": "postgres", "host": at.host, "port": at.port, "schema": at.database}
        source = {"conn_type": "mysql", "host": server.host, "port": server.port, "schema": server.database}
        connections = {
            "source": {**source, "login": server.user, "password": server.password},
            "warehouse": {**login, "login": at.user, "password": at.password},
            "spark": {"conn_type": "spark_connect", "host": "127.0.0.1", "port": self.spark or 15002},
            "backpressure_default": {"conn_type": "backpressure", "extra": {"path": self.ledger}},
        }
        return {f"AIRFLOW_CONN_{name.upper()}": json.dumps(each) for name, each in connections.items()}


@contextmanager
def connected(server: Endpoint) -> Iterator[Any]:
    """Give a cursor of a session that commits by itself."""
    link = pymysql.connect(
        host=server.host,
        port=server.port,
        user=server.user,
        password=server.password,
        database=server.database,
        charset="utf8mb4",
        autocommit=False,
    )
    with closing(link), link.cursor() as cursor:
        cursor.execute("SET SESSION innodb_lock_wait_timeout = 2, transaction_isolation = 'READ-COMMITTED'")
        yield cursor


@contextmanager
def writing(flow: MySQLFlow, seed: int = 0, *, seconds: float = 3.0) -> Iterator[None]:
    """Write transactions over several tables by two sessions until the block is left, or for so long."""
    end = time.monotonic() + seconds

    def write(over: threading.Event, draw: random.Random) -> None:
        with connected(flow.server) as cursor:
            while not over.wait(0.005) and time.monotonic() < end:
                try:
                    for _ in range(draw.randint(1, 6)):
                        change_at_random(cursor, flow.names, draw)
                    cursor.execute("COMMIT" if draw.random() < 0.9 else "ROLLBACK")
                except pymysql.Error as error:
                    if error.args[0] not in _IN_THE_WAY:
                        raise
                    cursor.execute("ROLLBACK")

    draws = [random.Random(seed * 2), random.Random(seed * 2 + 1)]
    with beside(lambda over: write(over, draws[0])), beside(lambda over: write(over, draws[1])):
        yield


def change_at_random(cursor: Any, names: tuple[str, ...], draw: random.Random) -> None:
    """Change a row or two of one of these tables, by savepoints too; or empty a table."""
    name, key, other = draw.choice(names), draw.randint(1, 150), draw.randint(1, 150)
    long = f"REPEAT('{draw.choice('abcdef')}', {draw.choice((3, 3000))})"
    match draw.randint(0, 60):
        case 0:
            cursor.execute(f"TRUNCATE TABLE {name}")
        case number if number < 10:
            cursor.execute(f"DELETE FROM {name} WHERE id = {key}")
        case number if number < 20:
            cursor.execute(f"UPDATE IGNORE {name} SET id = {other} WHERE id = {key}")
        case number if number < 26:
            cursor.execute("SAVEPOINT s")
            cursor.execute(f"UPDATE {name} SET v = -1, doc = {long} WHERE id = {key}")
            cursor.execute(f"{draw.choice(('ROLLBACK TO', 'RELEASE'))} SAVEPOINT s")
        case number if number < 40:
            cursor.execute(f"UPDATE {name} SET v = v + 1 WHERE id IN ({key}, {other})")
        case number if number < 45:
            cursor.execute(f"REPLACE INTO {name} (id, v, doc) VALUES ({key}, 5, {long})")
        case _:
            cursor.execute(
                f"INSERT INTO {name} (id, v, doc) VALUES ({key}, 0, {long}) ON DUPLICATE KEY UPDATE doc = VALUES(doc)"
            )


if __name__ == "__main__":
    MySQLFlow.read(Path(sys.argv[1])).run()
