"""Looking at sources: how often they are asked, what is kept, and that nobody waits for them."""

import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from airflow_provider_backpressure.core.config import Consistency
from airflow_provider_backpressure.core.monitoring.committed_frontier import follows, read_committed_frontier
from airflow_provider_backpressure.core.monitoring.source_observer import Kept, Observation, Observer
from airflow_provider_backpressure.core.progress.lag import Verdict
from airflow_provider_backpressure.core.progress.source_position import Unit, Upstream
from airflow_provider_backpressure.core.snapshot.bounds import LogBounds, LogPosition, OffsetBounds
from airflow_provider_backpressure.core.snapshot.ranges import PlannedRange
from airflow_provider_backpressure.core.snapshot.replay_window import ReplayWindow, number_windows
from airflow_provider_backpressure.core.snapshot.spark_messages import Column, ReadSpec, StreamTable, Window
from airflow_provider_backpressure.core.snapshot.topic_offsets import LogWindow, pack_pieces
from airflow_provider_backpressure.exceptions import SourceUnavailable
from airflow_provider_backpressure.testing import MemoryLedger, MemorySource
from tests.conformance.ledger.support import commit, make_plan, register, replan, take
from tests.support.waiting import until

COLUMNS = (Column(name="id", type="bigint", nullable=False),)
GTID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
NOON = datetime(2026, 7, 1, 12, tzinfo=UTC)


class Clock:
    """The ledger's clock, moved by hand."""

    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> datetime:
        return self.now

    def pass_(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


class Topic(MemorySource):
    """A log of one partition that is as long as a test says."""

    high: int = 0

    def upstream(self) -> Upstream:
        """See ``Source.upstream``."""
        self.asked += 1
        return Upstream(unit=Unit.OFFSETS, at={0: self.high})


def planned_topic(ledger, *, end: int, each: int = 10) -> tuple[str, str]:
    window = LogWindow(topic="t", topic_id="1", start={0: 0}, end={0: end})
    plan = make_plan(
        consistency=Consistency.OFFSETS,
        total=end,
        read=ReadSpec(kind="kafka", conn_id="k", columns=COLUMNS, window=window.window(None)),
    )
    hydration_id = register(ledger, source_identity="kafka://t", credits=99)
    ranges = [
        PlannedRange(seq=seq, bounds=bounds, rows=bounds.offsets, bytes=1)
        for seq, bounds in enumerate(pack_pieces(window.pieces(), offsets=each))
    ]
    assert all(isinstance(planned.bounds, OffsetBounds) for planned in ranges)
    ledger.save_plan(hydration_id, plan, ranges)
    return hydration_id, plan.plan_id


@pytest.mark.statement("M13")
def test_a_source_is_asked_once_in_ten_seconds_however_many_look():
    """M13: three lanes of two hydrations look every second for two minutes."""
    clock, source = Clock(), MemorySource(keys=range(5))
    ledger = MemoryLedger(now=clock)
    first = register(ledger, source_identity=source.identity)
    second = register(ledger, source_identity=source.identity, sink_identity="another")
    for hydration_id in (first, second):
        replan(ledger, hydration_id)
    observers = [Observer(ledger=ledger, hydration_id=each, open=lambda: source) for each in (first, first, second)]
    for _ in range(120):
        for observer in observers:
            observer.look()
        clock.pass_(1)
    assert source.asked == 12
    for hydration_id in (first, second):
        assert ledger.course(hydration_id).latest.known == {source.identity: 5}
        assert len([one for one in ledger.samples(hydration_id, seconds=999) if one.offset_known == 5]) == 12


@pytest.mark.statement("M13")
@pytest.mark.parametrize(
    ("identity", "times"),
    [("postgres://host:1/shop/public.t{}", 1), ("mysql://host:1/t{}", 1), ("kafka://host:1/t{}", 20)],
)
def test_tables_of_one_server_have_its_log_in_common(identity, times):
    """M13: twenty of them ask for its frontier once; each topic has one of its own."""
    ledger, asked = MemoryLedger(now=Clock()), 0
    for number in range(20):
        source = MemorySource(keys=range(5), identity=identity.format(number))
        hydration_id = register(ledger, source_identity=source.identity, sink_identity=f"sink {number}")
        replan(ledger, hydration_id)
        Observer(ledger=ledger, hydration_id=hydration_id, open=lambda source=source: source).look()
        assert ledger.course(hydration_id) is not None
        asked += source.asked
    assert asked == times


@pytest.mark.statement("F1", "M7", "M9")
def test_a_sink_at_a_tenth_of_its_source_does_not_keep_up():
    """F1, M7, M9: 1,000 offsets/s come, 100 are committed: the rates, the lag after a minute, the verdict."""
    clock, source = Clock(), Topic(keys=())
    ledger = MemoryLedger(now=clock)
    hydration_id, plan_id = planned_topic(ledger, end=60_000, each=1000)
    ledger.hold(hydration_id, run="run")
    observer = Observer(ledger=ledger, hydration_id=hydration_id, open=lambda: source)
    for second in range(61):
        source.high = 1000 * second
        if second % 10 == 0 and second:
            take(ledger, hydration_id)
            commit(ledger, plan_id, second // 10 - 1, rows=1000)
        course = observer.look()
        clock.pass_(1)
    assert (course.upstream_rate, course.process_rate, course.lag) == (1000.0, 100.0, 54_000)
    assert course.verdict is Verdict.NOT_KEEPING_UP


@pytest.mark.statement("M4", "M7")
def test_a_run_that_ends_between_two_looks_is_not_behind_by_what_it_brought():
    """M4, M7: all was committed since the only look; the source is not asked again, and no rate is made up."""
    clock, source = Clock(), Topic(keys=())
    source.high = 20
    ledger = MemoryLedger(now=clock)
    hydration_id, plan_id = planned_topic(ledger, end=20)
    ledger.hold(hydration_id, run="run")
    with Observation(observer=Observer(ledger=ledger, hydration_id=hydration_id, open=lambda: source)) as observation:
        until(lambda: ledger.course(hydration_id) is not None)
        for seq in range(2):
            take(ledger, hydration_id)
            commit(ledger, plan_id, seq)
    assert (ledger.course(hydration_id).lag, ledger.course(hydration_id).process_rate) == (0, None)
    assert ledger.course(hydration_id).verdict is Verdict.CAUGHT_UP
    source.high = 50
    clock.pass_(60)
    ledger.let_go(hydration_id, run="run")
    observation.observer.settle()
    assert (source.asked, ledger.course(hydration_id).latest.working) == (1, False)
    assert observation.observer.look().lag == 30


@pytest.mark.statement("M8")
def test_what_a_topics_ranges_have_committed_is_its_frontier():
    """M8: by partition, up to the first range that is open."""
    ledger = MemoryLedger()
    hydration_id, plan_id = planned_topic(ledger, end=30)
    for seq in (0, 2):
        take(ledger, hydration_id, seq=seq)
        commit(ledger, plan_id, seq)
    assert read_committed_frontier(ledger.hydration(hydration_id), ledger, before=None) == {0: 10}


@pytest.mark.statement("M8")
def test_a_databases_frontier_is_the_plans_place_once_it_is_in():
    """M8: not known before, never 0; kept while an increment goes in; lost while the target is rebuilt."""
    ledger = MemoryLedger()
    hydration_id = register(ledger)

    def frontier(before=None):
        return read_committed_frontier(ledger.hydration(hydration_id), ledger, before=before)

    def done(plan_id):
        take(ledger, hydration_id)
        commit(ledger, plan_id, 0)
        ledger.finish(hydration_id)

    assert frontier() is None
    plan_id = replan(ledger, hydration_id, 1, position="0/64")
    assert frontier() is None
    done(plan_id)
    assert frontier() == {"wal": 100}
    window = Window(column="id", after="10", upto="20")
    read = ReadSpec(kind="postgres", conn_id="shop", columns=COLUMNS, window=window)
    plan_id = replan(ledger, hydration_id, 1, position="0/C8", read=read)
    assert frontier(before={"wal": 100}) == {"wal": 100}
    done(plan_id)
    assert frontier() == {"wal": 200}
    replan(ledger, hydration_id, 1, position="0/FF")
    assert frontier(before={"wal": 200}) is None
    plan_id = replan(ledger, hydration_id, 1)
    done(plan_id)
    assert frontier() is None, "a source that keeps no log"


@pytest.mark.statement("M8")
@pytest.mark.parametrize(
    ("kind", "places", "frontiers"),
    [
        ("postgres_log", ["0/64", "0/C8", "0/12C"], [{"wal": 100}, {"wal": 200}, {"wal": 300}]),
        (
            "mysql_log",
            [f"{GTID}:1-100@binlog.1:4", f"{GTID}:1-200@binlog.1:9", f"{GTID}:1-300"],
            [{GTID: 100}, {GTID: 200}, {GTID: 300}],
        ),
    ],
)
def test_a_replayed_log_is_committed_window_by_window(kind, places, frontiers):
    """M8: LSN or GTID set of the plan's windows; the first open one tells."""
    first, middle, last = (LogPosition(at=100 * (n + 1), text=text) for n, text in enumerate(places))
    window = ReplayWindow(stream="s", start=first, end=last, goal=last)
    read = ReadSpec(kind=kind, conn_id="shop", columns=COLUMNS, window=window.window(str(first)))
    plan = make_plan(consistency=Consistency.CATCH_UP, path="replay", read=read, position=str(first))
    ledger = MemoryLedger()
    hydration_id = register(ledger)
    bounds = [LogBounds(stream="s", start=start, end=end) for start, end in ((first, middle), (middle, last))]
    ledger.save_plan(hydration_id, plan, number_windows(bounds))
    assert follows(plan)
    for seq, frontier in enumerate(frontiers):
        assert read_committed_frontier(ledger.hydration(hydration_id), ledger, before=None) == frontier
        if seq < 2:
            take(ledger, hydration_id)
            commit(ledger, plan.plan_id, seq)


def test_a_table_that_shares_a_log_is_where_the_windows_of_that_are():
    """M8: while they are replayed into it; a table that they leave out is nowhere."""
    first, last = LogPosition(at=100, text="0/64"), LogPosition(at=200, text="0/C8")
    window = ReplayWindow(stream="s", start=first, end=last, goal=last)
    read = ReadSpec(kind="postgres_log", conn_id="shop", columns=COLUMNS, window=window.window(str(first)))
    ledger = MemoryLedger()
    member, stream = register(ledger), register(ledger, sink_identity="postgres://warehouse:5432/warehouse/raw.log")
    own = replan(ledger, member, 1, consistency=Consistency.CATCH_UP, position=str(first), stream=stream)
    assert read_committed_frontier(ledger.hydration(member), ledger, before=None) is None
    take(ledger, member)
    commit(ledger, own, 0)
    ledger.finish(member)
    for plan_id, frontier in (("another", None), (own, {"wal": 100})):
        table = StreamTable(plan_id=plan_id, epoch=1, query="", read=read, write=make_plan().write)
        plan = make_plan(consistency=Consistency.CATCH_UP, path="replay", read=read, position=str(first))
        plan = replace(plan, tables=(table,))
        ledger.save_plan(stream, plan, number_windows([LogBounds(stream="s", start=first, end=last)]))
        assert read_committed_frontier(ledger.hydration(member), ledger, before=None) == frontier
    take(ledger, stream)
    commit(ledger, plan.plan_id, 0)
    assert read_committed_frontier(ledger.hydration(member), ledger, before=None) == {"wal": 200}


def test_the_ranges_of_a_plan_that_catches_up_have_no_place_before_they_are_in():
    """What was read each at its own time is at no place of the log before the log is replayed behind it."""
    ledger = MemoryLedger()
    hydration_id = register(ledger)
    plan_id = replan(ledger, hydration_id, 1, consistency=Consistency.CATCH_UP, position="100 0/64")
    assert read_committed_frontier(ledger.hydration(hydration_id), ledger, before=None) is None
    take(ledger, hydration_id)
    commit(ledger, plan_id, 0)
    ledger.finish(hydration_id)
    assert read_committed_frontier(ledger.hydration(hydration_id), ledger, before=None) == {"wal": 100}


def test_a_source_that_fails_or_hangs_is_nobodys_error(caplog):
    ledger, asked, released = MemoryLedger(), threading.Event(), threading.Event()
    hydration_id = register(ledger)
    replan(ledger, hydration_id)

    class Frozen(MemorySource):
        def upstream(self) -> Upstream:
            asked.set()
            released.wait(30)
            raise SourceUnavailable("It does not answer.")

    observer = Observer(ledger=ledger, hydration_id=hydration_id, open=lambda: Frozen(keys=()), interval=0.05)
    with ExitStack() as stack:
        stack.enter_context(Observation(observer=observer))
        assert asked.wait(10)
        began = time.monotonic()
        stack.pop_all().close()
    assert time.monotonic() - began < 5
    released.set()
    until(lambda: "It does not answer." in caplog.text)


def test_an_observation_keeps_statistics_fresh_and_forgets_old_samples():
    ledger, source = MemoryLedger(), MemorySource(keys=range(7))
    hydration_id = register(ledger, source_identity=source.identity)
    replan(ledger, hydration_id)
    observer = Observer(ledger=ledger, hydration_id=hydration_id, open=lambda: source, interval=0.02)
    with Observation(observer=observer, kept=Kept(seconds=3600, rows=1)):
        until(lambda: ledger.course(hydration_id))
        until(lambda: source.asked > 2)
    (row,) = ledger.statistics(hydration_id)
    assert (row.offset_known, row.offset_committed) == (7, None)
