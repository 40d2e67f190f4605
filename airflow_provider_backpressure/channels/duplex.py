"""A channel over a server: a thread that sends, and one that hears."""

from airflow_provider_backpressure.channels.listener_thread import ListenerThread
from airflow_provider_backpressure.channels.outbox import Sender
from airflow_provider_backpressure.core.gate.gate_event import Diff, encode


class Duplex:
    """Implements :class:`..core.ports.Channel` over both. ``limit``: most bytes of one message."""

    def __init__(self, sender: Sender, ear: ListenerThread, *, limit: int) -> None:
        self._sender = sender
        self._ear = ear
        self._limit = limit

    @property
    def healthy(self) -> bool:
        """See ``Channel.healthy``."""
        return self._ear.healthy

    def publish(self, hydration_id: str, diff: Diff) -> None:
        """See ``Channel.publish``."""
        self._sender.put(hydration_id, encode(diff, limit=self._limit))

    def subscribe(self, hydration_id: str) -> None:
        """See ``Channel.subscribe``."""
        self._ear.add(hydration_id)

    def unsubscribe(self, hydration_id: str) -> None:
        """See ``Channel.unsubscribe``."""
        self._ear.remove(hydration_id)

    def flush(self, seconds: float) -> bool:
        """See ``Channel.flush``."""
        return self._sender.flush(seconds)

    def close(self) -> None:
        """See ``Channel.close``."""
        self._sender.close()
        self._ear.close()
