"""A topic on a real broker into a real PostgreSQL: planner, lanes, Spark Connect, verification."""

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaProducer

from airflow_provider_backpressure.connectors.kafka.source.partition_offsets import Marks
from airflow_provider_backpressure.connectors.kafka.tasks import kafka_python_client
from airflow_provider_backpressure.connectors.kafka.tasks import read as kafka_task
from airflow_provider_backpressure.connectors.kafka.tasks.read import read as read_topic
from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.execution.lane_submission import Outcome, spec_for
from airflow_provider_backpressure.core.gate.cluster_queue import Change
from airflow_provider_backpressure.core.monitoring.committed_frontier import STILL, unread
from airflow_provider_backpressure.core.planning.plan_result import Planned, Verdict
from airflow_provider_backpressure.core.planning.range_repair import repair
from airflow_provider_backpressure.core.ports import Runner
from airflow_provider_backpressure.core.progress.rates_and_eta import Progress, total_progress
from airflow_provider_backpressure.core.snapshot.bounds import OffsetBounds
from airflow_provider_backpressure.core.snapshot.ranges import RangeState
from airflow_provider_backpressure.core.snapshot.spark_messages import Window
from airflow_provider_backpressure.core.snapshot.topic_offsets import LogWindow, lag
from airflow_provider_backpressure.core.verification.verifier import Report, Verify
from airflow_provider_backpressure.exceptions import (
    InvalidDeclaration,
    RangeFailed,
    SinkRefused,
    SourceRefused,
    SourceUnavailable,
)
from airflow_provider_backpressure.ledger.migration import migrate
from airflow_provider_backpressure.runners.connect_runner import ConnectRunner
from airflow_provider_backpressure.sources import KafkaSource
from dev.services import Server
from tests import types_kafka as typed
from tests.conftest import fresh_database
from tests.support import lakes, type_page
from tests.support.composed import Ports
from tests.support.kafka import PASSWORD, ComposedKafka, Topic, endpoint_of, login_of, until
from tests.support.local_runner import LocalRunner
from tests.support.marks import mark_long
from tests.support.postgres import run

pytestmark = [pytest.mark.integration, pytest.mark.in_process]


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A broker, a target and a ledger, and one warm session for all tests."""

    kafka: Server
    database: Endpoint
    runner: Runner
    """Threads; what needs Spark has a runner of its own."""
    spark: Callable[[], Runner]
    """Gives one session for all tests."""
    logins: dict[str, Endpoint]
    ledger_url: str

    def topic(self, partitions: int = 1, **config: str) -> Topic:
        """Return a new topic."""
        return Topic(servers=self.kafka.url).create(partitions, **config)

    def hydration(self, topic: Topic, **changes: Any) -> "Run":
        """Return the hydration of a topic into a table of its own."""
        source, target = changes.pop("endpoint", endpoint_of(self.kafka)), f"raw.{topic.name}"
        composed = ComposedKafka(
            source=source,
            sink=self.database,
            ledger_url=self.ledger_url,
            remote="",
            table=topic.name,
            target=target,
            budget=Budget(credits=2, range_rows=changes.pop("range_rows", 1_000)),
            **changes,
        )
        self.logins["source"] = replace(source, conn_id="source")
        return Run(composed=composed, stage=self)


@dataclass(frozen=True, kw_only=True)
class Run:
    """One hydration, run after run."""

    composed: ComposedKafka
    stage: Stage

    def open(self) -> AbstractContextManager[Ports]:
        """Open the ports; only a transform needs Spark."""
        return self.composed.open(self.stage.spark() if self.composed.transform else self.stage.runner)

    def plan(self, *, restart: bool = False) -> Planned:
        """Plan the next run."""
        with self.open() as ports:
            return ports.planner().plan(restart=restart)

    def drain(self, on_commit: Callable[[Ports], None] | None = None) -> Progress:
        """Drain the planned ranges and end the hydration; return what the ledger says of it."""
        with self.open() as ports:
            lane = ports.hydrator()
            if on_commit is not None:
                lane.on_commit = partial(on_commit, ports)
            result = lane.run()
            assert result.outcome is Outcome.DONE, result
            ports.ledger.finish(ports.hydration.id)
            return total_progress(ports.ledger.statistics(ports.hydration.id))

    def go(self) -> Progress:
        """Plan and drain."""
        self.plan()
        return self.drain()

    def verify(self, how: Verify = Verify.TARGET) -> Report:
        """Verify the current plan."""
        with self.open() as ports:
            return ports.verifier().verify(ports.ledger.ranges(ports.plan.plan_id), how)

    def rows(self, columns: str = '"partition", "offset", value::text') -> list[tuple[Any, ...]]:
        """Return the target's rows."""
        return run(self.stage.database, f"SELECT {columns} FROM {self.composed.target} ORDER BY 1, 2")

    def sql(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements in the target's database; ``{}`` is the target."""
        return run(self.stage.database, *(each.format(self.composed.target) for each in statements))


@pytest.fixture(scope="module")
def stage(kafka: Server, postgres: Server, request: pytest.FixtureRequest) -> Iterator[Stage]:
    """Everything that the module's tests share; topics and tables are their own."""
    logins: dict[str, Endpoint] = {}
    with ExitStack() as stack:
        database = stack.enter_context(fresh_database(postgres))
        runner = stack.enter_context(closing(LocalRunner(logins=logins)))

        @cache
        def spark() -> Runner:
            return stack.enter_context(closing(ConnectRunner(request.getfixturevalue("connect").url, logins)))

        logins["sink"] = replace(database, conn_id="sink")
        url = f"postgresql+psycopg://{database.user}:{database.password}@{database.address}"
        migrate(url)
        yield Stage(kafka=kafka, database=database, runner=runner, spark=spark, logins=logins, ledger_url=url)


def stored(topic: Topic) -> list[tuple[int, int, str | None]]:
    """Return what the topic holds, as the target's rows should be."""
    found = topic.committed()
    return [(*place, None if value is None else value.decode()) for place, value in sorted(found.items())]


@pytest.mark.statement("X1", "X4")
def test_a_topic_arrives_with_everything_that_its_records_have(stage: Stage) -> None:
    """X1, X4: value, key, headers, time and offset of every record are in the target, each once."""
    topic = stage.topic(3, retention_ms="-1")
    topic.send(0, *({"id": number, "name": "Ж"} for number in range(2500)), key=b"k\x00")
    topic.send(1, {"id": 1}, headers=[("a", b"1"), ("a", b"\xff"), ("b", None)], timestamp=1_700_000_000_123)
    topic.send(2, None, b' [1, 2.50,\n"x"] ', b"7", b"null")
    hydration = stage.hydration(topic)
    progress = hydration.go()
    assert (progress.total, progress.committed, progress.percent) == (2505, 2505, 100.0)
    assert hydration.rows() == stored(topic)
    assert hydration.sql('SELECT DISTINCT topic, key, "partition" FROM {} WHERE key IS NOT NULL') == [
        (topic.name, b"k\x00", 0)
    ]
    ((headers, at),) = hydration.sql('SELECT headers::text, "timestamp"::text FROM {} WHERE "partition" = 1')
    assert json.loads(headers) == [
        {"key": "a", "value": "1"},
        {"key": "a", "base64": "/w=="},
        {"key": "b", "value": None},
    ]
    assert at == "2023-11-14 22:13:20.123+00"
    assert hydration.verify(Verify.TARGET).equal
    assert hydration.verify(Verify.FULL).equal


@pytest.mark.statement("X1")
def test_verification_sees_a_row_that_is_lost_or_changed(stage: Stage) -> None:
    """X1: a range whose rows are not those of the log is named, in the first run and in a later one."""
    topic = stage.topic()
    topic.send(0, *range(2500))
    hydration = stage.hydration(topic)
    hydration.go()
    hydration.sql('DELETE FROM {} WHERE "offset" = 1200')
    assert [each.seq for each in hydration.verify().mismatches] == [1]
    topic.send(0, *range(10))
    hydration.go()
    assert hydration.verify(Verify.FULL).equal
    hydration.sql("""UPDATE {} SET value = '"moved"' WHERE "offset" = 2505""")
    assert [each.seq for each in hydration.verify(Verify.FULL).mismatches] == [0]


@pytest.mark.statement("X6", "M2", "M3")
@pytest.mark.fault(18)
def test_aborted_open_and_compacted_records_leave_gaps_that_count(stage: Stage) -> None:
    """X6, M2, M3: what was aborted is not taken, what is open comes later; progress is complete by offsets."""
    topic = stage.topic(2)
    topic.send(0, *range(10))
    with topic.transaction(commit=False) as producer:
        topic.put(producer, 0, *range(50))
        topic.put(producer, 1, *range(50))
    with topic.transaction(commit=True) as producer:
        topic.put(producer, 1, *range(5))
    hydration = stage.hydration(topic, range_rows=25)
    with topic.transaction(commit=True) as producer:
        topic.put(producer, 0, "open")
        topic.send(0, "behind it")
        progress = hydration.go()
        assert progress.total == progress.committed == 10 + 51 + 51 + 6
        assert len(hydration.rows()) == progress.read - 103 == 15
        assert hydration.verify(Verify.FULL).equal
    progress = hydration.go()
    assert progress.total == progress.committed == 3
    assert hydration.rows() == stored(topic)
    assert len(hydration.rows()) == 17
    assert hydration.verify(Verify.FULL).equal


@pytest.mark.statement("X6")
@pytest.mark.fault(18)
@pytest.mark.long
def test_a_range_that_holds_only_markers_is_committed(stage: Stage) -> None:
    """X6: offsets without a single record are read to their end, committed with no rows, and verified."""
    topic = stage.topic()
    topic.send(0, "first")
    hydration = stage.hydration(topic)
    hydration.go()
    for _ in range(3):
        with topic.transaction(commit=False) as producer:
            topic.put(producer, 0, "never")
    progress = hydration.go()
    assert (progress.total, progress.committed, progress.percent) == (6, 6, 100.0)
    assert hydration.rows() == [(0, 0, '"first"')]
    assert hydration.verify(Verify.FULL).equal
    assert hydration.plan().verdict is Verdict.UNCHANGED


@pytest.mark.statement("X6")
@pytest.mark.fault(18)
@pytest.mark.long
def test_a_compacted_topic_is_read_to_its_end(stage: Stage) -> None:
    """X6: where the cleaner took records away, the rest arrives, and the ranges of the gaps are complete."""
    topic = stage.topic(
        cleanup_policy="compact", segment_ms="100", min_cleanable_dirty_ratio="0.001", max_compaction_lag_ms="100"
    )
    for number in range(40):
        topic.send(0, {"round": number}, key=b"same")
    until(lambda: _nudged(topic) < 20, 90)
    hydration = stage.hydration(topic, range_rows=5)
    progress = hydration.go()
    assert progress.total == progress.committed
    assert progress.total is not None
    assert len(hydration.rows()) < progress.total - 20
    assert hydration.rows()[-1] == stored(topic)[-1]


def _nudged(topic: Topic) -> int:
    """Write once more, as only closed segments are cleaned, and return how many records are left."""
    topic.send(0, {"round": -1}, key=b"same")
    return len(topic.committed())


@pytest.mark.statement("X6")
@pytest.mark.fault(16)
def test_a_partition_that_is_added_is_read_from_its_beginning(stage: Stage) -> None:
    """X6: the next run reads a new partition too, one that stays empty is no matter, and none is read twice."""
    topic = stage.topic(2)
    topic.send(0, *range(3))
    hydration = stage.hydration(topic)
    hydration.go()
    topic.grow(4)
    topic.send(2, *range(4))
    assert hydration.go().total == 4
    assert hydration.rows() == stored(topic)
    planned = hydration.plan()
    assert planned.verdict is Verdict.UNCHANGED
    assert dict(planned.plan.frontier) == {"0": 3, "1": 0, "2": 4, "3": 0}


@pytest.mark.statement("X6")
def test_a_partition_that_is_added_and_cut_off_stops_by_name(stage: Stage) -> None:
    """X6: the next run names what retention took of a new partition; accepted, it reads the rest of it."""
    topic = stage.topic()
    topic.send(0, *range(3))
    hydration = stage.hydration(topic)
    hydration.go()
    topic.grow(2)
    topic.send(1, *range(10))
    topic.cut(1, 5)
    with pytest.raises(SourceRefused, match=rf"Offsets \[0, 5\) of partition 1 of topic {topic.name} are gone"):
        hydration.plan()
    accepting = stage.hydration(topic, reading={"accept_loss": True})
    assert accepting.go().total == 5
    assert [place[:2] for place in accepting.rows()] == [
        *((0, each) for each in range(3)),
        *((1, each) for each in range(5, 10)),
    ]
    assert hydration.plan().verdict is Verdict.UNCHANGED, "what was accepted is not asked for again"


@pytest.mark.statement("X6")
@pytest.mark.fault(16)
def test_a_partition_that_is_added_in_mid_run_is_for_the_next_plan(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    """X6: a plan stays as it was made; the new partition counts as not read yet, and the next plan tells of it."""
    caplog.set_level(logging.INFO)
    topic = stage.topic(2)
    for partition in range(2):
        topic.send(partition, *range(30))
    hydration = stage.hydration(topic, range_rows=10)
    planned, behind = hydration.plan(), []

    def grow(ports: Ports) -> None:
        if not behind:
            topic.grow(3)
            topic.send(2, *range(4))
        unread_ = unread(ports.plan, ports.ledger)
        assert unread_ is not None
        behind.append(lag(unread_(), {int(at): high for at, high in ports.source.upstream().at.items()}))

    progress = hydration.drain(grow)
    assert len(behind) == planned.ranges == 6, "it grows behind the first range of six"
    assert (behind[0][2], sum(behind[-1].values())) == (4, 4), "what is behind is the new partition's alone"
    assert (progress.total, progress.committed, progress.percent) == (60, 60, 100.0)
    assert hydration.rows() == [row for row in stored(topic) if row[0] < 2]
    assert dict(planned.plan.frontier) == {"0": 30, "1": 30}
    assert hydration.go().total == 4
    assert f"Partitions added to topic {topic.name} since its last plan: 2." in caplog.text
    assert hydration.rows() == stored(topic)


@pytest.mark.statement("X6")
@pytest.mark.fault(17)
def test_a_log_cut_off_past_the_plan_stops_by_name(stage: Stage) -> None:
    """X6: offsets that vanish between plan and read are named and stop the run; accepted, it goes on without them."""
    topic = stage.topic()
    topic.send(0, *range(30))
    hydration = stage.hydration(topic, range_rows=20)
    hydration.plan()
    topic.cut(0, 12)
    with pytest.raises(SourceRefused, match=rf"Offsets \[0, 12\) of partition 0 of topic {topic.name} are gone"):
        hydration.drain()
    assert hydration.rows() in ([], stored(topic)[8:])
    accepting = stage.hydration(topic, range_rows=20, reading={"accept_loss": True})
    progress = accepting.go()
    assert progress.total == progress.committed == 30
    assert accepting.rows() == stored(topic)
    assert len(accepting.rows()) == 18


@pytest.mark.statement("X6")
@pytest.mark.fault(17)
def test_a_log_cut_off_between_two_runs_stops_by_name(stage: Stage) -> None:
    """X6: what retention took since the last run is named when the next one is planned."""
    topic = stage.topic()
    topic.send(0, *range(5))
    hydration = stage.hydration(topic)
    hydration.go()
    topic.send(0, *range(10))
    topic.cut(0, 8)
    with pytest.raises(SourceRefused, match=rf"Offsets \[5, 8\) of partition 0 of topic {topic.name} are gone"):
        hydration.plan()
    accepting = stage.hydration(topic, reading={"accept_loss": True})
    assert accepting.go().total == 7
    assert [offset for _, offset, _ in accepting.rows()] == [*range(5), *range(8, 15)]


@pytest.mark.statement("X3", "X6")
@pytest.mark.fault(17)
def test_a_range_is_not_removed_whose_records_retention_took(stage: Stage) -> None:
    """X3, X6: the repair stops with the lost offsets, and nothing changes; a range behind them is read."""
    topic = stage.topic()
    topic.send(0, *range(30))
    hydration = stage.hydration(topic, range_rows=10)
    hydration.go()
    rows = hydration.rows()
    topic.cut(0, 15)
    with hydration.open() as ports:
        records = ports.ledger.ranges(ports.plan.plan_id)
        for seq, lost in ((0, (0, 10)), (1, (10, 15))):
            with pytest.raises(SourceRefused, match=r"Offsets \[{}, {}\) of partition 0 .* are gone".format(*lost)):
                repair(ports.ledger, ports.source, ports.sink, ports.plan, records[seq], who="ada")
        assert ports.ledger.ranges(ports.plan.plan_id) == records
        assert hydration.rows() == rows
        assert repair(ports.ledger, ports.source, ports.sink, ports.plan, records[2], who="ada") == 10
    hydration.go()
    assert hydration.rows() == rows


@pytest.mark.statement("X6")
def test_a_topic_made_anew_is_another_one(stage: Stage) -> None:
    """X6: a topic that was deleted and made again is not taken for the one that was read."""
    topic = stage.topic()
    topic.send(0, *range(5))
    hydration = stage.hydration(topic)
    hydration.go()
    topic.delete()
    topic.create()
    topic.send(0, *range(9))
    with pytest.raises(SourceRefused, match="deleted and created again"):
        hydration.plan()


@pytest.mark.statement("X6")
@pytest.mark.parametrize("replanned", [False, True])
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_a_topic_made_again_in_the_middle_of_a_plan_is_not_mixed(stage: Stage, mode: str, replanned: bool) -> None:
    """X6: as many records of the new topic stand at the planned offsets; none of them arrives, and no range is lost."""
    topic = stage.topic()
    topic.send(0, *[{"made": "first"}] * 3000, key=b"k")
    hydration = stage.hydration(topic, range_rows=1000, mode=mode)
    hydration.plan()
    with hydration.open() as ports:
        lane = ports.hydrator()
        lane.share, lane.on_commit = 1, _stop
        with pytest.raises(KeyboardInterrupt):
            lane.run()
        lane.cancel()
    before = hydration.rows()
    topic.delete()
    topic.create()
    topic.send(0, *[{"made": "again"}] * 4000, key=b"k")
    with pytest.raises(SourceRefused, match=r"deleted and created again.*committed stay.*restart"):
        hydration.plan() if replanned else hydration.drain()
    assert before
    assert {json.loads(value)["made"] for _, _, value in hydration.rows()} == {"first"}


@pytest.mark.statement("X6")
def test_a_topic_made_again_while_a_range_is_read_is_seen_behind_its_last_record(stage: Stage) -> None:
    """X6: the reader raises before the sink learns that the range is complete."""
    topic = stage.topic()
    topic.send(0, *range(2000))
    source = KafkaSource(conn_id="source", topic=topic.name).open(endpoint_of(stage.kafka))
    snapshot = source.snapshot()
    (planned,) = source.ranges(snapshot, rows=10_000, bytes=2**30)
    spec = source.read_spec(snapshot)
    batches = read_topic(endpoint_of(stage.kafka), spec, source.slice(spec, planned.bounds, "0"), "a:0:1")
    next(batches)
    topic.delete()
    topic.create()
    with pytest.raises(SourceRefused, match="deleted and created again"):
        list(batches)


@pytest.mark.statement("X1", "X6")
def test_a_slice_holds_just_its_offsets(stage: Stage) -> None:
    """X1, X6: neither the record before its start nor that at its end, also where the offset before its end is none."""
    topic = stage.topic(2)
    with topic.transaction(commit=True) as producer:
        # The marker of the transaction takes the offset behind these.
        topic.put(producer, 0, *range(7))
    # A commit returns before its marker is written.
    until(lambda: topic.end(0) == 8, 30)
    for partition in range(2):
        topic.send(partition, *range(3000))
    endpoint = endpoint_of(stage.kafka)
    source = KafkaSource(conn_id="source", topic=topic.name).open(endpoint)
    spec = source.read_spec(source.snapshot())
    for pieces in [((0, 2, 8),), ((0, 7, 9),), ((0, 0, 1), (1, 2999, 3000)), ((0, 5, 2600), (1, 100, 700))]:
        piece = source.slice(spec, OffsetBounds(pieces=pieces), "0")
        batches = list(read_topic(endpoint, spec, piece, "a:0:1"))
        found = sorted((row["partition"], row["offset"]) for batch in batches for row in batch.to_pylist())
        wanted = [(partition, at) for partition, start, end in pieces for at in range(start, end)]
        assert found == [place for place in wanted if place != (0, 7)]


@pytest.mark.statement("X6")
def test_a_slice_of_an_earlier_release_is_read_without_the_topics_id(stage: Stage) -> None:
    """X6: a plan that is under way while the package is upgraded goes on."""
    topic = stage.topic()
    topic.send(0, *range(3))
    endpoint = endpoint_of(stage.kafka)
    source = KafkaSource(conn_id="source", topic=topic.name).open(endpoint)
    spec = source.read_spec(source.snapshot())
    piece = source.slice(spec, OffsetBounds(pieces=((0, 0, 3),)), "0")
    old = {name: value for name, value in json.loads(piece.query).items() if name != "topic_id"}
    (batch,) = read_topic(endpoint, spec, replace(piece, query=json.dumps(old)), "a:0:1")
    assert batch.num_rows == 3


def test_an_empty_topic_is_hydrated_and_then_followed(stage: Stage) -> None:
    """A topic without a record is complete at once, and its first records come with the next run."""
    topic = stage.topic(2)
    hydration = stage.hydration(topic)
    progress = hydration.go()
    assert (progress.total, progress.committed) == (0, 0)
    assert hydration.plan().verdict is Verdict.UNCHANGED
    topic.send(1, "first")
    hydration.go()
    assert hydration.rows() == [(1, 0, '"first"')]


@pytest.mark.parametrize(
    ("start", "offsets"),
    [
        ("earliest", [0, 1, 2, 3]),
        ("latest", []),
        ("2023-11-14T22:13:21Z", [2, 3]),
        (datetime(2033, 1, 1, tzinfo=UTC), []),
        ({"0": 3}, [3]),
        ({0: 9}, SourceRefused),
        ({5: 0}, SourceRefused),
    ],
)
def test_a_start_is_turned_into_offsets_when_it_is_planned(
    kafka: Server, start: Any, offsets: list[int] | type[Exception]
) -> None:
    """A time becomes the first offset that is not earlier; where there is none, the end."""
    topic = Topic(servers=kafka.url).create(retention_ms="-1")
    for second in range(4):
        topic.send(0, second, timestamp=1_700_000_000_000 + 500 * second)
    source = KafkaSource(conn_id="c", topic=topic.name, start=start).open(endpoint_of(kafka))
    if isinstance(offsets, type):
        with pytest.raises(offsets, match=r"[Pp]artition"):
            source.snapshot()
        return
    window = LogWindow.from_window(source.snapshot().window)
    assert window is not None
    assert list(range(window.start[0], window.end[0])) == offsets


@pytest.mark.statement("X6")
def test_a_restart_begins_where_the_first_run_did(stage: Stage) -> None:
    """X6: start="latest" leaves out what came before the first run, and nothing since; nor do other fields."""
    topic = stage.topic()
    topic.send(0, *({"id": number} for number in range(4)), key=b"k")
    hydration = stage.hydration(topic, mode="upsert", reading={"start": "latest"})
    assert hydration.go().total == 0
    topic.grow(2)
    for name in (4, 5):
        topic.send(0, {"id": name}, key=str(name).encode())
        topic.send(1, {"id": name}, key=b"of the new partition %d" % name)
        hydration.go()
    rows = hydration.rows()
    assert [place[:2] for place in rows] == [(0, 4), (0, 5), (1, 0), (1, 1)]
    hydration.sql("DELETE FROM {}")
    assert hydration.plan(restart=True).plan.total == 4
    assert hydration.drain().committed == 4
    assert hydration.rows() == rows
    again = hydration.plan(restart=True).plan
    assert again.read.window is not None
    assert LogWindow.from_text(again.read.window.upto).start == {0: 4, 1: 0}, "also of a plan that was a restart"
    raw = stage.hydration(topic, mode="upsert", reading={"start": "latest", "fields": {"id": "bigint"}})
    raw.sql("ALTER TABLE {} DROP COLUMN value, ADD COLUMN id bigint")
    assert raw.go().total == 4
    assert raw.rows('"partition", "offset", id') == [(0, 4, 4), (0, 5, 5), (1, 0, 4), (1, 1, 5)]


@pytest.mark.statement("X6")
def test_the_end_is_no_place_to_begin_again(kafka: Server) -> None:
    """X6: a topic that was created again is read from its beginning; an unknown or lost beginning stops by name."""
    topic = Topic(servers=kafka.url).create()
    topic.send(0, *range(3))
    endpoint = endpoint_of(kafka)
    source = KafkaSource(conn_id="c", topic=topic.name, start="latest").open(endpoint)

    def start(previous: Window | None, **declared: Any) -> dict[int, int]:
        changed = KafkaSource(conn_id="c", topic=topic.name, start="latest", **declared).open(endpoint)
        window = LogWindow.from_window(changed.snapshot(previous=previous).window)
        assert window is not None
        return dict(window.start)

    first = source.snapshot().window
    assert first is not None
    topic.send(0, *range(5))
    later = source.snapshot(after=first.upto).window
    assert later is not None
    assert (start(None), start(first), start(later)) == ({0: 8}, {0: 3}, {0: 3})
    assert start(replace(later, column="updated_at")) == {0: 8}, "the plan before was of a table"
    known = LogWindow.from_text(later.upto)
    for unknown in (
        replace(known, origin=None),
        LogWindow.from_window(KafkaSource(conn_id="c", topic=topic.name).open(endpoint).snapshot().window),
    ):
        assert unknown is not None
        with pytest.raises(SourceRefused, match=r"not known where the first run .* Set start to a time or to offsets"):
            start(unknown.window(None))
    with pytest.raises(SourceRefused, match=r"ends at offset 8, before offset 99: .* Set start to where"):
        start(replace(known, origin={0: 99}).window(None))
    topic.cut(0, 5)
    with pytest.raises(SourceRefused, match=r"Offsets \[3, 5\) of partition 0 .* are gone"):
        start(later)
    assert start(later, accept_loss=True) == {0: 5}
    topic.delete()
    topic.create(2)
    topic.send(0, *range(2))
    again = source.snapshot(previous=later).window
    assert again is not None
    topic.send(1, "x")
    assert (LogWindow.from_text(again.upto).start, start(again)) == ({0: 0, 1: 0}, {0: 0, 1: 0})


@pytest.mark.parametrize("later", [True, False])
def test_a_time_leaves_earlier_records_of_an_open_transaction_out(kafka: Server, later: bool) -> None:
    """They stand before the place where reading begins, whenever they are committed."""
    topic = Topic(servers=kafka.url).create(retention_ms="-1")
    start = datetime(2023, 11, 14, tzinfo=UTC)
    past, future = (int(start.timestamp() * 1000) + change for change in (-60_000, 60_000))
    source = KafkaSource(conn_id="c", topic=topic.name, start=start).open(endpoint_of(kafka))
    with topic.transaction(commit=True) as producer:
        topic.put(producer, 0, "early", timestamp=past)
        if later:
            topic.send(0, "late", timestamp=future)
        first = source.snapshot().window
    assert first is not None
    topic.send(0, "last", timestamp=future)
    until(lambda: source.upstream().open == 0)
    following = LogWindow.from_window(source.snapshot(after=first.upto).window)
    assert following is not None
    records = sorted(topic.committed().items())
    values = [value for (_, at), value in records if following.start[0] <= at < following.end[0]]
    assert values == ([b'"late"', b'"last"'] if later else [b'"last"'])


FIELDS = {
    "id": "int8",
    "price": "numeric(12, 2)",
    "big": "numeric",
    "at": "timestamptz",
    "day": "date",
    "ok": "bool",
    "note": "varchar(40)",
    "ref": "uuid",
    "doc": "json",
}
SENT = (
    b'{"id": 9007199254740993, "price": 12.50, "big": 123456789012345678901234567890.125, "ok": true,'
    b' "at": "2026-01-31T12:00:00.123456+02:00", "day": "2026-01-31", "note": "it\'s \\"quoted\\", \\u0416",'
    b' "ref": "6f1f0c4e-6a52-4a8b-8f0e-0f6c3c1b2a3d", "doc": {"a": [1.10, null, "x"]}, "more": 1}'
)


def test_fields_of_objects_become_columns(stage: Stage) -> None:
    """Each field has its type, in its sender's digits; what is missing or null is NULL."""
    topic = stage.topic()
    topic.send(0, SENT, b'{"id": null}', None, key=b"one")
    hydration = stage.hydration(topic, reading={"fields": FIELDS, "key": "text"})
    hydration.go()
    first, second, third = hydration.rows(f'"offset", key, {", ".join(f"{name}::text" for name in FIELDS)}')
    assert first == (
        0,
        "one",
        "9007199254740993",
        "12.50",
        "123456789012345678901234567890.125",
        "2026-01-31 10:00:00.123456+00",
        "2026-01-31",
        "true",
        'it\'s "quoted", Ж',
        "6f1f0c4e-6a52-4a8b-8f0e-0f6c3c1b2a3d",
        '{"a": [1.10, null, "x"]}',
    )
    assert second[2:] == third[2:] == (None,) * len(FIELDS)
    types = hydration.sql(
        "SELECT format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = '{}'::regclass AND attnum > 6"
    )
    assert [type_ for (type_,) in types][:4] == ["bigint", "numeric(12,2)", "numeric", "timestamp with time zone"]
    assert hydration.verify(Verify.FULL).equal


@pytest.mark.statement("X4")
def test_every_type_of_field_arrives_as_it_was_sent(stage: Stage) -> None:
    """X4: as a JSON value or as the text that PostgreSQL reads; null, and a field that is not there, are NULL."""
    topic = stage.topic()
    topic.send(0, *typed.records())
    hydration = stage.hydration(topic, reading={"fields": typed.fields()})
    hydration.go()
    types = hydration.sql(
        "SELECT format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = '{}'::regclass AND attnum > 6"
        " ORDER BY attnum"
    )
    found = {}
    for (declared, (type_, sent)), name, (made,) in zip(typed.COLUMNS.items(), typed.fields(), types, strict=True):
        there = [value for (_, value) in hydration.rows(f'"offset", {name}::text')]
        assert there == [*(shown for _, shown in sent), None, None], declared
        assert made == type_, declared
        found[declared] = (type_, [json_ for json_, _ in sent], True)
    text = type_page.kafka_page(found)
    assert type_page.keep(text, type_page.KAFKA) == text, f"the page is another one: set {type_page.WRITE}=1"


def test_bytes_are_taken_as_they_are(stage: Stage) -> None:
    """Format raw takes any bytes, and NULL apart from none."""
    topic = stage.topic()
    values = [bytes(range(256)), b"", None, b"\\x00"]
    topic.send(0, *values)
    hydration = stage.hydration(topic, reading={"format": "raw"})
    hydration.go()
    assert [value for _, _, value in hydration.rows('"partition", "offset", value')] == values
    assert hydration.verify(Verify.FULL).equal


@pytest.mark.statement("X5")
@pytest.mark.fault(15)
def test_a_bad_record_stops_by_its_place(stage: Stage) -> None:
    """X5: one sentence names topic, partition, offset and reason, and nothing of what the record holds."""
    topic = stage.topic(2)
    topic.send(1, 1, b"{'secret': 1}", 3)
    hydration = stage.hydration(topic)
    with pytest.raises(SourceRefused, match=rf"offset 1 of partition 1 of topic {topic.name} .*no JSON") as refused:
        hydration.go()
    assert "secret" not in str(refused.value)
    assert hydration.rows() == []
    # PostgreSQL has refused the first attempt, since nobody had looked at the values before.
    with hydration.open() as ports:
        assert [each.attempt for each in ports.ledger.ranges(ports.plan.plan_id)] == [2]


@pytest.mark.fault(15)
def test_bad_records_are_kept_aside_by_their_offset(stage: Stage) -> None:
    """X5: with the reason and the value; the others arrive, and the totals add up."""
    topic = stage.topic(2)
    topic.send(0, *range(50))
    topic.send(1, 1, b"{'no': 1}", 3, b"\xff", {"id": 4})
    hydration = stage.hydration(topic, quarantine=2)
    progress = hydration.go()
    assert (progress.committed, progress.percent) == (55, 100.0)
    good = {place: value for place, value in topic.committed().items() if place not in ((1, 1), (1, 3))}
    assert hydration.rows() == [(*place, (value or b"").decode()) for place, value in sorted(good.items())]
    assert hydration.verify(Verify.FULL).equal
    kept = hydration.sql("SELECT key::json->>'offset', reason, row FROM raw.backpressure_quarantine ORDER BY 1")
    assert [offset for offset, *_ in kept] == ["1", "3"]
    assert kept[0][1].startswith("its value is no JSON")
    assert kept[1][1] == "its value is no UTF-8"
    assert (json.loads(kept[0][2])["value"], json.loads(kept[1][2])["base64"]) == ("{'no': 1}", "/w==")


@pytest.mark.fault(15)
@pytest.mark.parametrize("target", mark_long(["postgres", "delta"], quick=["postgres"]))
def test_a_quarantine_that_is_declared_when_a_record_has_stopped_the_plan_is_used(
    stage: Stage, target: str, tmp_path: Path
) -> None:
    """X5: as the error advises; what is committed stays."""
    topic = stage.topic(1)
    topic.send(0, *range(20), b"{'no': 1}", 21)
    into = {} if target == "postgres" else lakes.place(target, tmp_path)
    refused = stage.hydration(topic, range_rows=10, into=into)
    with pytest.raises((SourceRefused, RangeFailed), match="quarantine= on the sink puts such records aside"):
        refused.go()
    with refused.open() as ports:
        ports.ledger.retry_failed(ports.plan.plan_id)
    aside = {"into": {**into, "quarantine": 2}} if into else {"quarantine": 2}
    hydration = replace(refused, composed=replace(refused.composed, **aside))
    progress = hydration.go()
    assert (progress.committed, progress.percent) == (22, 100.0)
    assert hydration.verify(Verify.FULL).equal
    if target == "postgres":
        assert [place for _, place, _ in hydration.rows()] == [*range(20), 21]


class _OddName(str):
    """A header's name of which a client sends bytes that are no text."""

    __slots__ = ()

    def encode(self, *_: str) -> bytes:
        """Return what a text is never encoded to."""
        return b"\xff"


def send_with_odd_header(topic: Topic, partition: int, value: bytes, **options: Any) -> None:
    """Write a record of which a header's name is no UTF-8."""
    with closing(KafkaProducer(bootstrap_servers=topic.servers, **options)) as producer:
        headers = [("good", b"1"), (_OddName("x"), b"2")]
        producer.send(topic.name, value, b"k", headers=headers, partition=partition).get(30)


@pytest.fixture(params=["confluent-kafka", "kafka-python"])
def client(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have tasks read by one client or the other."""
    if request.param == "kafka-python":
        library = kafka_python_client.consumer, kafka_python_client.identity, kafka_python_client.TopicPartition
        monkeypatch.setattr(kafka_task, "_library", lambda: library)


@pytest.mark.statement("R4")
@pytest.mark.fault(15)
@pytest.mark.usefixtures("client")
def test_a_record_whose_header_has_a_name_that_is_no_text_is_named_or_kept(stage: Stage) -> None:
    """R4: by its place, also the last one of a partition; the others arrive. Without `headers` it arrives too."""
    topic = stage.topic(2)
    topic.send(0, 0, headers=[("a", b"0")])
    send_with_odd_header(topic, 0, b"1", compression_type="gzip")
    topic.send(0, 2, headers=[("a", b"2")])
    send_with_odd_header(topic, 0, b"3")
    send_with_odd_header(topic, 1, b"{")
    refused = stage.hydration(topic)
    with pytest.raises((SourceRefused, RangeFailed), match=r"partition [01] .* headers is no UTF-8|no JSON"):
        refused.go()
    assert refused.rows() == []

    composed = replace(refused.composed, quarantine=3, target=f"raw.{topic.name}q")
    hydration = replace(refused, composed=composed)
    progress = hydration.go()
    assert (progress.committed, progress.percent) == (5, 100.0)
    rows = [(0, '[{"key": "a", "value": "0"}]'), (2, '[{"key": "a", "value": "2"}]')]
    assert hydration.rows("value::text::int, headers::text") == rows
    assert hydration.verify(Verify.FULL).equal
    kept = hydration.sql(
        "SELECT key::json->>'partition', key::json->>'offset', row::json->>'value', split_part(reason, ' (', 1)"
        " FROM raw.backpressure_quarantine WHERE target = '{}' ORDER BY 1, 2"
    )
    odd = "a name of its headers is no UTF-8"
    assert kept == [("0", "1", "1", odd), ("0", "3", "3", odd), ("1", "0", "{", "its value is no JSON")]

    chosen = ("partition", "offset", "value")
    reading = {"columns": chosen, "format": "raw"}
    without = replace(refused, composed=replace(composed, target=f"raw.{topic.name}w", reading=reading))
    without.go()
    assert without.rows("value, 1") == [(value, 1) for value in (b"0", b"1", b"2", b"3", b"{")]


@pytest.mark.statement("R4")
def test_odd_names_of_headers_do_not_end_the_plan(kafka: Server) -> None:
    """R4: the last records of many partitions are looked at, by a call that Python no longer checks after a few."""
    topic = Topic(servers=kafka.url).create(30)
    for partition in range(20):
        topic.send(partition, partition, headers=[("a", b"0")])
    for partition in range(20, 30):
        send_with_odd_header(topic, partition, str(partition % 2).encode())
    marks = Marks(endpoint=endpoint_of(kafka), topic=topic.name)
    found = marks.read(dict.fromkeys(range(30), 0), dict.fromkeys(range(30), 1))
    assert len(found) == 30
    assert marks.find_others(found) == []
    assert marks.find_others({28: found[29], 29: found[29]}) == [28]


@pytest.mark.fault(15)
def test_more_bad_records_than_may_be_kept_fail_the_range(stage: Stage) -> None:
    topic = stage.topic()
    topic.send(0, 1, b"{", b"[", b"nul")
    hydration = stage.hydration(topic, quarantine=2)
    with pytest.raises(SinkRefused, match=r'More than 2 rows cannot go into .* "offset": 3\}: its value is no JSON'):
        hydration.go()
    assert hydration.rows() == []


@pytest.mark.long
def test_a_timestamp_of_a_year_that_no_reader_holds_may_be_null_under_a_transform(stage: Stage) -> None:
    """Its producer sent microseconds. The run continues as it was planned; nothing else of the record is lost."""
    topic = stage.topic(message_timestamp_after_max_ms=str(2**63 - 1))
    topic.send(0, 0, timestamp=1_700_000_000_000)
    topic.send(0, 1, timestamp=1_700_000_000_000_000)
    hydration = stage.hydration(topic, transform="SELECT `offset`, `timestamp`, value FROM source")
    with pytest.raises(SourceRefused, match=r"offset 1 of partition 0 .* bad_timestamps=\"null\" on the source"):
        hydration.go()
    composed = replace(hydration.composed, reading={"bad_timestamps": "null"})
    hydration = replace(hydration, composed=composed)
    assert hydration.plan().verdict is Verdict.RESUMED
    hydration.drain()
    found = hydration.rows('"offset", extract(epoch FROM "timestamp")::bigint, value::text')
    assert found == [(0, 1_700_000_000, "0"), (1, None, "1")]
    assert hydration.verify().equal


def test_a_transform_sees_the_columns(stage: Stage) -> None:
    """A SELECT takes values apart; progress is still complete by offsets, and the whole target is compared."""
    topic = stage.topic(2)
    topic.send(0, *({"id": number} for number in range(1500)))
    query = """
        SELECT `partition`, `offset`, CAST(get_json_object(value, '$.id') AS BIGINT) AS id FROM source
        WHERE get_json_object(value, '$.id') % 2 = 0
    """
    hydration = stage.hydration(topic, transform=query)
    progress = hydration.go()
    assert (progress.total, progress.committed, progress.total_exact) == (1500, 1500, True)
    assert hydration.verify().equal
    topic.send(1, *({"id": number} for number in range(10)))
    assert hydration.go().total == 10
    assert len(hydration.rows("id, 1")) == 755
    assert hydration.verify().equal


@pytest.mark.statement("X5", "X7")
def test_what_is_wrong_is_said_in_one_sentence(kafka: Server) -> None:
    """X5, X7: no topic, no broker, a refused login, settings that are none: a sentence each, without a secret."""
    topic = Topic(servers=kafka.url).create()
    source = KafkaSource(conn_id="c", topic=topic.name)
    assert source.open(login_of(kafka, kafka.password or "")).snapshot().total == 0
    cases = [
        (KafkaSource(conn_id="c", topic="nothing"), endpoint_of(kafka), SourceRefused, "has no topic nothing"),
        (source, login_of(kafka, PASSWORD), SourceRefused, "does not let backpressure in: .*Invalid username"),
        (source, endpoint_of(kafka, host="127.0.0.1:1"), SourceUnavailable, "127.0.0.1:1 .* does not answer"),
        (source, endpoint_of(kafka, options={"security.protocol": "x"}), InvalidDeclaration, "security.protocol"),
    ]
    for declared, endpoint, error, words in cases:
        with pytest.raises(error, match=words) as refused:
            declared.open(endpoint).snapshot()
        assert PASSWORD not in str(refused.value)


@pytest.mark.statement("X5", "X7")
def test_a_task_that_may_not_in_says_so(stage: Stage) -> None:
    """X5, X7: a login that was changed after the plan stops the range with a sentence, without the password."""
    topic = stage.topic()
    topic.send(0, 1)
    hydration = stage.hydration(topic, endpoint=login_of(stage.kafka, stage.kafka.password or ""))
    hydration.plan()
    stage.logins["source"] = replace(login_of(stage.kafka, PASSWORD), conn_id="source")
    with pytest.raises(SourceRefused, match="does not let backpressure in") as refused:
        hydration.drain()
    assert PASSWORD not in str(refused.value)
    stage.logins["source"] = replace(login_of(stage.kafka, stage.kafka.password or ""), conn_id="source")
    hydration.drain()
    assert hydration.rows() == [(0, 0, "1")]


@pytest.mark.long
@pytest.mark.statement("X5")
def test_a_topic_that_is_deleted_before_it_was_read_is_named(stage: Stage) -> None:
    """X5: a task that finds no topic says so, rather than to wait for it."""
    topic = stage.topic()
    topic.send(0, 1)
    hydration = stage.hydration(topic)
    hydration.plan()
    topic.delete()
    with pytest.raises(SourceRefused, match=f"has no topic {topic.name}"):
        hydration.drain()


@pytest.mark.statement("X1")
def test_a_lane_that_is_ended_goes_on_from_the_ledger(stage: Stage, connect: Server, tmp_path: Path) -> None:
    """X1: a lane that ends between two commits leaves nothing doubled and nothing out."""
    topic = stage.topic(3)
    for partition in range(3):
        topic.send(partition, *range(2000))
    hydration = stage.hydration(topic, range_rows=500)
    target = hydration.composed.target
    hydration.plan()
    killed = replace(hydration.composed, remote=connect.url)
    with closing(ConnectRunner(connect.url, stage.logins)) as runner, killed.open(runner) as ports:
        lane = ports.hydrator()
        lane.on_commit = _stop
        with pytest.raises(KeyboardInterrupt):
            lane.run()
    assert 0 < len(run(stage.database, f"SELECT 1 FROM {target}")) < 6000
    assert hydration.drain().committed == 6000
    assert hydration.rows() == stored(topic)


def _stop() -> None:
    raise KeyboardInterrupt


@pytest.mark.statement("X1", "M8")
def test_ranges_are_cut_by_offsets_where_a_person_wants_smaller_ones(stage: Stage) -> None:
    """X1, M8: in the middle of a plan; every offset arrives once, and the committed frontier is never ahead."""
    topic = stage.topic(2)
    for partition in (0, 1):
        topic.send(partition, *range(600))
    hydration = stage.hydration(topic, range_rows=200)
    planned = hydration.plan()
    seen: list[dict[int, int]] = []
    with hydration.open() as ports:
        hydrator = ports.hydrator()

        def committed() -> None:
            ports.ledger.steer(planned.hydration.id, Change(range_rows=50), who="ada")
            done = unread(ports.plan, ports.ledger)
            assert done is not None
            open_ = ports.ledger.ranges(planned.plan.plan_id, states=STILL)
            for partition, at in done().items():
                starts = [p[1] for record in open_ for p in record.bounds.pieces if p[0] == partition]
                assert at == min(starts, default=600)
            seen.append(dict(done()))

        hydrator.on_commit = committed
        assert hydrator.run().outcome is Outcome.DONE
        records = ports.ledger.ranges(planned.plan.plan_id)
        ports.ledger.finish(planned.hydration.id)
    assert planned.ranges == 6
    sizes = [record.bounds.offsets for record in records if record.state is RangeState.COMMITTED]
    assert sizes.count(50) >= 16
    assert sum(sizes) == 1200
    assert seen[-1] == {0: 600, 1: 600}
    assert hydration.rows() == stored(topic)
    assert hydration.verify().equal


@pytest.mark.statement("X1", "X6")
def test_the_last_record_of_each_key_wins_and_a_tombstone_deletes(stage: Stage) -> None:
    """X1, X6: upserted in the log's order over many ranges, the target is what the log says of each key."""
    topic = stage.topic(2)
    hydration = stage.hydration(topic, mode="upsert", range_rows=90)
    expected: dict[bytes, str] = {}
    for run_number in range(2):
        for partition in (0, 1):
            with topic.producing() as producer:
                for number in range(100):
                    key, gone = f"{partition}-{number * 7 % 15}".encode(), number % 4 == 3
                    value = None if gone else json.dumps([run_number, number]).encode()
                    producer.produce(topic.name, value, key, partition)
                    expected.pop(key, None)
                    if value is not None:
                        expected[key] = value.decode()
        progress = hydration.go()
        assert progress.total == progress.committed == 200
        assert dict(hydration.rows("key, value::text")) == expected
        assert hydration.verify().equal
    found = hydration.sql("SELECT stream, pos FROM raw.backpressure_frontier WHERE target = '{}' ORDER BY 1")
    assert found == [(f"{topic.name}/0", 200), (f"{topic.name}/1", 200)]


@pytest.mark.statement("X1", "X6")
@pytest.mark.parametrize("query", ["SELECT *, now() AS loaded FROM source", None])
def test_a_tombstone_deletes_under_a_transform_and_null_fields_do_not(stage: Stage, query: str | None) -> None:
    """X1, X6: whether a record has a value decides, not which columns are NULL."""
    topic = stage.topic()
    topic.send(0, {"name": "a"}, key=b"gone")
    topic.send(0, {"name": "b"}, key=b"lives")
    hydration = stage.hydration(topic, mode="upsert", reading={"fields": {"name": "text"}}, transform=query)
    hydration.go()
    with topic.producing() as producer:
        producer.produce(topic.name, None, b"gone", 0)
    topic.send(0, {"name": None}, {"other": 1}, key=b"lives")
    hydration.go()
    assert hydration.rows("key, name") == [(b"lives", None)]
    assert hydration.verify().equal


@pytest.mark.statement("X1", "X6")
def test_a_transform_makes_rows_and_tombstones_of_one_record(stage: Stage) -> None:
    """X1, X6: a record that moves a row to another key deletes the old one; each of its rows has its own mark."""
    topic = stage.topic()
    topic.send(0, {"id": 1, "old": 0}, {"id": 2, "old": 0}, {"id": 3, "old": 1}, key=b"k")
    query = (
        "SELECT CAST(CAST(row.id AS STRING) AS BINARY) AS key, `partition`, `offset`,"
        " row.gone AS backpressure_tombstone FROM source LATERAL VIEW explode(array("
        "named_struct('id', old, 'gone', true), named_struct('id', id, 'gone', false))) rows AS row"
    )
    reading = {"fields": {"id": "bigint", "old": "bigint"}}
    hydration = stage.hydration(topic, mode="upsert", reading=reading, transform=query)
    hydration.go()
    assert hydration.rows('key, "offset"') == [(b"2", 1), (b"3", 2)]
    assert hydration.verify().equal


def test_a_transform_that_drops_the_mark_of_tombstones_is_refused(stage: Stage) -> None:
    """Otherwise no row could be deleted; the sentence comes before anything is planned."""
    topic = stage.topic()
    topic.send(0, 1, key=b"k")
    query = "SELECT key, `partition`, `offset`, value FROM source"
    with pytest.raises(SinkRefused, match="let the transform keep this column"):
        stage.hydration(topic, mode="upsert", transform=query).plan()


@pytest.mark.statement("X1")
def test_a_range_before_its_turn_is_refused_by_the_target(stage: Stage) -> None:
    """X1: whatever the gate does, the target takes ranges of a partition in their order only, each once."""
    topic = stage.topic()
    for number in range(10):
        topic.send(0, number, key=b"k")
    hydration = stage.hydration(topic, mode="upsert", range_rows=5)
    planned = hydration.plan()
    with hydration.open() as ports:
        plan, hydration_id = ports.plan, planned.hydration.id
        assert ports.ledger.admit(hydration_id, lane="lane", session_id="s", lease_seconds=60, seq=1) is None
        first = ports.ledger.admit(hydration_id, lane="lane", session_id="s", lease_seconds=60)
        assert first is not None
        assert ports.ledger.admit(hydration_id, lane="lane", session_id="s", lease_seconds=60) is None
        late = replace(ports.ledger.range(plan.plan_id, 1), attempt=1, tag=f"bp:{plan.plan_id}:1.0:1")
        with pytest.raises(RangeFailed, match="is not at offset 5"):
            stage.runner.run(spec_for(plan, late, ports.source)).result(60)
        assert hydration.rows() == []
        stage.runner.run(spec_for(plan, first.range, ports.source)).result(60)
        stage.runner.run(spec_for(plan, late, ports.source)).result(60)
        assert hydration.rows() == [(0, 9, "9")]
        again = replace(first.range, attempt=2, tag=f"bp:{plan.plan_id}:0.0:2")
        assert stage.runner.run(spec_for(plan, again, ports.source)).result(60).rows == 5
    assert hydration.rows() == [(0, 9, "9")]
    hydration.drain()
    assert hydration.verify().equal


def test_a_record_without_a_key_is_not_upserted(stage: Stage) -> None:
    """It is named by its place, and nothing of its range is written."""
    topic = stage.topic()
    topic.send(0, 1, key=b"k")
    topic.send(0, 2)
    hydration = stage.hydration(topic, mode="upsert")
    with pytest.raises(SinkRefused, match="offset 1 of partition 0 has no key"):
        hydration.go()
    assert hydration.rows() == []


def test_a_restored_ledger_does_not_write_old_rows_over_newer_ones(stage: Stage) -> None:
    """What the target has is known to it: a plan that would begin before that is refused."""
    topic = stage.topic()
    topic.send(0, 1, 2, key=b"k")
    hydration = stage.hydration(topic, mode="upsert")
    hydration.go()
    topic.send(0, 3, key=b"k")
    hydration.sql(f"UPDATE raw.backpressure_frontier SET pos = 3 WHERE stream = '{topic.name}/0'")
    with pytest.raises(SinkRefused, match="up to offset 3, and the plan would begin again at 2"):
        hydration.plan()
