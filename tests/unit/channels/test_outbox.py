"""The sender: bounded, in order, told once, and nobody ever waits for it."""

import threading
import time
from collections.abc import Sequence

import pytest

from airflow_provider_backpressure.channels import listener_and_sender as sending
from airflow_provider_backpressure.channels.listener_and_sender import MOST, Message, Sender
from airflow_provider_backpressure.core.poll_policy import PollPolicy
from airflow_provider_backpressure.core.push.channel_counters import PushCounts
from tests.support.waiting import until


class Wire:
    """Keeps what was sent; holds or fails when it is told to."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.go = threading.Event()
        self.go.set()
        self.failure: Exception | None = None
        self.opened = 0

    def open(self) -> "Wire":
        self.opened += 1
        return self

    def send(self, messages: Sequence[Message]) -> None:
        self.go.wait(20)
        if self.failure:
            raise self.failure
        self.sent += messages

    def close(self) -> None:
        """Stay as it is."""


@pytest.fixture
def wire() -> Wire:
    return Wire()


def test_what_is_put_is_sent_in_order(wire):
    sender = Sender(wire.open, PushCounts(), name="test")
    for number in range(500):
        sender.put("h", b"%d" % number)
    assert sender.flush(10)
    assert [frame for _, frame in wire.sent] == [b"%d" % number for number in range(500)]
    sender.close()
    sender.put("h", b"late")
    assert len(wire.sent) == 500


@pytest.mark.statement("P9")
def test_a_server_that_hangs_costs_memory_for_a_thousand_messages(wire):
    """P9: the oldest go; whoever publishes does not wait."""
    counts = PushCounts()
    sender = Sender(wire.open, counts, name="test")
    wire.go.clear()
    began = time.monotonic()
    for number in range(3 * MOST):
        sender.put("h", b"%d" % number)
    assert time.monotonic() - began < 5
    assert not sender.flush(0.01)
    assert counts["dropped"] >= 2 * MOST - sending.BATCH
    wire.go.set()
    assert sender.flush(10)
    assert wire.sent[-1] == ("h", b"%d" % (3 * MOST - 1))
    sender.close()


@pytest.mark.statement("P9")
def test_failures_are_told_once_and_end_by_themselves(wire, caplog, monkeypatch):
    """P9: any error; a connection that has gone meanwhile is opened again before anything counts as lost."""
    monkeypatch.setattr(sending, "BACKOFF", PollPolicy(initial=0.05, maximum=0.05))
    counts = PushCounts()
    sender = Sender(wire.open, counts, name="test")
    sender.put("h", b"1")
    assert sender.flush(10)
    wire.failure = ConnectionResetError("gone")
    for _ in range(5):
        sender.put("h", b"lost")
        assert sender.flush(10)
    assert counts["dropped"] == 5
    assert wire.opened >= 2
    assert sum("are not published for now" in record.getMessage() for record in caplog.records) == 1
    wire.failure = None

    def comes_through() -> bool:
        sender.put("h", b"2")
        sender.flush(10)
        return ("h", b"2") in wire.sent

    until(comes_through)
    sender.close()
