"""The channel over PostgreSQL's LISTEN and NOTIFY: two connections of a process at most, one of them to listen.

Both have to be direct: behind a pooler in transaction mode a LISTEN is forgotten. The echo of one's own heartbeat does
not come then, so the channel never counts as healthy and polling continues.
"""

from collections.abc import Sequence
from typing import Any

import psycopg

from airflow_provider_backpressure.channels.duplex import Duplex
from airflow_provider_backpressure.channels.listener_session import Listener
from airflow_provider_backpressure.channels.outbox import Message, Sender
from airflow_provider_backpressure.connectors.postgres.connect import connect
from airflow_provider_backpressure.connectors.postgres.errors import Errors
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.ports import Receiver
from airflow_provider_backpressure.core.push.metrics import PushCounts
from airflow_provider_backpressure.exceptions import LedgerRefused, LedgerUnavailable

LIMIT = 7_999
"""Most bytes of a payload that NOTIFY takes."""
APPLICATION = "backpressure push"
_ERRORS = Errors(refused=LedgerRefused, unavailable=LedgerUnavailable)
# A notification is worth no wait for a disk: after a crash of the server nobody needs the lost ones.
_SETTINGS = {"synchronous_commit": "off"}
_NOTIFY = "SELECT pg_notify(name, frame) FROM unnest(%s::text[], %s::text[]) AS message (name, frame)"


def name_of(hydration_id: str) -> str:
    """Return the name under which a hydration's diffs are sent. Ids are unique, so ledgers may share a database."""
    return f"backpressure_{hydration_id}"


class PostgresChannel(Duplex):
    """Sends and hears in threads of its own; see ``core.ports.Channel``."""

    def __init__(self, receiver: Receiver, counts: PushCounts, *, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        sender = Sender(lambda: _Notifier(self._connect()), counts, name="backpressure publish")
        super().__init__(sender, Listener(self._connect, receiver, counts, name_of=name_of), limit=LIMIT)

    def _connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        return connect(self._endpoint, errors=_ERRORS, application_name=APPLICATION, settings=_SETTINGS)


class _Notifier:
    """A connection that notifies, outside of any transaction of the ledger: a full queue fails nothing but this."""

    def __init__(self, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        self._connection = connection
        # A queue that was full stays so after its last slow reader has gone, until somebody asks how full it is.
        connection.execute("SELECT pg_notification_queue_usage()")

    def send(self, messages: Sequence[Message]) -> None:
        """See ``Wire.send``."""
        names = [name_of(hydration_id) for hydration_id, _ in messages]
        self._connection.execute(_NOTIFY, (names, [frame.decode() for _, frame in messages]))

    def close(self) -> None:
        """See ``Wire.close``."""
        self._connection.close()
