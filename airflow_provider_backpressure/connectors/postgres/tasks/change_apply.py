"""Changes of a log into a PostgreSQL target: folded by key in the sink, upserted and deleted, in one transaction.

Changes wait in a temporary table, as text. The last one of each key wins. A value that the log leaves out since it did
not change is taken from an earlier change of the window, otherwise it stays as it is in the target; where the target
has no such row (it moved here from where no range has seen it), the source is asked.

Of a row whose key changed, the old key's row in the target shows that only once the target is consistent: before, it
may be another row, of a later time, that no later change would distinguish from this one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import psycopg
from psycopg import sql

from airflow_provider_backpressure.connectors.postgres.errors import is_held_up
from airflow_provider_backpressure.connectors.postgres.key_operators import find_key_operators
from airflow_provider_backpressure.connectors.postgres.tasks import binary_copy as binary
from airflow_provider_backpressure.connectors.postgres.tasks.connections import SINK
from airflow_provider_backpressure.connectors.postgres.tasks.copy_streams import CopyIn, print_as_text
from airflow_provider_backpressure.connectors.postgres.tasks.slice_commit import SliceCommit
from airflow_provider_backpressure.connectors.postgres.tasks.staging_table import RowSum, names
from airflow_provider_backpressure.connectors.postgres.tasks.trigger_checks import execute_alone
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.failpoints import Step, reach
from airflow_provider_backpressure.core.snapshot.bounds import LogBounds, LogPosition, bounds_from_json
from airflow_provider_backpressure.core.snapshot.ranges import attempt_tag
from airflow_provider_backpressure.core.snapshot.replay_window import ReplayWindow, goal
from airflow_provider_backpressure.core.snapshot.shared_log_table_errors import is_of_table, name_table
from airflow_provider_backpressure.core.snapshot.spark_messages import RangeSpec, Slice, SliceResult, WriteSpec
from airflow_provider_backpressure.exceptions import BackpressureError, InvalidDeclaration
from airflow_provider_backpressure.spark.change_rows import (
    DELETE,
    FIELDS,
    MOVE,
    TRUNCATE,
    UPSERT,
    Changes,
    SharedChanges,
    get_shared_reader,
    log_reader,
)
from airflow_provider_backpressure.spark.reader_timings import time_handovers

KIND = "postgres"
HELD_BYTES = 8 * 1024 * 1024
"""Most changes of several tables that a task holds before it passes them to the sink."""
OPERATIONS = {name: sql.Literal(op) for name, op in (("delete", DELETE), ("upsert", UPSERT), ("move", MOVE))}


def replay(sink: Endpoint, spec: RangeSpec, changes: Changes) -> SliceResult:
    """Replay a window exactly once and return what its marker says; errors as in :meth:`SliceCommit.run`."""
    return SliceCommit(spec=spec, piece=spec.slices[0]).run(sink, partial(_fill, spec, changes))


def _fill(spec: RangeSpec, changes: Changes, connection: psycopg.Connection) -> SliceResult:
    fold = Fold(connection, spec.write, trusted=_is_trusted(spec, connection))
    fold.make()
    total = RowSum()
    fold.load(changes, total, spec.tag)
    if total.rows:
        fold.apply(changes)
        # What compares the target with the source reads that behind the window, and must see all of it.
        changes.await_seen()
    return SliceResult(
        slice_id=spec.slices[0].slice_id,
        rows=total.rows,
        bytes=total.bytes,
        checksum=str(total),
        read_at=changes.read_at,
    )


def replay_stream(sink: Endpoint, spec: RangeSpec, changes: SharedChanges) -> SliceResult:
    """Replay a window into all tables that share its log, in one transaction; errors as in :func:`replay`."""
    return SliceCommit(spec=spec, piece=spec.slices[0]).run(sink, partial(_fill_tables, sink, spec, changes))


def _fill_tables(
    sink: Endpoint, spec: RangeSpec, changes: SharedChanges, connection: psycopg.Connection
) -> SliceResult:
    trusted, total = _is_trusted(spec, connection), RowSum()
    folds = [
        Fold(connection, table.write, trusted=trusted and not table.reading, number=number)
        for number, table in enumerate(spec.tables)
    ]
    changed = _load_tables(folds, changes, total, spec.tag)
    # In the order of the message, which is the same in every attempt: two of them cannot block each other.
    for number in sorted(changed):
        with name_table(spec.tables[number], names=_is_of_table), SINK.translate_errors(sink):
            folds[number].apply(changes.tables[number])
    # A range that is read once the window is in must not take back what it has brought, also of a table that is whole:
    # its ranges can be opened again.
    changes.await_visible(changed)
    # A table with ranges left is read later than any value that was asked for here.
    whole = [found for found, table in zip(changes.tables, spec.tables, strict=True) if not table.reading]
    read_at = [LogPosition.parse(found.read_at) for found in whole if found.read_at]
    return SliceResult(
        slice_id=spec.slices[0].slice_id,
        rows=total.rows,
        bytes=total.bytes,
        checksum=str(total),
        read_at=str(max(read_at)) if read_at else "",
    )


def _is_of_table(error: BackpressureError) -> bool:
    """Whether an error is about the table whose changes are written or asked for, also a lock on it."""
    return is_of_table(error) or is_held_up(error)


def _load_tables(folds: "Sequence[Fold]", changes: SharedChanges, total: RowSum, tag: str) -> set[int]:
    """Let the changes of several tables wait, and return which tables have some.

    A connection has one COPY at a time, so a table's changes are held here until there are enough of them.
    """
    waiting: dict[int, list[bytes]] = {}
    made: set[int] = set()
    held = 0

    def flush(number: int) -> None:
        if number not in made:
            folds[number].make()
            made.add(number)
        folds[number].load([waiting.pop(number)], total, tag)

    for number, rows in changes:
        waiting.setdefault(number, []).extend(rows)
        held += sum(map(len, rows))
        if held >= HELD_BYTES:
            for each in [*waiting]:
                flush(each)
            held = 0
    for each in [*waiting]:
        flush(each)
    return made


def _is_trusted(spec: RangeSpec, connection: psycopg.Connection) -> bool:
    """Whether the target is the source as it was where the window begins: nothing in it was read later than that."""
    window, bounds = ReplayWindow.from_window(spec.read.window), bounds_from_json(dict(spec.slices[0].bounds))
    if window is None or not isinstance(bounds, LogBounds):
        raise InvalidDeclaration("Only a piece of a log can be replayed.")
    query = sql.SQL("SELECT read_at FROM {} WHERE plan_id = %s AND read_at <> ''")
    rows = connection.execute(query.format(sql.SQL(spec.write.commit_table)), (spec.plan_id,)).fetchall()
    return bounds.start.has_reached(goal(window.goal, (row[0] for row in rows)))


@dataclass(frozen=True)
class Fold:
    """One window's changes on their way into the target."""

    connection: psycopg.Connection
    write: WriteSpec
    trusted: bool
    """Whether the target is the source as it was where the window begins."""
    number: int = 0
    """Of several tables in one transaction which this is: each has temporary tables of its own."""

    @property
    def waiting(self) -> sql.Identifier:
        """The table that changes wait in."""
        return self._temporary("changes")

    def make(self) -> None:
        """Create the table that changes wait in: a column for each of the target's, and for each of its key's."""
        own = [sql.SQL(field) for field in FIELDS]
        texts = [sql.SQL("{} text").format(column) for column in (*self._old_key(), *self._columns())]
        self.connection.execute(
            sql.SQL("CREATE TEMP TABLE {} ({}) ON COMMIT DROP").format(
                self._temporary("changes"), sql.SQL(", ").join([*own, *texts])
            )
        )

    def load(self, rows: Iterable[Sequence[bytes]], total: RowSum, tag: str = "") -> None:
        """Let changes wait, as they are."""
        statement = sql.SQL("COPY {} FROM STDIN ({})").format(self._temporary("changes"), sql.SQL(binary.OPTIONS))
        copy = CopyIn(self.connection, statement.as_string(self.connection))
        try:
            copy.put(binary.BEGINNING)
            for some in time_handovers(rows):
                total.add(some)
                copy.put(b"".join(some))
                if tag:
                    reach(Step.IN_COPY, tag)
            copy.put(binary.ENDING)
        except BaseException:
            self.connection.close()
            raise
        copy.end()

    def apply(self, changes: Changes) -> None:
        """Fold what waits, and let it into the target."""
        find_key_operators(self.connection, self.write.target, self.write.key)
        emptied = self._truncate()
        kept = self._kept()
        if kept:
            # Of hashes: as text a key is longer than in its own index, where it may have as many bytes as an entry can.
            self._run("CREATE INDEX ON {changes} ({hashes}, seq)")
            self._run("ANALYZE {changes}")
            self._follow_moves(emptied=emptied)
        self._run(
            "CREATE TEMP TABLE {last} ON COMMIT DROP AS SELECT DISTINCT ON ({bytes}) *,"
            " op = {move} AND kept IS NOT NULL AS lost FROM {changes} ORDER BY {bytes}, seq DESC"
        )
        for number in kept:
            self._fill_in(number)
        self._write("DELETE FROM {target} AS t USING {last} AS l WHERE l.op = {delete} AND {same}")
        if kept:
            self._keep(kept)
            self._ask(changes)
        self._upsert()

    def _truncate(self) -> bool:
        """Empty the target where the table was emptied; what was before that no longer counts."""
        row = self._run(
            "SELECT max(seq) FROM {changes} WHERE op = {truncate}", truncate=sql.Literal(TRUNCATE)
        ).fetchone()
        if row is None or row[0] is None:
            return False
        self._write("DELETE FROM {target}")
        self._run("DELETE FROM {changes} WHERE seq <= {at}", at=sql.Literal(row[0]))
        return True

    def _kept(self) -> list[int]:
        """Return the numbers of columns that some change leaves out."""
        return [row[0] for row in self._run("SELECT DISTINCT unnest(kept) FROM {changes} ORDER BY 1")]

    def _follow_moves(self, *, emptied: bool) -> None:
        """Fill in what rows whose key changed had under the old one, in the log's order: one may have moved twice."""
        query = "SELECT seq, kept, {old} FROM {changes} WHERE op = {move} AND kept IS NOT NULL ORDER BY seq"
        for seq, kept, *old in self._run(query).fetchall():
            for number in kept:
                found = self._before(number, seq, old, emptied=emptied)
                if found is not None:
                    self.connection.execute(self._sql(_FOUND, **self._build_names(number)), (found[0], number, seq))

    def _before(self, number: int, seq: int, key: list[str], *, emptied: bool) -> tuple[str | None] | None:
        """Return what a column had under a key before a move, or ``None`` where nobody here knows."""
        # The delete of the old key is just before the move.
        earlier = self._sql(_EARLIER, **self._build_names(number))
        row = self.connection.execute(earlier, (*key, *key, seq - 1)).fetchone()
        if row is not None:
            return None if row[0] else (row[1],)
        if emptied or not self.trusted:
            return None
        return self.connection.execute(self._sql(_THERE, column=print_as_text(self._name(number))), key).fetchone()

    def _fill_in(self, number: int) -> None:
        """Fill in what the last change of a key leaves out from earlier ones, as far as they are of the same row."""
        self._run(_FILL_IN, **self._build_names(number))

    def _keep(self, kept: list[int]) -> None:
        """Let rows of the target keep the values that no change holds."""
        changed = sql.SQL(", ").join(
            sql.SQL("{name} = CASE WHEN l.kept @> ARRAY[{number}]::smallint[] THEN t.{name} ELSE {value} END").format(
                name=self._name(number), number=sql.Literal(number), value=self._value(number)
            )
            for number, column in enumerate(self.write.columns)
            if column.name not in self.write.key
        )
        self._write(
            "WITH done AS (UPDATE {target} AS t SET {changed} FROM {last} AS l"
            " WHERE l.op <> {delete} AND l.kept IS NOT NULL AND NOT l.lost AND {same} RETURNING l.seq)"
            " DELETE FROM {last} AS l USING done WHERE l.seq = done.seq",
            changed=changed,
        )

    def _ask(self, changes: Changes) -> None:
        """Read again the values that are unknown here. A row that is gone there will be deleted by a later window."""
        query = "DELETE FROM {last} WHERE op <> {delete} AND kept IS NOT NULL RETURNING {key}"
        keys = self._run(query).fetchall()
        if not keys:
            return
        self._run("TRUNCATE {changes}")
        gone = self._sql(
            "DELETE FROM {target} AS t USING unnest({columns}) AS w({key}) WHERE {same}",
            columns=sql.SQL(", ").join([sql.SQL("%s::text[]")] * len(self._key)),
            same=sql.SQL(" AND ").join(
                sql.SQL("t.{} = CAST(w.{} AS {})").format(
                    self._name(number), _column(number), sql.SQL(self._type(number))
                )
                for number in self._key
            ),
        )
        execute_alone(self.connection, self.write, gone, [list(values) for values in zip(*keys, strict=True)])
        self.load(changes.again(keys), RowSum())
        self._run("INSERT INTO {last} SELECT *, false FROM {changes}")

    def _upsert(self) -> None:
        rest = [column.name for column in self.write.columns if column.name not in self.write.key]
        changed = sql.SQL(", ").join(sql.SQL("{0} = EXCLUDED.{0}").format(sql.Identifier(name)) for name in rest)
        self._write(
            "INSERT INTO {target} ({names}) OVERRIDING SYSTEM VALUE SELECT {values} FROM {last} AS l"
            " WHERE l.op <> {delete} ON CONFLICT ({by}) DO {action}",
            names=names(self.write.columns),
            values=sql.SQL(", ").join(self._value(number) for number in range(len(self.write.columns))),
            by=sql.SQL(", ").join(map(sql.Identifier, self.write.key)),
            action=sql.SQL("UPDATE SET {}").format(changed) if rest else sql.SQL("NOTHING"),
        )

    def _run(self, statement: str, **parts: sql.Composable) -> psycopg.Cursor:
        return self.connection.execute(self._sql(statement, **parts))

    def _write(self, statement: str, **parts: sql.Composable) -> None:
        execute_alone(self.connection, self.write, self._sql(statement, **parts))

    def _sql(self, statement: str, **parts: sql.Composable) -> sql.Composed:
        known = {
            "changes": self._temporary("changes"),
            "last": self._temporary("last"),
            "target": sql.SQL(self.write.target),
            "key": sql.SQL(", ").join(_column(number) for number in self._key),
            # Equal texts have equal bytes, and those are compared the fastest.
            "bytes": sql.SQL(", ").join(sql.SQL('{} COLLATE "C"').format(_column(number)) for number in self._key),
            "old": sql.SQL(", ").join(self._old_key()),
            "same": sql.SQL(" AND ").join(
                sql.SQL("t.{} = {}").format(self._name(number), self._value(number)) for number in self._key
            ),
            "hashes": sql.SQL(", ").join(_hash(_column(number)) for number in self._key),
            "given": sql.SQL(" AND ").join(
                [
                    *(sql.SQL("{} = %s").format(_column(number)) for number in self._key),
                    *(sql.SQL("{} = {}").format(_hash(_column(number)), _hash(sql.SQL("%s"))) for number in self._key),
                ]
            ),
            "given_there": sql.SQL(" AND ").join(
                sql.SQL("{} = CAST(%s::text AS {})").format(self._name(number), sql.SQL(self._type(number)))
                for number in self._key
            ),
            "alike": sql.SQL(" AND ").join(
                sql.SQL("p.{0} = n.{0} AND {1} = {2}").format(
                    _column(number), *(_hash(sql.Identifier(table, f"c{number}")) for table in ("p", "n"))
                )
                for number in self._key
            ),
            **OPERATIONS,
        }
        return sql.SQL(statement).format(**{**known, **parts})

    def _temporary(self, name: str) -> sql.Identifier:
        return sql.Identifier("pg_temp", f"backpressure_{name}_{self.number}")

    @property
    def _key(self) -> list[int]:
        order = [column.name for column in self.write.columns]
        return [order.index(name) for name in self.write.key]

    def _old_key(self) -> list[sql.Identifier]:
        return [sql.Identifier(f"k{number}") for number in range(len(self.write.key))]

    def _columns(self) -> list[sql.Identifier]:
        return [_column(number) for number in range(len(self.write.columns))]

    def _build_names(self, number: int) -> dict[str, sql.Composable]:
        return {"value": _column(number), "number": sql.Literal(number)}

    def _name(self, number: int) -> sql.Identifier:
        return sql.Identifier(self.write.columns[number].name)

    def _type(self, number: int) -> str:
        return self.write.columns[number].type

    def _value(self, number: int) -> sql.Composed:
        return sql.SQL("CAST(l.{} AS {})").format(_column(number), sql.SQL(self._type(number)))


def _column(number: int) -> sql.Identifier:
    return sql.Identifier(f"c{number}")


def _hash(text: sql.Composable) -> sql.Composed:
    return sql.SQL("pg_catalog.hashtextextended({}::text, 0)").format(text)


_FOUND = "UPDATE {changes} SET {value} = %s, kept = nullif(array_remove(kept, %s::smallint), '{{}}') WHERE seq = %s"
_EARLIER = """
    SELECT op = {delete} OR coalesce(kept @> ARRAY[{number}]::smallint[], false), {value}
    FROM {changes}
    WHERE {given} AND seq < %s AND (op <> {upsert} OR kept IS NULL OR NOT kept @> ARRAY[{number}]::smallint[])
    ORDER BY seq DESC LIMIT 1
"""
"""The latest change that holds a column, or with which another row begins or ends: a delete, or a move without it."""
_THERE = "SELECT {column} FROM {target} WHERE {given_there}"
_FILL_IN = """
    UPDATE {last} AS l SET
        {value} = p.value, lost = l.lost OR p.unknown,
        kept = CASE WHEN p.unknown THEN l.kept ELSE nullif(array_remove(l.kept, {number}::smallint), '{{}}') END
    FROM (
        SELECT n.seq, e.* FROM {last} AS n CROSS JOIN LATERAL (
            SELECT p.op = {delete} OR coalesce(p.kept @> ARRAY[{number}]::smallint[], false) AS unknown,
                   p.{value} AS value
            FROM {changes} AS p
            WHERE {alike} AND p.seq < n.seq
              AND (p.op <> {upsert} OR p.kept IS NULL OR NOT p.kept @> ARRAY[{number}]::smallint[])
            ORDER BY p.seq DESC LIMIT 1) AS e
        WHERE n.op = {upsert} AND n.kept @> ARRAY[{number}]::smallint[]) AS p
    WHERE l.seq = p.seq
"""


def replay_slice(spec: RangeSpec, piece: Slice, source: Endpoint, sink: Endpoint) -> SliceResult:
    """Replay a window exactly once and return what its marker says."""
    if spec.write.kind != KIND:
        raise InvalidDeclaration(f"No changes can be replayed into a {spec.write.kind} target.")
    name = attempt_tag(spec.plan_id, piece.slice_id, spec.attempt)
    if spec.tables:
        reader = get_shared_reader(spec.read.kind)
        return replay_stream(sink, spec, reader.stream_changes(source, spec.tables, piece, name))
    return replay(sink, spec, log_reader(spec.read.kind).changes(source, spec.read, piece, spec.write.key, name))
