"""A shadow takes its target's place: completed over time, swapped in one short transaction, exactly once."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import psycopg
from psycopg import sql

from airflow_provider_backpressure.connectors.postgres.connect import DURABLE, EVERY_ROW, Connection, Session
from airflow_provider_backpressure.connectors.postgres.errors import Errors, words
from airflow_provider_backpressure.connectors.postgres.identifiers import QualifiedName, join_names
from airflow_provider_backpressure.connectors.postgres.sink.checks import View, against_replacing, views_over
from airflow_provider_backpressure.connectors.postgres.sink.clone_ddl import (
    carry_over,
    final_names,
    find_missing,
    make,
    same_columns,
)
from airflow_provider_backpressure.connectors.postgres.sink.range_conditions import drop_range_index
from airflow_provider_backpressure.connectors.postgres.sink.sequences import advance
from airflow_provider_backpressure.connectors.postgres.sink.shadow_table import (
    oid_of,
    purpose,
    shadow_of,
)
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.poll_policy import Clock, PollPolicy
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.core.snapshot.ranges import attempt_tag
from airflow_provider_backpressure.exceptions import PlanSuperseded, SinkRefused, SinkUnavailable

log = logging.getLogger(__name__)

T = TypeVar("T")

PUBLISH = "publish"
"""Stands for a slice in tags and markers: the swap's own marker is written in its transaction."""
SNAPSHOT_SECONDS = 300.0
"""How long to wait for transactions with an older view of the database."""
LOCK_WAIT = "500ms"
"""How long a lock is waited for, with readers behind it; less than the second after which deadlocks are looked for."""
IN_USE = PollPolicy(initial=1.0, factor=2.0, maximum=16.0)
"""Waits between two tries, in which readers get through."""
IN_USE_SECONDS = 31.0
"""Time for all tries."""
_BROKEN: dict[type[psycopg.Error], str] = {
    psycopg.errors.UniqueViolation: "some of them have the same key",
    psycopg.errors.ForeignKeyViolation: "some of them refer to rows that are not there",
}
_RESTART = 'trigger the DAG with {"backpressure": "restart"} to plan again'


def open_session(endpoint: Endpoint, plan: Plan, *, errors: Errors) -> Session:
    """Return a session in which a plan's shadow is completed and swapped."""
    settings = {"lock_timeout": LOCK_WAIT, **DURABLE, **EVERY_ROW}
    name = attempt_tag(plan.plan_id, PUBLISH, 0)
    return Session(endpoint, errors=errors, settings=settings, application_name=name)


def patiently(session: Session, work: Callable[[Connection], T], *, about: QualifiedName, clock: Clock) -> T:
    """Do it in a transaction of a session with :data:`LOCK_WAIT`; where others are in the way, try again a few times.

    ``SinkUnavailable`` where they are in the way each time.
    """
    for number in IN_USE.tries(timeout=IN_USE_SECONDS, clock=clock):
        try:
            return session.transaction(work)
        except SinkUnavailable as error:
            if not isinstance(error.__cause__, psycopg.errors.LockNotAvailable | psycopg.errors.DeadlockDetected):
                raise
            refusal = error
        log.info("%s is in use: try %d to publish its new rows failed.", about, number)
    raise SinkUnavailable(
        f"{about} was locked by other transactions at each of {number} tries to publish its new rows, which must not "
        "keep its readers waiting: a retry continues from here."
    ) from refusal


@dataclass(frozen=True, kw_only=True)
class Publishing:
    """What is done with the shadow of one plan once its rows are in. Every step may be killed and done again."""

    plan: Plan
    target: QualifiedName
    session: Session
    """One of its own, named after the plan, so that a retry or a newer plan can end it."""
    poll: PollPolicy
    clock: Clock

    def complete(self) -> None:
        """Make the indexes, keys and statistics that the target has, one transaction each, and let it be analysed."""
        if self._patiently(self._is_settled):
            return
        self._make_parts()
        self._patiently(self._analyse)

    def publish(self) -> None:
        """Complete and swap; see :meth:`..core.ports.Sink.publish`."""
        self._make_parts()
        self._patiently(self._advance_sequences)
        self._await_snapshots()
        while not self._patiently(self._swap):
            self._make_parts()

    def _make_parts(self) -> None:
        self._patiently(self._drop_range_index)
        while self._patiently(self._made_one):
            pass

    def _is_settled(self, connection: Connection) -> bool:
        """Whether nothing is left to do. The fence is checked first."""
        return self._held(connection) is None

    def _drop_range_index(self, connection: Connection) -> None:
        if self._held(connection) is not None:
            drop_range_index(connection, self._shadow)

    def _made_one(self, connection: Connection) -> bool:
        shadow = self._held(connection)
        target = oid_of(connection, self.target)
        parts = [] if shadow is None or target is None else find_missing(connection, target, self._shadow)
        if not parts:
            return False
        part = parts[0]
        log.info("Making %s for the new rows of %s.", join_names([part.name]), self.target)
        try:
            make(connection, part)
        except psycopg.IntegrityError as error:
            raise SinkRefused(
                f"The new rows of {self.target} break {join_names([part.name])}, so the old ones stay: "
                f"{_BROKEN.get(type(error)) or words(error)}."
            ) from error
        return True

    def _analyse(self, connection: Connection) -> bool:
        if self._held(connection) is not None:
            connection.execute(sql.SQL("ANALYZE {}").format(sql.SQL(self._shadow.sql)))
        return True

    def _advance_sequences(self, connection: Connection) -> None:
        """Move the sequences of identity columns, which are the shadow's own, and of serials, which it takes over."""
        if self._held(connection) is not None:
            columns = [column.name for column in self.plan.write.columns]
            advance(connection, self._shadow, columns, shown=self.target, serials_of=self.target)

    def _swap(self, connection: Connection) -> bool:
        """Swap within one transaction; ``False`` where the target got another index since the shadow was completed."""
        if self._held(connection, lock=True) is None:
            return True
        shadow = sql.SQL(self._shadow.sql)
        connection.execute(_LOCK.format(shadow))
        target = oid_of(connection, self.target)
        if target is not None:
            connection.execute(_PATIENCE, {"target": target})
            self._lock(connection, views_over(connection, target))
            target = oid_of(connection, self.target)
        self._check(connection, target)
        if target is not None and find_missing(connection, target, self._shadow):
            return False
        connection.execute(sql.SQL("ALTER TABLE {} RESET (autovacuum_enabled)").format(shadow))
        if target is None:
            _rename(connection, self._shadow, self.target)
            connection.execute(sql.SQL("COMMENT ON TABLE {} IS NULL").format(sql.SQL(self.target.sql)))
        else:
            self._exchange(connection, target)
        tables = sql.SQL(self.plan.write.commit_table), sql.SQL(self.plan.write.plan_table)
        connection.execute(_MARK.format(*tables), (PUBLISH, self.plan.write.fence))
        return True

    def _exchange(self, connection: Connection, target: int) -> None:
        old = QualifiedName(schema=self.target.schema, name=f"{self._shadow.name}_old")
        views, names = views_over(connection, target), final_names(connection, target, self._shadow)
        carry_over(connection, target, self._shadow)
        _rename(connection, self.target, old)
        _rename(connection, self._shadow, self.target)
        for view in views:
            connection.execute(sql.SQL(view.bind))
        connection.execute(sql.SQL("DROP TABLE {}").format(sql.SQL(old.sql)))
        for statement in names:
            connection.execute(sql.SQL(statement))

    def _lock(self, connection: Connection, views: list[View]) -> None:
        """Lock the views first, as their readers do: who has begun with a view ends with the table it began with."""
        for view in views:
            connection.execute(sql.SQL(view.lock))
        connection.execute(_LOCK.format(sql.SQL(self.target.sql)))

    def _check(self, connection: Connection, target: int | None) -> None:
        """Look under the lock whether the target is still what the shadow was made for."""
        comment = connection.execute(_COMMENT, (self._shadow.sql,)).fetchall()[0][0]
        if comment != purpose(self.target, target):
            raise SinkRefused(
                f"{self.target} is not the table that it was when plan {self.plan.plan_id} was made, so it is not "
                f"replaced: {_RESTART}."
            )
        if target is None:
            return
        against = against_replacing(connection, target)
        if not same_columns(connection, target, self._shadow):
            against.append("its columns, defaults or checks were changed since the plan was made")
        if against:
            raise SinkRefused(f"{self.target} cannot be replaced: {'; '.join(against)}.")

    def _await_snapshots(self) -> None:
        """Wait, in nobody's way, for transactions that look at the database as it was before the last rows came in.

        Such a one (repeatable read, a dump) would see the new table with some or none of its rows.
        """

        def gone(connection: Connection) -> bool | None:
            if self._held(connection) is None:
                return True
            query = _OLD_SNAPSHOTS.format(sql.SQL(self.plan.write.commit_table))
            return None if connection.execute(query, {"plan_id": self.plan.plan_id}).fetchall() else True

        if self.poll.until(lambda: self.session.transaction(gone), timeout=SNAPSHOT_SECONDS, clock=self.clock) is None:
            raise SinkUnavailable(
                f"Transactions in the database of {self.target} have looked at it since before its last new rows came "
                f"in, and did not end within {SNAPSHOT_SECONDS:g} s: the swap would show them a part of these rows."
            )

    def _held(self, connection: Connection, *, lock: bool = False) -> int | None:
        """Return the shadow's number, ``None`` where it was published already; the fence is checked first."""
        connection.execute(sql.SQL("SET LOCAL search_path TO ''"))
        plans, commits = sql.SQL(self.plan.write.plan_table), sql.SQL(self.plan.write.commit_table)
        row = connection.execute(
            _FENCE.format(plans, sql.SQL("FOR UPDATE" if lock else "")), (self.plan.write.fence,)
        ).fetchone()
        # A later life of a lane may have raised its own plan's epoch.
        if row is None or row[0] != self.plan.plan_id or row[1] < self.plan.epoch:
            raise PlanSuperseded(
                f"Plan {self.plan.plan_id} (epoch {self.plan.epoch}) no longer holds {self.target}: it stays as it is."
            )
        if connection.execute(_MARKED.format(commits), (self.plan.plan_id, PUBLISH)).fetchone() is not None:
            return None
        shadow = oid_of(connection, self._shadow)
        if shadow is None:
            raise SinkRefused(
                f"The shadow table {self._shadow} with the new rows of {self.target} is gone: {_RESTART}."
            )
        return shadow

    def _patiently(self, work: Callable[[Connection], T]) -> T:
        return patiently(self.session, work, about=self.target, clock=self.clock)

    @property
    def _shadow(self) -> QualifiedName:
        return shadow_of(self.plan.write)


def _rename(connection: Connection, table: QualifiedName, to: QualifiedName) -> None:
    connection.execute(sql.SQL("ALTER TABLE {} RENAME TO {}").format(sql.SQL(table.sql), sql.Identifier(to.name)))


# Autovacuum goes out of the way of those who wait for it until deadlocks are looked for.
_PATIENCE = sql.SQL(
    """
    SELECT set_config('lock_timeout', s.setting::int + 500 || 'ms', true)
    FROM pg_settings s
    WHERE s.name = 'deadlock_timeout' AND EXISTS (
        SELECT FROM pg_class c
        JOIN pg_locks l ON l.relation IN (c.oid, c.reltoastrelid) AND l.mode = 'ShareUpdateExclusiveLock'
        JOIN pg_stat_activity a ON a.pid = l.pid
        WHERE c.oid = %(target)s::oid AND a.usesysid IS NULL)
    """
)
_LOCK = sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE")
_FENCE = sql.SQL("SELECT plan_id, epoch FROM {} WHERE target = %s {}")
_MARKED = sql.SQL("SELECT FROM {} WHERE plan_id = %s AND slice_id = %s")
_MARK = sql.SQL(
    "INSERT INTO {} (plan_id, slice_id, target, epoch, attempt, bounds)"
    " SELECT p.plan_id, %s, p.target, p.epoch, 0, '{{}}' FROM {} p WHERE p.target = %s"
)
_COMMENT = sql.SQL("SELECT obj_description(%s::text::regclass, 'pg_class')")
# By number and by time, since a long writer keeps the numbers of new snapshots low. A marker is written some moments
# before its commit. Who may not see when another role's transaction began takes it for an old one.
_OLD_SNAPSHOTS = sql.SQL(
    """
    SELECT a.pid
    FROM pg_stat_activity a, (
        SELECT min(age(m.xmin)) AS age, max(m.committed_at) + interval '1 minute' AS at
        FROM {} m WHERE m.plan_id = %(plan_id)s
    ) last
    WHERE a.datname = current_database() AND a.usesysid IS NOT NULL AND a.pid <> pg_backend_pid()
      AND age(a.backend_xmin) >= last.age AND (a.xact_start IS NULL OR a.xact_start <= last.at)
    """
)
