"""The channel within one process."""

import threading

from airflow_provider_backpressure.core.gate.gate_event import Diff, encode
from airflow_provider_backpressure.core.ports import Receiver
from airflow_provider_backpressure.core.push.channel_counters import PushCounts


class Exchange:
    """Joins the local channels that are made on it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._subscribers: dict[str, dict[Receiver, None]] = {}

    def add(self, hydration_id: str, receiver: Receiver) -> bool:
        """Add a subscriber; ``False`` where it is one already."""
        with self._lock:
            known = self._subscribers.setdefault(hydration_id, {})
            new = receiver not in known
            known[receiver] = None
            return new

    def remove(self, hydration_id: str, receiver: Receiver) -> None:
        """Remove a subscriber."""
        with self._lock:
            self._subscribers.get(hydration_id, {}).pop(receiver, None)

    def subscribers(self, hydration_id: str) -> list[Receiver]:
        """Return the subscribers of a hydration."""
        with self._lock:
            return list(self._subscribers.get(hydration_id, ()))


PROCESS = Exchange()
"""The default one of a process."""


class LocalChannel:
    """Passes diffs to the subscribers of the same process, in the thread that publishes.

    ``alone``: whether nobody outside of this process writes to the ledger. Otherwise writes of others are not seen, so
    the channel is not healthy and polling keeps its pace. Implements ``Channel``.
    """

    def __init__(
        self, receiver: Receiver, counts: PushCounts, *, exchange: Exchange = PROCESS, alone: bool = True
    ) -> None:
        self._receiver, self._counts, self._exchange = receiver, counts, exchange
        self._subscribed: set[str] = set()
        self.healthy = alone

    def publish(self, hydration_id: str, diff: Diff) -> None:
        frame = encode(diff)
        for receiver in self._exchange.subscribers(hydration_id):
            receiver.heard(frame)

    def subscribe(self, hydration_id: str) -> None:
        if self._exchange.add(hydration_id, self._receiver):
            self._subscribed.add(hydration_id)
            self._receiver.on_subscribed(hydration_id)

    def unsubscribe(self, hydration_id: str) -> None:
        self._subscribed.discard(hydration_id)
        self._exchange.remove(hydration_id, self._receiver)

    def flush(self, seconds: float) -> bool:
        return True

    def close(self) -> None:
        for hydration_id in list(self._subscribed):
            self.unsubscribe(hydration_id)
