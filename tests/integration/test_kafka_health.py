"""A topic's health on a real broker: lag per partition, and a warning before retention deletes what was not read."""

import logging
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from airflow_provider_backpressure.connectors.kafka.source.retention_and_lag import TopicHealth
from airflow_provider_backpressure.core.admission.health_measurements import HealthWatch
from airflow_provider_backpressure.core.admission.permits_and_reservations import Limiter
from airflow_provider_backpressure.core.config import Budget, Mode, Retention
from airflow_provider_backpressure.core.gate.credit_limits import FixedLimit
from airflow_provider_backpressure.core.gate.signals import Signal
from airflow_provider_backpressure.core.health_signal_declarations import Figure
from airflow_provider_backpressure.core.monitoring.committed_frontier import unread
from airflow_provider_backpressure.core.planning.plan_result import Planned
from airflow_provider_backpressure.core.planning.planner import Planner
from airflow_provider_backpressure.core.snapshot.topic_offsets import LogWindow
from airflow_provider_backpressure.exceptions import SourceRefused
from airflow_provider_backpressure.hooks.metrics import Places
from airflow_provider_backpressure.sources import KafkaSource
from airflow_provider_backpressure.testing import MemoryLedger, MemoryRunner, MemorySink, MemorySource
from dev.services import Server
from tests.support.kafka import Topic, endpoint_of, until

pytestmark = [pytest.mark.integration, pytest.mark.statement("F7")]
HOUR = 3_600_000


class AnySink(MemorySink):
    """Takes whatever columns a topic has: nothing is written here."""

    def fit(self, columns: Any, *, mode: str, key: Any, log: Any = None) -> Any:
        return super().fit((), mode=mode, key=key, log=log)


class Log:
    """A planned topic, with the gate that watches it."""

    def __init__(self, kafka: Server, topic: Topic, *, rows: int = 5) -> None:
        self.topic = topic
        self.source: Any = KafkaSource(conn_id="c", topic=topic.name, accept_loss=True).open(endpoint_of(kafka))
        self.ledger = MemoryLedger()
        self.sink = AnySink()
        self.budget = Budget(credits=9, range_rows=rows, signals=(Retention(hours=6),))

    def plan(self) -> Planned:
        runner = MemoryRunner(source=MemorySource(keys=()), sink=self.sink)
        planned = Planner(
            source=self.source,
            sink=self.sink,
            runner=runner,
            ledger=self.ledger,
            budget=self.budget,
            mode=Mode.APPEND,
            owner="test",
            cluster="spark",
        ).plan()
        self.planned = planned
        return planned

    def health(self) -> TopicHealth:
        found = self.source.health(self.budget.signals, seconds=5, unread=unread(self.planned.plan, self.ledger))
        assert isinstance(found, TopicHealth)
        return found

    def commit(self, count: int) -> None:
        """Let the ledger say that the next ranges are committed."""
        for _ in range(count):
            permit = self.ledger.admit(self.planned.hydration.id, lane="l", session_id="s", lease_seconds=60)
            assert permit is not None
            self.ledger.commit(
                permit.range.plan_id,
                permit.range.seq,
                worker="l",
                attempt=1,
                rows=1,
                bytes=1,
                checksum="",
                limit=FixedLimit(),
                pressure=0.0,
            )

    def watch(self) -> HealthWatch:
        places = Places(
            source=lambda: self.source,
            sink=lambda: self.sink,
            unread=lambda: unread(self.planned.plan, self.ledger),
        )
        return HealthWatch(budget=self.budget, open=places.open)


@pytest.fixture
def log(kafka: Server) -> Iterator[Any]:
    """Make topics with their gates; deleted in the end."""
    made: list[Log] = []

    def make(partitions: int = 1, **config: str) -> Log:
        made.append(Log(kafka, Topic(servers=kafka.url).create(partitions, **config)))
        return made[-1]

    yield make
    for each in made:
        each.source.close()
        each.topic.delete()


def figure(log: Log) -> Figure:
    with closing(log.health()) as health:
        (found,) = health.look().values()
    assert isinstance(found, Figure)
    return found


def ago(hours: float) -> int:
    """Return a record's time."""
    return int(time.time() * 1000 - hours * HOUR)


def test_lag_per_partition_falls_with_each_commit(log):
    """F7: what is committed, not what was planned or read, counts; what has come since the plan does too."""
    at = log(3)
    for partition, number in enumerate((12, 0, 7)):
        at.topic.send(partition, *range(number))
    assert at.plan().ranges == 4
    assert at.health().lag() == {0: 12, 1: 0, 2: 7}
    at.commit(2)
    assert at.health().lag() == {0: 2, 1: 0, 2: 7}
    at.commit(2)
    assert at.health().lag() == {0: 0, 1: 0, 2: 0}
    at.topic.send(1, *range(4))
    assert at.health().lag() == {0: 0, 1: 4, 2: 0}


def test_the_time_left_is_that_of_the_oldest_record_that_was_not_committed(log):
    """F7: on whichever partition it stands."""
    at = log(2, retention_ms=str(24 * HOUR))
    at.topic.send(0, *range(5), timestamp=ago(20))
    at.topic.send(0, *range(5), timestamp=ago(10))
    at.topic.send(1, *range(5), timestamp=ago(15))
    at.plan()
    # Partition 0 is cut first: its second range goes before the first of partition 1.
    first = figure(at)
    assert first.value == pytest.approx(4, abs=0.1)
    assert first.note == "offset 0 of partition 0 is the oldest, 15 offsets behind"
    at.commit(1)
    second = figure(at)
    assert second.value == pytest.approx(9, abs=0.1)
    assert second.note == "offset 0 of partition 1 is the oldest, 10 offsets behind"
    at.commit(2)
    assert figure(at).note == f"everything in topic {at.topic.name} has been read"


def test_a_topic_that_keeps_its_records_has_nothing_to_warn_of(log):
    """F7: no retention by age, a compacted topic, and one of which everything was read."""
    for config, words in (({"retention_ms": "-1"}, "by its age"), ({"cleanup_policy": "compact"}, "by its age")):
        at = log(1, **config)
        at.topic.send(0, 1, key=b"k", timestamp=ago(1000))
        at.plan()
        assert words in figure(at).note
    at = log(1, retention_ms=str(24 * HOUR), retention_bytes="1000000000")
    at.plan()
    assert "has been read" in figure(at).note
    at.topic.send(0, 1)
    assert figure(at).value == pytest.approx(24, abs=0.1)
    assert "retention.bytes=1000000000 is not reached yet" in figure(at).note


def test_it_warns_before_data_is_lost_and_never_closes_the_gate(log, caplog):
    """F7: in log, sentence and ledger; once what was not read is gone, that is said too."""
    at = log(1, retention_ms=str(24 * HOUR))
    at.topic.send(0, *range(10), timestamp=ago(12))
    at.plan()
    watch = at.watch()
    limiter = Limiter(
        ledger=at.ledger,
        hydration_id=at.planned.hydration.id,
        budget=at.budget,
        memory=MemoryRunner(source=MemorySource(keys=()), sink=at.sink).memory,
        health=watch.readings,
    )

    def look() -> Signal:
        decision = limiter.look()[1]
        assert decision.open
        assert decision.pressure < 0.4
        return decision.signals[-1]

    def seen() -> Signal:
        watch.start()
        watch.settle()
        look()
        signal = look()
        watch.close_and_wait()
        return signal

    assert "never seen" in look().sentence
    calm = seen()
    assert calm.utilisation == pytest.approx(0.5, abs=0.01)
    assert not calm.warning
    assert not [record for record in caplog.records if record.levelno == logging.WARNING]
    at.topic.configure(retention_ms=str(16 * HOUR))
    until(lambda: figure(at).value < 5)
    near = seen()
    assert near.warning
    assert near.sentence.startswith("source retention deletes in 4.0 h what has not been read (offset 0 of partition 0")
    assert near.sentence.endswith("10 offsets behind) <= 6 h")
    warned = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warned == [f"Data may be lost: {near.sentence}."]
    decision = at.ledger.hydration(at.planned.hydration.id).decision
    assert decision is not None
    assert decision["signals"][-1]["warning"] is True
    assert at.topic.committed(), "nothing was lost so far"
    at.topic.cut(0, 4)
    assert "Offsets [0, 4) of partition 0" in seen().sentence


def test_what_is_unread_is_asked_of_the_plan(log):
    """F7: without a plan, as when one is made, all of the topic counts as unread."""
    at = log(2)
    at.topic.send(1, *range(3))
    found = at.source.health(at.budget.signals, seconds=5).lag()
    assert found == {0: 0, 1: 3}
    window = LogWindow.from_window(at.plan().plan.read.window)
    assert window is not None
    assert unread(at.planned.plan, at.ledger)() == {0: 0, 1: 0}


def test_a_topic_that_is_gone_is_refused_at_the_plan(log, kafka):
    """By the first look."""
    at = log(1)
    at.plan()
    at.source = KafkaSource(conn_id="c", topic="nowhere").open(endpoint_of(kafka))
    with pytest.raises(SourceRefused, match="no topic nowhere"):
        at.watch().check()
