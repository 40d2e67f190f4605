"""What a process hears over a server: a thread for all of its waiters, which lives while there are any."""

import logging
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from airflow_provider_backpressure.core.gate.gate_event import Diff, encode
from airflow_provider_backpressure.core.poll_policy import PollPolicy
from airflow_provider_backpressure.core.ports import Receiver
from airflow_provider_backpressure.core.push.channel_counters import PushCounts

log = logging.getLogger(__name__)

IDLE_SECONDS = 10.0
"""How long the connection is kept without a waiter."""
BACKOFF = PollPolicy(initial=0.2, factor=2.0, maximum=5.0)
"""Between two tries to connect, of both directions."""


class ListenerThread(ABC):
    """Receives changes of the hydrations that were added. It connects by itself, and again when the connection is lost.

    A transport says how in :meth:`_listen`, and there what it hears: :meth:`alive`, :meth:`tell`, :meth:`lose` and
    ``receiver.heard`` are for its thread alone.
    """

    def __init__(self, receiver: Receiver, counts: PushCounts) -> None:
        self.receiver, self._counts = receiver, counts
        self.healthy = False
        self._lock = threading.Lock()
        self._wanted: set[str] = set()
        self._told: set[str] = set()
        """Those that were said to be heard, and still are."""
        self._warned = False
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()
        self._idle_since = 0.0

    @abstractmethod
    def _listen(self) -> None:
        """Connect, and hear what is wanted until it is ``over``; raises where the connection is lost."""

    def _wake(self) -> None:  # noqa: B027
        """Say that something has changed, to a thread that would not look by itself."""

    def add(self, hydration_id: str) -> None:
        """Subscribe to a hydration too; idempotent."""
        with self._lock:
            if self._closed.is_set():
                return
            self._wanted.add(hydration_id)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="backpressure listen", daemon=True)
                self._thread.start()
        self._wake()

    def remove(self, hydration_id: str) -> None:
        """Unsubscribe from it; idempotent."""
        with self._lock:
            self._wanted.discard(hydration_id)
            # A hydration that is added again at once is notified again.
            self._told.discard(hydration_id)
            self._idle_since = time.monotonic()
        self._wake()

    def close(self) -> None:
        """End; idempotent."""
        with self._lock:
            self._closed.set()
        self._wake()

    @property
    def over(self) -> bool:
        """Whether it is to end: closed, or without a waiter for a while."""
        idle = not self._wanted and time.monotonic() - self._idle_since >= IDLE_SECONDS
        return self._closed.is_set() or idle

    def get_wanted(self) -> set[str]:
        """Return the hydrations that are subscribed to."""
        with self._lock:
            return set(self._wanted)

    def alive(self) -> None:
        """Say that what was sent comes through; idempotent."""
        if not self.healthy:
            self.healthy, self._warned = True, False
            self._counts.add("connected")
            log.info("Changes of the gate are heard.")

    def tell(self, heard: Iterable[str]) -> None:
        """Say of what is wanted among these that it is heard from now on, once, and not before it is ``alive``."""
        if not self.healthy:
            return
        with self._lock:
            new = self._wanted.intersection(heard) - self._told
            self._told |= new
        # Without the lock: the receiver may be about to add or remove.
        for hydration_id in new:
            self.receiver.on_subscribed(hydration_id)

    def lose(self, why: object) -> None:
        """Say that nothing is heard for now, once; idempotent. Those that wait are polling meanwhile."""
        if self.healthy:
            self.healthy = False
            with self._lock:
                self._told.clear()
            self._counts.add("lost")
            self.receiver.lost()
        if not self._warned:
            self._warned = True
            log.warning("Changes of the gate are not heard for now, so polling continues: %s", why)

    def _run(self) -> None:
        pauses, self._warned = BACKOFF.waits(), False
        while not self._is_done():
            try:
                self._listen()
            except Exception as error:
                # Whatever it is, the thread has to live.
                log.debug("The listening connection is lost.", exc_info=True)
                if self.healthy:
                    pauses = BACKOFF.waits()
                self.lose(error)
                self._closed.wait(next(pauses))

    def _is_done(self) -> bool:
        """Whether there is nothing left to do; the next one to be added starts it again."""
        with self._lock:
            if self.over:
                self._thread, self.healthy = None, False
                self._told.clear()
                return True
            return False


class Pulse:
    """Heartbeats of one connection: tokens that a process sends to itself, which have to come back.

    A connection may be half dead without the operating system's knowledge. ``beat``: seconds from one to the next.
    ``echo``: how long one may take.
    """

    def __init__(self, *, beat: float, echo: float) -> None:
        self._beat, self._echo = beat, echo
        self._token = ""
        """Of the one under way."""
        self.until = 0.0
        """When the heartbeat under way must be back; without one, when the next is due."""

    @property
    def under_way(self) -> bool:
        """Whether one was sent and is not back yet."""
        return bool(self._token)

    def is_overdue(self, now: float) -> bool:
        """Whether one is not back in time."""
        return self.under_way and now > self.until

    def due(self, now: float) -> bool:
        """Whether it is time for the next."""
        return not self.under_way and now >= self.until

    def begin(self, now: float) -> str:
        """Return the token to be sent, in the place of any before."""
        self._token, self.until = uuid.uuid4().hex, now + self._echo
        return self._token

    def back(self, token: str) -> bool:
        """Take what came back; ``False`` where that is not the one under way."""
        if not self.under_way or token != self._token:
            return False
        self._token, self.until = "", time.monotonic() + self._beat
        return True


MOST = 1_000
"""Messages that wait to be sent. One more takes the place of the oldest, which would say less."""
BATCH = 100
SENDER_IDLE_SECONDS = 60.0
"""A connection that nothing is sent over is released after so long."""

Message = tuple[str, bytes]
"""Hydration and frame."""


class Wire(Protocol):
    """A connection to send over."""

    def send(self, messages: Sequence[Message]) -> None:
        """Send them all, in order; raises whatever its library does."""
        ...

    def close(self) -> None:
        """Give it back."""
        ...


class Sender:
    """Sends in the background, in order. What cannot be sent is dropped and counted."""

    def __init__(self, open_wire: Callable[[], Wire], counts: PushCounts, *, name: str) -> None:
        self._open, self._counts, self._name = open_wire, counts, name
        self._changed = threading.Condition()
        self._waiting: deque[Message] = deque()
        self._sending = False
        self._over = False
        self._thread: threading.Thread | None = None
        self._wire: Wire | None = None
        self._pauses: Iterator[float] | None = None
        """Before the next tries, while nothing can be sent."""
        self._down_until = 0.0

    def put(self, hydration_id: str, frame: bytes) -> None:
        """Leave a message to be sent."""
        with self._changed:
            if self._over:
                return
            if len(self._waiting) >= MOST:
                self._waiting.popleft()
                self._counts.add("dropped")
            self._waiting.append((hydration_id, frame))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def flush(self, seconds: float) -> bool:
        """Wait until nothing is left, but no longer than this."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting and not self._sending, timeout=seconds)

    def close(self) -> None:
        """Send what is left, for a second at most, and end."""
        self.flush(1.0)
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def _run(self) -> None:
        while batch := self._next():
            self._attempt(batch)
            with self._changed:
                self._sending = False
                self._changed.notify_all()
        self._hang_up()

    def _next(self) -> list[Message]:
        """Return what is to be sent next; nothing where it is over."""
        with self._changed:
            while not self._waiting and not self._over:
                if not self._changed.wait(SENDER_IDLE_SECONDS) and not self._waiting:
                    self._hang_up()
            if self._over:
                return []
            self._sending = True
            return [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]

    def _attempt(self, batch: list[Message]) -> None:
        if time.monotonic() < self._down_until:
            self._counts.add("dropped", len(batch))
            return
        # A connection that was there before may have gone meanwhile, which a new one cures.
        again = self._wire is not None
        began = time.monotonic()
        try:
            try:
                self._send(batch)
            except Exception:
                if not again:
                    raise
                self._hang_up()
                self._send(batch)
        except Exception as error:
            log.debug("Nothing could be sent.", exc_info=True)
            self._log_failure(batch, error)
            return
        self._counts.broadcast(time.monotonic() - began)
        if self._pauses is not None:
            log.info("Changes of the gate are published again.")
        self._pauses = None

    def _send(self, batch: list[Message]) -> None:
        if self._wire is None:
            self._wire = self._open()
        self._wire.send(batch)

    def _log_failure(self, batch: list[Message], error: Exception) -> None:
        self._hang_up()
        self._counts.add("send_failures")
        self._counts.add("dropped", len(batch))
        if self._pauses is None:
            log.warning("Changes of the gate are not published for now, so others notice them by polling: %s", error)
            self._pauses = BACKOFF.waits()
        self._down_until = time.monotonic() + next(self._pauses)

    def _hang_up(self) -> None:
        wire, self._wire = self._wire, None
        if wire is not None:
            try:
                wire.close()
            except Exception:
                log.debug("A connection of the channel was not released in order.", exc_info=True)


class Duplex:
    """Implements :class:`..core.ports.Channel` over both. ``limit``: most bytes of one message."""

    def __init__(self, sender: Sender, listener: ListenerThread, *, limit: int) -> None:
        self._sender = sender
        self._listener = listener
        self._limit = limit

    @property
    def healthy(self) -> bool:
        return self._listener.healthy

    def publish(self, hydration_id: str, diff: Diff) -> None:
        self._sender.put(hydration_id, encode(diff, limit=self._limit))

    def subscribe(self, hydration_id: str) -> None:
        self._listener.add(hydration_id)

    def unsubscribe(self, hydration_id: str) -> None:
        self._listener.remove(hydration_id)

    def flush(self, seconds: float) -> bool:
        return self._sender.flush(seconds)

    def close(self) -> None:
        self._sender.close()
        self._listener.close()
