"""The ledger, reached through an Airflow connection of type ``backpressure``."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook, Connection

from airflow_provider_backpressure.core.ports.ledger import Ledger
from airflow_provider_backpressure.core.push.hub import Push
from airflow_provider_backpressure.exceptions import BackpressureError, InvalidDeclaration
from airflow_provider_backpressure.hooks.connection_types_and_fields import connection
from airflow_provider_backpressure.hooks.database_connections import OPTIONS, from_connection
from airflow_provider_backpressure.hooks.push_transport import libpq, push_over, transport

if TYPE_CHECKING:
    from sqlalchemy import URL

CONN_TYPE = "backpressure"
DEFAULT_CONN_ID = "backpressure_default"
DIALECTS = {"postgresql": 5432, "mysql": 3306}
"""What the extra ``dialect`` may be, the default first, and the port where the connection names none."""
MYSQL_OPTIONS = ("connect_timeout", "ssl_ca", "ssl_cert", "ssl_key")
"""Extras that are handed to MySQL's driver."""


class BackpressureHook(BaseHook):
    """Opens the ledger of a connection.

    PostgreSQL: host, port, database (schema), login, password, and the extras that any database's connection has.
    MySQL: the same fields, the extra ``dialect`` set to ``mysql``, and the extras of :data:`MYSQL_OPTIONS`.
    SQLite, for one host: only the extra ``path``, an absolute file name.
    """

    conn_name_attr = "backpressure_conn_id"
    default_conn_name = DEFAULT_CONN_ID
    conn_type = CONN_TYPE
    hook_name = "Backpressure ledger"

    def __init__(self, backpressure_conn_id: str = DEFAULT_CONN_ID) -> None:
        super().__init__()
        self.backpressure_conn_id = backpressure_conn_id

    def get_conn(self) -> Ledger:
        """Return the ledger, opened."""
        return self.open_ledger_and_push()[0]

    def open_ledger_and_push(self) -> tuple[Ledger, Push | None]:
        """Return the ledger, opened, and this process's end of its channel, if it has one."""
        found = connection(self.backpressure_conn_id, CONN_TYPE)
        extra = found.extra_dejson
        chosen = transport(found, extra)
        push = push_over(chosen, connection(chosen.conn_id, "kafka") if chosen.conn_id else None)
        return open_ledger(url(found, extra), *(() if push is None else (push,))), push

    def ledger(self) -> Ledger:
        """Return the ledger, opened. Its first use raises ``LedgerRefused`` where the tables are missing."""
        return self.get_conn()

    def test_connection(self) -> tuple[bool, str]:
        """Look into the ledger, as Airflow's button does."""
        try:
            ledger = self.ledger()
            try:
                count = len(ledger.hydrations())
            finally:
                ledger.close()
        except BackpressureError as error:
            return False, str(error)
        return True, f"The ledger answers; it knows {count} hydrations."


def open_ledger(address: "URL", push: Push | None = None) -> Ledger:
    """Open the ledger at an address; changes of its gates are published by ``push``."""
    from airflow_provider_backpressure.ledger.repository import SqlLedger

    return SqlLedger(address) if push is None else SqlLedger(address, publish=push.publish)


def url(found: Connection, extra: Mapping[str, Any]) -> "URL":
    """Return the ledger's address for SQLAlchemy; the password shows in no ``repr`` of it."""
    from sqlalchemy import URL

    path, dialect = extra.get("path"), extra.get("dialect") or None
    if path:
        if found.host or dialect:
            other = "host" if found.host else "dialect"
            raise InvalidDeclaration(
                f"The connection {found.conn_id!r} names both a {other} and a SQLite file: keep one."
            )
        if not Path(path).is_absolute():
            raise InvalidDeclaration(f"The SQLite path of connection {found.conn_id!r} must be absolute, not {path!r}.")
        return URL.create("sqlite", database=path)
    if dialect is not None and dialect not in DIALECTS:
        raise InvalidDeclaration(
            f"The extra dialect of connection {found.conn_id!r} must be {' or '.join(DIALECTS)}, not {dialect!r}."
        )
    if dialect == "mysql":
        return _on_mysql(found, extra)
    place = from_connection(found, libpq(extra))
    return URL.create(
        "postgresql+psycopg",
        username=place.user,
        password=place.password or None,
        host=place.host,
        port=place.port,
        database=place.database,
        query=dict(place.options),
    )


def _on_mysql(found: Connection, extra: Mapping[str, Any]) -> "URL":
    from sqlalchemy import URL

    postgres = sorted(name for name in OPTIONS if name not in MYSQL_OPTIONS and extra.get(name))
    if postgres:
        # Passed over in silence, sslmode would leave a connection in the clear that was meant to be encrypted.
        raise InvalidDeclaration(
            f"The connection {found.conn_id!r} leads to MySQL, but its extra {postgres[0]} is PostgreSQL's: "
            f"{', '.join(MYSQL_OPTIONS)} are read here."
        )
    place = from_connection(found, {})
    return URL.create(
        "mysql",
        username=place.user,
        password=place.password or None,
        host=place.host,
        port=found.port or DIALECTS["mysql"],
        database=place.database,
        query={name: str(extra[name]) for name in MYSQL_OPTIONS if extra.get(name) not in (None, "")},
    )


UNDER_WAY = ("queued", "running")
"""States of a run that may still do something by itself."""


def under_way(dag_id: str, run_id: str) -> bool:
    """Whether Airflow has this run queued or running: not where it has ended or was deleted.

    To be asked in a task or a trigger only; ``AirflowRuntimeError`` where Airflow's API does not answer.
    """
    return _is_in(dag_id, run_id, UNDER_WAY)


def is_running(dag_id: str, run_id: str) -> bool:
    """Whether Airflow has this run running; asked as :func:`under_way`.

    A run that was cleared is queued, and may be so for as long as the run that asks is running: where a DAG has one
    active run at a time, the two would wait for each other.
    """
    return _is_in(dag_id, run_id, ("running",))


def _is_in(dag_id: str, run_id: str, states: Sequence[str]) -> bool:
    # Not at the top: it is Airflow's machinery of a running task, which parsing a DAG does not need.
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    return RuntimeTaskInstance.get_dr_count(dag_id=dag_id, run_ids=[run_id], states=list(states)) > 0
