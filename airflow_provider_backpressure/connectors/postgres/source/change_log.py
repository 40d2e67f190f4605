"""PostgreSQL's log, kept by a replication slot and described by a publication, both named after the hydration."""

import json
import logging
import uuid
from collections.abc import Sequence
from itertools import pairwise
from typing import TypedDict

import psycopg
from psycopg import sql

from airflow_provider_backpressure.connectors.postgres.catalog import ORDINARY
from airflow_provider_backpressure.connectors.postgres.connect import Connection, Session
from airflow_provider_backpressure.connectors.postgres.errors import Errors
from airflow_provider_backpressure.connectors.postgres.identifiers import QualifiedName
from airflow_provider_backpressure.connectors.postgres.replication_slots import (
    MARK,
    PLUGIN,
    RESTORED,
    SIGNED,
    Slot,
    describe_loss,
    drop_publication,
    drop_slot,
    find_pinning,
    find_slot,
    lsn,
    mark_of,
    position,
    slot_name,
)
from airflow_provider_backpressure.connectors.postgres.source.checks import PUBLISHES_GENERATED
from airflow_provider_backpressure.connectors.postgres.table_storage import (
    lock_statement,
    may_select,
    read_storage,
)
from airflow_provider_backpressure.connectors.relational.errors import where
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.health_signal_declarations import size
from airflow_provider_backpressure.core.poll_policy import Clock, PollPolicy, SystemClock
from airflow_provider_backpressure.core.snapshot.bounds import LogBounds, LogPosition
from airflow_provider_backpressure.core.snapshot.replay_window import BYTES
from airflow_provider_backpressure.core.snapshot.spark_messages import ReadSpec, Slice
from airflow_provider_backpressure.core.snapshot.table_alterations import TableStorage
from airflow_provider_backpressure.exceptions import (
    BackpressureError,
    LogLost,
    SnapshotLost,
    SourceRefused,
    SourceUnavailable,
)

log = logging.getLogger(__name__)

ERRORS = Errors(refused=SourceRefused, unavailable=SourceUnavailable)
SLOT_SECONDS = 600
"""Longest wait for transactions that were open before: a slot begins behind the last of them."""
WINDOW_BYTES = 64 * 1024 * 1024
"""Most log in one window, unless a large one is asked for: the server decodes it from its start at each read."""
RESTART = 'trigger the DAG with {"backpressure": "restart"} to read the table again'
TOKENS = 8
"""Tokens that the publication's comment keeps: that of the last window, and those of plans that were never kept."""
IDLE_BYTES = 512
"""Most log that an idle server writes by itself: a token for that would be a reason for the next one."""
_SETTINGS = {"lock_timeout": "30s"}
_warned: dict[str, float] = {}
"""The level at which each slot's log was warned of last, in this process."""


class Limits(TypedDict):
    """What a source may keep of its log."""

    most: int | None
    """Bytes; ``None``: what the server allows itself."""
    restarts: bool
    """Whether the log is given up there, and all is read again."""


class PostgresLog:
    """Implements :class:`..core.ports.ChangeLog` for a table, or for several that share the slot."""

    unit = BYTES

    def __init__(
        self,
        endpoint: Endpoint,
        tables: QualifiedName | Sequence[QualifiedName],
        hydration_id: str,
        *,
        most: int | None = None,
        restarts: bool = False,
        clock: Clock | None = None,
    ) -> None:
        """``most``: bytes that may be kept. ``restarts``: whether the log is given up there, and all is read again."""
        self._most, self._restarts = most, restarts
        self.stream = slot_name(hydration_id)
        self._tables = [tables] if isinstance(tables, QualifiedName) else [*tables]
        self._clock = clock or SystemClock()
        self._session = Session(endpoint, errors=ERRORS, settings=_SETTINGS)

    def begin(self) -> LogPosition:
        """See :meth:`..core.ports.ChangeLog.begin`. The publication is first: the log shows nothing from before it."""
        self._session.transaction(lambda connection: drop_slot(connection, self.stream))
        self._publish()
        try:
            start = self._with_mark(self._make_slot(), self._sign(self._publication(), ""))
            self._await_older()
        except BackpressureError:
            self._give_up()
            raise
        slot = find_slot(self._session, self.stream)
        if slot is not None and slot.limit(self._most) is None:
            log.warning(
                "Nothing bounds the log that %s keeps for %s: while the DAG is paused or fails, it fills the disk. Set "
                "wal_limit= and a watcher, or max_slot_wal_keep_size on the server.",
                where(self._session.endpoint),
                self._label,
            )
        log.info("The log of %s is kept from %s on by the slot %s.", self._label, lsn(start.at).text, self.stream)
        return start

    def windows(
        self, start: LogPosition, *, bytes: int, goal: LogPosition | None = None, large: bool = False
    ) -> list[LogBounds]:
        flushed = self._kept(start).flushed
        publication, token = self._same_publication(start)
        if flushed <= start:
            return []
        mark = f"{publication}{SIGNED}{token}" if token else publication
        if flushed.at - start.at > IDLE_BYTES or self._may_show_changes(start, flushed):
            mark = self._sign(publication, token)
            flushed = self._kept(start).flushed
            self._same_publication(start)
        most = bytes if large else min(bytes, WINDOW_BYTES)
        ends = [*(lsn(at) for at in range(start.at + most, flushed.at, most)), flushed]
        places = [start, *(self._with_mark(each, mark) for each in ends)]
        return [
            LogBounds(stream=self.stream, start=first, end=last) for first, last in pairwise(places) if first < last
        ]

    def check(self, position: LogPosition) -> None:
        """See :class:`..core.ports.ChecksPosition`. ``LogLost`` also where the publication is another one."""
        self._kept(position)
        self._same_publication(position)

    def _may_show_changes(self, start: LogPosition, end: LogPosition) -> bool:
        """Whether a window may bring a change, which a server that is restored later may lack."""
        values = {"slot": self.stream, "start": lsn(start.at).text, "end": lsn(end.at).text}
        try:
            return bool(self._session.rows(_CHANGES, values))
        except SourceUnavailable as error:
            if not isinstance(error.__cause__, psycopg.errors.ObjectInUse):
                raise
            return True

    def storage(self, read: ReadSpec) -> TableStorage | None:
        (table,) = self._tables
        names = [column.name for column in read.columns]
        if read.storage:
            return read_storage(self._session, table, read.storage.lock)
        lock = lock_statement(table, ORDINARY, names, None, may_select=may_select(self._session, table))
        return read_storage(self._session, table, lock)

    def release(self, upto: LogPosition) -> None:
        slot = find_slot(self._session, self.stream)
        if slot is not None and slot.confirmed is not None and slot.confirmed < upto and not slot.lost:
            values = {"slot": self.stream, "upto": lsn(upto.at).text, "since": lsn(slot.confirmed.at).text}
            try:
                self._session.rows(_ADVANCE, values)
                self._session.rows(_FREE, values)
            except SourceUnavailable as error:
                if not isinstance(error.__cause__, psycopg.errors.ObjectInUse):
                    raise
                # As while a table is compared: a later window lets this go too.
                log.info("The slot %s is read, and is moved on later: %s", self.stream, error)

    def guard(self, *, replaying: bool | None) -> None:
        slot = self._there("what was not replayed yet", "that was not replayed yet")
        kept = f"The slot {self.stream} keeps {size(slot.held_bytes)} of log in {where(self._session.endpoint)}"
        if not slot.endangers(self._most):
            self._warn(slot, kept)
            return
        if self._restarts:
            # The slot itself, also where a table that shares it would only leave it.
            PostgresLog.drop(self)
            raise SnapshotLost(f"{kept}, more than it may: it was dropped, as declared, and the table is read again.")
        if replaying is None:
            raise SourceRefused(f"{kept}, more than it may, and no run replays it: trigger the DAG, or make room.")
        if not replaying:
            raise SourceRefused(
                f"{kept}, more than it may, so no more ranges are read, as declared: make room and clear the task, or "
                "give the log up with `airflow backpressure forget`."
            )
        log.warning("%s, more than it may; replaying it frees it.", kept)

    def _warn(self, slot: Slot, kept: str) -> None:
        """Log a warning when the log reaches the next level of what may be kept; once each, until it is freed."""
        level, limit = slot.reach_level(self._most), slot.limit(self._most)
        if level > _warned.get(self.stream, 0.0) and limit is not None:
            pid = find_pinning(self._session, slot)
            what = "it is dropped at the limit, and the table is read again" if self._restarts else "ranges stop there"
            if pid:
                what = f"the open transaction of process {pid} holds it, not the hydration: end that transaction"
            log.warning("%s, %.0f %% of the %s that it may: %s.", kept, level * 100, size(limit), what)
        _warned[self.stream] = level

    def drop(self) -> None:
        def remove(connection: Connection) -> None:
            drop_slot(connection, self.stream)
            drop_publication(connection, self.stream)

        self._session.transaction(remove)

    def _give_up(self) -> None:
        """Leave nothing behind that nobody reads, as far as the server lets us."""
        try:
            self.drop()
        except BackpressureError as error:
            log.warning(
                "The slot %s may be left in the source, see `airflow backpressure doctor`: %s", self.stream, error
            )

    def close(self) -> None:
        """Give the connection back; idempotent."""
        self._session.close()

    def _there(self, gone: str, removed: str) -> Slot:
        """Return the slot. Where the server no longer keeps the log for us: ``SnapshotLost`` if all is to be read again
        then, as declared, otherwise ``LogLost``, which names what is lost: ``gone`` with the slot, or ``removed`` from
        it.
        """
        slot = find_slot(self._session, self.stream)
        if slot is not None and slot.is_kept:
            return slot
        name = f"{self.stream} in {where(self._session.endpoint)}"
        lost = describe_loss(slot, name, gone=gone, removed=removed)
        # At its limit both are removed. A failover or a backup lacks the slot alone, and may be older than the target.
        if self._restarts and (slot is not None or not self._session.rows(_NAMED, (self.stream,))):
            raise SnapshotLost(f"{lost}: the table is read again, as declared (at_wal_limit).")
        raise LogLost(f"{lost}: {RESTART}.")

    def _kept(self, start: LogPosition) -> Slot:
        """Return the slot; ``LogLost`` names what is no longer there, or is not what it was."""
        where_to = lsn(start.at).text
        slot = self._there(f"what changed after {where_to}", f"that was not replayed yet, from {where_to} on")
        name, at = f"The replication slot {self.stream}", f"in {where(self._session.endpoint)}"
        assert slot.confirmed is not None, "looked at"
        if slot.confirmed > start:
            raise LogLost(
                f"{name} {at} was moved on to {slot.confirmed.text} by somebody else, past {where_to} where "
                f"replaying is to continue: {RESTART}."
            )
        if slot.flushed < start:
            raise LogLost(
                f"The log {at} ends at {slot.flushed.text}, before {where_to} where replaying is to continue: the "
                f"server was restored; {RESTART}."
            )
        return slot

    def _publication(self) -> str:
        """Return what distinguishes this publication of the tables from a later one; ``LogLost``: there is none."""
        found = self._find_published()
        missing = [str(table) for table in self._tables if table not in found]
        if missing:
            at = f"in {where(self._session.endpoint)}"
            raise LogLost(
                f"The publication {self.stream} {at} no longer holds {', '.join(missing)} as a whole: {RESTART}."
            )
        (publication, *_), marks = zip(*(found[table] for table in self._tables), strict=True)
        return ".".join([publication, *marks])

    def _find_published(self) -> dict[QualifiedName, tuple[str, str]]:
        """Return the tables that the publication holds as a whole, with what distinguishes it, and each one in it."""
        rows = self._session.rows(_PUBLISHED, (self.stream,))
        return {
            QualifiedName(schema=schema, name=name): (publication, mark) for schema, name, publication, mark in rows
        }

    def _same_publication(self, start: LogPosition) -> tuple[str, str]:
        """Return the publication's mark and the position's token; ``LogLost`` where the log is not what it was.

        Looked at behind the end of the windows. A change that was made while the table was not published is not shown,
        and nothing says so; what an earlier release has begun has no mark.
        """
        now, (before, token) = self._publication(), mark_of(start)
        if before and before != now:
            raise LogLost(
                f"The publication {self.stream} in {where(self._session.endpoint)} was altered or created again, so "
                f"the log may lack changes of {self._label}: {RESTART}."
            )
        if token and token not in self._tokens()[0]:
            at = f"The publication {self.stream} in {where(self._session.endpoint)}"
            raise LogLost(f"{at} does not have the comment that the last window left: {RESTORED}; {RESTART}.")
        return now, token

    def _sign(self, publication: str, last: str) -> str:
        """Return the mark of windows that are to be planned, with a token that a server restored since does not have.

        It is committed before their end is taken. Positions alone say nothing: a restored server reaches them again.
        A publication that an administrator made cannot be signed. ``last``: the token of the windows before.
        """
        tokens, ours = self._tokens()
        if not ours:
            return publication
        new = uuid.uuid4().hex[:12]
        kept = [*([last] if last else []), *[token for token in tokens if token != last][2 - TOKENS :], new]
        comment = sql.SQL("COMMENT ON PUBLICATION {} IS {}").format(
            sql.Identifier(self.stream), sql.Literal(" ".join(kept))
        )

        def write(connection: Connection) -> None:
            # Of no use on a standby: what it lacks, the slot lacks too.
            connection.execute(sql.SQL("SET LOCAL synchronous_commit = local"))
            connection.execute(comment)

        self._session.transaction(write)
        return f"{publication}{SIGNED}{new}"

    def _tokens(self) -> tuple[list[str], bool]:
        """Return the tokens in the publication's comment, and whether our role may change it."""
        comment, ours = self._session.rows(_COMMENT, (self.stream,))[0]
        return (comment or "").split(), ours

    @staticmethod
    def _with_mark(place: LogPosition, mark: str) -> LogPosition:
        return LogPosition(at=place.at, text=f"{place.text}{MARK}{mark}")

    def _publish(self) -> None:
        """Make the publication, or take one that an administrator has made for us."""
        if set(self._tables) <= set(self._find_published()):
            return
        statement = self._statement()
        for table in self._tables:
            against = self._session.rows(_MAY_PUBLISH, {"schema": table.schema, "name": table.name})[0]
            if not all(against):
                raise SourceRefused(
                    f"{self._session.endpoint.user} may not publish {table}, which takes its owner and the CREATE "
                    f"right on the database: let such a role run {statement.as_string(None)}"
                )

        def make(connection: Connection) -> None:
            drop_publication(connection, self.stream)
            connection.execute(statement)

        self._session.transaction(make)

    def _statement(self) -> sql.Composed:
        return self._statement_for(self._tables)

    def _statement_for(self, names: Sequence[QualifiedName]) -> sql.Composed:
        new = self._session.server_version >= PUBLISHES_GENERATED
        tables = sql.SQL(", ").join(sql.SQL(f"ONLY {table.sql}") for table in names)
        return sql.SQL("CREATE PUBLICATION {}{} WITH (publish = {}{})").format(
            sql.Identifier(self.stream),
            sql.SQL(" FOR TABLE {}").format(tables) if names else sql.SQL(""),
            sql.Literal("insert, update, delete, truncate"),
            sql.SQL(", publish_generated_columns = stored" if new else ""),
        )

    def _make_slot(self) -> LogPosition:
        used, most = self._session.rows(_SLOTS_USED)[0]
        if used >= most:
            raise SourceRefused(
                f"All {most} replication slots of {where(self._session.endpoint)} are in use: raise "
                "max_replication_slots, or drop those that nobody needs (`airflow backpressure doctor` lists ours)."
            )

        def make(connection: Connection) -> LogPosition:
            connection.execute(sql.SQL("SELECT set_config('statement_timeout', %s, true)"), (f"{SLOT_SECONDS}s",))
            row = connection.execute(_CREATE, (self.stream, PLUGIN)).fetchone()
            assert row is not None, "a function returns its row"
            return position(row[0])

        try:
            return self._session.transaction(make)
        except SourceUnavailable as error:
            if isinstance(error.__cause__, psycopg.errors.QueryCanceled):
                raise self._too_long() from error
            raise

    def _await_older(self) -> None:
        """Wait until every transaction that the slot does not show is visible to readers of the table.

        A commit may be in the log before it is visible, and after the last that is over. So a number of our own is
        taken: it is behind those of all of them.
        """
        last = self._session.value(_OWN)

        def gone() -> bool | None:
            return True if self._session.value(_OLDEST) >= last else None

        if PollPolicy().until(gone, timeout=SLOT_SECONDS, clock=self._clock) is None:
            raise self._too_long()

    def _too_long(self) -> SourceUnavailable:
        return SourceUnavailable(
            f"Transactions in {where(self._session.endpoint)} that had begun before the log was kept did not end "
            f"within {SLOT_SECONDS} s."
        )

    @property
    def _label(self) -> str:
        return ", ".join(map(str, self._tables))


def window_slice(bounds: LogBounds, table: QualifiedName, slice_id: str) -> Slice:
    """Return the slice of a window: whom to ask, and for which table."""
    return Slice(slice_id=slice_id, query=make_log_query(bounds.stream, table), bounds=bounds.to_json())


def make_log_query(stream: str, table: QualifiedName) -> str:
    """Return what a task needs to know to read a table's changes. ``stream``: the slot."""
    return json.dumps({"slot": stream, "schema": table.schema, "table": table.name})


_CREATE = sql.SQL("SELECT lsn::text FROM pg_create_logical_replication_slot(%s, %s)")
_ADVANCE = sql.SQL("SELECT end_lsn::text FROM pg_replication_slot_advance(%(slot)s, %(upto)s::pg_lsn)")
# The server begins to decode at a place before what is confirmed, and keeps the log from there on. Moved on once, that
# is the first such place behind what was confirmed before: a whole window would be kept, and decoded with the next one.
# Where an open transaction holds the place further back, another try would be in vain.
_FREE = sql.SQL(
    """
    SELECT (pg_replication_slot_advance(slot_name, %(upto)s::pg_lsn)).end_lsn::text FROM pg_replication_slots
    WHERE slot_name = %(slot)s::text::name AND %(upto)s::pg_lsn - restart_lsn > 16 * 2 ^ 20
      AND %(upto)s::pg_lsn - restart_lsn < 2 * (%(upto)s::pg_lsn - %(since)s::pg_lsn)
    """
)
# The end of each transaction that a window shows: the server passes over those without a change (14 sends them too).
_CHANGES = sql.SQL(
    """
    SELECT FROM pg_logical_slot_peek_binary_changes(
        %(slot)s::text::name, %(end)s::pg_lsn, NULL, 'proto_version', '1', 'publication_names', %(slot)s::text)
    WHERE get_byte(data, 0) = ascii('C') AND lsn > %(start)s::pg_lsn LIMIT 1
    """
)
_SLOTS_USED = sql.SQL("SELECT count(*), current_setting('max_replication_slots')::int FROM pg_replication_slots")
_OWN = sql.SQL("SELECT pg_current_xact_id()::text::bigint")
_OLDEST = sql.SQL("SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint")
# Read out of the whole row: lists of columns and conditions came with 15.
_PUBLISHED = sql.SQL(
    """
    SELECT n.nspname::text, c.relname::text, concat_ws('.', p.oid, p.xmin), concat_ws('.', r.oid, r.xmin)
    FROM pg_publication p
    JOIN pg_publication_rel r ON r.prpubid = p.oid
    JOIN pg_class c ON c.oid = r.prrelid
    JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE p.pubname = %s
      AND p.pubinsert AND p.pubupdate AND p.pubdelete AND p.pubtruncate
      AND to_jsonb(r) ->> 'prattrs' IS NULL AND to_jsonb(r) ->> 'prqual' IS NULL
    """
)
_NAMED = sql.SQL("SELECT FROM pg_publication WHERE pubname = %s")
_COMMENT = sql.SQL(
    """
    SELECT obj_description(oid, 'pg_publication'), pg_has_role(pubowner, 'USAGE')
    FROM pg_publication WHERE pubname = %s
    """
)
_MAY_PUBLISH = sql.SQL(
    """
    SELECT has_database_privilege(current_database(), 'CREATE'), pg_has_role(c.relowner, 'USAGE')
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = %(schema)s AND c.relname = %(name)s
    """
)
