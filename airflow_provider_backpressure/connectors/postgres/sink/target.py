"""A PostgreSQL table as a sink, opened."""

import json
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING

from psycopg import sql
from psycopg.rows import class_row

from airflow_provider_backpressure.connectors.postgres.attempt_sessions import (
    end_connections,
    plan_prefix,
    read_activities,
    rows_in_flight,
    slice_prefix,
)
from airflow_provider_backpressure.connectors.postgres.catalog import find_number, place
from airflow_provider_backpressure.connectors.postgres.connect import (
    DURABLE,
    EVERY_ROW,
    Connection,
    Row,
    Session,
    run_together,
)
from airflow_provider_backpressure.connectors.postgres.errors import Errors
from airflow_provider_backpressure.connectors.postgres.health import PostgresHealth
from airflow_provider_backpressure.connectors.postgres.identifiers import QualifiedName
from airflow_provider_backpressure.connectors.postgres.sink.checks import check_fit
from airflow_provider_backpressure.connectors.postgres.sink.comparison_snapshot import PostgresTargetMoment
from airflow_provider_backpressure.connectors.postgres.sink.leftovers import (
    Traces,
    check_history,
    complete_table,
    count_rows,
    describe_surplus,
    remove_range,
    remove_rows,
)
from airflow_provider_backpressure.connectors.postgres.sink.mirror_target import PostgresMirror, forget_writes
from airflow_provider_backpressure.connectors.postgres.sink.plan_row import (
    OWN,
    READ_MARKERS,
    REVOKE_SLICE,
    begin_plan,
    check_other_schemas,
    find_epoch,
    find_holder,
    find_rows,
    hold_target,
    keep_plan,
    list_schemas,
    mark_consistent,
    plan_row,
    prune_markers,
    raise_epoch,
    recall_schemas,
    upgrade,
)
from airflow_provider_backpressure.connectors.postgres.sink.range_conditions import RangeConditions, split_blocks
from airflow_provider_backpressure.connectors.postgres.sink.shadow_table import (
    create_shadow,
    drop_shadows,
    list_shadows,
    name_shadows,
    new_shadow,
    shadow_of,
)
from airflow_provider_backpressure.connectors.postgres.sink.system_tables import (
    SystemTable,
    add_columns,
    commit_table,
    create_system,
    create_table,
    definition,
    find_table,
    frontier_table,
    has_rows,
    has_table,
    lock_target,
    place_streams,
    plan_table,
    quarantine_table,
)
from airflow_provider_backpressure.connectors.postgres.sink.table_swap import PUBLISH, Publishing, open_session
from airflow_provider_backpressure.connectors.postgres.sink.upsert_checks import KEYED, Fitting
from airflow_provider_backpressure.connectors.relational.errors import where
from airflow_provider_backpressure.core.config import Consistency, Log, Mode
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.health_signal_declarations import Watched
from airflow_provider_backpressure.core.poll_policy import Clock, PollPolicy, SystemClock
from airflow_provider_backpressure.core.ports import Health
from airflow_provider_backpressure.core.ports.comparison_snapshots import TargetMoment
from airflow_provider_backpressure.core.ports.sink import Activity, Marker, PlanRow, ScratchSink
from airflow_provider_backpressure.core.snapshot.bounds import Bounds
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.core.snapshot.spark_messages import Column, Window, WriteSpec
from airflow_provider_backpressure.exceptions import SinkRefused, SinkUnavailable

if TYPE_CHECKING:
    from airflow_provider_backpressure.connectors.postgres.sink.config import PostgresSink

KIND = "postgres"
ERRORS = Errors(refused=SinkRefused, unavailable=SinkUnavailable)
ANSWER_SECONDS = 15.0
"""Longest wait for what the markers say: a lane that hangs renews no lease."""
LOCK_TIMEOUT = "30s"
"""Longest wait for a lock that another plan, attempt or preparation holds."""


class PostgresTarget:
    """Implements :class:`..core.ports.Sink`. Threads may share it; it connects at the first question."""

    modules: tuple[str, ...] = ("psycopg",)
    modes: tuple[Mode, ...] = tuple(Mode)

    def __init__(
        self,
        declared: "PostgresSink",
        endpoint: Endpoint,
        *,
        poll: PollPolicy | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._declared = declared
        self._name = QualifiedName.parse(declared.table)
        schema = declared.system_schema or self._name.schema
        self._bad = quarantine_table(schema)
        self._quarantine = self._bad if declared.quarantine else None
        self._plans, self._commits, self._frontiers = plan_table(schema), commit_table(schema), frontier_table(schema)
        settings = {"lock_timeout": LOCK_TIMEOUT, **DURABLE, **EVERY_ROW}
        self._session = Session(endpoint, errors=ERRORS, settings=settings)
        self._endpoint = endpoint
        self._there = False
        self._poll, self._clock = poll or PollPolicy(), clock or SystemClock()
        self._conditions = RangeConditions(self._session, self._name, self._readable)
        self.identity = f"postgres://{endpoint.address}/{self._name}"

    def fit(self, columns: Sequence[Column], *, mode: str, key: Sequence[str], log: Log | None = None) -> WriteSpec:
        """See :meth:`..core.ports.Sink.fit`. Under ``upsert`` the sink's own key goes before the source's."""
        wanted = Mode(mode)
        by = tuple(self._declared.key or key) if wanted in KEYED else ()
        if wanted in KEYED and not by:
            raise SinkRefused(
                f"{self._name} cannot be upserted or mirrored without a key, and its source has none: declare key= of "
                "the sink."
            )
        fitting = Fitting(name=self._name, columns=columns, mode=wanted, key=by, system=self._system, log=log)
        check_fit(self._session, fitting)
        self._session.read(partial(self._check_schema, schemas=recall_schemas(self._session, self._plans)))
        return WriteSpec(
            kind=KIND,
            conn_id=self._declared.conn_id,
            target=(new_shadow(self._name) if wanted is Mode.REPLACE else self._name).sql,
            columns=tuple(columns),
            mode=wanted.value,
            key=by,
            plan_table=self._plans.name.sql,
            commit_table=self._commits.name.sql,
            fence=self._fence,
            quarantine=self._quarantine.name.sql if self._quarantine else None,
            most_bad=self._declared.quarantine or 0,
            frontier_table=self._frontiers.name.sql,
        )

    def widen(self, columns: Sequence[Column]) -> None:
        """See :meth:`..core.ports.Sink.widen`. All of them or none.

        ``SinkRefused`` where such a column is there already and rows have values in it, as of a default: the source
        has NULL in these rows, and nothing would compare them.
        """
        place = f"{self._name} in {where(self._session.endpoint)}"
        self._session.transaction(lambda connection: add_columns(connection, self._name, columns, place=place))

    def prepare(self, write: WriteSpec) -> None:
        """See :meth:`..core.ports.Sink.prepare`. All or nothing, and safe when two do it at once.

        A target that is to be replaced and is not there yet appears by the swap only.
        """
        system = (*self._system, *([self._frontiers] if write.ordered else []))
        fact = ("prepared", self._name.schema, *(table.name for table in system))

        def create(connection: Connection) -> None:
            # Many targets in a schema share these tables, and would wait for each other.
            if not self._session.recall(fact):
                create_system(connection, system, self._name.schema, self._plans.name.schema)
                upgrade(connection, self._plans, self._commits)
            *_, there = run_together(connection, lock_target(self._fence), find_table(self._name))
            if write.mode != Mode.REPLACE and not there:
                self._create(connection, write)

        self._session.transaction(create)
        self._session.note(fact)
        self._there = write.mode != Mode.REPLACE

    def holds_rows(self) -> bool:
        return self._session.read(lambda connection: has_rows(connection, self._name, there=self._there))

    def begin(self, plan: Plan, *, clear: str | None = None) -> int:
        """See :meth:`..core.ports.Sink.begin`. Connections of the plan before are ended: they could only be refused.

        Shadows of plans before are dropped, and that of this plan is created where it is missing, with its epoch.
        ``SinkRefused`` where the target turns out to be the source itself.
        """
        query = sql.SQL("SELECT plan_id FROM {} WHERE target = %s").format(sql.SQL(self._plans.name.sql))
        held = query, (self._fence,)
        number, before = self._session.read(lambda each: run_together(each, find_number(self._name), held))
        self._refuse_source(plan, number)
        for (plan_id,) in before:
            plan.check_turn(plan_id)
            self._end(plan_prefix(plan_id))
        fact = ("whole plans", self._plans.name)
        whole = self._session.recall(fact)

        def write(connection: Connection) -> int:
            # Two schemas' plan tables have no lock in common.
            own = find_holder(self._plans, self._plans.name.schema, self._fence, self._name)
            asked = (lock_target(self._fence), held, list_schemas(self._plans), own, list_shadows(self._name))
            _, before, schemas, holder, shadows = run_together(connection, *asked)
            self._check_schema(connection, schemas, holder)
            taken, target = (plan.plan_id,) in before, self._name if whole else None
            epoch = begin_plan(connection, self._plans, fence=self._fence, plan=plan, target=target)
            for (plan_id,) in () if epoch else connection.execute(*held):
                plan.check_turn(plan_id)
            assert epoch is not None, "a row of another plan was refused"
            if taken:
                # A task that was frozen before it took the target: others may have committed ranges since.
                return epoch
            if not whole and keep_plan(connection, self._plans, fence=self._fence, plan=plan, target=self._name):
                self._session.note(fact)
            place_streams(connection, plan)
            if clear is not None and plan.mode is Mode.APPEND:
                remove_rows(connection, self._name, self._commits, plan_id=clear)
            if clear is not None and plan.consistency is Consistency.CATCH_UP:
                connection.execute(sql.SQL("DELETE FROM {}").format(sql.SQL(self._name.sql)))
            shadow = shadow_of(plan.write) if plan.mode is Mode.REPLACE else None
            drop_shadows(connection, name_shadows(self._name, shadows), but=shadow)
            if shadow is not None and not has_table(connection, shadow):
                create_shadow(connection, self._name, shadow, plan.write.columns)
            return epoch

        return self._session.transaction(write)

    def renew(self, plan_id: str) -> int | None:
        """See :meth:`..core.ports.Sink.renew`. Connections of its attempts are ended."""
        self._end(plan_prefix(plan_id))
        return self._session.read(lambda connection: raise_epoch(connection, self._plans, self._fence, plan_id))

    def epoch(self, plan_id: str) -> int | None:
        return self._session.read(lambda connection: find_epoch(connection, self._plans, self._fence, plan_id))

    def held(self) -> PlanRow | None:
        return self._session.read(
            lambda connection: plan_row(connection, self._plans, self._commits, fence=self._fence),
            seconds=ANSWER_SECONDS,
        )

    def markers(self, plan_id: str, slice_ids: Sequence[str] | None = None) -> dict[str, Marker]:
        """See :meth:`..core.ports.Sink.markers`. Revoked ones are among them, marked as such; the swap's own is not."""
        query = sql.SQL(READ_MARKERS).format(sql.SQL(self._commits.name.sql))
        values = {"plan_id": plan_id, "wanted": None if slice_ids is None else list(slice_ids), "own": list(OWN)}

        def read(connection: Connection) -> list[Marker]:
            with connection.cursor(row_factory=class_row(Marker)) as cursor:
                return cursor.execute(query, values).fetchall()

        return {marker.slice_id: marker for marker in self._session.read(read, seconds=ANSWER_SECONDS)}

    def end_attempts(self, plan_id: str, slice_id: str) -> int:
        """See :meth:`..core.ports.Sink.end_attempts`. ``SinkUnavailable`` where one does not go."""
        return self._end(slice_prefix(plan_id, slice_id))

    def rows_in_flight(self, plan_id: str) -> dict[str, int]:
        return rows_in_flight(self._session, plan_prefix(plan_id))

    def activities(self, plan_id: str) -> dict[str, Activity]:
        return read_activities(self._session, plan_prefix(plan_id))

    def slice_query(self, write: WriteSpec, bounds: Bounds | None, window: Window | None = None) -> str:
        """See :meth:`..core.ports.Sink.slice_query`. The whole table (``None``) can always be read.

        ``SinkRefused`` where these bounds do not single out the same rows in the target: the key's column is not there,
        or text is ordered otherwise.
        """
        return self._select(write, self._conditions.select(write, bounds, window))

    def scan_queries(self, write: WriteSpec, bounds: Bounds, window: Window | None, *, parts: int) -> list[str]:
        """See :meth:`..core.ports.Sink.scan_queries`: by the blocks of a table without an index on the key."""
        table = self._conditions.find_unindexed(write, bounds)
        kept = self._conditions.select(write, None, window)
        return [self._select(write, [*kept, *piece]) for piece in split_blocks(self._session, table, parts=parts)]

    def _select(self, write: WriteSpec, conditions: Sequence[sql.Composable]) -> str:
        columns = sql.SQL(", ").join([sql.Identifier(column.name) for column in write.columns])
        query = sql.SQL("SELECT {} FROM {}").format(columns, sql.SQL(self._readable(write).sql))
        if conditions:
            query = query + sql.SQL(" WHERE ") + sql.SQL(" AND ").join(conditions)
        return query.as_string(None)

    def find_surplus(self, plan: Plan) -> str:
        """See :meth:`..core.ports.Sink.find_surplus`: rows that no range covers, such as those without a key."""
        if plan.mode is Mode.UPSERT or plan.increment:
            return ""
        count = partial(count_rows, table=self._readable(plan.write), commits=self._commits, plan_id=plan.plan_id)
        return describe_surplus(self._name, *self._session.read(count))

    def read_quarantine(self, plan: Plan, slice_id: str) -> tuple[str, ...]:
        if plan.write.quarantine is None:
            return ()
        return self._session.read(lambda each: find_rows(each, self._bad, plan.plan_id, slice_id))

    def check_history(self) -> None:
        """See :meth:`..core.ports.Sink.check_history`. Rows that others delete are not missed here."""
        others = [table.name for table in (*self._system, self._frontiers)]
        check_history(self._session, self._name, self._plans, others)

    def discard(self, plan: Plan, slice_id: str, bounds: Bounds) -> int:
        """See :meth:`..core.ports.Sink.discard`. Connections of attempts at the slice are ended.

        Under ``upsert`` only the marker goes: rows of others may lie between, and the range replaces its own by key. A
        table that shares a log has no rows of others, and one that the source has not would stay for ever.
        """
        window = plan.read.window if plan.increment else None
        kept = self._conditions.select(plan.write, bounds, window)
        if not kept:
            raise SinkRefused(f"Range {bounds} is the whole of {self._name}: plan it again instead.")
        self.end_attempts(plan.plan_id, slice_id)

        def remove(connection: Connection) -> int:
            self._hold(connection, plan)
            # By the plan, which the range is written by again: the DAG may declare no quarantine by now.
            for table in (self._commits, *((self._bad,) if plan.write.quarantine else ())):
                gone = sql.SQL("DELETE FROM {} WHERE plan_id = %s AND slice_id = %s").format(sql.SQL(table.name.sql))
                connection.execute(gone, (plan.plan_id, slice_id))
            forget_writes(connection, self._commits, plan, bounds)
            return remove_range(connection, self._name, self._plans, plan, kept)

        return self._session.transaction(remove)

    def revoke(self, plan: Plan, slice_id: str, bounds: Bounds) -> bool:
        """See :meth:`..core.ports.Sink.revoke`. Connections of attempts at the slice are ended."""
        self.end_attempts(plan.plan_id, slice_id)
        table, text = sql.SQL(self._commits.name.sql), json.dumps(bounds.to_json())

        def put(connection: Connection) -> bool:
            self._hold(connection, plan)
            values = (plan.plan_id, slice_id, self._fence, plan.epoch, text)
            connection.execute(sql.SQL(REVOKE_SLICE).format(table), values)
            found = sql.SQL("SELECT FROM {} WHERE plan_id = %s AND slice_id = %s AND revoked").format(table)
            return connection.execute(found, (plan.plan_id, slice_id)).fetchone() is not None

        return self._session.transaction(put)

    def prune(self, plan: Plan, plan_ids: Sequence[str]) -> int:
        """See :meth:`..core.ports.Sink.prune`. Rows in quarantine stay: they are a person's to judge."""

        def remove(connection: Connection) -> int:
            self._hold(connection, plan)
            return prune_markers(connection, self._commits, fence=self._fence, plan=plan, plan_ids=plan_ids)

        return self._session.transaction(remove)

    def complete(self, plan: Plan) -> None:
        """See :meth:`..core.ports.Sink.complete`. An earlier try that is still at it is ended."""
        if plan.mode is Mode.REPLACE:
            with self._open_swap(plan) as publishing:
                publishing.complete()
        else:
            complete_table(self._session, self._name, [column.name for column in plan.write.columns])
        if plan.consistency is Consistency.CATCH_UP:
            self._session.transaction(lambda each: mark_consistent(each, self._plans, fence=self._fence, plan=plan))

    def publish(self, plan: Plan) -> None:
        """See :meth:`..core.ports.Sink.publish`. An earlier try that is still at it is ended."""
        if plan.mode is Mode.REPLACE:
            with self._open_swap(plan) as publishing:
                publishing.publish()

    def scratch(self, digits: str, *, indexes: bool = True) -> ScratchSink:
        from airflow_provider_backpressure.connectors.postgres.sink.probe_table import PostgresScratch

        return PostgresScratch(self._declared, self._endpoint, digits=digits, indexes=indexes)

    def health(self, watched: Sequence[Watched], *, seconds: float) -> Health:
        return PostgresHealth(self._endpoint, watched, errors=ERRORS, seconds=seconds)

    def mirror(self, write: WriteSpec | None = None) -> PostgresMirror:
        written = shadow_of(write) if write is not None and write.mode == Mode.REPLACE else self._name
        tables = (self._plans, self._commits)
        return PostgresMirror(self._session, self._name, *tables, self._conditions, written, self._declared.key or ())

    def open_moment(self, plan: Plan, *, committed: int) -> TargetMoment:
        at, tables = self._session.endpoint, (self._plans, self._commits, self._frontiers)
        return PostgresTargetMoment(at, plan, committed, self._fence, tables, self._conditions)

    def find_nullable(self, write: WriteSpec) -> set[str]:
        return self._conditions.find_nullable(write)

    def traces(self) -> tuple[str, ...]:
        return self._session.transaction(self._left.found)

    def erase(self) -> None:
        """See :meth:`..core.ports.Sink.erase`. Connections of the plan's attempts are ended."""
        if (holder := self.held()) is not None:
            self._end(plan_prefix(holder.plan_id))
        self._session.transaction(self._left.erase)

    def close(self) -> None:
        self._session.close()

    def _check_schema(self, connection: Connection, schemas: Sequence[Row], own: Sequence[Row] | None = None) -> None:
        place = f"{self._name} in {where(self._session.endpoint)}"
        check_other_schemas(
            connection, self._plans, schemas, fence=self._fence, target=self._name, place=place, own=own
        )

    def _create(self, connection: Connection, write: WriteSpec) -> None:
        connection.execute(create_table(self._name, [definition(each) for each in write.columns], write.key))

    @property
    def _fence(self) -> str:
        return str(self._name)

    @property
    def _system(self) -> tuple[SystemTable, ...]:
        return (self._plans, self._commits, *((self._quarantine,) if self._quarantine else ()))

    @property
    def _left(self) -> Traces:
        tables = (self._plans, self._commits, self._frontiers, quarantine_table(self._plans.name.schema))
        return Traces(target=self._name, tables=[table.name for table in tables])

    @contextmanager
    def _open_swap(self, plan: Plan) -> Iterator[Publishing]:
        self._end(slice_prefix(plan.plan_id, PUBLISH))
        with closing(open_session(self._session.endpoint, plan, errors=ERRORS)) as session:
            yield Publishing(plan=plan, target=self._name, session=session, poll=self._poll, clock=self._clock)

    def _readable(self, write: WriteSpec) -> QualifiedName:
        """Return the table that has the plan's rows: the shadow until it has taken the target's place."""
        if write.mode != Mode.REPLACE:
            return self._name
        shadow = shadow_of(write)
        return shadow if self._session.read(lambda connection: has_table(connection, shadow)) else self._name

    def _end(self, prefix: str) -> int:
        return end_connections(self._session, prefix, poll=self._poll, clock=self._clock)

    def _refuse_source(self, plan: Plan, number: Sequence[Row]) -> None:
        if plan.read.place is not None and number and place(self._session, number[0][0]) == plan.read.place:
            raise SinkRefused(f"{self._name} at {self._session.endpoint.address} is the source itself.")

    def _hold(self, connection: Connection, plan: Plan) -> None:
        hold_target(connection, self._plans, fence=self._fence, plan=plan)
