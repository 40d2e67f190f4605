"""Opens connections to PostgreSQL: libpq's parameters, and the settings of each of our sessions."""

import os
import socket
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import psycopg
from psycopg import sql
from psycopg.abc import Params

from airflow_provider_backpressure.connectors.postgres.errors import Errors, is_lost
from airflow_provider_backpressure.connectors.postgres.predicates import Cursor, literal
from airflow_provider_backpressure.core.delayed_calls import start_timer
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.exceptions import strip_frames

Settings = Mapping[str, str | sql.Composable]
"""Values by the names of parameters; one that is SQL is worked out by the server."""
SESSION_SETTINGS: Settings = {
    # A role may have a schema in front whose operators and types would take the place of the server's own.
    "search_path": sql.SQL(
        "CASE WHEN pg_catalog.array_position(pg_catalog.current_schemas(true), 'pg_catalog'::pg_catalog.name)"
        " OPERATOR(pg_catalog.>) 1 THEN pg_catalog.concat('pg_catalog, ', pg_catalog.current_setting('search_path'))"
        " ELSE pg_catalog.current_setting('search_path') END"
    ),
    # Values travel as text in boundaries, casts and filters: both sides have to print and read them alike.
    "client_encoding": "UTF8",
    "datestyle": "ISO, YMD",
    "intervalstyle": "postgres",
    "timezone": "UTC",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "xmloption": "content",
    "lc_monetary": "C",
    "standard_conforming_strings": "on",
    # Otherwise NULL within an array that is read as text becomes a text that says NULL.
    "array_nulls": "on",
    # A comparison with NULL means in our statements what it means in SQL.
    "transform_null_equals": "off",
    # Types are compared by how the server spells them.
    "quote_all_identifiers": "off",
    # Statements see what was committed before each of them; where one snapshot is needed, it is asked for.
    "default_transaction_isolation": "read committed",
    # To count a large table, to build its index and to read a range take as long as they take.
    "statement_timeout": "0",
    "transaction_timeout": "0",
    # A process that is frozen within a transaction, or whose host is gone, must not keep its locks. A transaction waits
    # for the server, and hardly for anything beside it.
    "idle_in_transaction_session_timeout": "5min",
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "3",
    # It would cut what an index of many values per row finds, without a word.
    "gin_fuzzy_search_limit": "0",
}
DURABLE: Settings = {
    # A marker that the ledger knows must survive a crash. Every other setting is as strong or stronger.
    "synchronous_commit": sql.SQL(
        "(SELECT CASE setting WHEN 'off' THEN 'on' ELSE setting END FROM pg_catalog.pg_settings"
        " WHERE name = 'synchronous_commit')"
    )
}
"""Of every session that commits in a target."""
EVERY_ROW: Mapping[str, str] = {"row_security": "off"}
"""Row security that would hide rows from our role is an error instead."""
AS_LOGIN = sql.SQL("(SELECT pg_catalog.set_config('role', 'none', true)) AS login")
"""In a FROM clause: lets one statement act as the role that has logged in, whose connections it may end. A role may be
set to act as another one."""
READ_ONLY: Mapping[str, str] = {"default_transaction_read_only": "on"}
_SINCE = {"transaction_timeout": 17_00_00}
"""The versions of servers that have brought a setting."""
CONTROL = "backpressure control"
"""``application_name`` of the control side; ``bp:`` is kept for attempts, which may be ended."""

_LIBPQ: Mapping[str, str] = {
    "connect_timeout": "10",
    "keepalives": "1",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    # Without it a peer that went away in mid-send holds the socket for a quarter of an hour.
    "tcp_user_timeout": "60000",
}


def connect(
    endpoint: Endpoint,
    *,
    errors: Errors,
    application_name: str,
    settings: Settings | None = None,
) -> psycopg.Connection[tuple[Any, ...]]:
    """Return an open connection in autocommit, with :data:`SESSION_SETTINGS` and ``settings`` set for its session.

    Raises ``errors.refused`` where the server says no (password, database, unknown option), ``errors.unavailable``
    where it does not answer.
    """
    try:
        # Prepared statements would break behind a pooler, and are worth little for statements that run once.
        connection = psycopg.connect(
            autocommit=True, prepare_threshold=None, cursor_factory=Cursor, **_parameters(endpoint, application_name)
        )
    except psycopg.Error as error:
        raise errors.at_the_door(error, endpoint) from strip_frames(error)
    with errors.translate_errors(endpoint):
        known = {**SESSION_SETTINGS, **(settings or {})}
        version = connection.info.server_version
        connection.execute(_build_settings({k: v for k, v in known.items() if version >= _SINCE.get(k, 0)}))
    return connection


def _parameters(endpoint: Endpoint, application_name: str) -> dict[str, Any]:
    """Return libpq's parameters. No variable of a frame that may fail holds it: see ``unframed``."""
    return {
        **_LIBPQ,
        **endpoint.options,
        "host": endpoint.host or None,
        "port": endpoint.port,
        "dbname": endpoint.database,
        "user": endpoint.user,
        "password": endpoint.password or None,
        "application_name": application_name,
    }


def _build_settings(settings: Settings) -> sql.Composed:
    """Return one statement for all settings: a round trip less each, and poolers know it, unlike start-up options."""
    calls = [
        sql.SQL("pg_catalog.set_config({}, {}, false)").format(
            sql.Literal(name), value if isinstance(value, sql.Composable) else sql.Literal(value)
        )
        for name, value in settings.items()
    ]
    return sql.SQL("SELECT ") + sql.SQL(", ").join(calls)


T = TypeVar("T")
Query = sql.SQL | sql.Composed
Row = tuple[Any, ...]
Connection = psycopg.Connection[Row]

Statement = sql.Composable | tuple[sql.Composable, Params]
"""A statement, by itself or with its values."""

NO_SEARCH_PATH = sql.SQL("SET LOCAL search_path TO ''")
"""Until the transaction ends, names are spelled with their schemas."""
STREAM_ROWS = 10_000


def run_together(connection: Connection, *statements: Statement) -> list[list[Row]]:
    """Return the rows of each of some statements, which the server is sent at once.

    They are a transaction by themselves where the connection is in none, and each sees what was committed before it.
    None of them may have a user's text in it: it could bring another statement.
    """
    writer = psycopg.ClientCursor(connection)
    written = [
        writer.mogrify(literal(each[0]).as_bytes(connection), each[1])
        if isinstance(each, tuple)
        else each.as_string(connection)
        for each in statements
    ]
    # Without values of its own the text goes as it is, by the protocol that takes several statements.
    cursor = connection.execute("; ".join(written).encode())
    found = []
    while True:
        found.append(cursor.fetchall() if cursor.description is not None else [])
        if not cursor.nextset():
            return found


class _Idle:
    """Connections that sessions have closed and others may take, while anybody keeps them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._connections: dict[tuple[object, ...], list[Connection]] = {}
        # By the connection: another one to the same address may lead to another server.
        self._facts: WeakKeyDictionary[Connection, dict[Hashable, Any]] = WeakKeyDictionary()

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Keep them meanwhile; the last one that leaves closes them."""
        with self._lock:
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                last = [] if self._users else [each for every in self._connections.values() for each in every]
                if not self._users:
                    self._connections.clear()
                    self._facts.clear()
            for connection in last:
                connection.close()

    def take(self, key: tuple[object, ...]) -> Connection | None:
        """Return one that leads to the same place with the same settings; ``None`` where there is none."""
        with self._lock:
            while found := self._connections.get(key):
                connection = found.pop()
                if not connection.closed:
                    return connection
        return None

    def note(self, connection: Connection, fact: Hashable, value: Any) -> None:
        """Remember what was found over a connection, for as long as connections are kept and this one lives."""
        with self._lock:
            if self._users:
                self._facts.setdefault(connection, {})[fact] = value

    def recall(self, connection: Connection, fact: Hashable) -> Any:
        """Return what was found over it; ``None`` where nothing was."""
        with self._lock:
            return self._facts.get(connection, {}).get(fact)

    def put(self, key: tuple[object, ...], connection: Connection) -> None:
        """Keep one that no session has any more, or close it."""
        idle = connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        with self._lock:
            if self._users and idle:
                self._connections.setdefault(key, []).append(connection)
                return
        connection.close()


_idle = _Idle()


def keep_connections() -> AbstractContextManager[None]:
    """Let sessions take over the connections of sessions that were closed: for the work on many tables of a server."""
    return _idle.kept()


def take_idle(endpoint: Endpoint, *, application_name: str, settings: Settings) -> Connection | None:
    """Return a connection that :func:`put_idle` was given; it may have been lost meanwhile."""
    return _idle.take(_key(endpoint, application_name, settings))


def put_idle(connection: Connection, endpoint: Endpoint, *, application_name: str, settings: Settings) -> None:
    """Give up a connection outside of any transaction: others take it where connections are kept, or it is closed."""
    _idle.put(_key(endpoint, application_name, settings), connection)


class Session:
    """Runs statements on one connection, opened at the first. Every psycopg error leaves as one of ``errors``."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        errors: Errors,
        settings: Settings | None = None,
        application_name: str = CONTROL,
    ) -> None:
        self.endpoint = endpoint
        self._application_name = application_name
        self.errors = errors
        self._settings = settings
        self._lock = threading.RLock()
        self._connection: Connection | None = None
        self._taken = False
        """Whether another session has used the connection before."""

    def rows(self, query: Query, params: Params | None = None, *, seconds: float | None = None) -> list[Row]:
        """Return the rows of one statement, in a transaction of its own; ``seconds`` as in :meth:`transaction`."""
        return self._run(lambda connection: connection.execute(query, params).fetchall(), seconds)

    def value(self, query: Query, params: Params | None = None) -> Any:
        """Return the only value of the first row."""
        return self.rows(query, params)[0][0]

    def first(self, text: str) -> Row | None:
        """Return the first row of a user's statement, by the protocol that takes no second one behind it."""
        return self._run(lambda connection: connection.execute(text.encode(), binary=True).fetchone())

    def transaction(self, work: Callable[[Connection], T], *, seconds: float | None = None) -> T:
        """Return what ``work`` makes of the connection inside one transaction.

        It runs a second time where the connection turns out to have been lost before, so it has to be idempotent.
        ``seconds``: how long a server may say nothing at all, as behind a link that is stuck, until it counts as away.
        """

        def run_in_transaction(connection: Connection) -> T:
            with connection.transaction():
                return work(connection)

        return self._run(run_in_transaction, seconds)

    def read(self, work: Callable[[Connection], T], *, seconds: float | None = None) -> T:
        """Return what ``work`` reads by statements that need no transaction: each sees what was committed before it.

        They would see the same in one, which takes two round trips more. It runs a second time as in
        :meth:`transaction`; ``seconds`` as there.
        """
        return self._run(work, seconds)

    def stream(self, query: Query) -> Iterator[Row]:
        """Yield the rows of one statement as the server finds them, over a connection of its own."""
        connection = self._connect()
        with self.errors.translate_errors(self.endpoint), connection, connection.transaction():
            # Every row will be fetched: a plan that is quick for the first ones only would be the wrong one.
            connection.execute(sql.SQL("SET LOCAL cursor_tuple_fraction = 1"))
            with connection.cursor(name="backpressure_stream") as cursor:
                cursor.itersize = STREAM_ROWS
                cursor.execute(query)
                yield from cursor

    @property
    def server_version(self) -> int:
        """The server's version as libpq has it, 180006 for 18.6."""
        return self._run(lambda connection: connection.info.server_version)

    def note(self, fact: Hashable, value: Any = True) -> None:
        """Remember what was found there, for the sessions that take over the connection while connections are kept.

        It ends with the connection: another server may answer over the next one.
        """
        self._run(lambda connection: _idle.note(connection, fact, value))

    def recall(self, fact: Hashable) -> Any:
        """Return what was noted over the connection; ``None`` where nothing was."""
        return self._run(lambda connection: _idle.recall(connection, fact))

    def close(self) -> None:
        """Release the connection; idempotent. The next statement would open a new one."""
        with self._lock:
            if self._connection is not None:
                _idle.put(self.key, self._connection)
                self._connection = None

    def _run(self, work: Callable[[Connection], T], seconds: float | None = None) -> T:
        with self._lock, self.errors.translate_errors(self.endpoint):
            used_before = self._connection is not None
            connection = self._open()
            used_before = used_before or self._taken
            try:
                with _hung_up(connection, seconds):
                    return work(connection)
            except psycopg.Error as error:
                if not (used_before and is_lost(error)):
                    raise
                # Others that are idle were most likely lost with it.
                connection = self._open(fresh=True)
                with _hung_up(connection, seconds):
                    return work(connection)

    def _open(self, *, fresh: bool = False) -> Connection:
        if self._connection is None or self._connection.closed:
            idle = None if fresh else _idle.take(self.key)
            self._connection, self._taken = idle or self._connect(), idle is not None
        return self._connection

    @property
    def key(self) -> tuple[object, ...]:
        """What is the same for sessions that may use each other's connections."""
        return _key(self.endpoint, self._application_name, self._settings)

    def _connect(self) -> Connection:
        return connect(
            self.endpoint, errors=self.errors, application_name=self._application_name, settings=self._settings
        )


def _key(place: Endpoint, application_name: str, settings: Settings | None) -> tuple[object, ...]:
    login = (place.address, place.user, place.password, *sorted(place.options.items()))
    return (*login, application_name, repr(settings))


@contextmanager
def _hung_up(connection: Connection, seconds: float | None) -> Iterator[None]:
    """Hang up on a server that lets us wait for longer: neither libpq nor TCP would ever give up on it."""
    if seconds is None:
        yield
        return
    timer = start_timer(seconds, partial(_hang_up, connection.pgconn.socket))
    try:
        yield
    finally:
        timer.cancel()


def _hang_up(descriptor: int) -> None:
    # It is closed by then where the work has ended at this very moment.
    with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as own:
        own.shutdown(socket.SHUT_RDWR)
