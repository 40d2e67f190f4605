"""A table of PostgreSQL with random columns and key, plain or in partitions, into a table beside it."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import psycopg

from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.snapshot.plan import Plan
from tests.chaos.subjects.subject import Content, TableOracle
from tests.support.composed import Composed
from tests.support.postgres import connected

TYPES = {
    "int": "(random() * 1e6)::int",
    "bigint": "(random() * 1e15)::bigint",
    "text": "md5(random()::text)",
    "varchar(40)": "left(md5(random()::text), 5 + (random() * 30)::int)",
    "numeric(20,4)": "(random() * 1e9)::numeric(20,4)",
    "numeric": "(random() * 1e9)::numeric",
    "float8": "random()",
    "timestamptz": "now() - random() * interval '900 days'",
    "timestamp": "localtimestamp - random() * interval '900 days'",
    "date": "current_date - (random() * 900)::int",
    "jsonb": "jsonb_build_object('a', random(), 'b', md5(random()::text))",
    "text[]": "ARRAY[md5(random()::text), NULL, 'x,y']",
    "int[]": "ARRAY[(random() * 9)::int, NULL, 3]",
    "uuid": "gen_random_uuid()",
    "bool": "random() < 0.5",
    "bytea": "decode(md5(random()::text), 'hex')",
}
LARGE = "(SELECT string_agg(md5(random()::text || g), '') FROM generate_series(1, 120) g)"
"""About 4 kB that do not compress: kept out of line."""
KEYS = {
    "int": ("k int", "PRIMARY KEY (k)"),
    "bigint": ("k bigint", "PRIMARY KEY (k)"),
    "text": ("k text", "PRIMARY KEY (k)"),
    "composite": ("k int, kk text", "PRIMARY KEY (k, kk)"),
    "none": ("k int", ""),
}
PAIRS = (
    ("append", "snapshot"),
    ("append", "static"),
    ("upsert", "snapshot"),
    ("upsert", "static"),
    ("upsert", "catch_up"),
    ("upsert", "catch_up"),
    ("upsert", "catch_up"),
    ("replace", "snapshot"),
    ("replace", "static"),
)
BUSY = (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected, psycopg.errors.QueryCanceled)
SPACE = 100_000
"""Keys lie below it when the table is made; those that come are above."""


@dataclass(kw_only=True)
class PostgresSubject:
    """See ``subject.Subject``."""

    seed: int
    database: Endpoint
    """A fresh one, for source and target."""
    system: str = "postgres"
    history: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Draw what it is."""
        self.draw = draw = random.Random(f"postgres {self.seed}")
        self.mode, self.consistency = draw.choice(PAIRS)
        keyless = self.mode == "upsert" or self.consistency == "static"
        self.key = draw.choice([key for key in KEYS if key != "none" or not keyless])
        self.columns = {f"c{number}": draw.choice(list(TYPES)) for number in range(draw.randint(1, 5))}
        self.shape = draw.choice(("plain", "plain", "partitioned", "inherited")) if self.key != "text" else "plain"
        if self.shape == "partitioned" and self.consistency == "catch_up" and draw.random() < 0.8:
            self.shape = "plain"
        if self.shape == "inherited" and (self.consistency != "snapshot" or self.mode == "upsert"):
            self.shape = "plain"  # else it is refused at once
        # What is gone from the source stays under upsert, and verification says so: not every seed shall end with that.
        self.removes = self.mode != "upsert" or self.consistency == "catch_up" or draw.random() < 0.2
        self.rows = draw.randint(60, 600)
        self.restarts = self.consistency != "catch_up"
        self._oracle = TableOracle(mode=self.mode, consistency=self.consistency)
        self._next, self._number, self._parts = SPACE, 0, 0

    def composed(self) -> Composed:
        """See ``Subject``."""
        statements = self._creation()
        self.history += statements
        self._run(*statements, self._filled("t", f"generate_series(1, {self.rows})"), "ANALYZE t")
        rows = max(1, self.rows // self.draw.randint(2, 6))
        return Composed(
            source=replace(self.database, conn_id="source"),
            sink=replace(self.database, conn_id="sink"),
            ledger_url="",
            remote="",
            mode=self.mode,
            consistency=self.consistency,
            budget=Budget(range_rows=rows, credits=self.draw.choice((1, 1, 2, 3))),
        )

    def change(self, *, define: bool, between: bool) -> str:
        """See ``Subject``."""
        if self.consistency == "static" and not between:
            # The user has said that it stands still; what leaves its rows alone may be done.
            choices: list[Callable[[], list[str]]] = [self._vacuum, self._cluster, self._default]
        elif define:
            choices = [
                *(self._add, self._drop, self._add_again, self._rename, self._expand, self._retype, self._widen),
                *(self._truncate, self._swap, self._anew, self._vacuum, self._cluster, self._default, self._unlog),
                *([self._part, self._detach, self._attach, self._drop_part, self._truncate_part] * 2),
            ]
        else:
            choices = [self._insert, self._insert, self._update, self._large]
            choices += [self._move, self._delete, self._undone] if self.removes else []
        statements = self.draw.choice(choices)()
        try:
            self._run("SET lock_timeout = '100ms'", "BEGIN", *statements, "COMMIT") if statements else None
        except BUSY:
            return ""
        except psycopg.errors.ActiveSqlTransaction:
            try:
                self._run("SET lock_timeout = '100ms'", *statements)
            except BUSY:
                return ""
        except psycopg.Error as error:
            return f"(not possible: {statements}: {str(error).splitlines()[0]})"
        return "; ".join(statements)

    def empty_target(self) -> str:
        """See ``Subject``."""
        if self.mode != "append" or not self._run("SELECT to_regclass('raw.t')")[0][0]:
            return ""
        self._run("TRUNCATE raw.t")
        return "the target is emptied"

    def capture(self, plan_id: str) -> None:
        """See ``Subject``."""
        self._oracle.captured[plan_id].append(self._content("public.t"))

    def check_finished(self, plan: Plan) -> None:
        """See ``Subject``."""
        self._oracle.check_finished(plan, self._content("raw.t"))

    def check_settled(self, plan_id: str) -> None:
        """See ``Subject``."""
        self._oracle.check_settled(self._content("public.t"), self._content("raw.t"))

    def _run(self, *statements: str) -> list[Any]:
        with connected(self.database) as connection:
            for statement in statements:
                cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def _content(self, table: str) -> Content:
        with connected(self.database) as connection:
            cursor = connection.execute(f"SELECT * FROM {table} LIMIT 0")
            names = [column.name for column in cursor.description or ()]
            texts = ", ".join(f'"{name}"::text' for name in names)
            return Content.of(names, connection.execute(f"SELECT {texts} FROM {table}").fetchall() if names else [])

    def _creation(self) -> list[str]:
        columns, constraint = KEYS[self.key]
        body = ", ".join(filter(None, [columns, *(f"{n} {t}" for n, t in self.columns.items()), constraint]))
        if self.shape == "partitioned":
            return [
                f"CREATE TABLE t ({body}) PARTITION BY RANGE (k)",
                f"CREATE TABLE t_low PARTITION OF t FOR VALUES FROM (MINVALUE) TO ({self.rows // 2})",
                f"CREATE TABLE t_high PARTITION OF t FOR VALUES FROM ({self.rows // 2}) TO ({SPACE * 2})",
            ]
        made = [f"CREATE TABLE t ({body})"]
        if self.shape == "inherited":
            made.append("CREATE TABLE t_kid () INHERITS (t)")
        return made

    def _filled(self, table: str, numbers: str) -> str:
        columns = self._run_columns(table)
        names = ", ".join(f'"{name}"' for name, _ in columns)
        values = ", ".join(self._value(name, type_) for name, type_ in columns)
        return f"INSERT INTO {table} ({names}) SELECT {values} FROM {numbers} g ON CONFLICT DO NOTHING"

    def _run_columns(self, table: str = "t") -> list[tuple[str, str]]:
        """Return the columns there are, by the names of their types."""
        query = (
            "SELECT attname::text, format_type(atttypid, atttypmod) FROM pg_attribute"
            f" WHERE attrelid = to_regclass('public.{table}') AND attnum > 0 AND NOT attisdropped ORDER BY attnum"
        )
        found = self._run(query)
        if found or table != "t":
            return found
        return [("k", "integer"), *([("kk", "text")] if self.key == "composite" else []), *self.columns.items()]

    def _value(self, name: str, type_: str) -> str:
        if name == "k":
            return "'key' || g" if self.key == "text" else "g"
        if name == "kk":
            return "'kk' || g % 7"
        return f"CASE WHEN random() < 0.1 THEN NULL ELSE {self._made(type_)} END"

    def _made(self, type_: str) -> str:
        aliases = {
            "integer": "int",
            "boolean": "bool",
            "double precision": "float8",
            "character varying(40)": "varchar(40)",
            "timestamp with time zone": "timestamptz",
            "timestamp without time zone": "timestamp",
            "integer[]": "int[]",
        }
        return TYPES.get(aliases.get(type_, type_), "NULL")

    def _some(self, share: float = 0.03) -> str:
        order, most = f"hashtext(k::text || '{self.draw.randint(1, 9999)}')", int(self.rows * share) + 1
        return f"k IN (SELECT k FROM t ORDER BY {order} LIMIT {most})"

    def _column(self) -> tuple[str, str] | None:
        others = [(name, type_) for name, type_ in self._run_columns() if name not in ("k", "kk")]
        return self.draw.choice(others) if others else None

    def _insert(self) -> list[str]:
        number = self.draw.randint(1, 40)
        self._next += number
        low = self._next if self.draw.random() < 0.5 else self.draw.randint(-SPACE, 0)
        return [self._filled("t", f"generate_series({low}, {low + number})")]

    def _update(self) -> list[str]:
        column = self._column()
        return [f'UPDATE t SET "{column[0]}" = {self._made(column[1])} WHERE {self._some()}'] if column else []

    def _large(self) -> list[str]:
        texts = [name for name, type_ in self._run_columns() if type_ == "text" and name != "k" and name != "kk"]
        return [f'UPDATE t SET "{self.draw.choice(texts)}" = {LARGE} WHERE {self._some()}'] if texts else []

    def _move(self) -> list[str]:
        if self.key == "text":
            return [f"UPDATE t SET k = k || 'm{self.draw.randint(1, 999)}' WHERE {self._some()}"]
        return [f"UPDATE t SET k = -k - {self.draw.randint(1, SPACE // 2)} WHERE {self._some()}"]

    def _delete(self) -> list[str]:
        return [f"DELETE FROM t WHERE {self._some(self.draw.choice((0.01, 0.2)))}"]

    def _undone(self) -> list[str]:
        update = self._update() or self._delete()
        return ["SAVEPOINT s", *update, "ROLLBACK TO s", *self._delete()]

    def _add(self) -> list[str]:
        self._number += 1
        type_ = self.draw.choice(list(TYPES))
        default = self.draw.choice(("", "", f" DEFAULT {TYPES[type_]}", " DEFAULT NULL"))
        if default and type_ == "int" and self.draw.random() < 0.5:
            default = " DEFAULT 7"
        name = f"a{self._number}"
        made = [f"ALTER TABLE t ADD COLUMN {name} {type_}{default}"]
        return made + ([f"ALTER TABLE t ALTER {name} DROP DEFAULT"] if self.draw.random() < 0.3 else [])

    def _drop(self) -> list[str]:
        column = self._column()
        return [f'ALTER TABLE t DROP COLUMN "{column[0]}"'] if column else []

    def _add_again(self) -> list[str]:
        column = self._column()
        return (
            [f'ALTER TABLE t DROP COLUMN "{column[0]}"', 'ALTER TABLE t ADD COLUMN "{}" {}'.format(*column)]
            if column
            else []
        )

    def _rename(self) -> list[str]:
        column = self._column()
        self._number += 1
        return [f'ALTER TABLE t RENAME "{column[0]}" TO r{self._number}'] if column else []

    def _expand(self) -> list[str]:
        column = self._column()
        if column is None:
            return []
        name, type_ = column
        return [
            f"ALTER TABLE t ADD COLUMN xx {type_}",
            f"UPDATE t SET xx = {self._made(type_)}",
            f'ALTER TABLE t DROP COLUMN "{name}"',
            f'ALTER TABLE t RENAME xx TO "{name}"',
        ]

    def _retype(self) -> list[str]:
        column = self._column()
        return [f'ALTER TABLE t ALTER "{column[0]}" TYPE {column[1]} USING {self._made(column[1])}'] if column else []

    def _widen(self) -> list[str]:
        found = [name for name, type_ in self._run_columns() if type_ == "integer"]
        return [f'ALTER TABLE t ALTER "{self.draw.choice(found)}" TYPE bigint'] if found else []

    def _truncate(self) -> list[str]:
        again = [self._filled("t", f"generate_series(1, {self.rows})")] if self.draw.random() < 0.5 else []
        return ["TRUNCATE t", *again]

    def _swap(self) -> list[str]:
        self._number += 1
        return [
            "CREATE TABLE t_new (LIKE t INCLUDING ALL)",
            self._filled("t", f"generate_series(1, {self.rows})").replace("INTO t ", "INTO t_new ", 1),
            f"ALTER TABLE t RENAME TO t_old{self._number}",
            "ALTER TABLE t_new RENAME TO t",
        ]

    def _anew(self) -> list[str]:
        fill = self._filled("t", f"generate_series(1, {self.rows})")
        return [
            "CREATE TABLE t_new (LIKE t INCLUDING ALL)",
            "DROP TABLE t CASCADE",
            "ALTER TABLE t_new RENAME TO t",
            fill,
        ]

    def _vacuum(self) -> list[str]:
        return ["VACUUM FULL t"]

    def _cluster(self) -> list[str]:
        found = self._run("SELECT indexname FROM pg_indexes WHERE schemaname = 'public' AND tablename = 't'")
        return [f"CLUSTER t USING {found[0][0]}"] if found else []

    def _default(self) -> list[str]:
        column = self._column()
        return [f'ALTER TABLE t ALTER "{column[0]}" SET DEFAULT {self._made(column[1])}'] if column else []

    def _unlog(self) -> list[str]:
        return ["ALTER TABLE t SET UNLOGGED", *(["ALTER TABLE t SET LOGGED"] if self.draw.random() < 0.5 else [])]

    def _leaves(self) -> list[str]:
        found = self._run(
            "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = to_regclass('public.t') ORDER BY 1"
        )
        return [name for (name,) in found]

    def _leaf(self) -> str | None:
        leaves = self._leaves()
        return self.draw.choice(leaves) if leaves else None

    def _part(self) -> list[str]:
        if self.shape != "partitioned":
            return []
        self._parts += 1
        low = SPACE * (1 + self._parts)
        return [
            f"CREATE TABLE t_p{self._parts} PARTITION OF t FOR VALUES FROM ({low}) TO ({low + SPACE})",
            self._filled("t", f"generate_series({low}, {low + 30})"),
        ]

    def _detach(self) -> list[str]:
        leaf = self._leaf()
        if leaf is None:
            return []
        inherits = self.shape == "inherited"
        return [f"ALTER TABLE {leaf} NO INHERIT t" if inherits else f"ALTER TABLE t DETACH PARTITION {leaf}"]

    def _attach(self) -> list[str]:
        if self.shape != "partitioned":
            return []
        self._parts += 1
        low, name = SPACE * (1 + self._parts), f"t_p{self._parts}"
        return [
            f"CREATE TABLE {name} (LIKE t INCLUDING ALL)",
            self._filled("t", f"generate_series({low}, {low + 30})").replace("INTO t ", f"INTO {name} ", 1),
            f"ALTER TABLE t ATTACH PARTITION {name} FOR VALUES FROM ({low}) TO ({low + SPACE})",
        ]

    def _drop_part(self) -> list[str]:
        leaf = self._leaf()
        return [f"DROP TABLE {leaf}"] if leaf else []

    def _truncate_part(self) -> list[str]:
        leaf = self._leaf()
        return [f"TRUNCATE {leaf}"] if leaf else []
