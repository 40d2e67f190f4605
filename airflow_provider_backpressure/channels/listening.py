"""The one connection of a process that listens, for all of its waiters."""

import logging
import select
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.pq import ExecStatus

from airflow_provider_backpressure.core.polling import PollPolicy
from airflow_provider_backpressure.core.ports import Receiver
from airflow_provider_backpressure.core.push_counts import PushCounts
from airflow_provider_backpressure.exceptions import LedgerUnavailable

log = logging.getLogger(__name__)

BEAT_SECONDS = 5.0
"""Between two heartbeats: notifications to oneself, which have to come back."""
ECHO_SECONDS = 5.0
"""How long one may take; a connection may be half dead without the operating system's knowledge."""
IDLE_SECONDS = 10.0
"""How long the connection is kept while nobody waits."""
BACKOFF = PollPolicy(initial=0.2, factor=2.0, maximum=5.0)

Connection = psycopg.Connection[tuple[Any, ...]]


@dataclass(frozen=True, kw_only=True)
class _Command:
    """A command under way. Its echo says that everything in it is in force."""

    token: str
    sent: float
    names: dict[str, str]
    """What is listened to then: hydrations by their name."""


class Listener:
    """Hears of the hydrations that were added. It connects by itself, and again when the connection is lost."""

    def __init__(
        self,
        connect: Callable[[], Connection],
        receiver: Receiver,
        counts: PushCounts,
        *,
        name_of: Callable[[str], str],
    ) -> None:
        self._connect, self._receiver, self._counts, self._name_of = connect, receiver, counts, name_of
        self._lock = threading.Lock()
        self._wanted: dict[str, str] = {}
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()
        self._idle_since = 0.0
        self._signal: socket.socket | None = None
        """Written to where something has changed while a connection is waited on."""
        self.healthy = False

    def add(self, hydration_id: str) -> None:
        """Listen to it as well; idempotent."""
        with self._lock:
            if self.over:
                return
            self._wanted[self._name_of(hydration_id)] = hydration_id
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="backpressure listen", daemon=True)
                self._thread.start()
        self._poke()

    def remove(self, hydration_id: str) -> None:
        """Listen to it no more; idempotent."""
        with self._lock:
            self._wanted.pop(self._name_of(hydration_id), None)
            self._idle_since = time.monotonic()
        self._poke()

    def close(self) -> None:
        """End; idempotent."""
        with self._lock:
            self._closed.set()
        self._poke()

    def _poke(self) -> None:
        signal = self._signal
        if signal is not None:
            # Closed, or full of what was not read yet.
            with suppress(OSError):
                signal.send(b".")

    def _run(self) -> None:
        pauses, told = BACKOFF.waits(), False
        while not self._ended():
            try:
                with closing(self._connect()) as connection, self._signalled() as signalled:
                    _Session(self, connection, signalled).run()
            except Exception as error:
                # Whatever it is, the thread has to live: those that wait are polling meanwhile.
                log.debug("The listening connection is lost.", exc_info=True)
                if self.healthy:
                    pauses, told = BACKOFF.waits(), False
                    self._lose()
                if not told:
                    log.warning("Changes of the gate are not heard for now, so polling goes on: %s", error)
                told = True
                self._closed.wait(next(pauses))
        self.healthy = False

    @contextmanager
    def _signalled(self) -> Iterator[socket.socket]:
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

    def _ended(self) -> bool:
        """Whether there is nothing left to do; the next one to be added begins anew."""
        with self._lock:
            if self.over or self.idle:
                self._thread = None
                return True
            return False

    def _lose(self) -> None:
        self.healthy = False
        self._counts.add("lost")
        self._receiver.lost()

    @property
    def idle(self) -> bool:
        """Whether nobody has waited for a while."""
        return not self._wanted and time.monotonic() - self._idle_since >= IDLE_SECONDS

    @property
    def over(self) -> bool:
        """Whether it is to end."""
        return self._closed.is_set()

    def wanted(self) -> dict[str, str]:
        """Return what is to be listened to: hydrations by name."""
        with self._lock:
            return dict(self._wanted)

    def in_force(self, hydrations: list[str]) -> None:
        """Say of these that they are heard from now on."""
        if not self.healthy:
            self._counts.add("connected")
            log.info("Changes of the gate are heard.")
        self.healthy = True
        for hydration_id in hydrations:
            self._receiver.subscribed(hydration_id)

    def heard(self, frame: bytes) -> None:
        """Hand a message on."""
        self._receiver.heard(frame)


class _Session:
    """One connection's life. One command at a time is under way, and messages are read meanwhile."""

    def __init__(self, listener: Listener, connection: Connection, signalled: socket.socket) -> None:
        self._listener, self._wire, self._signalled = listener, connection.pgconn, signalled
        self._own = f"backpressure_process_{uuid.uuid4().hex}"
        self._names: dict[str, str] = {}
        """What is listened to."""
        self._command: _Command | None = None
        self._next_beat = 0.0
        # Not select(), which takes no file numbers above 1,023: a triggerer may have more.
        self._ready = select.poll()
        for readable in (self._wire.socket, signalled.fileno()):
            self._ready.register(readable, select.POLLIN)

    def run(self) -> None:
        """Listen until nobody waits any more; raises where the connection is lost."""
        while not (self._listener.over or self._listener.idle):
            now = time.monotonic()
            if self._command is None:
                self._send_if_due(now)
            elif now - self._command.sent > ECHO_SECONDS:
                raise LedgerUnavailable(
                    f"the echo of a heartbeat did not come within {ECHO_SECONDS:g} s; LISTEN needs a direct connection"
                )
            self._wait(now)
            self._read()

    def _send_if_due(self, now: float) -> None:
        wanted = self._listener.wanted()
        if wanted == self._names and now < self._next_beat:
            return
        token = uuid.uuid4().hex
        statements = [
            *([] if self._next_beat else [f"LISTEN {self._own}"]),
            *(f'LISTEN "{name}"' for name in wanted if name not in self._names),
            *(f'UNLISTEN "{name}"' for name in self._names if name not in wanted),
            f"SELECT pg_notify('{self._own}', '{token}')",
        ]
        self._wire.send_query("; ".join(statements).encode())
        self._command = _Command(token=token, sent=now, names=wanted)
        while self._wire.flush():
            time.sleep(0.001)

    def _wait(self, now: float) -> None:
        until = self._command.sent + ECHO_SECONDS if self._command else self._next_beat
        ready = self._ready.poll(1000 * min(BEAT_SECONDS, max(0.0, until - now) + 0.01))
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
            if message.relname.decode() == self._own:
                self._echoed(message.extra.decode())
            else:
                self._listener.heard(message.extra)

    def _echoed(self, token: str) -> None:
        if self._command is None or self._command.token != token:
            return
        names, before = self._command.names, self._names
        self._names, self._command = names, None
        self._next_beat = time.monotonic() + BEAT_SECONDS
        self._listener.in_force([names[name] for name in names if name not in before])
