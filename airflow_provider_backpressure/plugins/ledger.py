"""The ledger as the API server reaches it."""

import threading
from collections.abc import Callable

from airflow.configuration import conf
from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException
from sqlalchemy import make_url

from airflow_provider_backpressure.core.ports.ledger import Ledger
from airflow_provider_backpressure.core.push.hub import Push
from airflow_provider_backpressure.exceptions import BackpressureError, LedgerUnavailable
from airflow_provider_backpressure.hooks.backpressure import DEFAULT_CONN_ID, BackpressureHook, open_ledger
from airflow_provider_backpressure.hooks.push_transport import push_at


def open_ledger_and_push() -> tuple[Ledger, Push | None]:
    """Open the ledger of the connection ``backpressure_default``, and this process's end of its channel.

    Where there is no such connection, the tables that ``airflow db migrate`` has made are used as Airflow's own are:
    the API server has the metadata database anyway.
    """
    try:
        BaseHook.get_connection(DEFAULT_CONN_ID)
    except AirflowNotFoundException:
        address = make_url(conf.get_mandatory_value("database", "sql_alchemy_conn"))
        push = push_at(address)
        return open_ledger(address, push), push
    return BackpressureHook().open_ledger_and_push()


class OpenedLedger:
    """The process's ledger, opened at the first request; opened again after it has not answered.

    A password that was changed, or a database that has moved, is found by the next request.
    """

    def __init__(self, open: Callable[[], tuple[Ledger, Push | None]] = open_ledger_and_push) -> None:
        self._open = open
        self._lock = threading.Lock()
        self._opened: tuple[Ledger, Push | None] | None = None

    def __call__(self) -> tuple[Ledger, Push | None]:
        """Return it, and this process's end of its channel, if it has one."""
        with self._lock:
            if self._opened is None:
                self._opened = self._open()
            return self._opened

    def record_error(self, error: BackpressureError) -> None:
        """Take note of an error of the ledger."""
        if not isinstance(error, LedgerUnavailable):
            return
        with self._lock:
            old, self._opened = self._opened, None
        if old is not None:
            old[0].close()
