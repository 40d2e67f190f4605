"""The ledger, reached through an Airflow connection of type ``backpressure``."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook, Connection

from airflow_provider_backpressure.core.ports import Ledger
from airflow_provider_backpressure.exceptions import BackpressureError, InvalidDeclaration
from airflow_provider_backpressure.hooks.connections import connection
from airflow_provider_backpressure.hooks.endpoints import from_connection

if TYPE_CHECKING:
    from sqlalchemy import URL

CONN_TYPE = "backpressure"
DEFAULT_CONN_ID = "backpressure_default"


class BackpressureHook(BaseHook):
    """Opens the ledger of a connection.

    PostgreSQL: host, port, database (schema), login, password, and the extras that any database's connection has.
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
        found = connection(self.backpressure_conn_id, CONN_TYPE)
        return open_ledger(url(found, found.extra_dejson))

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


def open_ledger(address: "URL") -> Ledger:
    """Open the ledger at an address."""
    from airflow_provider_backpressure.ledger.store import SqlLedger

    return SqlLedger(address)


def url(found: Connection, extra: Mapping[str, Any]) -> "URL":
    """Return the ledger's address for SQLAlchemy; the password shows in no ``repr`` of it."""
    from sqlalchemy import URL

    path = extra.get("path")
    if path:
        if found.host:
            raise InvalidDeclaration(f"The connection {found.conn_id!r} names both a host and a SQLite file: keep one.")
        if not Path(path).is_absolute():
            raise InvalidDeclaration(f"The SQLite path of connection {found.conn_id!r} must be absolute, not {path!r}.")
        return URL.create("sqlite", database=path)
    place = from_connection(found, {name: value for name, value in extra.items() if name != "path"})
    return URL.create(
        "postgresql+psycopg",
        username=place.user,
        password=place.password or None,
        host=place.host,
        port=place.port,
        database=place.database,
        query=dict(place.options),
    )
