"""Where a plan of a topic begins, by what the last plan read and what the log still holds."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import pytest

from airflow_provider_backpressure.connectors.kafka.source.partition_offsets import Log, to_millis
from airflow_provider_backpressure.connectors.kafka.source.retention_and_lag import TopicHealth
from airflow_provider_backpressure.connectors.kafka.source.topic import KafkaTopic
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.snapshot.topic_offsets import LogWindow
from airflow_provider_backpressure.exceptions import InvalidDeclaration, SourceRefused
from airflow_provider_backpressure.sources import KafkaSource

pytestmark = pytest.mark.statement("X6")

PLACE = Endpoint(conn_id="events", host="a:1", port=0, database="", user="")
FIRST = LogWindow(topic="orders", topic_id="one", start={0: 0}, end={0: 100})
LATEST = LogWindow(topic="orders", topic_id="one", start={0: 100}, end={0: 100}, origin={0: 100})


@dataclass(frozen=True, kw_only=True)
class Broker:
    """Answers for a topic's log."""

    beginning: Mapping[int, int]
    topic_id: str = "one"

    def look(self) -> Log:
        """Return each partition with 600 offsets behind its beginning."""
        high = {partition: first + 600 for partition, first in self.beginning.items()}
        return Log(topic_id=self.topic_id, beginning=dict(self.beginning), end=high, high=high)


def begin(
    beginning: Mapping[int, int],
    *,
    after: LogWindow | None = None,
    previous: LogWindow | None = None,
    topic_id: str = "one",
    **declared: Any,
) -> Mapping[int, int]:
    """Return where a plan begins."""
    topic = KafkaSource(conn_id="events", topic="orders", **declared).open(PLACE)
    assert isinstance(topic, KafkaTopic)
    topic._log = Broker(beginning=beginning, topic_id=topic_id)  # type: ignore[assignment]
    snapshot = topic.snapshot(
        after=after.to_text() if after is not None else None,
        previous=previous.window(None) if previous is not None else None,
        counted=False,
    )
    window = LogWindow.from_window(snapshot.window)
    assert window is not None
    return window.start


@pytest.mark.parametrize("again", ["after", "previous"])
def test_partitions_go_side_by_side_where_no_key_moved(again: str) -> None:
    """X6: as declared; in the run that finds more partitions keys may be in two, so ranges go one after another."""

    def plan(partitions: int, declared: bool, *known: int) -> bool:
        topic = KafkaSource(conn_id="events", topic="orders", one_partition_per_key=declared).open(PLACE)
        topic._log = Broker(beginning=dict.fromkeys(range(partitions), 0))  # type: ignore[attr-defined]
        topic._check_marks = lambda *_: None  # type: ignore[attr-defined]
        window = LogWindow(topic="orders", topic_id="one", start=dict.fromkeys(known, 0), end=dict.fromkeys(known, 9))
        before = {"after": window.to_text()} if again == "after" else {"previous": window.window(None)}
        return topic.snapshot(counted=False, **(before if known else {})).side_by_side  # type: ignore[arg-type]

    assert [plan(2, False), plan(2, True), plan(2, True, 0, 1), plan(3, True, 0, 1)] == [False, True, True, False]


def test_a_plan_has_as_many_parts_of_keys_as_are_declared_when_it_is_made() -> None:
    """X1, X6: the same hydration, also with another number; what follows a plan of parts begins where that ended."""

    def plan(parts: int, after: LogWindow | None) -> tuple[str, LogWindow]:
        topic = KafkaSource(conn_id="events", topic="orders", upsert_parts=parts).open(PLACE)
        topic._log = Broker(beginning={0: 0})  # type: ignore[attr-defined]
        topic._check_marks = lambda *_: None  # type: ignore[attr-defined]
        snapshot = topic.snapshot(after=after.to_text() if after else None, counted=False)
        assert snapshot.total == (500 if after else 600)
        found = LogWindow.from_window(snapshot.window)
        assert found is not None
        return topic.identity, found

    (first, cut), (then, whole), (_, more) = plan(4, None), plan(1, None), plan(3, replace(FIRST, parts=4))
    assert first == then == "kafka://a:1/orders"
    assert (cut.parts, whole.parts, more.parts) == (4, 1, 3)
    assert replace(cut, parts=1) == whole
    assert more.start == {0: 100}


@pytest.mark.parametrize("parts", [-1, 0, 65, True, 2.0, "2"])
def test_a_number_of_parts_that_there_cannot_be_is_refused(parts: Any) -> None:
    """X5."""
    with pytest.raises(InvalidDeclaration, match=r"upsert_parts must be a whole number( from 1 to 64)?, not"):
        KafkaSource(conn_id="events", topic="orders", upsert_parts=parts)


def test_a_partition_that_was_added_begins_at_its_first_offset() -> None:
    """X6: the first plan of a topic takes the log as it is; records that were gone by then are none of its own."""
    assert begin({0: 0, 1: 0}, after=FIRST) == {0: 100, 1: 0}
    assert begin({0: 40, 1: 500}) == {0: 40, 1: 500}


@pytest.mark.parametrize(
    ("known", "declared"),
    [
        ({"after": FIRST}, {}),
        ({"previous": LATEST}, {"start": "latest"}),
        ({"previous": LATEST, "topic_id": "another"}, {"start": "latest"}),
    ],
    ids=["next run", "restart from the end", "created again"],
)
def test_what_retention_took_of_an_added_partition_is_named(known: dict[str, Any], declared: dict[str, Any]) -> None:
    """X6: its records are all newer than the first plan, so none of them may be left out without a word."""
    with pytest.raises(SourceRefused, match=r"Offsets \[0, 500\) of partition 1 of topic orders are gone"):
        begin({0: 0, 1: 500}, **known, **declared)
    assert begin({0: 0, 1: 500}, **known, **declared, accept_loss=True)[1] == 500


def test_lag_counts_an_added_partition_from_its_first_offset() -> None:
    """What the next run would have to read of it; without a plan, what the log still holds."""
    log: Any = Broker(beginning={0: 0, 1: 500})
    assert TopicHealth(log, (), seconds=1.0, unread=lambda: {0: 100}).lag() == {0: 500, 1: 1100}
    assert TopicHealth(log, (), seconds=1.0).lag() == {0: 600, 1: 600}


@pytest.mark.parametrize(
    ("time", "millis"),
    [
        (datetime(2004, 7, 14, 13, 11, 19, 199_000, UTC), 1_089_810_679_199),
        (datetime(2004, 7, 14, 13, 11, 19, 199_001, UTC), 1_089_810_679_200),
        (datetime(1970, 1, 1, tzinfo=UTC), 0),
    ],
)
def test_a_time_becomes_the_first_millisecond_that_is_not_earlier(time: datetime, millis: int) -> None:
    """As a float the first one has 198 of them, and then an earlier record is read too."""
    assert to_millis(time) == millis
