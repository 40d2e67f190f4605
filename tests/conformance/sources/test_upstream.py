"""How far a source itself is: its unit, that it grows by what is written, and a plan's place on the same axis."""

import pytest

from airflow_provider_backpressure.core.progress.source_position import from_position
from airflow_provider_backpressure.core.snapshot.topic_offsets import difference
from airflow_provider_backpressure.sources import KafkaSource
from tests.conformance.sources.conftest import Subject
from tests.support import kafka as on_kafka

pytestmark = pytest.mark.statement("M8")


def test_a_frontier_grows_by_what_is_written(subject: Subject) -> None:
    """M8: high watermarks, pg_current_wal_lsn() in bytes, gtid_executed in transactions."""
    before = subject.source.upstream()
    assert before.unit is subject.unit
    subject.write(3)
    after = subject.source.upstream()
    written = difference(after.at, before.at)
    assert written == 3 if subject.exact else written > 3
    assert (before.open, after.open) == (0, 0)
    still = subject.source.upstream()
    assert all(still.at[key] >= position for key, position in after.at.items())


def test_it_can_be_asked_again_after_it_was_closed(subject: Subject) -> None:
    before = subject.source.upstream()
    subject.source.close()
    assert subject.source.upstream().at.keys() == before.at.keys()


def test_a_plans_place_lies_between_the_frontiers_around_it(subject: Subject) -> None:
    """M8: what a plan brings is counted as its source counts."""
    subject.write(2)
    before = subject.source.upstream()
    snapshot = subject.source.snapshot()
    subject.write(2)
    after = subject.source.upstream()
    place = from_position(subject.source.read_spec(snapshot).kind, snapshot.position or "")
    if place is None:
        assert snapshot.position is None
        return
    assert difference(before.at, place) == 0
    assert difference(place, after.at) == 0
    assert difference(after.at, place) > 0


@pytest.mark.integration
def test_an_open_transaction_is_told_apart(kafka) -> None:
    """M8, fine print 26: between the last stable offset and the high watermark."""
    topic = on_kafka.Topic(servers=kafka.url).create()
    source = KafkaSource(conn_id="test", topic=topic.name).open(on_kafka.endpoint_of(kafka))
    topic.send(0, *range(10))
    with topic.transaction(commit=True) as producer:
        topic.put(producer, 0, *range(5))
        held = source.upstream()
        assert (held.at, held.open) == ({0: 15}, 5)
    on_kafka.until(lambda: not source.upstream().open)
    assert source.upstream().at == {0: 16}, "the transaction's own mark has an offset too"
