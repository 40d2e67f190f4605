"""Push beside polling: what a process publishes, hears, and does where nothing is heard.

Waiters never read the ledger in vain: a turn is given where a diff, or the time, says that it is worth while. The fall-
back is polling, by one waiter of a hydration for all of the process.
"""

import json
import logging
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

from airflow_provider_backpressure.core.gate.cluster_queue import Shared, Steering
from airflow_provider_backpressure.core.gate.gate_event import Diff, Unreadable, decode
from airflow_provider_backpressure.core.gate.hydration_record import GateState
from airflow_provider_backpressure.core.gate.signals import SINK_COMMIT, Decision
from airflow_provider_backpressure.core.ports import Channel, Receiver
from airflow_provider_backpressure.core.ports.ledger import Ledger, LedgerReader
from airflow_provider_backpressure.core.push.channel_counters import PushCounts
from airflow_provider_backpressure.core.push.wait_queue import Waiter, WaitQueue
from airflow_provider_backpressure.exceptions import BackpressureError

REFRESH_SECONDS = 3.0
"""How old what a process knows of the switches may be."""


class Switch(StrEnum):
    """What may be turned off, each alone."""

    PUBLISH = "publish"
    SUBSCRIBE = "subscribe"


def is_on(ledger: Steering, switch: Switch) -> bool:
    """Return the state of a switch in the ledger; one that was never set is on."""
    return ledger.get_shared(Shared.PUSH, switch) != 0


def turn(ledger: Steering, switch: Switch, *, on: bool, who: str, why: str | None = None) -> None:
    """Turn a switch for every process that uses this ledger."""
    ledger.share(Shared.PUSH, switch, int(on), who=who, why=why)


class Switches:
    """The state of the switches, as last read."""

    def __init__(self, *, clock: Callable[[], float]) -> None:
        self.publish = True
        self.subscribe = True
        self._clock = clock
        self._next = -1.0
        self._lock = threading.Lock()

    @property
    def both(self) -> bool:
        """Whether changes go all the way from writers to waiters."""
        return self.publish and self.subscribe

    def refresh(self, ledger: Steering) -> None:
        """Read them where that is due; one thread does it for all. What cannot be read stays as it was."""
        with self._lock:
            if self._clock() < self._next:
                return
            self._next = self._clock() + REFRESH_SECONDS
        publish, subscribe = is_on(ledger, Switch.PUBLISH), is_on(ledger, Switch.SUBSCRIBE)
        self.publish, self.subscribe = publish, subscribe


log = logging.getLogger(__name__)

PUSHED = frozenset({"hand", "credits", SINK_COMMIT})
"""Names of the signals whose end a diff reports."""
DISTRUST_SECONDS = 30.0
"""How long push is not trusted after a message that could not be read: others may speak another format."""

RECORD_SECONDS = 10.0
"""How often a process that waits writes down what it has counted."""


@dataclass(frozen=True, kw_only=True)
class Paces:
    """Seconds between two reads of a gate that stays closed, by one process for all of its waiters."""

    normal: float = 0.5
    generous: float = 10.0
    """While push is healthy."""


def is_pushed(decision: Decision | None) -> bool:
    """Whether everything that closes a gate is something whose end a diff reports."""
    closed = {signal.name for signal in decision.signals if signal.closed} if decision else set()
    return bool(closed) and closed <= PUSHED


class Push:
    """One process's end of the channel of one ledger. Safe to share among threads, not across a fork.

    ``open_channel`` is given the receiver and returns a channel, which opens nothing yet. ``transport`` is its name.
    Implements ``Receiver``.
    """

    def __init__(
        self,
        open_channel: Callable[[Receiver, PushCounts], Channel],
        *,
        transport: str = "local",
        paces: Paces | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.counts = PushCounts()
        self.transport = transport
        self.paces = paces or Paces()
        self.origin = uuid.uuid4().hex
        self.switches = Switches(clock=clock)
        self._clock = clock
        self._lock = threading.RLock()
        self._due = threading.Condition(self._lock)
        self._queues: dict[str, WaitQueue] = {}
        self._keeper: threading.Thread | None = None
        self._listening = True
        """Whether those that wait are subscribed, as the switch has it."""
        self._distrusted_until = 0.0
        self._told: set[str] = set()
        self._recorded = json.dumps(self.counts.values())
        self._next_record = clock() + RECORD_SECONDS
        self.channel = open_channel(self, self.counts)

    # What is published

    def publish(self, ledger: Ledger, hydration_id: str, diff: Diff) -> None:
        """Publish a change that is in the ledger by now. Never raises."""
        try:
            self._refresh(ledger)
            if not self.switches.publish:
                return
            own = replace(diff, origin=self.origin)
            self.counts.add("published")
            # At once, so that the next waiter here knows of the credit that the last one took.
            self._hear(own)
            self.channel.publish(hydration_id, own)
        except Exception as error:
            log.debug("Not published.", exc_info=True)
            self._tell_once("A change of the gate could not be published", error)

    def flush(self, ledger: Ledger | None = None, *, seconds: float = 1.0) -> None:
        """Wait for what was published to be on its way, as a process does before it ends. Never raises.

        ``ledger``: where to write down what was counted.
        """
        try:
            self.channel.flush(seconds)
            if ledger is not None:
                self._record(ledger)
        except Exception as error:
            log.debug("Not flushed.", exc_info=True)
            self._tell_once("The channel could not be flushed", error)

    def close(self) -> None:
        """Give everything back. Idempotent."""
        with self._lock:
            self._queues.clear()
            self._due.notify_all()
        self.channel.close()

    # Those that wait

    def enter(self, waiter: Waiter) -> None:
        """Begin to wait: from now on changes of this hydration are heard here."""
        with self._lock:
            queue = self._queues.get(waiter.hydration_id)
            if queue is None:
                queue = self._queues[waiter.hydration_id] = WaitQueue()
                queue.next_read = self._clock() + self.paces.normal
                if self._listening:
                    self.channel.subscribe(waiter.hydration_id)
            queue.enter(waiter)
            self._keep()

    def leave(self, waiter: Waiter) -> None:
        """Wait no longer. Idempotent."""
        with self._lock:
            queue = self._queues.get(waiter.hydration_id)
            if queue is None:
                return
            queue.leave(waiter)
            if not queue.waiters:
                del self._queues[waiter.hydration_id]
                self.channel.unsubscribe(waiter.hydration_id)

    def park(self, waiter: Waiter) -> None:
        """Wait for a turn. ``waiter.wake`` is called once when it comes; nothing else ends the wait."""
        with self._lock:
            if waiter.hydration_id in self._queues:
                self._queues[waiter.hydration_id].park(waiter)

    def unpark(self, waiter: Waiter, *, failed: bool = False) -> None:
        """Wait by oneself, as for what is not pushed. ``failed``: the ledger could not be read in its turn."""
        with self._lock:
            if waiter.hydration_id in self._queues:
                self._queues[waiter.hydration_id].unpark(waiter, pass_on=not failed)

    def read_gate(self, ledger: LedgerReader, hydration_id: str) -> GateState:
        """Return a gate's state: the copy if a diff has just said that it is open, otherwise read for all waiters.

        The copy's figures are enough to ask for a credit, which the ledger gives or refuses. It is used once for each
        change, so that a refused waiter reads.
        """
        with self._lock:
            queue = self._queues.get(hydration_id)
            news = queue.news() if queue and self._healthy(queue) else None
            if news is not None:
                return news
            mark = queue.gate.mark() if queue else None
        state = ledger.gate(hydration_id)
        with self._lock:
            if queue is not None and mark is not None and self._queues.get(hydration_id) is queue:
                queue.saw(state, mark)
                queue.next_read = self._clock() + self._pace(queue)
        return state

    def healthy(self, hydration_id: str) -> bool:
        """Whether changes of a hydration with waiters here arrive."""
        with self._lock:
            queue = self._queues.get(hydration_id)
            return queue is not None and self._healthy(queue)

    def number(self, hydration_id: str) -> int | None:
        """Return the number of the latest change that was heard here; ``None`` while changes are not being heard."""
        with self._lock:
            queue = self._queues.get(hydration_id)
            return queue.gate.number if queue is not None and self._healthy(queue) else None

    # What is heard

    def on_subscribed(self, hydration_id: str) -> None:
        with self._lock:
            queue = self._queues.get(hydration_id)
            if queue is not None and self._listening:
                queue.lose(subscribed=True)

    def heard(self, frame: bytes) -> None:
        try:
            diff = decode(frame)
        except Unreadable as error:
            self.counts.add("ignored")
            with self._lock:
                self._distrusted_until = self._clock() + DISTRUST_SECONDS
            self._tell_once("Push is not trusted for a while", error)
            return
        if diff.origin != self.origin:
            self._hear(diff)

    def lost(self) -> None:
        with self._lock:
            for queue in self._queues.values():
                queue.lose(subscribed=False)
            self._due.notify_all()

    def _hear(self, diff: Diff) -> None:
        with self._lock:
            queue = self._queues.get(diff.hydration_id)
            if queue is None or not self._listening:
                return
            clean = queue.hear(diff)
        self.counts.add("clean" if clean else "unclean")
        if diff.origin != self.origin:
            self.counts.count_delay(time.time() - diff.moment)

    # What is done where nothing is heard

    def _healthy(self, queue: WaitQueue) -> bool:
        trusted = queue.subscribed and not queue.gate.stale and self._clock() >= self._distrusted_until
        return trusted and self.switches.both and self.channel.healthy

    def _pace(self, queue: WaitQueue) -> float:
        return self.paces.generous if self._healthy(queue) else self.paces.normal

    def _keep(self) -> None:
        """See to it that a thread looks after those that wait."""
        if self._keeper is None:
            self._keeper = threading.Thread(target=self._look_after, name="backpressure push", daemon=True)
            self._keeper.start()

    def _look_after(self) -> None:
        while True:
            with self._lock:
                waiter = next((each for queue in self._queues.values() for each in queue.waiters), None)
                if waiter is None:
                    self._keeper = None
                    return
            try:
                self._obey(waiter.ledger)
                pause = self._poll()
                if self._clock() >= self._next_record:
                    self._record(waiter.ledger)
            except Exception as error:
                log.debug("Not looked after.", exc_info=True)
                self._tell_once("Waiters are looked after by their own clocks", error)
                pause = self.paces.normal
            with self._lock:
                self._due.wait(pause)

    def _record(self, ledger: Ledger) -> None:
        """Write down what was counted, where that is more than last time."""
        self._next_record = self._clock() + RECORD_SECONDS
        counts = json.dumps(self.counts.values())
        if counts != self._recorded:
            ledger.keep_push(self.origin, counts)
            self._recorded = counts

    def _obey(self, ledger: Ledger) -> None:
        """Read the switches, and subscribe or unsubscribe as they say."""
        self._refresh(ledger)
        with self._lock:
            if self.switches.subscribe == self._listening:
                return
            self._listening = self.switches.subscribe
            for hydration_id, queue in self._queues.items():
                if self._listening:
                    self.channel.subscribe(hydration_id)
                else:
                    self.channel.unsubscribe(hydration_id)
                    queue.lose(subscribed=False)

    def _refresh(self, ledger: Ledger) -> None:
        try:
            self.switches.refresh(ledger)
        except BackpressureError as error:
            log.debug("The switches cannot be read now: %s", error)

    def _poll(self) -> float:
        """Let one waiter of each hydration that is due read the ledger; return seconds until the next is."""
        with self._lock:
            now = self._clock()
            for queue in self._queues.values():
                # One that was given the generous pace while push was healthy is not left with it.
                queue.next_read = min(queue.next_read, now + self._pace(queue))
                if queue.next_read > now or not queue.waited_for:
                    continue
                if not self._healthy(queue):
                    self.counts.add("fallbacks")
                queue.next_read = now + self._pace(queue)
                queue.poll()
            nearest = min((queue.next_read for queue in self._queues.values()), default=now)
            return min(1.0, max(0.05, nearest - now))

    def _tell_once(self, what: str, error: Exception) -> None:
        """Log the first of a kind; every other one would say the same."""
        kind = f"{what}: {type(error).__name__}"
        with self._lock:
            if kind in self._told:
                return
            self._told.add(kind)
        log.warning("%s, which changes nothing but how soon changes are noticed: %s", what, error)
