"""The database under the ledger: its engine, its transactions, and its errors in our words."""

import logging
import select
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from importlib.util import find_spec
from typing import Any, ParamSpec, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection, Engine, make_url
from sqlalchemy.exc import DBAPIError, InvalidatePoolError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from airflow_provider_backpressure.exceptions import BackpressureError, LedgerRefused, LedgerUnavailable, strip_frames
from airflow_provider_backpressure.ledger import revision as versions

DIALECTS = ("mysql", "mariadb")
"""SQLAlchemy's names. MariaDB, which Airflow does not support, serves as well as it can."""
DRIVERS = {"pymysql": "pymysql", "mysqldb": "MySQLdb"}
"""Drivers and their Python packages; the first that is installed is taken where the address names neither."""


def use_pymysql(url: URL) -> URL:
    """Return the URL with a driver that is installed; ``LedgerRefused`` where there is none."""
    named = url.drivername.partition("+")[2]
    wanted = {named: DRIVERS[named]} if named in DRIVERS else DRIVERS
    for driver, package in wanted.items():
        if find_spec(package) is not None:
            return url.set(drivername=f"mysql+{driver}")
    raise LedgerRefused(
        f"A ledger on MySQL needs the Python package {' or '.join(wanted.values())}: "
        "`pip install 'airflow-provider-backpressure[mysql]'`."
    )


def connect_arguments(url: URL, *, connect_seconds: int, wait_seconds: int) -> dict[str, Any]:
    """Return the driver's connect arguments, as far as the URL does not give them itself."""
    found = {
        "connect_timeout": connect_seconds,
        # Without it mysqlclient would take whatever the client library was built with.
        "charset": "utf8mb4",
        # At the driver's own start, before SQLAlchemy looks at the SQL mode to learn how names are quoted.
        "init_command": session(wait_seconds),
    }
    return {name: value for name, value in found.items() if name not in url.query}


def session(wait_seconds: int) -> str:
    """Return the statement that sets a session up.

    The server may be set to cut what is too long without an error, and to wait for a lock for a year. A client that
    falls silent within a transaction loses it, and its row lock, when ``wait_timeout`` ends its session; the pool loses
    its idle connections by that too, and opens others.
    """
    settings = {
        "sql_mode": "'STRICT_ALL_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION'",
        "innodb_lock_wait_timeout": wait_seconds,
        "lock_wait_timeout": wait_seconds,
        "wait_timeout": wait_seconds,
    }
    return "SET " + ", ".join(f"SESSION {name} = {value}" for name, value in settings.items())


log = logging.getLogger(__name__)

WAIT_SECONDS = 30
"""Longest wait for a lock, for SQLite's file, and for a client that fell silent within a transaction."""
CONNECT_SECONDS = 10
IDLE_SECONDS = 0.5
"""Seconds after which a connection that nobody used is asked whether it is still there."""
ATTEMPTS = 5
"""How often a transaction is begun in all, if the database undoes it for a deadlock each time."""

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")

_MISSING_TABLE = {"42P01", "1146"}
_MISSING_COLUMN = {"42703", "1054"}
_NO_RIGHT = {"42501", "1044", "1142", "1143", "1227", "1410"}
_DEADLOCK = {"40P01", "1213"}
_NEVER = {"1665"}
"""Operational by MySQL's drivers, but no wait cures it: the server logs statements, which READ COMMITTED rules out."""


class Deadlock(LedgerUnavailable):
    """The database undid the whole transaction for another's sake: the same one may be tried at once."""


class MissingRight(LedgerRefused):
    """The ledger's role may not do this."""


def normalize_url(url: str | URL) -> URL:
    """Return the URL with the driver that this package brings along; ``LedgerRefused`` where it is not installed."""
    parsed = make_url(url)
    if parsed.get_backend_name() in ("postgres", "postgresql"):
        return parsed.set(drivername="postgresql+psycopg")
    return use_pymysql(parsed) if parsed.get_backend_name() in DIALECTS else parsed


def make_engine(url: str | URL) -> Engine:
    """Return an engine with a small pool and bounded waits; connects to nothing yet."""
    url = normalize_url(url)
    if url.get_backend_name() == "sqlite":
        engine = sa.create_engine(url, connect_args={"timeout": WAIT_SECONDS})
        sa.event.listen(engine, "connect", _prepare_sqlite)
        return engine
    arguments: dict[str, Any] = {}
    options: dict[str, Any] = {
        "pool_size": 8,
        "max_overflow": 0,
        "pool_pre_ping": url.get_backend_name() != "postgresql",
    }
    if url.get_backend_name() == "postgresql":
        arguments = {
            name: value
            for name, value in (("connect_timeout", CONNECT_SECONDS), ("application_name", "backpressure ledger"))
            if name not in url.query
        }
    elif url.get_backend_name() in DIALECTS:
        arguments = connect_arguments(url, connect_seconds=CONNECT_SECONDS, wait_seconds=WAIT_SECONDS)
        options["isolation_level"] = "READ COMMITTED"
    engine = sa.create_engine(url, connect_args=arguments, **options)
    if engine.dialect.name == "postgresql":
        _ask_idle_connections(engine)
        sa.event.listen(engine, "connect", _prepare_postgresql)
    return engine


def _ask_idle_connections(engine: Engine) -> None:
    """Replace connections to PostgreSQL that were lost while idle.

    One that was just used is only looked at: a server that has ended it has said so, and a question would be a round
    trip for each call.
    """

    def note(_: Any, record: Any) -> None:
        record.info["idle_since"] = time.monotonic()

    def check(connection: Any, record: Any, _: Any) -> None:
        since = record.info.get("idle_since")
        if since is None or (time.monotonic() < since + IDLE_SECONDS and not _has_news(connection)):
            return
        try:
            alive = engine.dialect.do_ping(connection)
        except engine.dialect.loaded_dbapi.Error:
            alive = False
        if not alive:
            raise InvalidatePoolError

    sa.event.listen(engine, "checkin", note)
    sa.event.listen(engine, "checkout", check)


def _has_news(connection: Any) -> bool:
    """Whether the server has sent something that nobody asked for, its farewell included."""
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return bool(poll.poll(0))


def _prepare_sqlite(connection: Any, _: Any) -> None:
    connection.execute("PRAGMA journal_mode = WAL").close()


_SESSION = {
    # The driver reads no other.
    "datestyle": "ISO",
    # A process that freezes within a transaction holds the row lock no longer than this.
    "lock_timeout": f"{WAIT_SECONDS}s",
    "idle_in_transaction_session_timeout": f"{WAIT_SECONDS}s",
    # Every frequent statement is a look into an index. After a million ranges came in at once the server still plans by
    # the statistics of a small table, and would read them all at each step.
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
}


def _prepare_postgresql(connection: Any, _: Any) -> None:
    connection.autocommit = True
    for name, value in _SESSION.items():
        connection.execute(f"SET {name} = '{value}'")
    connection.autocommit = False


def _begin_immediate(connection: Connection) -> None:
    """Take SQLite's write lock at once: a lock taken only at the first write could be refused after a read."""
    connection.exec_driver_sql("BEGIN IMMEDIATE")


class Database:
    """One database; connects when it is first used. Safe to share among threads, not across a fork."""

    def __init__(self, source: str | URL | Engine) -> None:
        self._own = not isinstance(source, Engine)
        self._checked = False
        self._commits_each = False
        """Whether a statement outside of a transaction is committed by itself."""
        self.engine = source if isinstance(source, Engine) else make_engine(source)
        self._reads: Engine
        self._writes: Engine
        if self.engine.dialect.name == "sqlite":
            self._reads = self.engine
            self._writes = self.engine.execution_options()
            sa.event.listen(self._writes, "begin", _begin_immediate)
        elif self._own and self.engine.dialect.name in DIALECTS:
            # So from the first: there each change of the level, and the way back, would cost five round trips a call.
            self._reads = self._writes = self.engine
        else:
            self._commits_each = True
            self._reads = self.engine.execution_options(isolation_level="AUTOCOMMIT")
            self._writes = self.engine.execution_options(isolation_level="READ COMMITTED")

    @property
    def address(self) -> str:
        """Where it is, without secrets."""
        url = self.engine.url
        if url.host is None:
            return url.database or "memory"
        return f"{url.host}{f':{url.port}' if url.port else ''}/{url.database}"

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Give a connection for single statements, each of which sees one moment."""
        with self.translate_errors(), self._of_this_release(), self._reads.connect() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """Give a connection within one transaction: READ COMMITTED, or SQLite's write lock."""
        with self.translate_errors(), self._of_this_release(), self._writes.begin() as connection:
            yield connection

    def write_once(self) -> AbstractContextManager[Connection]:
        """Give a connection for one statement that writes: PostgreSQL makes that a transaction by itself."""
        return self.read() if self._commits_each else self.write()

    def close(self) -> None:
        """Give the connections back that this object has opened."""
        if self._own:
            self.engine.dispose()

    @contextmanager
    def translate_errors(self) -> Iterator[None]:
        """Turn the database's errors into ``LedgerRefused`` and ``LedgerUnavailable``, with their cause."""
        try:
            yield
        except (SQLAlchemyError, self.engine.dialect.loaded_dbapi.Error) as error:
            raise self._in_our_words(error) from strip_frames(error)

    @contextmanager
    def _of_this_release(self) -> Iterator[None]:
        """See once that the tables are those that this release knows."""
        if not self._checked:
            versions.refuse_other(versions.found(self._reads), address=self.address)
            self._checked = True
        yield

    def _in_our_words(self, error: Exception) -> BackpressureError:
        driver = (error.orig or error) if isinstance(error, DBAPIError) else error
        code, reason = _code(driver), self._reason(driver)
        if code in _MISSING_TABLE or "no such table" in reason:
            return LedgerRefused(f"The ledger's tables are missing in {self.address}: run `airflow db migrate`.")
        if code in _MISSING_COLUMN or "no such column" in reason or "has no column" in reason:
            return LedgerRefused(f"The ledger in {self.address} is of another version: run `airflow db migrate`.")
        if code in _NO_RIGHT:
            return MissingRight(
                f"The ledger's role has too few rights in {self.address} ({reason}): "
                "`airflow backpressure grants` prints what it needs."
            )
        if code in _DEADLOCK:
            return Deadlock(f"The ledger in {self.address} undid a transaction that blocked another one: {reason}.")
        library = self.engine.dialect.loaded_dbapi
        broken = isinstance(error, DBAPIError) and error.connection_invalidated
        passing = broken or isinstance(driver, (library.OperationalError, library.InterfaceError, PoolTimeout))
        if passing and code not in _NEVER:
            return LedgerUnavailable(f"The ledger in {self.address} does not answer: {reason}.")
        return LedgerRefused(f"The ledger in {self.address} refused a statement: {reason}.")

    def _reason(self, error: BaseException) -> str:
        """Return the error's first line without the password, should a driver ever print it."""
        # MySQL's drivers give number and sentence.
        text = str(error.args[1] if _code_of_mysql(error) and len(error.args) > 1 else error)
        first = next(iter(text.strip().splitlines()), type(error).__name__)
        password = self.engine.url.password
        return (first.replace(str(password), "***") if password else first).rstrip(". ")


def _code(error: BaseException) -> str | None:
    """Return PostgreSQL's SQLSTATE or MySQL's error number."""
    return _code_of_mysql(error) or getattr(error, "sqlstate", None)


def _code_of_mysql(error: BaseException) -> str | None:
    return str(error.args[0]) if error.args and isinstance(error.args[0], int) else None


def repeatable(method: Callable[Arguments, Answer]) -> Callable[Arguments, Answer]:
    """Begin a method's one transaction again where a deadlock undid it; it must take nothing that can be read once."""

    @wraps(method)
    def run(*args: Arguments.args, **values: Arguments.kwargs) -> Answer:
        for _ in range(ATTEMPTS - 1):
            try:
                return method(*args, **values)
            except Deadlock as error:
                log.debug("Once more: %s", error)
        return method(*args, **values)

    return run
