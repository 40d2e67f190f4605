"""The listener of a process: one thread while somebody waits, told once, and it comes back by itself."""

import threading

import pytest

from airflow_provider_backpressure.channels import listener_and_sender as hearing
from airflow_provider_backpressure.channels.listener_and_sender import ListenerThread, Pulse
from airflow_provider_backpressure.core.poll_policy import PollPolicy
from airflow_provider_backpressure.core.push.channel_counters import PushCounts
from tests.conformance.channels.support import Recorder
from tests.support.waiting import until


class Line(ListenerThread):
    """Hears of what is wanted at once; fails when it is told to."""

    def __init__(self) -> None:
        self.heard, self.counts = Recorder(), PushCounts()
        super().__init__(self.heard, self.counts)
        self.failure: Exception | None = None
        self.threads: list[threading.Thread] = []
        self._changed = threading.Event()

    def _wake(self) -> None:
        self._changed.set()

    def _listen(self) -> None:
        self.threads.append(threading.current_thread())
        while not self.over:
            if self.failure:
                raise self.failure
            self.alive()
            self.tell([*self.get_wanted(), "of nobody"])
            self._changed.wait(0.01)
            self._changed.clear()


@pytest.fixture
def line(monkeypatch):
    monkeypatch.setattr(hearing, "BACKOFF", PollPolicy(initial=0.01, maximum=0.01))
    made = Line()
    yield made
    made.close()
    until(lambda: not any(each.is_alive() for each in made.threads))
    assert not made.healthy


@pytest.mark.statement("P9")
def test_failures_are_told_once_and_end_by_themselves(line, caplog):
    """P9: whatever the error; each loss is told of again, and so is each subscription after it."""

    def warnings() -> int:
        return sum("are not heard for now" in record.getMessage() for record in caplog.records)

    line.failure = ZeroDivisionError("a mistake in a transport")
    line.add("h")
    until(lambda: len(line.threads) >= 5)
    assert (warnings(), line.heard.losses, line.healthy) == (1, 0, False)
    line.failure = None
    until(lambda: line.heard.ready == ["h"])
    line.failure = ConnectionResetError("gone")
    tries = len(line.threads)
    until(lambda: len(line.threads) >= tries + 5)
    assert (warnings(), line.heard.losses, line.healthy) == (2, 1, False)
    line.failure = None
    until(lambda: line.heard.ready == ["h", "h"])
    assert (line.counts["connected"], line.counts["lost"]) == (2, 1)


@pytest.mark.statement("P4")
def test_it_ends_when_nobody_waits_and_begins_anew(line, monkeypatch):
    """P4: a thread and a connection for those that wait, and for nobody else."""
    monkeypatch.setattr(hearing, "IDLE_SECONDS", 0.05)
    for time in (1, 2):
        line.add("h")
        until(lambda time=time: line.heard.ready == ["h"] * time)
        line.remove("h")
        until(lambda: not line.threads[-1].is_alive())
    assert line.counts["connected"] == 2
    assert line.heard.losses == 0


def test_a_heartbeat_is_back_by_its_own_token_and_in_time():
    pulse = Pulse(beat=5.0, echo=1.0)
    assert pulse.due(0.0)
    first = pulse.begin(100.0)
    assert pulse.under_way
    assert (pulse.is_overdue(101.0), pulse.is_overdue(101.1), pulse.due(200.0)) == (False, True, False)
    second = pulse.begin(101.1)
    assert not pulse.back(first)
    assert pulse.back(second)
    assert not pulse.back(second)
    assert (pulse.under_way, pulse.due(pulse.until - 0.1), pulse.due(pulse.until)) == (False, False, True)
