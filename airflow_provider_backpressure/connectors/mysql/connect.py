"""Opens connections to MySQL: the driver's parameters, the settings of each of our sessions, and the oldest server."""

import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import pymysql

from airflow_provider_backpressure.connectors.mysql.errors import Errors, is_lost
from airflow_provider_backpressure.connectors.mysql.server_versions import check_version, is_mariadb
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.exceptions import strip_frames

CONTROL = "backpressure control"
"""``program_name`` of the control side, among the attributes that the server keeps of a connection."""
CONNECT_SECONDS = 10
HANDSHAKE_SECONDS = 30
_YEAR = 365 * 24 * 3600
_SESSION: Mapping[str, str | int] = {
    # A server may be set to have it off. The driver takes it for on, by what the greeting says, and sends nothing: a
    # session would keep its transaction, and with it its locks on the definition of each table that it has read.
    "autocommit": 1,
    "time_zone": "'+00:00'",
    # Nothing of ANSI_QUOTES, NO_BACKSLASH_ESCAPES, PAD_CHAR_TO_FULL_LENGTH or NO_ZERO_DATE, which change what is read.
    "sql_mode": "'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'",
    # A sink that stands still is pressure, not loss.
    "net_write_timeout": _YEAR,
    "net_read_timeout": _YEAR,
    "wait_timeout": _YEAR,
    # A server may be set to cut every result short, without a word.
    "sql_select_limit": 18446744073709551615,
    "sql_big_selects": 1,
}
_MYSQL: Mapping[str, str | int] = {
    # A server may be set to show rows that nobody has committed; the log never has those that are rolled back.
    "transaction_isolation": "'READ-COMMITTED'",
    "transaction_read_only": 1,
    "max_execution_time": 0,
    "information_schema_stats_expiry": 0,
}
_MARIADB: Mapping[str, str | int] = {
    "tx_isolation": "'READ-COMMITTED'",
    "tx_read_only": 1,
    "max_statement_time": 0,
    # A server may be set to show tables that keep their history as they were.
    "system_versioning_asof": "DEFAULT",
}
_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}

Connection = Any
"""A connection of PyMySQL, which comes without types."""


def connect(endpoint: Endpoint, *, errors: Errors, name: str) -> Connection:
    """Return an open, read-only connection in autocommit, in UTC and UTF-8.

    Raises ``errors.refused`` where the server says no (password, database, too old, TLS), ``errors.unavailable`` where
    it does not answer.
    """
    try:
        connection = pymysql.connect(
            host=endpoint.host,
            port=endpoint.port,
            user=endpoint.user,
            # The driver itself would take text for Latin-1.
            password=endpoint.password.encode(),
            database=endpoint.database or None,
            charset="utf8mb4",
            autocommit=True,
            connect_timeout=int(endpoint.options.get("connect_timeout", CONNECT_SECONDS)),
            read_timeout=HANDSHAKE_SECONDS,
            program_name=name,
            **tls(endpoint.options),
        )
    except (pymysql.Error, OSError, RuntimeError) as error:
        raise errors.at_the_door(error, endpoint) from strip_frames(error)
    try:
        check_version(connection, endpoint, errors)
        _be_patient(connection)
        with errors.translate_errors(endpoint), connection.cursor() as cursor:
            cursor.execute(_settings(is_mariadb(connection)))
    except BaseException:
        connection.close()
        raise
    return connection


def tls(options: Mapping[str, str]) -> dict[str, Any]:
    """Return the driver's arguments for TLS. Without any option it is used wherever the server offers it."""
    mode = options.get("ssl_mode", "VERIFY_CA" if "ssl_ca" in options else "PREFERRED")
    if mode == "DISABLED":
        return {"ssl_disabled": True}
    files = {name: options[f"ssl_{name}"] for name in ("ca", "cert", "key", "cipher") if f"ssl_{name}" in options}
    if mode == "PREFERRED" and not files:
        return {}
    verify = "required" if mode.startswith("VERIFY") else "none"
    return {"ssl": {**files, "check_hostname": mode == "VERIFY_IDENTITY", "verify_mode": verify}}


def _settings(mariadb: bool) -> str:
    values = {**_SESSION, **(_MARIADB if mariadb else _MYSQL)}
    return "SET " + ", ".join(f"SESSION {name} = {value}" for name, value in values.items())


def _be_patient(connection: Connection) -> None:
    """Let statements take their time, and let the kernel notice a server that is gone. The driver has no way for it."""
    connection._read_timeout = None
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):
            connection._sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


T = TypeVar("T")
Row = tuple[Any, ...]


class Session:
    """Runs statements on one connection, opened at the first. Every error of the driver leaves as one of ``errors``."""

    def __init__(self, endpoint: Endpoint, *, errors: Errors) -> None:
        self.endpoint = endpoint
        self.errors = errors
        self._lock = threading.RLock()
        self._connection: Connection | None = None

    def rows(self, query: str) -> list[Row]:
        """Return the rows of one statement."""
        with self.errors.translate_errors(self.endpoint):
            return self.raw(query)

    def raw(self, query: str) -> list[Row]:
        """Return the rows of one statement; errors of the driver stay what they are."""

        def ask(connection: Connection) -> list[Row]:
            with connection.cursor() as cursor:
                cursor.execute(query)
                return list(cursor.fetchall())

        return self._run(ask)

    def value(self, query: str) -> Any:
        """Return the only value of the first row."""
        return self.rows(query)[0][0]

    @property
    def mariadb(self) -> bool:
        """Whether it is MariaDB in MySQL's place."""
        return self._run(is_mariadb)

    def close(self) -> None:
        """Release the connection; idempotent. The next statement would open a new one."""
        with self._lock:
            if self._connection is not None and self._connection.open:
                self._connection.close()
            self._connection = None

    def _run(self, work: Callable[[Connection], T]) -> T:
        with self._lock:
            used_before = self._connection is not None
            try:
                return work(self._open())
            except (pymysql.Error, OSError) as error:
                if not is_lost(error):
                    raise
                self.close()
                if not used_before:
                    raise
                return work(self._open())

    def _open(self) -> Connection:
        if self._connection is None:
            self._connection = connect(self.endpoint, errors=self.errors, name=CONTROL)
        return self._connection
