"""A topic that changes its shape while it is looked at, on a real broker: what the observer makes of it."""

from datetime import UTC, datetime, timedelta

import pytest

from airflow_provider_backpressure.core.monitoring.source_observer import Observer
from airflow_provider_backpressure.core.progress.lag import Course
from airflow_provider_backpressure.sources import KafkaSource
from airflow_provider_backpressure.testing import MemoryLedger
from dev.services import Server
from tests.support.kafka import Topic, endpoint_of
from tests.unit.core.monitoring.test_source_observer import planned_topic

pytestmark = [pytest.mark.integration, pytest.mark.statement("M10")]


class Watch:
    """Looks at a topic every ten seconds, by the ledger's clock, which is moved by hand."""

    def __init__(self, kafka: Server) -> None:
        self.topic = Topic(servers=kafka.url).create(1)
        self.now = datetime(2026, 7, 1, 12, tzinfo=UTC)
        ledger = MemoryLedger(now=lambda: self.now)
        source = KafkaSource(conn_id="c", topic=self.topic.name)
        hydration_id, _ = planned_topic(ledger, end=10)
        self.observer = Observer(ledger=ledger, hydration_id=hydration_id, open=lambda: source.open(endpoint_of(kafka)))

    def look(self) -> Course:
        self.now += timedelta(seconds=20)
        course = self.observer.look()
        assert course is not None
        return course


def test_a_partition_is_added_and_the_topic_is_made_anew(kafka: Server) -> None:
    """M10: a new partition counts from zero; a topic that begins again is named, and gives no negative rate."""
    at = Watch(kafka)
    empty = at.look()
    assert (empty.latest.known, empty.trouble) == ({"0": 0}, "")
    at.topic.send(0, *range(30))
    assert at.look().upstream_rate == pytest.approx(1.5)
    at.topic.grow(2)
    at.topic.send(1, *range(20))
    grown = at.look()
    assert (grown.latest.known, grown.trouble) == ({"0": 30, "1": 20}, "")
    assert grown.upstream_rate == pytest.approx(1.0)
    at.topic.delete()
    at.topic.create(2)
    at.topic.send(0, *range(4))
    anew = at.look()
    assert "Partition 0 was seen at offset 30 and ends at offset 4 now" in anew.trouble
    assert anew.upstream_rate == 0.0
    at.topic.delete()
