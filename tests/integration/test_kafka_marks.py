"""A topic's log that lost its end and has grown past it again is another log, whatever its offsets say."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_backpressure.connectors.kafka.source.partition_offsets import Mark, Marks
from airflow_provider_backpressure.core.snapshot.bounds import OffsetBounds
from airflow_provider_backpressure.core.snapshot.spark_messages import Window
from airflow_provider_backpressure.core.snapshot.topic_offsets import LogWindow
from airflow_provider_backpressure.exceptions import SourceRefused
from airflow_provider_backpressure.sources import KafkaSource
from dev.services import Server, Services
from tests.conformance.ledger.support import make_plan
from tests.support.kafka import Topic, endpoint_of, until

pytestmark = [pytest.mark.integration, pytest.mark.in_process, pytest.mark.statement("X6"), pytest.mark.fault(17)]

NAME = "kafka:restored"


@dataclass(frozen=True, kw_only=True)
class Reader:
    """Plans one topic, window after window."""

    server: Server
    topic: Topic

    def window(self, after: Window | None = None) -> Window:
        """Return the window of the next plan."""
        source = KafkaSource(conn_id="c", topic=self.topic.name).open(endpoint_of(self.server))
        found = source.snapshot(after=after.upto if after is not None else None).window
        assert found is not None
        return found

    def marks(self, after: Window | None = None) -> dict[int, Mark]:
        """Return the marks of the next plan."""
        return {at: Mark.parse(text) for at, text in LogWindow.from_text(self.window(after).upto).marks.items()}


@pytest.fixture(scope="module")
def broker(services: Services) -> Iterator[Server]:
    """A broker of its own, whose disk is restored."""
    yield services.up(NAME)[NAME]
    services.down(NAME, remove=True)


def mark_of(window: Window) -> Mark:
    """Return the mark of the first partition."""
    return Mark.parse(LogWindow.from_text(window.upto).marks[0])


def pieces(window: Window) -> list[tuple[int, int, int]]:
    """Return what a window reads."""
    return list(LogWindow.from_text(window.upto).pieces())


def made(server: Server, partitions: int = 1, **config: str) -> Reader:
    """Return the reader of a new topic."""
    return Reader(server=server, topic=Topic(servers=server.url).create(partitions, **config))


@pytest.mark.long
def test_a_restored_log_that_has_grown_past_its_old_end_is_another_one(
    services: Services, broker: Server, tmp_path: Path
) -> None:
    """X6: by the last record, though the leader epochs are those of before; by the epochs where that record is gone."""
    record, epoch, kept, lost = (made(broker) for _ in range(4))
    data = services.home / NAME.replace(":", "-") / "data"
    for reader in (record, epoch, kept, lost):
        reader.topic.send(0, *range(10))
    of_kept = kept.window()
    services.down(NAME)
    shutil.copytree(data, tmp_path / "backup")
    services.restart(NAME)
    for reader in (record, epoch, lost):
        reader.topic.send(0, *range(100, 110))
    of_record, of_epoch, of_lost = record.window(), epoch.window(), lost.window()
    # Each start of the broker begins leader epochs. The restored log does not come to this one.
    services.restart(NAME)
    epoch.topic.send(0, "of a later epoch")
    of_epoch = epoch.window(of_epoch)
    services.down(NAME)
    shutil.rmtree(data)
    shutil.copytree(tmp_path / "backup", data)
    services.restart(NAME)
    for reader in (record, epoch, kept, lost):
        reader.topic.send(0, *range(200, 215))
    assert record.marks()[0].epoch == mark_of(of_record).epoch, "the epochs are those of before"
    with pytest.raises(SourceRefused, match=r"Partition 0 of topic .* up to offset 20: it was cut off or restored"):
        record.window(of_record)
    assert pieces(kept.window(of_kept)) == [(0, 10, 25)], "what was read is in the backup too"
    # Retention takes the records by which it would be seen.
    epoch.topic.cut(0, 21)
    with pytest.raises(SourceRefused, match="is not the log any more that was read up to offset 21"):
        epoch.window(of_epoch)
    lost.topic.cut(0, 20)
    assert pieces(lost.window(of_lost)) == [(0, 20, 25)], "with the same epochs nothing is left to compare"


@pytest.mark.long
def test_a_range_is_not_removed_whose_records_are_others_by_now(services: Services, broker: Server) -> None:
    """X3, X6: a repair would bring other rows than verification compared. The epoch is that of a log before."""
    reader = made(broker)
    with reader.topic.transaction(commit=True) as producer:
        reader.topic.put(producer, 0, *range(10))
    until(lambda: reader.topic.end(0) == 11)
    source = KafkaSource(conn_id="c", topic=reader.topic.name).open(endpoint_of(broker))
    spec = source.read_spec(source.snapshot())
    window = LogWindow.from_window(spec.window)
    assert window is not None
    bounds, mark = OffsetBounds(pieces=((0, 2, 5),)), Mark.parse(window.marks[0])
    source.check_range(make_plan(read=spec), bounds)
    for changed in (replace(mark, digest="0" * 16), replace(mark, offset=8), replace(mark, epoch=mark.epoch + 7)):
        another = replace(window, marks={0: str(changed)}).window(None)
        with pytest.raises(SourceRefused, match="up to offset 11: it was cut off"):
            source.check_range(make_plan(read=replace(spec, window=another)), bounds)
    reader.topic.configure(cleanup_policy="compact,delete")
    with pytest.raises(SourceRefused, match=r"is compacted, so records of the range may be gone"):
        source.check_range(make_plan(read=spec), bounds)
    services.restart(NAME)
    reader.topic.send(0, "of the next epoch")
    marks = Marks(endpoint=endpoint_of(broker), topic=reader.topic.name)
    # The transaction's marker took offset 10, so there is no record to compare. The epoch of before ends behind it.
    assert marks.find_others({0: replace(mark, offset=10)}) == []
    assert marks.find_others({0: replace(mark, offset=11)}) == [0], "the record there is of the next epoch"


def test_what_a_log_may_lose_is_no_other_log(kafka: Server) -> None:
    """X6: retention, compaction, aborted and open transactions, markers, empty partitions, and plans without marks."""
    reader = made(kafka, 6)
    topic = reader.topic
    topic.send(0, *range(10))
    topic.send(1, *range(10))
    with topic.transaction(commit=True) as committed, topic.transaction(commit=False) as aborted:
        topic.put(committed, 2, *range(10))
        topic.put(aborted, 3, *range(10))
    with topic.transaction(commit=False) as first:
        topic.put(first, 4, "aborted", "too")
    until(lambda: [topic.end(at) for at in range(6)] == [10, 10, 11, 11, 3, 0])
    topic.cut(4, 2)
    before = reader.window()
    marks = {at: Mark.parse(text).offset for at, text in LogWindow.from_text(before.upto).marks.items()}
    assert marks == {0: 9, 1: 9, 2: 9, 3: 9}, "of the fourth partition the marker alone is left, the last one is empty"
    unmarked = replace(before, upto=LogWindow.from_text(before.upto).to_text().partition(', "marks"')[0] + "}")
    assert not LogWindow.from_text(unmarked.upto).marks
    topic.cut(0, 10)
    with topic.transaction(commit=True) as open_:
        topic.put(open_, 1, "held back")
        for at in (0, 2, 3, 4, 5):
            topic.send(at, "later")
        for window in (before, unmarked):
            later = LogWindow.from_text(reader.window(window).upto)
            assert later.pieces() == [(0, 10, 11), (2, 11, 12), (3, 11, 12), (4, 3, 4), (5, 0, 1)]
            found = {at: Mark.parse(text).offset for at, text in later.marks.items()}
            assert found == {0: 10, 1: 9, 2: 11, 3: 11, 4: 3, 5: 0}


def test_compaction_takes_the_mark_and_nothing_is_refused(kafka: Server) -> None:
    """X6: the leader epochs say that the log goes on; the next record is not compared with the one that is gone."""
    settings = {"segment_ms": "100", "min_cleanable_dirty_ratio": "0.001", "max_compaction_lag_ms": "100"}
    reader = made(kafka, cleanup_policy="compact", **settings)
    reader.topic.send(0, *range(5), key=b"same")
    before = reader.window()

    def is_gone() -> bool:
        reader.topic.send(0, "newer", key=b"same")
        return (0, 4) not in reader.topic.committed()

    until(is_gone, 90)
    assert LogWindow.from_text(reader.window(before).upto).start == {0: 5}


def test_a_partition_without_news_costs_no_fetch(kafka: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """One for the mark of before and one for the new end, of a partition that has moved; none of all others."""
    reader = made(kafka, 3)
    for at in range(3):
        reader.topic.send(at, *range(3))
    fetched: list[list[int]] = []
    fetch: Any = Marks._fetch

    def counted(self: Marks, places: Any) -> Any:
        fetched.append(sorted(places))
        return fetch(self, places)

    monkeypatch.setattr(Marks, "_fetch", counted)
    before = reader.window()
    fetched.clear()
    reader.window(before)
    assert [each for each in fetched if each] == []
    reader.topic.send(1, "news")
    reader.window(before)
    assert [each for each in fetched if each] == [[1], [1]]
    source = KafkaSource(conn_id="c", topic=reader.topic.name).open(endpoint_of(kafka))
    fetched.clear()
    source.snapshot(after=before.upto, counted=False)
    source.snapshot(after=before.upto)
    assert [each for each in fetched if each] == [[1], [1]], "a planner asks twice, and the mark is compared once"
