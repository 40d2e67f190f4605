"""A target that is mirrored: what has to hold before rows are deleted by bounds, and what its markers prove."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from psycopg import sql
from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from airflow_provider_backpressure.connectors.postgres.catalog import Relation, find
from airflow_provider_backpressure.connectors.postgres.connect import Connection, Session
from airflow_provider_backpressure.connectors.postgres.identifiers import QualifiedName, join_names
from airflow_provider_backpressure.connectors.postgres.key_types import key_cast
from airflow_provider_backpressure.connectors.postgres.sink.checks import check_exchange
from airflow_provider_backpressure.connectors.postgres.sink.plan_row import (
    CONFIRMED,
    OWN,
    describe_missing,
    hold_target,
)
from airflow_provider_backpressure.connectors.postgres.sink.range_conditions import RangeConditions, make_range_index
from airflow_provider_backpressure.connectors.postgres.sink.system_tables import SystemTable
from airflow_provider_backpressure.connectors.relational.table_size import COUNTABLE_ROWS
from airflow_provider_backpressure.core.config import Mode
from airflow_provider_backpressure.core.ports.sink import Marker
from airflow_provider_backpressure.core.snapshot.bounds import Bounds, KeyBounds
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.core.snapshot.spark_messages import WriteSpec
from airflow_provider_backpressure.exceptions import SinkRefused

QUICKLY_COUNTED_ROWS = 1_000_000
"""Up to so many rows are counted, even where an estimate would do."""
_ORDERED_TEXT = frozenset({"text", "bpchar"})


@dataclass(frozen=True)
class PostgresMirror:
    """Implements :class:`..core.ports.sink.MirrorTarget`."""

    session: Session
    name: QualifiedName
    plans: SystemTable
    commits: SystemTable
    conditions: RangeConditions
    written: QualifiedName
    """The table that rows are written to: the target, or the shadow that is to take its place."""
    key: tuple[str, ...]
    """The key that the sink is declared with."""

    def check(self, write: WriteSpec, split: Sequence[str]) -> None:
        """See :meth:`..core.ports.sink.MirrorTarget.check`. Text has to be of one collation on both sides."""
        self._check(write, split, find(self.session, self.name))

    def _check(self, write: WriteSpec, split: Sequence[str], table: Relation | None) -> None:
        fact = ("counts deleted rows", self.commits.name)
        if not self.session.recall(fact):
            lacking = self.session.read(lambda each: describe_missing(each, self.commits, "deleted"))
            if lacking:
                raise SinkRefused(
                    f"{self.name} cannot be mirrored: {lacking}. Let its owner run ALTER TABLE {self.commits.name} "
                    "ADD COLUMN deleted bigint NOT NULL DEFAULT 0."
                )
            self.session.note(fact)
        columns = {column.name: column for column in write.columns}
        text = [name for name in split if key_cast(columns[name].type) in _ORDERED_TEXT]
        unknown = [name for name in text if columns[name].collation is None]
        if table is None:
            if text:
                raise SinkRefused(
                    f"{self.name} cannot be mirrored: it is not there yet, so the order of {join_names(text)} in it is "
                    "not known. Create it with the source's collation first."
                )
            return
        if table.has_children:
            raise SinkRefused(
                f"{self.name} cannot be mirrored: other tables inherit from it, and their rows would be deleted as "
                "its own. Use mode='replace' into a table of its own."
            )
        if unknown:
            raise SinkRefused(
                f"{self.name} cannot be mirrored: whether text in {join_names(unknown)} is ordered as in the source is "
                "not known. Leave the transform out, or use mode='replace'."
            )
        try:
            self.conditions.within(write, KeyBounds(columns=tuple(split), start=None, end=None))
        except SinkRefused as error:
            raise SinkRefused(
                f"{self.name} cannot be mirrored: its ranges may hold other rows than the source's. {error} Use "
                "mode='replace'."
            ) from error

    def check_rewrites(self, write: WriteSpec, key: Sequence[str], split: Sequence[str]) -> None:
        """See :meth:`..core.ports.sink.MirrorTarget.check_rewrites`. Rows are staged, and markers updated."""
        table = find(self.session, self.name)
        if write.mode in (Mode.APPEND, Mode.UPSERT):
            if self.key and set(self.key) != set(key):
                raise SinkRefused("The target is declared with another key.")
            check_exchange(self.session, self.name, write.columns, tuple(key), table)
        self._check(replace(write, key=tuple(key)), split, table)
        commits, fact = self.commits.name.sql, ("may rewrite", self.commits.name)
        if self.session.recall(fact):
            return
        staged, marked = self.session.rows(_MAY_REWRITE, {"commits": commits})[0]
        if not staged or not marked:
            lacking = f"no UPDATE right on {commits}" if staged else "no TEMPORARY right on the database"
            raise SinkRefused(f"{self.session.endpoint.user} has {lacking}.")
        self.session.note(fact)

    def index_ranges(self, key: Sequence[str]) -> None:
        make_range_index(self.session, self.written, key)

    def find_confirmation(self, plan_id: str) -> int:
        query = sql.SQL("SELECT coalesce(max(epoch), 0) FROM {} WHERE plan_id = {} AND slice_id = {}")
        values = sql.SQL(self.commits.name.sql), sql.Literal(plan_id), sql.Literal(CONFIRMED)
        found: int = self.session.value(query.format(*values))
        return found

    def rows(self, near: int | None = None) -> int:
        if find(self.session, self.name) is None:
            return 0
        estimated = int(self.session.rows(_ESTIMATE, {"table": self.name.sql})[0][0])
        is_near = near is not None and abs(estimated - near) <= near / 10
        if estimated > COUNTABLE_ROWS or (estimated > QUICKLY_COUNTED_ROWS and is_near):
            return estimated
        counted: int = self.session.value(sql.SQL("SELECT count(*) FROM {}").format(sql.SQL(self.name.sql)))
        return counted

    def files(self) -> str:
        found = self.session.rows(_FILES, {"table": self.written.sql})
        return str(found[0][0] or "") if found else ""

    def count_deleted(self, plan_id: str) -> int:
        query = sql.SQL("SELECT coalesce(sum(deleted), 0)::bigint FROM {} WHERE plan_id = {}")
        found: int = self.session.value(query.format(sql.SQL(self.commits.name.sql), sql.Literal(plan_id)))
        return found

    def writes(self, since: int) -> list[Marker]:
        query = sql.SQL(_WRITES).format(sql.SQL(self.commits.name.sql))
        values = {"target": str(self.name), "since": since, "own": list(OWN)}

        def read(connection: Connection) -> list[Marker]:
            with connection.cursor(row_factory=class_row(Marker)) as cursor:
                return cursor.execute(query, values).fetchall()

        return self.session.transaction(read)

    def confirm(self, plan: Plan, *, rows: int) -> None:
        """See :meth:`..core.ports.sink.MirrorTarget.confirm`. Under the plan's lock."""

        def write(connection: Connection) -> None:
            hold_target(connection, self.plans, fence=str(self.name), plan=plan)
            found = connection.execute(_FILES, {"table": self.written.sql}).fetchone()
            if found is None or found[0] != plan.files:
                raise SinkRefused(
                    f"The rows of {self.name} lie in other files than when plan {plan.plan_id} was made (TRUNCATE, "
                    "VACUUM FULL, CLUSTER or another table), or its columns were added, dropped or renamed: ranges "
                    'that did not change may be missing. Trigger the DAG with {"backpressure": "restart"}, which '
                    "compares every range."
                )
            values = (plan.plan_id, CONFIRMED, str(self.name), plan.epoch, Jsonb({"kind": CONFIRMED}), rows)
            connection.execute(sql.SQL(_CONFIRM).format(sql.SQL(self.commits.name.sql)), values)

        self.session.transaction(write)


def forget_writes(connection: Connection, commits: SystemTable, plan: Plan, bounds: Bounds) -> None:
    """Delete under ``mirror`` every marker of these bounds, so that nothing proves what the target holds there."""
    if plan.mode is not Mode.MIRROR:
        return
    query = sql.SQL("DELETE FROM {} WHERE target = %s AND bounds = %s").format(sql.SQL(commits.name.sql))
    connection.execute(query, (plan.write.fence, Jsonb(bounds.to_json())))


_MAY_REWRITE = sql.SQL(
    """
    SELECT has_database_privilege(current_database(), 'TEMPORARY'),
           to_regclass(%(commits)s) IS NULL OR coalesce(has_table_privilege(to_regclass(%(commits)s), 'UPDATE'), false)
    """
)
# With the columns: one that is dropped and added again is NULL in every row, and the files stay the same.
_FILES = sql.SQL(
    """
    SELECT string_agg(c.oid::text || '/' || coalesce(pg_relation_filenode(c.oid), 0)::text, ' ' ORDER BY c.oid)
           || ' ' || (SELECT md5(string_agg(attnum::text || ' ' || quote_ident(attname), ',' ORDER BY attnum))
                      FROM pg_attribute
                      WHERE attrelid = to_regclass(%(table)s) AND attnum > 0 AND NOT attisdropped)
    FROM pg_class c
    WHERE c.oid IN (SELECT to_regclass(%(table)s)::oid
                    UNION SELECT relid FROM pg_partition_tree(to_regclass(%(table)s)))
    """
)
_ESTIMATE = sql.SQL(
    """
    SELECT coalesce(sum(greatest(c.reltuples, 0)), 0)::bigint
    FROM pg_class c
    WHERE c.relkind = 'r' AND c.oid IN (SELECT to_regclass(%(table)s)::oid
                                        UNION SELECT relid FROM pg_partition_tree(to_regclass(%(table)s)))
    """
)
_WRITES = """
    SELECT DISTINCT ON (bounds) plan_id, slice_id, epoch, attempt, bounds, rows, bytes, checksum, committed_at, revoked,
           quarantined, read_at
    FROM {}
    WHERE target = %(target)s AND epoch >= %(since)s AND NOT revoked AND NOT slice_id = ANY (%(own)s)
    ORDER BY bounds, commit_seq DESC
"""
_CONFIRM = """
    INSERT INTO {} (plan_id, slice_id, target, epoch, attempt, bounds, rows) VALUES (%s, %s, %s, %s, 0, %s, %s)
    ON CONFLICT DO NOTHING
"""
