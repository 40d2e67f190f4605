"""What every test of a channel needs: two ends of it, and one that writes down what it is told."""

import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from airflow_provider_backpressure.core.gate.gate_event import Diff, Unreadable, decode
from airflow_provider_backpressure.core.ports import Channel, Receiver
from airflow_provider_backpressure.core.push.channel_counters import PushCounts
from tests.support.waiting import until

Open = Callable[[Receiver, PushCounts], Channel]


class Recorder:
    """A receiver that keeps everything."""

    def __init__(self) -> None:
        self.ready: list[str] = []
        self.frames: list[bytes] = []
        self.losses = 0
        self._lock = threading.Lock()

    def on_subscribed(self, hydration_id: str) -> None:
        self.ready.append(hydration_id)

    def heard(self, frame: bytes) -> None:
        with self._lock:
            self.frames.append(frame)

    def lost(self) -> None:
        self.losses += 1

    @property
    def diffs(self) -> list[Diff]:
        """What can be read."""
        found = []
        for frame in list(self.frames):
            try:
                found.append(decode(frame))
            except Unreadable:
                continue
        return found

    def numbers(self, hydration_id: str) -> list[int]:
        return [diff.number for diff in self.diffs if diff.hydration_id == hydration_id]


@dataclass(kw_only=True)
class Ends:
    """Two ends of a channel, as two processes have them."""

    here: Channel
    there: Channel
    heard: Recorder
    counts: PushCounts
    transport: str
    inject: Callable[[str, bytes], None]
    """Puts any bytes on the channel, past the product."""

    def subscribe(self, hydration_id: str) -> None:
        """Subscribe here, and wait until it is in force."""
        self.here.subscribe(hydration_id)
        until(lambda: hydration_id in self.heard.ready)


def diff(hydration_id: str, number: int, **values: object) -> Diff:
    return Diff(**{"hydration_id": hydration_id, "number": number, "moment": 1.0, "origin": "there", **values})


def new_id() -> str:
    return uuid.uuid4().hex
