"""One process's end of a channel: turns, paces, switches, and what is counted. The channel is in the process."""

import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from airflow_provider_backpressure.channels.in_process import Exchange, LocalChannel
from airflow_provider_backpressure.core.admission.permits_and_reservations import gate_decision
from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.gate.cluster_queue import QueuePlace
from airflow_provider_backpressure.core.gate.gate_event import Diff, encode
from airflow_provider_backpressure.core.gate.signals import MemoryReading, credits_taken, decide
from airflow_provider_backpressure.core.poll_policy import SystemClock
from airflow_provider_backpressure.core.push.channel_counters import (
    BOUNDS,
    PushCounts,
    merge_counts,
    merge_recorded,
    quantile,
)
from airflow_provider_backpressure.core.push.gate_wait import Changes, Parked
from airflow_provider_backpressure.core.push.hub import DISTRUST_SECONDS, Paces, Push, Switch, is_pushed, turn
from airflow_provider_backpressure.core.push.wait_queue import Waiter
from airflow_provider_backpressure.exceptions import LedgerUnavailable
from airflow_provider_backpressure.testing import MemoryLedger
from tests.conformance.ledger.support import admit, commit, planned, take
from tests.support.waiting import until
from tests.unit.core.push.test_gate_cache import GATE

ROOMY = MemoryReading(used_bytes=0, limit_bytes=2**30, age_seconds=0.0)
CLOSED = decide([credits_taken(1, 1)], in_flight=1)


class Counting(MemoryLedger):
    """Counts the reads of gates."""

    def __init__(self, **values) -> None:
        super().__init__(**values)
        self.reads = 0
        self.broken = False

    def gate(self, hydration_id):
        if self.broken:
            raise LedgerUnavailable("The ledger does not answer.")
        self.reads += 1
        return super().gate(hydration_id)


@pytest.fixture
def exchange() -> Exchange:
    return Exchange()


@pytest.fixture
def there(exchange) -> Push:
    """The process that writes."""
    return Push(lambda receiver, counts: LocalChannel(receiver, counts, exchange=exchange))


@pytest.fixture
def here(exchange) -> Iterator[Push]:
    """The process in which those that wait are; nothing is polled within a test's time."""
    made = Push(
        lambda receiver, counts: LocalChannel(receiver, counts, exchange=exchange),
        paces=Paces(normal=60.0, generous=60.0),
    )
    yield made
    made.close()


@pytest.fixture
def ledger(there) -> Counting:
    return Counting(publish=there.publish)


def waiting(push: Push, ledger, hydration_id: str, **values) -> tuple[Waiter, threading.Event]:
    woken = threading.Event()
    waiter = Waiter(hydration_id=hydration_id, ledger=ledger, wake=woken.set, **values)
    push.enter(waiter)
    return waiter, woken


def looked(push: Push, ledger, waiter: Waiter, woken: threading.Event) -> None:
    """Do in its turn what a waiter does at a gate that is closed: read, and wait again."""
    assert woken.wait(5)
    woken.clear()
    push.read_gate(ledger, waiter.hydration_id)
    push.park(waiter)


@pytest.mark.statement("P2", "P6")
def test_a_thousand_that_wait_read_the_ledger_like_one(here, ledger):
    """P2, P6: each change is one read at most, in the turn of one."""
    hydration_id, plan_id = planned(ledger, 9, credits=1)
    held = take(ledger, hydration_id)
    pairs = [waiting(here, ledger, hydration_id) for _ in range(1000)]
    for waiter, _ in pairs:
        here.park(waiter)
    first = [pair for pair in pairs if pair[1].is_set()]
    assert len(first) == 1
    ledger.reads = 0
    looked(here, ledger, *first[0])
    assert ledger.reads == 1
    assert here.healthy(hydration_id)
    assert not any(woken.is_set() for _, woken in pairs)
    commit(ledger, plan_id, held.seq)
    turns = [pair for pair in pairs if pair[1].is_set()]
    assert len(turns) == 1
    assert turns != first
    # Another process is quicker: the one whose turn it is finds the gate closed, and nobody else looks.
    admit(ledger, hydration_id)
    looked(here, ledger, *turns[0])
    assert not any(woken.is_set() for _, woken in pairs)
    assert ledger.reads == 2
    assert here.counts["clean"] == 2


def test_each_credit_lets_one_through(exchange):
    """A reservation of one's own is known at once, so the next turn is given only if another credit is left."""
    here = Push(
        lambda receiver, counts: LocalChannel(receiver, counts, exchange=exchange), paces=Paces(normal=60, generous=60)
    )
    ledger = Counting(publish=here.publish)
    hydration_id, plan_id = planned(ledger, 9, credits=3)
    held = [take(ledger, hydration_id) for _ in range(3)]
    through: list[int] = []

    def wait(number: int) -> None:
        place = Parked(push=here, hydration_id=hydration_id, ledger=ledger, clock=SystemClock())
        decision = CLOSED
        while True:
            place.wait(decision, pause=60, most=60)
            state = here.read_gate(ledger, hydration_id)
            decision = gate_decision(state, ROOMY, Budget())
            if not state.waiting or (decision.open and admit(ledger, hydration_id) is not None):
                through.append(number)
                place.done()
                return

    threads = [threading.Thread(target=wait, args=(number,), daemon=True) for number in range(6)]
    for thread in threads:
        thread.start()
    until(lambda: here.healthy(hydration_id))
    assert through == []
    for record in held[:2]:
        commit(ledger, plan_id, record.seq)
    until(lambda: len(through) == 2)
    assert ledger.gate(hydration_id).in_flight == 3
    # Those of now: what a commit lets through is in flight a moment later, and would be committed too.
    for record in [one for one in ledger.ranges(plan_id) if one.lane and not one.committed_at]:
        commit(ledger, plan_id, record.seq)
    until(lambda: len(through) == 5)
    assert ledger.gate(hydration_id).in_flight == 3
    here.close()


@pytest.mark.statement("P4")
def test_who_waits_for_another_hydration_hears_nothing(here, ledger, exchange):
    """P4: and who waits no longer is not subscribed."""
    mine, _ = planned(ledger, 3, credits=1)
    waiter, woken = waiting(here, ledger, mine)
    here.park(waiter)
    looked(here, ledger, waiter, woken)
    other = ledger.register(
        environment="other", source_identity="s", sink_identity="k", owner="o", cluster="c", credits=1
    ).id
    ledger.pause(other, who="ada")
    assert not woken.is_set()
    assert here.counts["clean"] == 0
    assert exchange.subscribers(mine) == [here]
    here.leave(waiter)
    here.leave(waiter)
    assert exchange.subscribers(mine) == []


def test_who_stands_for_a_range_hears_of_it(here, ledger):
    """Another lane has committed it while a person holds the gate closed."""
    hydration_id, plan_id = planned(ledger, 3, credits=2)
    ledger.pause(hydration_id, who="ada")
    pairs = [waiting(here, ledger, hydration_id, seq=seq) for seq in (0, 1)]
    for waiter, woken in pairs:
        here.park(waiter)
        if woken.is_set():
            looked(here, ledger, waiter, woken)
    commit(ledger, plan_id, 1)
    assert [woken.is_set() for _, woken in pairs] == [False, True]


def test_a_turn_that_is_given_up_goes_to_the_next(here, ledger):
    """By leaving, as a trigger that is cancelled does; not where the ledger could not be read."""
    hydration_id, _ = planned(ledger, 3, credits=1)
    first, second, third = (waiting(here, ledger, hydration_id) for _ in range(3))
    for waiter, _ in (first, second, third):
        here.park(waiter)
    assert [woken.is_set() for _, woken in (first, second, third)] == [True, False, False]
    here.leave(first[0])
    assert second[1].is_set()
    here.unpark(second[0], failed=True)
    assert not third[1].is_set()
    ledger.pause(hydration_id, who="ada")
    assert third[1].is_set()


@pytest.mark.statement("P7")
def test_one_of_them_polls_at_the_pace_that_health_allows(exchange, there):
    """P7: at the normal pace while nothing is heard, which is counted, and at the generous one when it is."""
    ledger = Counting(publish=there.publish)
    hydration_id, _ = planned(ledger, 3, credits=1)
    take(ledger, hydration_id)
    channel: list[LocalChannel] = []

    def opened(receiver, counts):
        channel.append(LocalChannel(receiver, counts, exchange=exchange, alone=False))
        return channel[0]

    here = Push(opened, paces=Paces(normal=0.05, generous=30.0))
    stop = threading.Event()

    def wait() -> None:
        place = Parked(push=here, hydration_id=hydration_id, ledger=ledger, clock=SystemClock())
        while not stop.is_set():
            place.wait(CLOSED, pause=60, most=1.0)
            here.read_gate(ledger, hydration_id)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    until(lambda: here.counts["fallbacks"] >= 3)
    channel[0].healthy = True
    until(lambda: here.healthy(hydration_id))
    time.sleep(0.2)
    before = here.counts["fallbacks"]
    time.sleep(0.5)
    assert here.counts["fallbacks"] == before
    channel[0].healthy = False
    here.lost()
    until(lambda: here.counts["fallbacks"] > before)
    stop.set()
    thread.join(5)
    here.close()


@pytest.mark.statement("P8")
def test_both_switches_bind_without_a_restart(exchange, there, monkeypatch):
    """P8: publishing and subscribing, each alone; polling goes on meanwhile."""
    monkeypatch.setattr("airflow_provider_backpressure.core.push.hub.REFRESH_SECONDS", 0.05)
    ledger = Counting(publish=there.publish)
    hydration_id, _ = planned(ledger, 3, credits=1)
    here = Push(
        lambda receiver, counts: LocalChannel(receiver, counts, exchange=exchange),
        paces=Paces(normal=0.05, generous=30.0),
    )
    waiter, woken = waiting(here, ledger, hydration_id)
    until(lambda: exchange.subscribers(hydration_id) == [here])
    turn(ledger, Switch.SUBSCRIBE, on=False, who="ada")
    until(lambda: exchange.subscribers(hydration_id) == [])
    assert not here.healthy(hydration_id)
    here.park(waiter)
    before = here.counts["fallbacks"]
    until(lambda: woken.is_set())
    until(lambda: (woken.clear(), here.park(waiter), here.counts["fallbacks"] > before)[2])
    turn(ledger, Switch.SUBSCRIBE, on=True, who="ada")
    until(lambda: exchange.subscribers(hydration_id) == [here])
    turn(ledger, Switch.PUBLISH, on=False, who="ada")
    until(lambda: not here.switches.publish)
    time.sleep(0.06)
    published = there.counts["published"]
    ledger.pause(hydration_id, who="ada")
    assert there.counts["published"] == published
    here.read_gate(ledger, hydration_id)
    assert not here.healthy(hydration_id), "nothing is told, so nobody may rely on it"
    turn(ledger, Switch.PUBLISH, on=True, who="ada")
    time.sleep(0.06)
    ledger.resume(hydration_id, who="ada")
    assert there.counts["published"] == published + 1
    here.close()


@pytest.mark.statement("P9")
def test_messages_that_cannot_be_read_are_ignored_and_told_once(here, ledger, caplog):
    """P9: noise, and a format of another generation; polling is not slowed down meanwhile."""
    hydration_id, _ = planned(ledger, 3, credits=1)
    waiter, woken = waiting(here, ledger, hydration_id)
    here.park(waiter)
    looked(here, ledger, waiter, woken)
    assert here.healthy(hydration_id)
    newer = encode(Diff(hydration_id=hydration_id, number=1, moment=0.0)).replace(b'"v":1', b'"v":2')
    for frame in (b"noise", b"more noise", newer, newer, b""):
        here.heard(frame)
    assert here.counts["ignored"] == 5
    assert not here.healthy(hydration_id)
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 2
    assert DISTRUST_SECONDS >= 10


@pytest.mark.statement("P9")
def test_a_channel_that_fails_fails_nobody(caplog):
    """P9: whatever it raises, the ledger's write is done and those that wait poll."""

    class Broken:
        healthy = False

        def publish(self, hydration_id, diff):
            raise RuntimeError("cable cut")

        def subscribe(self, hydration_id):
            """Nothing comes of it."""

        unsubscribe = subscribe

        def flush(self, seconds):
            raise RuntimeError("cable cut")

        def close(self):
            """Nothing to give back."""

    push = Push(lambda receiver, counts: Broken(), paces=Paces(normal=0.05, generous=30.0))
    ledger = MemoryLedger(publish=push.publish)
    hydration_id, plan_id = planned(ledger, 3, credits=1)
    assert commit(ledger, plan_id, take(ledger, hydration_id).seq)
    push.flush()
    waiter, woken = waiting(push, ledger, hydration_id)
    push.park(waiter)
    until(woken.is_set)
    push.leave(waiter)
    assert sum("could not be published" in record.getMessage() for record in caplog.records) == 1


def test_only_what_is_told_is_waited_for_without_looking():
    """P7: the queue, connections, memory and declared health keep their own pace."""

    def closed_by(reading=ROOMY, **changes) -> bool:
        return is_pushed(gate_decision(replace(GATE, **changes), reading, Budget(credits=2)))

    assert closed_by()
    assert closed_by(in_flight=0, paused_by="ada")
    assert closed_by(in_flight=1, commit_seconds=10_000.0)
    assert not closed_by(in_flight=1)
    assert not closed_by(reading=None)
    assert not closed_by(connections=4, connections_max=4)
    assert not closed_by(place=QueuePlace(granted=False, position=3, running=4))
    assert not is_pushed(None)


def test_a_screen_is_drawn_anew_with_each_change(here, ledger):
    """It takes nobody's turn, and ceases to listen when it is closed."""
    hydration_id, _ = planned(ledger, 3, credits=1)
    screen = Changes(push=here, ledger=ledger, pause=30.0, least=0.0)
    waiter, woken = waiting(here, ledger, hydration_id)
    screen.wait([hydration_id])  # what was drawn before may be old
    here.park(waiter)
    looked(here, ledger, waiter, woken)
    acting = threading.Timer(0.2, ledger.pause, args=(hydration_id,), kwargs={"who": "ada"})
    began = time.monotonic()
    acting.start()
    screen.wait([hydration_id])
    assert 0.1 < time.monotonic() - began < 10
    assert not woken.is_set(), "paused: nobody need look"
    here.leave(waiter)
    screen.close()
    assert hydration_id not in here._queues


@pytest.mark.statement("P10")
def test_counters_of_processes_are_summed():
    """P10: counters and histograms."""
    one, other = PushCounts(), PushCounts()
    for counts, seconds in ((one, 0.0005), (one, 0.004), (other, 0.3), (other, -2.0)):
        counts.add("published")
        counts.count_delay(seconds)
    other.broadcast(99.0)
    found = merge_counts([one.values(), other.values(), {"published": 1}])
    assert found["published"] == 5
    assert found["observed"]["count"] == 4
    assert sum(found["observed"]["buckets"]) == 4
    assert found["observed"]["buckets"][0] == 2
    assert quantile(found["observed"], 0.5) == BOUNDS[0]
    assert quantile(found["observed"], 0.99) == 0.5
    assert quantile(found["broadcast"], 0.5) == float("inf")
    assert quantile(PushCounts().values()["observed"], 0.5) is None
    assert merge_recorded(['{"published": 2}', '{"published": 3}'])["published"] == 5


@pytest.mark.statement("P10")
def test_what_is_counted_is_written_down(here, ledger, there):
    """P10: at the end of a process, where the command line finds it."""
    hydration_id, _ = planned(ledger, 3)
    there.flush(ledger)
    assert merge_recorded(ledger.push_counts())["published"] == there.counts["published"] > 0
    ledger.pause(hydration_id, who="ada")
    there.flush(ledger)
    assert merge_recorded(ledger.push_counts())["published"] == there.counts["published"]
