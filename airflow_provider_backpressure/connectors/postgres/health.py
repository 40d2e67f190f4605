"""The health of a PostgreSQL server: sessions, log, checkpoints, replicas, and queries of the user's."""

from collections.abc import Hashable, Sequence
from dataclasses import replace
from math import ceil

from psycopg import sql

from airflow_provider_backpressure.connectors.postgres.connect import READ_ONLY, Session
from airflow_provider_backpressure.connectors.postgres.errors import Errors
from airflow_provider_backpressure.connectors.postgres.hours_of_log_left import Forecast, KeptLog
from airflow_provider_backpressure.connectors.postgres.replication_slots import OLDEST, PREFIX
from airflow_provider_backpressure.connectors.relational.errors import where
from airflow_provider_backpressure.connectors.relational.user_queries import to_figure
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.health_signal_declarations import (
    ActiveSessions,
    Checkpoints,
    Figure,
    Query,
    ReplicaLag,
    SlotLag,
    WalHeadroom,
    WalRate,
    Watched,
)
from airflow_provider_backpressure.exceptions import BackpressureError

GIVES = (ActiveSessions, ReplicaLag, WalRate, Checkpoints, SlotLag, WalHeadroom, Query)
OF_SLOTS = (SlotLag, WalHeadroom)
NEEDS_RIGHT = (ActiveSessions, ReplicaLag)
"""Without the right to read all statistics, PostgreSQL shows other roles' sessions as if they did nothing."""
NEW_CHECKPOINTS = 170000
"""Version since which checkpoints have a view of their own."""

_ACTIVE = """(SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'
    AND state IN ('active', 'fastpath function call') AND pid <> pg_backend_pid())"""
_MOST = "current_setting('max_connections')::int"
# On an idle primary a standby replays nothing new: one that has all there is, and is connected, is not behind.
_LAG_SECONDS = """CASE
    WHEN NOT pg_is_in_recovery() THEN (SELECT coalesce(extract(epoch FROM max(replay_lag)), 0) FROM pg_stat_replication)
    WHEN pg_last_wal_receive_lsn() = pg_last_wal_replay_lsn()
        AND EXISTS (SELECT FROM pg_stat_wal_receiver WHERE status = 'streaming') THEN 0
    ELSE extract(epoch FROM clock_timestamp() - pg_last_xact_replay_timestamp()) END"""
_LAG_BYTES = """CASE
    WHEN pg_is_in_recovery() THEN pg_wal_lsn_diff(pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn())
    ELSE (SELECT coalesce(max(pg_wal_lsn_diff(pg_current_wal_lsn(), replay_lsn)), 0) FROM pg_stat_replication) END"""
_WAL = """pg_wal_lsn_diff(
    CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_insert_lsn() END, '0/0')"""
_KEPT = sql.SQL(
    """
    SELECT s.slot_name::text, coalesce(pg_wal_lsn_diff(l.now, s.restart_lsn), 0)::float8, s.safe_wal_size::float8,
           pg_wal_lsn_diff(l.now, '0/0')::float8,
           CASE WHEN pg_wal_lsn_diff(l.now, s.confirmed_flush_lsn) <= pg_wal_lsn_diff(l.now, s.restart_lsn) / 2
                THEN ({oldest}) END
    FROM (SELECT pg_current_wal_insert_lsn() AS now) l
    LEFT JOIN pg_replication_slots s ON starts_with(s.slot_name, %s) AND s.database = current_database()
    ORDER BY s.restart_lsn NULLS LAST LIMIT 1
    """
).format(oldest=OLDEST)
_RIGHT = "pg_has_role('pg_read_all_stats', 'USAGE')"


class PostgresHealth:
    """Implements :class:`..core.ports.Health`: one statement for the server's own figures, and one for each query."""

    def __init__(self, endpoint: Endpoint, watched: Sequence[Watched], *, errors: Errors, seconds: float) -> None:
        for each in watched:
            if not isinstance(each, GIVES):
                raise errors.refused(
                    f"PostgreSQL has no {type(each).__name__}: it gives {', '.join(kind.__name__ for kind in GIVES)}."
                )
        patience = {"connect_timeout": str(max(2, ceil(seconds)))}
        self._endpoint = replace(endpoint, options={**endpoint.options, **patience})
        self._told = [each for each in watched if not isinstance(each, (Query, *OF_SLOTS))]
        self._slots = [each for each in watched if isinstance(each, OF_SLOTS)]
        self._forecast = Forecast()
        self._queries = [each for each in watched if isinstance(each, Query)]
        self._errors = errors
        settings = {**READ_ONLY, "statement_timeout": f"{int(seconds * 1000)}", "lock_timeout": "1000"}
        self._session = Session(self._endpoint, errors=errors, settings=settings)

    @property
    def key(self) -> Hashable:
        """See :attr:`..core.ports.Health.key`."""
        at = self._endpoint
        return "postgres", at.address, at.user, hash(at.password), at.conn_id

    def look(self) -> dict[Watched, Figure | BackpressureError]:
        version = self._session.server_version
        found: dict[Watched, Figure | BackpressureError] = self._tell(version) if self._told else {}
        if self._slots:
            found |= self._kept()
        for each in self._queries:
            found[each] = self._ask(each)
        return found

    def close(self) -> None:
        self._session.close()

    def _tell(self, version: int) -> dict[Watched, Figure | BackpressureError]:
        pairs = [_expressions(each, version) for each in self._told]
        columns = ", ".join(f"({value})::float8, ({note})::text" for value, note in pairs)
        query = sql.SQL("SELECT ") + sql.SQL(_RIGHT) + sql.SQL(", ") + sql.SQL(columns)
        allowed, *row = self._session.rows(query)[0]
        values = zip(self._told, row[::2], row[1::2], strict=True)
        return {each: self._figure(each, value, note or "", allowed=allowed) for each, value, note in values}

    def _kept(self) -> dict[Watched, Figure | BackpressureError]:
        slot, held, safe, written, pid = self._session.rows(_KEPT, (PREFIX,))[0]
        kept = KeptLog(slot=slot or "", held=held, safe=safe, written=written, pid=pid)
        self._forecast.take(kept)
        return {
            each: self._forecast.hours(kept, each)
            if isinstance(each, WalHeadroom)
            else Figure(value=kept.held, note=kept.note)
            for each in self._slots
        }

    def _figure(self, watched: Watched, value: float | None, note: str, *, allowed: bool) -> Figure | BackpressureError:
        at = where(self._endpoint)
        if not allowed and isinstance(watched, NEEDS_RIGHT):
            return self._errors.refused(
                f"PostgreSQL at {at} shows {self._endpoint.user} only its own sessions, so {watched.name} cannot be "
                f'watched: GRANT pg_monitor TO "{self._endpoint.user}".'
            )
        if value is None:
            return self._errors.unavailable(f"PostgreSQL at {at} does not report the {watched.name} yet.")
        return Figure(value=value, note=note)

    def _ask(self, query: Query) -> Figure | BackpressureError:
        try:
            row = self._session.first(query.sql)
            return to_figure(query, row, refused=self._errors.refused, unavailable=self._errors.unavailable)
        except (self._errors.refused, self._errors.unavailable) as error:
            return error


def _expressions(watched: Watched, version: int) -> tuple[str, str]:
    """Return the expressions of a figure and of what it means."""
    match watched:
        case ActiveSessions(share=None):
            return _ACTIVE, "NULL"
        case ActiveSessions():
            return f"{_ACTIVE}::float8 / {_MOST}", f"{_ACTIVE} || ' of ' || {_MOST}"
        case ReplicaLag(bytes=None):
            return _LAG_SECONDS, "NULL"
        case ReplicaLag():
            return _LAG_BYTES, "NULL"
        case WalRate():
            return _WAL, "NULL"
        case Checkpoints() if version < NEW_CHECKPOINTS:
            return "(SELECT checkpoints_req FROM pg_stat_bgwriter)", "NULL"
        case Checkpoints():
            return "(SELECT num_requested FROM pg_stat_checkpointer)", "NULL"
    raise AssertionError(watched)
