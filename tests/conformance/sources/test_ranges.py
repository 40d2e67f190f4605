"""Whether a committed range can be read again: what every source says before its rows are removed from the target."""

from dataclasses import replace

import pytest

from airflow_provider_backpressure.core.snapshot.bounds import OffsetBounds
from airflow_provider_backpressure.core.snapshot.spark_messages import Window
from airflow_provider_backpressure.exceptions import SourceRefused
from airflow_provider_backpressure.sources import KafkaSource
from tests.conformance.ledger.support import make_plan
from tests.conformance.sources.conftest import Subject
from tests.support import kafka as on_kafka

pytestmark = pytest.mark.statement("X3")


def test_a_range_that_the_source_lost_is_refused(subject: Subject) -> None:
    """X3: the sentence names the source; the same range was fine before."""
    subject.write(4)
    snapshot = subject.source.snapshot()
    plan = make_plan(read=subject.source.read_spec(snapshot), source_identity=subject.source.identity)
    ranges = list(subject.source.ranges(snapshot, rows=2, bytes=2**20))
    for planned in ranges:
        subject.source.check_range(plan, planned.bounds)
    subject.lose()
    with pytest.raises(SourceRefused, match=r"gone|has changed"):
        subject.source.check_range(plan, ranges[0].bounds)


@pytest.mark.integration
def test_only_what_a_range_needs_has_to_be_there(kafka) -> None:
    """X3, fine print 17: a range behind the log's beginning, of a partition that was not cut."""
    topic = on_kafka.Topic(servers=kafka.url).create(2)
    for partition in (0, 1):
        topic.send(partition, *range(10))
    endpoint = on_kafka.endpoint_of(kafka)
    source = KafkaSource(conn_id="test", topic=topic.name, accept_loss=True).open(endpoint)
    plan = make_plan(read=source.read_spec(source.snapshot()))
    topic.cut(0, 5)
    for pieces in [((0, 5, 10),), ((1, 0, 10),)]:
        source.check_range(plan, OffsetBounds(pieces=pieces))
    for pieces in [((0, 4, 10),), ((0, 0, 5), (1, 0, 5))]:
        with pytest.raises(SourceRefused, match=r"Offsets \[\d, 5\) of partition 0 .* rows stay in the target"):
            source.check_range(plan, OffsetBounds(pieces=pieces))
    with pytest.raises(SourceRefused, match="ends at offset 10, before offset 11: the log"):
        source.check_range(plan, OffsetBounds(pieces=((1, 0, 11),)))
    window = plan.read.window
    assert window is not None
    another = Window(
        column=window.column,
        after=None,
        upto=window.upto.replace('"topic_id": "', '"topic_id": "A'),
    )
    with pytest.raises(SourceRefused, match="deleted and created again"):
        source.check_range(replace(plan, read=replace(plan.read, window=another)), OffsetBounds(pieces=((1, 0, 1),)))
