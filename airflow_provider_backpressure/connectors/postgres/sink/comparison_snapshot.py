"""A followed target as one snapshot shows it, at its frontier, and what later changes of the log make of its rows.

The changes are folded by the code that replays windows, into temporary tables of the snapshot's own session, which
begin with the rows that the changes touch. Nothing of the target is written, and nobody waits for it.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from psycopg import sql

from airflow_provider_backpressure.connectors.postgres.connect import EVERY_ROW, connect
from airflow_provider_backpressure.connectors.postgres.errors import Errors
from airflow_provider_backpressure.connectors.postgres.identifiers import QualifiedName
from airflow_provider_backpressure.connectors.postgres.key_operators import find_key_operators
from airflow_provider_backpressure.connectors.postgres.replication_slots import lsn, slot_name
from airflow_provider_backpressure.connectors.postgres.sink.plan_row import plan_row
from airflow_provider_backpressure.connectors.postgres.sink.range_conditions import RangeConditions
from airflow_provider_backpressure.connectors.postgres.sink.system_tables import SystemTable
from airflow_provider_backpressure.connectors.postgres.tasks.change_apply import Fold
from airflow_provider_backpressure.connectors.postgres.tasks.exported_snapshot import export_snapshot
from airflow_provider_backpressure.connectors.postgres.tasks.staging_table import RowSum, hash_rows, names
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.planning.catch_up_windows import Stand, stand
from airflow_provider_backpressure.core.planning.shared_log_windows import check_followed_by
from airflow_provider_backpressure.core.ports.comparison_snapshots import Late, RowTotal
from airflow_provider_backpressure.core.ports.sink import PlanRow
from airflow_provider_backpressure.core.snapshot.bounds import Bounds, LogPosition
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.core.snapshot.replay_window import ReplayWindow, goal
from airflow_provider_backpressure.core.snapshot.spark_messages import WriteSpec
from airflow_provider_backpressure.exceptions import (
    RESTART,
    LedgerRefused,
    PlanSuperseded,
    SinkRefused,
    SinkUnavailable,
)
from airflow_provider_backpressure.spark.change_rows import TRUNCATE

ERRORS = Errors(refused=SinkRefused, unavailable=SinkUnavailable)
NAME = "backpressure moment"
LOCK_SECONDS = 60
"""Longest wait for a statement that has locked the target, such as VACUUM FULL."""
_SETTINGS = {
    **EVERY_ROW,
    "lock_timeout": f"{LOCK_SECONDS}s",
    # That of a process that is frozen must not stay either.
    "idle_in_transaction_session_timeout": "4h",
}
TOUCHED, BEFORE, AFTER = (sql.Identifier("pg_temp", f"backpressure_{name}") for name in ("touched", "before", "after"))


class PostgresTargetMoment:
    """Implements :class:`..core.ports.comparison_snapshots.TargetMoment`."""

    def __init__(
        self,
        endpoint: Endpoint,
        plan: Plan,
        committed: int,
        fence: str,
        tables: tuple[SystemTable, SystemTable, SystemTable],
        conditions: RangeConditions,
    ) -> None:
        """Take the snapshot. ``committed``: how many ranges; ``tables``: those of plans, markers and frontiers."""
        self._endpoint, self._conditions, self._fence = endpoint, conditions, fence
        self._plans, self._commits, self._frontiers = tables
        self._late = self._emptied = False
        self._connection = connect(endpoint, errors=ERRORS, application_name=NAME, settings=_SETTINGS)
        try:
            with ERRORS.translate_errors(endpoint):
                self._begin(plan.write)
                self.plan, self.at = self._find_stand(plan, committed)
        except BaseException:
            self._connection.close()
            raise

    def bring(self, changes: Iterable[Sequence[bytes]]) -> int:
        """See :meth:`..core.ports.comparison_snapshots.TargetMoment.bring`."""
        write, total = self.plan.write, RowSum()
        after = replace(write, target=AFTER.as_string(None))
        fold = Fold(self._connection, after, trusted=True)
        # The source's errors, which are translated already, pass as they are.
        with ERRORS.translate_errors(self._endpoint):
            fold.make()
            fold.load(changes, total)
            if total.rows:
                self._copy_touched(fold, write)
                fold.apply(NothingElse())
                self._index(write)
                self._late = True
        return total.rows

    def measure_late(self, bounds: Bounds | None) -> Late:
        """See :meth:`..core.ports.comparison_snapshots.TargetMoment.measure_late`."""
        if not self._late:
            return Late(before=RowTotal(), after=RowTotal())
        within = self._conditions.select(self.plan.write, bounds, None)
        with ERRORS.translate_errors(self._endpoint):
            before = None if self._emptied else self._hash(BEFORE, within)
            return Late(before=before, after=self._hash(AFTER, within))

    def close(self) -> None:
        """End the session; its temporary tables go with it."""
        self._connection.close()

    def _begin(self, write: WriteSpec) -> None:
        connection = self._connection
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        # Before the snapshot is taken: a table that is rewritten meanwhile would look empty in it.
        connection.execute(sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(sql.SQL(write.target)))
        self.snapshot = export_snapshot(connection)

    def _find_stand(self, plan: Plan, committed: int) -> tuple[Plan, LogPosition]:
        """Return the target's plan and frontier; raise where the target is not consistent there."""
        own = self._plan_row(self._fence)
        if own.plan is None or own.plan.consistency is not plan.consistency or own.plan.stream != plan.stream:
            raise PlanSuperseded(f"Plan {plan.plan_id} no longer holds {self._fence}.")
        if not own.plan.replays:
            if own.plan_id != plan.plan_id or own.committed != committed:
                raise LedgerRefused(
                    f"Ranges of {self._fence} are read again: let its hydrate_ranges task run first. A range whose "
                    "marker is gone is named by `airflow backpressure verify`, and read again by `retry-range`."
                )
        elif own.plan.write.columns != plan.write.columns:
            raise PlanSuperseded(f"The plan of {self._fence} has other columns by now: verify again.")
        if not plan.stream:
            return own.plan, self._check_reached(own.plan, self._stand(own.plan, self._fence))
        fence = str(QualifiedName(schema=self._plans.name.schema, name=slot_name(plan.stream)))
        stream = self._plan_row(fence)
        if stream.plan is None:
            raise PlanSuperseded(f"The log of {self._fence} has no plan in the target.")
        check_followed_by(stream.plan, found := self._stand(stream.plan, fence), own.plan, self._ranges_stand(own.plan))
        return own.plan, found.end

    def _check_reached(self, plan: Plan, found: Stand) -> LogPosition:
        if not found.reached:
            raise LedgerRefused(
                f"The log was replayed into {plan.write.fence} up to {found.end.label}, and it is consistent from "
                f"{found.goal.label} on: let its hydrate_ranges task run first."
            )
        return found.end

    def _stand(self, plan: Plan, fence: str) -> Stand:
        """Return how far the windows of a plan are in; of a plan without windows where the log was kept from.

        A target may have rows of other streams too, which brought it changes before: those of another hydration's slot,
        or of a topic.
        """
        found, window = self._ranges_stand(plan), ReplayWindow.from_window(plan.read.window)
        if window is None:
            return found
        query = sql.SQL("SELECT pos FROM {} WHERE target = %s AND stream = %s").format(
            sql.SQL(self._frontiers.name.sql)
        )
        row = self._connection.execute(query, (fence, window.stream)).fetchone()
        if row is None:
            raise LedgerRefused(f"The target does not say how far the log was replayed into {fence}: {RESTART}.")
        return replace(found, end=lsn(row[0]))

    def _ranges_stand(self, plan: Plan) -> Stand:
        query = sql.SQL("SELECT DISTINCT read_at FROM {} WHERE plan_id = %s AND NOT revoked AND read_at <> ''")
        rows = self._connection.execute(query.format(sql.SQL(self._commits.name.sql)), (plan.plan_id,)).fetchall()
        found = stand(plan, ())
        return replace(found, goal=goal(found.goal, [row[0] for row in rows]))

    def _plan_row(self, fence: str) -> PlanRow:
        found = plan_row(self._connection, self._plans, self._commits, fence=fence)
        if found is None:
            raise PlanSuperseded(f"No plan holds {fence} any more.")
        return found

    def _copy_touched(self, fold: Fold, write: WriteSpec) -> None:
        """Copy the target's rows that the changes are about, once as they are and once to be changed."""
        run = self._connection.execute
        find_key_operators(self._connection, write.target, write.key)
        order = [column.name for column in write.columns]
        parts = {
            "touched": TOUCHED,
            "before": BEFORE,
            "after": AFTER,
            "target": sql.SQL(write.target),
            "changes": fold.waiting,
            "truncate": sql.Literal(TRUNCATE),
            "every": names(write.columns),
            "all": sql.SQL(", ").join(sql.Identifier("t", name) for name in order),
            "key": sql.SQL(", ").join(map(sql.Identifier, write.key)),
            "typed": sql.SQL(", ").join(
                sql.SQL("CAST({} AS {}) AS {}").format(
                    sql.Identifier(f"c{order.index(name)}"),
                    sql.SQL(write.columns[order.index(name)].type),
                    sql.Identifier(name),
                )
                for name in write.key
            ),
            "same": sql.SQL(" AND ").join(sql.SQL("t.{0} = k.{0}").format(sql.Identifier(name)) for name in write.key),
        }
        for statement in _COPY_TOUCHED:
            run(sql.SQL(statement).format(**parts))
        row = run(sql.SQL("SELECT EXISTS (SELECT FROM {changes} WHERE op = {truncate})").format(**parts)).fetchone()
        self._emptied = row is not None and bool(row[0])

    def _index(self, write: WriteSpec) -> None:
        key = sql.SQL(", ").join(map(sql.Identifier, write.key))
        self._connection.execute(sql.SQL("CREATE INDEX ON {} ({})").format(BEFORE, key))
        for table in (BEFORE, AFTER):
            self._connection.execute(sql.SQL("ANALYZE {} ({})").format(table, key))

    def _hash(self, table: sql.Identifier, within: Sequence[sql.Composable]) -> RowTotal:
        query = sql.SQL("SELECT {} FROM {} WHERE {}").format(
            names(self.plan.write.columns), table, sql.SQL(" AND ").join(within) if within else sql.SQL("true")
        )
        total, checksum = hash_rows(self._connection, query)
        return RowTotal(rows=total.rows, checksum=checksum)


class NothingElse:
    """Implements :class:`..changes.Changes` for values that neither log nor target has: their rows are lacking."""

    read_at = ""
    xids: Collection[int] = ()

    def __iter__(self) -> Iterator[Sequence[bytes]]:
        return iter(())

    def again(self, keys: Sequence[Sequence[str]]) -> Iterator[Sequence[bytes]]:
        """Yield nothing: a consistent target has the row, so that it is a difference where it has not."""
        return iter(())

    def await_seen(self) -> None:
        """Do nothing: only what the snapshot sees was returned."""


_COPY_TOUCHED = (
    "CREATE TEMP TABLE {touched} ON COMMIT DROP AS SELECT DISTINCT {typed} FROM {changes} WHERE op <> {truncate}",
    "ANALYZE {touched}",
    "CREATE TEMP TABLE {before} ON COMMIT DROP AS SELECT {all} FROM {target} AS t JOIN {touched} AS k ON {same}",
    "CREATE TEMP TABLE {after} ON COMMIT DROP AS SELECT {every} FROM {before}",
    "CREATE UNIQUE INDEX ON {after} ({key})",
)
