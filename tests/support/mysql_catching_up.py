"""A table of MySQL that is hydrated under ``catch_up``, and what changes it meanwhile."""

import random
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import pymysql

from airflow_provider_backpressure.core.endpoints import Endpoint
from tests.support import mysql
from tests.support.catching_up import Followed, beats
from tests.support.postgres import run
from tests.support.waiting import beside

TABLE = "CREATE TABLE t (id int PRIMARY KEY, v int, doc longtext, note varchar(20))"
FILL = (
    "INSERT INTO t WITH RECURSIVE n AS (SELECT 1 i UNION ALL SELECT i + 1 FROM n WHERE i < {})"
    " SELECT i, 0, REPEAT(MD5(i), 2), CONCAT('n', i) FROM n"
)

_OURS = """
    SELECT TIMESTAMPDIFF(MICROSECOND, trx_started, NOW(6)) / 1e6, trx_rows_locked
    FROM information_schema.INNODB_TRX WHERE trx_query LIKE '/* bp-read:%'
"""
_DIGESTS = """
    SELECT id DIV 1000, COUNT(*), SUM(CRC32(CONCAT_WS('|', id, IFNULL(v, '~'), IFNULL(doc, '~'), IFNULL(note, '~'))))
    FROM t GROUP BY 1
"""
# The servers' common hash. Sums, since in an XOR of CRCs two errors that are alike would hide each other.
_DIGESTS_THERE = """
    SELECT id / 1000, count(*), sum(crc32(convert_to(concat_ws('|', id, coalesce(v::text, '~'), coalesce(doc, '~'),
        coalesce(note, '~')), 'UTF8')))
    FROM raw.t GROUP BY 1
"""
_IN_THE_WAY = frozenset({1062, 1205, 1213})
"""Codes of a key that is taken, of a lock that does not come, of a deadlock."""


class FollowedMySQL(Followed):
    """One hydration of ``t`` in MySQL into ``raw.t``."""

    def source(self, *statements: str) -> list[tuple[Any, ...]]:
        """Do things to the source."""
        return mysql.run(self.composed.source, "SET SESSION cte_max_recursion_depth = 100000000", *statements)

    def differs(self) -> tuple[int, int]:
        """How many rows only the source and only the target has."""
        columns = "id, v, doc, note"
        ours = set(self.source(f"SELECT {columns} FROM t"))
        theirs = run(self.composed.sink, f"SELECT {columns} FROM raw.t")
        assert len(theirs) == len(set(theirs))
        return len(ours - set(theirs)), len(set(theirs) - ours)

    def differing(self) -> set[int]:
        """Return the thousands of keys in which any row differs, by digests that both servers make."""
        ours = {tuple(map(int, row)) for row in self.source(_DIGESTS)}
        theirs = {tuple(map(int, row)) for row in run(self.composed.sink, _DIGESTS_THERE)}
        return {block for block, *_ in ours ^ theirs}


@dataclass
class Watch:
    """What ranges and windows cost the source, as far as looks at short intervals show."""

    endpoint: Endpoint
    longest: float = 0.0
    """Seconds that the oldest of our transactions was open."""
    locked: int = 0
    """Rows that ours had locked."""

    @contextmanager
    def watching(self) -> Iterator["Watch"]:
        """Look until the block is left."""
        with beside(self._look):
            yield self

    def _look(self, over: threading.Event) -> None:
        while not over.wait(0.1):
            for seconds, locked in mysql.run(self.endpoint, _OURS):
                self.longest = max(self.longest, float(seconds))
                self.locked = max(self.locked, int(locked))


@dataclass
class MySQLWriter:
    """Writes at random, by a seed: inserts, updates, deletes, key updates, long transactions and rollbacks."""

    endpoint: Endpoint
    seed: int
    keys: int
    every: float = 0.002
    """Seconds from one change to the next; the long transactions' come on top."""
    changes: int = 0
    seconds: float = 0.0
    """In which it wrote."""

    def __post_init__(self) -> None:
        self._draw = random.Random(self.seed)
        self._next = self.keys * 10 + self.seed * 100_000

    @contextmanager
    def writing(self) -> Iterator["MySQLWriter"]:
        """Write until the block is left."""
        with beside(self._long), beside(self._short):
            began = time.monotonic()
            try:
                yield self
            finally:
                self.seconds = time.monotonic() - began

    def _short(self, over: threading.Event) -> None:
        with self._connected(autocommit=True) as cursor:
            for _ in beats(over, self.every):
                self._tried(cursor, *self._change())

    def _long(self, over: threading.Event) -> None:
        """Change much in transactions that stay open for a while, half of which are rolled back."""
        draw = random.Random(self.seed + 1)
        with self._connected(autocommit=False) as cursor:
            while not over.is_set():
                first = draw.randint(1, self.keys)
                self._tried(cursor, "UPDATE t SET v = v + 1000 WHERE id BETWEEN %s AND %s", (first, first + 50))
                self._tried(cursor, "SAVEPOINT here", ())
                self._tried(cursor, "DELETE FROM t WHERE id BETWEEN %s AND %s", (first + 60, first + 63))
                if draw.random() < 0.2:
                    self._tried(cursor, "ROLLBACK TO here", ())
                over.wait(draw.uniform(0.05, 0.3))
                cursor.execute("COMMIT" if draw.random() < 0.5 else "ROLLBACK")

    def _change(self) -> tuple[str, tuple[Any, ...]]:
        draw, key = self._draw, self._draw.randint(1, self.keys)
        self._next += 1
        self.changes += 1
        match draw.randint(0, 9):
            case 0 | 1:
                big = "".join(draw.choices("abcdefghij", k=12_000)) if draw.random() < 0.3 else f"d{key} 😀"
                return "INSERT INTO t VALUES (%s, 1, %s, 'new')", (self._next, big)
            case 2:
                return "DELETE FROM t WHERE id = %s", (key,)
            case 3 | 4:
                return "UPDATE t SET id = %s WHERE id = %s", (self._next, key)
            case 5:
                return "UPDATE t SET id = %s WHERE id = %s", (
                    key,
                    draw.randint(self.keys * 10 + self.seed * 100_000, self._next),
                )
            case 6:
                return "UPDATE t SET doc = NULL, note = 'x\ty\\\\z' WHERE id = %s", (key,)
            case 7:
                return "REPLACE INTO t VALUES (%s, 5, 'replaced', '')", (key,)
        return "UPDATE t SET v = v + 1 WHERE id = %s", (draw.choice((key, self._next - 5)),)

    def _tried(self, cursor: Any, statement: str, values: tuple[Any, ...]) -> None:
        try:
            cursor.execute(statement, values)
        except pymysql.Error as error:
            if error.args[0] not in _IN_THE_WAY | {1305}:
                raise

    @contextmanager
    def _connected(self, *, autocommit: bool) -> Iterator[Any]:
        link = pymysql.connect(
            host=self.endpoint.host,
            port=self.endpoint.port,
            user=self.endpoint.user,
            password=self.endpoint.password,
            database=self.endpoint.database,
            charset="utf8mb4",
            autocommit=autocommit,
        )
        with closing(link), link.cursor() as cursor:
            cursor.execute("SET SESSION innodb_lock_wait_timeout = 2")
            yield cursor
