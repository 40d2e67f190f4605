"""A thread that sends, so that a publisher never waits for a server."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from airflow_provider_backpressure.core.push.metrics import PushCounts

log = logging.getLogger(__name__)

MOST = 1_000
"""Messages that wait to be sent. One more takes the place of the oldest, which would say less."""
BATCH = 100
IDLE_SECONDS = 60.0
"""A connection that nothing is sent over is released after so long."""
BACKOFF = (0.2, 5.0)
"""Seconds without another try after a failure: at first, and at most."""

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
        self._pause = 0.0
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
                if not self._changed.wait(IDLE_SECONDS) and not self._waiting:
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
        if self._pause:
            log.info("Changes of the gate are published again.")
        self._pause = 0.0

    def _send(self, batch: list[Message]) -> None:
        if self._wire is None:
            self._wire = self._open()
        self._wire.send(batch)

    def _log_failure(self, batch: list[Message], error: Exception) -> None:
        self._hang_up()
        self._counts.add("send_failures")
        self._counts.add("dropped", len(batch))
        if not self._pause:
            log.warning("Changes of the gate are not published for now, so others notice them by polling: %s", error)
        self._pause = min(max(self._pause * 2, BACKOFF[0]), BACKOFF[1])
        self._down_until = time.monotonic() + self._pause

    def _hang_up(self) -> None:
        wire, self._wire = self._wire, None
        if wire is not None:
            try:
                wire.close()
            except Exception:
                log.debug("A connection of the channel was not released in order.", exc_info=True)
