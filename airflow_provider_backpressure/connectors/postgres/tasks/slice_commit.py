"""Rows and marker of a slice in one transaction of the sink: exactly once, whatever else is running."""

from collections.abc import Callable
from dataclasses import dataclass

import psycopg
from psycopg import sql
from psycopg.types.json import Jsonb

from airflow_provider_backpressure.connectors.postgres.key_operators import find_key_operators
from airflow_provider_backpressure.connectors.postgres.tasks.connections import (
    MARKER_WAIT,
    SINK,
    connect_sink,
    end_attempts,
    set_local,
)
from airflow_provider_backpressure.connectors.postgres.tasks.staging_table import MIRROR, STAGE, move_stage
from airflow_provider_backpressure.connectors.postgres.tasks.trigger_checks import execute_alone, has_row_triggers
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.failpoints import Step, reach
from airflow_provider_backpressure.core.snapshot.bounds import check_marked
from airflow_provider_backpressure.core.snapshot.ranges import attempt_tag
from airflow_provider_backpressure.core.snapshot.spark_messages import RangeSpec, Slice, SliceResult, WriteSpec
from airflow_provider_backpressure.core.snapshot.topic_offsets import TOMBSTONE, keyless, moves
from airflow_provider_backpressure.exceptions import RESTART, PlanSuperseded, RangeFailed


def advance(connection: psycopg.Connection, spec: RangeSpec, piece: Slice) -> None:
    """Move every stream of a slice from its start to its end; ``RangeFailed`` where one is not at its start.

    Then a range before this one is not in, or another attempt has brought this one in. Row locks order two attempts.
    """
    query = sql.SQL(_ADVANCE).format(sql.SQL(spec.write.frontier_table))
    for step in moves(piece.bounds, spec.read.window):
        values = {"target": spec.write.fence, "stream": step.stream, "start": step.start, "end": step.end}
        if connection.execute(query, values).rowcount != 1:
            raise step.refusal(spec.write.fence)


def move_in_order(connection: psycopg.Connection, write: WriteSpec) -> None:
    """Put the last row of each key into the target, or remove the target's where the last one is a tombstone.

    Of several rows of one record, as a transform makes them, the last to come is the last one.
    """
    key = sql.SQL(", ").join(map(sql.Identifier, write.key))
    find_key_operators(connection, write.target, write.key)
    _check_keys(connection, write)
    place = sql.SQL(", ").join(sql.SQL("{} DESC").format(sql.Identifier(name)) for name in write.place)
    last = sql.SQL("(SELECT DISTINCT ON ({0}) * FROM {1} ORDER BY {0}, {2}, ctid DESC) AS l").format(key, STAGE, place)
    gone = sql.Identifier("l", TOMBSTONE)
    if not _has_tombstones(connection):
        _move(connection, write, last)
        return
    same = sql.SQL(" AND ").join(sql.SQL("t.{0} = l.{0}").format(sql.Identifier(name)) for name in write.key)
    delete = sql.SQL("DELETE FROM {} AS t USING {} WHERE {} AND {}").format(sql.SQL(write.target), last, same, gone)
    execute_alone(connection, write, delete, exact=False)
    _move(connection, write, sql.SQL("{} WHERE NOT {}").format(last, gone))


def _move(connection: psycopg.Connection, write: WriteSpec, rows: sql.Composed) -> None:
    """Put rows into the target; ``RangeFailed`` where a trigger keeps some out, since no other check would notice."""
    moved = move_stage(connection, write, rows, alone=True, exact=False)
    if len(write.key) == len(write.columns) or not has_row_triggers(connection, write):
        return
    found = connection.execute(sql.SQL("SELECT count(*) FROM {}").format(rows)).fetchone()
    dropped = (found[0] if found is not None else 0) - moved
    if dropped:
        raise RangeFailed(
            f"A trigger of {write.fence} kept {dropped} rows out: the target would differ from the topic. Drop or "
            f"disable it, and {RESTART}."
        )


def _has_tombstones(connection: psycopg.Connection) -> bool:
    """Whether the stage has one: finding the last row of each key twice costs as much again."""
    query = sql.SQL("SELECT EXISTS (SELECT FROM {} WHERE {})").format(STAGE, sql.Identifier(TOMBSTONE))
    return bool((connection.execute(query).fetchone() or (False,))[0])


def _check_keys(connection: psycopg.Connection, write: WriteSpec) -> None:
    """``SinkRefused`` names the first row without a key: it could be no row's successor, and have none."""
    missing = sql.SQL(" OR ").join(sql.SQL("{} IS NULL").format(sql.Identifier(name)) for name in write.key)
    place = sql.SQL(", ").join(map(sql.Identifier, write.place))
    found = connection.execute(
        sql.SQL("SELECT {} FROM {} WHERE {} ORDER BY 1, 2 LIMIT 1").format(place, STAGE, missing)
    ).fetchone()
    if found is not None:
        raise keyless(found[0], found[1], write.key, write.fence)


_ADVANCE = """
    UPDATE {} SET pos = %(end)s, moved_at = clock_timestamp()
    WHERE target = %(target)s AND stream = %(stream)s AND pos = %(start)s
"""


_MARKED = (
    *("plan_id", "slice_id", "target", "epoch", "attempt", "bounds", "rows", "bytes", "checksum", "quarantined"),
    "read_at",
)
Fill = Callable[[psycopg.Connection], SliceResult]


@dataclass(frozen=True, kw_only=True)
class SliceCommit:
    """One attempt at one slice, seen from the sink."""

    spec: RangeSpec
    piece: Slice

    @property
    def _name(self) -> str:
        return attempt_tag(self.spec.plan_id, self.piece.slice_id, self.spec.attempt)

    def run(self, sink: Endpoint, fill: Fill) -> SliceResult:
        """Let ``fill`` write the rows, add the marker and commit; return what the marker says.

        Does nothing where the marker is there already, and rolls everything back where another attempt commits first,
        or where ``fill`` found that the target holds these rows.
        Raises ``LedgerRefused`` where the marker has other bounds, ``PlanSuperseded`` for a plan that no longer holds
        the target, ``SinkRefused`` for rows the target cannot take, ``SinkUnavailable`` and ``RangeFailed``.
        """
        with SINK.translate_errors(sink), connect_sink(sink, name=self._name) as connection:
            end_attempts(connection, self._name, below=self.spec.attempt)
            if (found := self._find_marker(connection)) is not None:
                return found
            with connection.transaction() as transaction:
                if self.spec.corrects:
                    # Rows of others that come meanwhile must not be deleted: they are not seen.
                    connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                result = fill(connection)
                marked = False
                if result.unchanged:
                    raise psycopg.Rollback(transaction)
                set_local(connection, "lock_timeout", f"{MARKER_WAIT}s")
                self._check_fence(connection, lock=True)
                if self.spec.write.ordered:
                    advance(connection, self.spec, self.piece)
                marked = self._mark(connection, result)
                if not marked:
                    raise psycopg.Rollback(transaction)
                reach(Step.BEFORE_SINK_COMMIT, self._name)
            if marked:
                reach(Step.AFTER_SINK_COMMIT, self._name)
            if marked or result.unchanged:
                return result
            found = self._find_marker(connection)
        if found is None:
            raise RangeFailed(f"The marker of slice {self.piece.slice_id} was taken and then vanished.")
        return found

    def _find_marker(self, connection: psycopg.Connection) -> SliceResult | None:
        """Check the fence without a lock, and return what the marker says if there is one.

        One of an earlier snapshot is to be replaced; ``RangeFailed`` where the attempt does not know of it.
        """
        self._check_fence(connection, lock=False)
        query = sql.SQL(
            "SELECT rows, bytes, checksum, quarantined, revoked, read_at, bounds, epoch FROM {}"
            " WHERE plan_id = %s AND slice_id = %s"
        )
        row = connection.execute(
            query.format(sql.SQL(self.spec.write.commit_table)), (self.spec.plan_id, self.piece.slice_id)
        ).fetchone()
        if row is None:
            return None
        rows, size, checksum, quarantined, revoked, read_at, bounds, epoch = row
        if revoked:
            raise PlanSuperseded(f"Slice {self.piece.slice_id} of plan {self.spec.plan_id} was revoked.")
        check_marked(bounds, self.piece.bounds, slice_id=self.piece.slice_id, plan_id=self.spec.plan_id)
        if epoch < self.spec.since:
            if epoch != self.spec.replaces:
                raise RangeFailed(f"Slice {self.piece.slice_id} was committed in an earlier snapshot (epoch {epoch}).")
            return None
        return SliceResult(
            slice_id=self.piece.slice_id,
            rows=rows,
            bytes=size,
            checksum=checksum,
            quarantined=quarantined,
            read_at=read_at,
        )

    def _check_fence(self, connection: psycopg.Connection, *, lock: bool) -> None:
        """``PlanSuperseded`` where the plan no longer holds its target, or that of a table which shares its log."""
        spec = self.spec
        held = [(spec.write.fence, spec.plan_id, spec.epoch)]
        held += [(table.write.fence, table.plan_id, table.epoch) for table in spec.tables]
        query = sql.SQL("SELECT plan_id, epoch FROM {} WHERE target = %s {}").format(
            sql.SQL(spec.write.plan_table), sql.SQL("FOR SHARE" if lock else "")
        )
        for fence, plan_id, epoch in held:
            row = connection.execute(query, (fence,)).fetchone()
            if row is None:
                raise PlanSuperseded(f"The sink has no plan for {fence}: it never begun, or forgotten.")
            if row != (plan_id, epoch):
                raise PlanSuperseded(
                    f"Plan {plan_id} (epoch {epoch}) no longer holds {fence}: plan {row[0]} (epoch {row[1]}) does."
                )

    def _mark(self, connection: psycopg.Connection, result: SliceResult) -> bool:
        """Insert the marker; ``False`` where another attempt has committed its own.

        Another attempt with the same number (a task that Spark ran twice) may be between its marker and its
        commit, perhaps frozen: after a short wait it is ended.
        """
        try:
            with connection.transaction():
                return self._insert_marker(connection, result)
        except psycopg.errors.LockNotAvailable:
            end_attempts(connection, self._name, below=self.spec.attempt + 1)
            return self._insert_marker(connection, result)

    def _insert_marker(self, connection: psycopg.Connection, result: SliceResult) -> bool:
        if self.spec.replaces:
            return self._replace_marker(connection, result)
        names = [*_MARKED, *(["deleted"] if self.spec.write.mode == MIRROR else [])]
        query = sql.SQL("INSERT INTO {} ({}) VALUES ({}) ON CONFLICT (plan_id, slice_id) DO NOTHING").format(
            sql.SQL(self.spec.write.commit_table),
            sql.SQL(", ").join(map(sql.Identifier, names)),
            sql.SQL(", ").join([sql.Placeholder()] * len(names)),
        )
        values = (
            self.spec.plan_id,
            self.piece.slice_id,
            self.spec.write.fence,
            self.spec.epoch,
            self.spec.attempt,
            Jsonb(dict(self.piece.bounds)),
            result.rows,
            result.bytes,
            result.checksum,
            result.quarantined,
            result.read_at,
            result.deleted,
        )
        return connection.execute(query, values[: len(names)]).rowcount == 1

    def _replace_marker(self, connection: psycopg.Connection, result: SliceResult) -> bool:
        """Put this attempt's marker in the place of the one of an earlier snapshot; ``False`` where it is gone."""
        values = (
            *(self.spec.epoch, self.spec.attempt, result.rows, result.bytes, result.checksum, result.deleted),
            *(self.spec.plan_id, self.piece.slice_id, self.spec.replaces),
        )
        query = sql.SQL(_REPLACE).format(sql.SQL(self.spec.write.commit_table))
        return connection.execute(query, values).rowcount == 1


# As a new row it is the newest write over its bounds.
_REPLACE = """
    UPDATE {} SET epoch = %s, attempt = %s, rows = %s, bytes = %s, checksum = %s, deleted = deleted + %s,
        commit_seq = DEFAULT, committed_at = clock_timestamp()
    WHERE plan_id = %s AND slice_id = %s AND epoch = %s AND NOT revoked
"""
