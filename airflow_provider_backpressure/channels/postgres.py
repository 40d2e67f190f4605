"""The channel over PostgreSQL's LISTEN and NOTIFY: two connections of a process at most, one of them to listen.

Both have to be direct: behind a pooler in transaction mode a LISTEN is forgotten. The echo of one's own heartbeat does
not come then, so the channel never counts as healthy and polling continues.
"""

import select
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any

import psycopg
from psycopg.pq import ExecStatus

from airflow_provider_backpressure.channels.listener_and_sender import Duplex, ListenerThread, Message, Pulse, Sender
from airflow_provider_backpressure.connectors.postgres.connect import connect
from airflow_provider_backpressure.connectors.postgres.errors import Errors
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.ports import Receiver
from airflow_provider_backpressure.core.push.channel_counters import PushCounts
from airflow_provider_backpressure.exceptions import LedgerRefused, LedgerUnavailable

BEAT_SECONDS = 5.0
"""Between two heartbeats: notifications to oneself."""
ECHO_SECONDS = 5.0

Connection = psycopg.Connection[tuple[Any, ...]]


class Listener(ListenerThread):
    """See ``ListenerThread``."""

    def __init__(
        self,
        connect: Callable[[], Connection],
        receiver: Receiver,
        counts: PushCounts,
        *,
        name_of: Callable[[str], str],
    ) -> None:
        super().__init__(receiver, counts)
        self._connect, self._name_of = connect, name_of
        self._signal: socket.socket | None = None
        """Written to where something has changed while a connection is waited on."""

    def names(self) -> dict[str, str]:
        """Return what is to be listened to: hydrations by name."""
        return {self._name_of(hydration_id): hydration_id for hydration_id in self.get_wanted()}

    def _listen(self) -> None:
        with closing(self._connect()) as connection, self._wait_for_signals() as signalled:
            _Session(self, connection, signalled).run()

    def _wake(self) -> None:
        signal = self._signal
        if signal is not None:
            # Closed, or full of what was not read yet.
            with suppress(OSError):
                signal.send(b".")

    @contextmanager
    def _wait_for_signals(self) -> Iterator[socket.socket]:
        """Give what can be read from where something has changed."""
        writing, reading = socket.socketpair()
        with writing, reading:
            for end in (writing, reading):
                end.setblocking(False)
            self._signal = writing
            try:
                yield reading
            finally:
                self._signal = None


class _Session:
    """One connection's life. One command at a time is under way, and messages are read meanwhile.

    The echo of a command, which is a heartbeat, says that everything in it is in force.
    """

    def __init__(self, listener: Listener, connection: Connection, signalled: socket.socket) -> None:
        self._listener, self._wire, self._signalled = listener, connection.pgconn, signalled
        self._own = f"backpressure_process_{uuid.uuid4().hex}"
        self._pulse = Pulse(beat=BEAT_SECONDS, echo=ECHO_SECONDS)
        self._names: dict[str, str] = {}
        """What is listened to, whatever becomes of the command under way: hydrations by name."""
        self._asked: dict[str, str] = {}
        """What is listened to after it."""
        # Not select(), which takes no file numbers above 1,023: a triggerer may have more.
        self._ready = select.poll()
        for readable in (self._wire.socket, signalled.fileno()):
            self._ready.register(readable, select.POLLIN)

    def run(self) -> None:
        """Listen until there is no waiter any more; raise where the connection is lost."""
        while not self._listener.over:
            now = time.monotonic()
            if self._pulse.is_overdue(now):
                raise LedgerUnavailable(
                    f"the echo of a heartbeat did not come within {ECHO_SECONDS:g} s; LISTEN needs a direct connection"
                )
            if not self._pulse.under_way:
                self._send_if_due(now)
            self._wait(now)
            self._read()
            self._tell()

    def _tell(self) -> None:
        self._listener.tell(self._names.values())

    def _send_if_due(self, now: float) -> None:
        wanted = {self._own: "", **self._listener.names()}
        if wanted == self._names and not self._pulse.due(now):
            return
        statements = [
            *(f'LISTEN "{name}"' for name in wanted if name not in self._names),
            *(f'UNLISTEN "{name}"' for name in self._names if name not in wanted),
            f"SELECT pg_notify('{self._own}', '{self._pulse.begin(now)}')",
        ]
        self._asked = wanted
        self._names = {name: self._names[name] for name in wanted if name in self._names}
        self._wire.send_query("; ".join(statements).encode())
        while self._wire.flush():
            time.sleep(0.001)

    def _wait(self, now: float) -> None:
        ready = self._ready.poll(1000 * min(BEAT_SECONDS, max(0.0, self._pulse.until - now) + 0.01))
        if any(number == self._signalled.fileno() for number, _ in ready):
            self._signalled.recv(4096)

    def _read(self) -> None:
        self._wire.consume_input()
        while not self._wire.is_busy():
            result = self._wire.get_result()
            if result is None:
                break
            if result.status == ExecStatus.FATAL_ERROR:
                raise LedgerUnavailable(result.get_error_message())
        while message := self._wire.notifies():
            if message.relname.decode() != self._own:
                self._listener.receiver.heard(message.extra)
            elif self._pulse.back(message.extra.decode()):
                self._names = self._asked
                self._listener.alive()
                # Before later messages, and in the loop for a hydration that was removed and added again meanwhile.
                self._tell()


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
    """A connection that notifies, outside of any transaction of the ledger: a full queue fails nothing but this.

    Implements ``Wire``.
    """

    def __init__(self, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        self._connection = connection
        # A queue that was full stays so after its last slow reader has gone, until somebody asks how full it is.
        connection.execute("SELECT pg_notification_queue_usage()")

    def send(self, messages: Sequence[Message]) -> None:
        names = [name_of(hydration_id) for hydration_id, _ in messages]
        self._connection.execute(_NOTIFY, (names, [frame.decode() for _, frame in messages]))

    def close(self) -> None:
        self._connection.close()
