"""Which windows a stream replays, and for which of its tables: over the in-memory ports, with a log that is told."""

import uuid
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from unittest.mock import Mock

import pytest

from airflow_provider_backpressure.core.admission.permits_and_reservations import Limiter
from airflow_provider_backpressure.core.config import Budget, Consistency, Mode
from airflow_provider_backpressure.core.execution.lane_runner import Hydrator
from airflow_provider_backpressure.core.execution.lane_submission import guard_log, spec_for
from airflow_provider_backpressure.core.gate.hydration_record import Phase
from airflow_provider_backpressure.core.monitoring.committed_frontier import read_committed_frontier
from airflow_provider_backpressure.core.planning.catch_up_windows import Stand, open_log
from airflow_provider_backpressure.core.planning.plan_result import Verdict
from airflow_provider_backpressure.core.planning.shared_log_windows import (
    Member,
    StreamPlanner,
    check_followed_by,
    check_member,
)
from airflow_provider_backpressure.core.ports.sink import Marker
from airflow_provider_backpressure.core.snapshot.bounds import Bounds, KeyBounds, LogBounds, LogPosition
from airflow_provider_backpressure.core.snapshot.gtid_set import GtidSet
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.core.snapshot.ranges import PlannedRange
from airflow_provider_backpressure.core.snapshot.replay_window import ReplayWindow
from airflow_provider_backpressure.core.snapshot.spark_messages import ReadSpec, Slice, StreamTable
from airflow_provider_backpressure.core.snapshot.table_alterations import TableStorage
from airflow_provider_backpressure.exceptions import (
    LedgerRefused,
    LogLost,
    PlanSuperseded,
    SinkRefused,
    SinkUnavailable,
    SourceRefused,
    SourceUnavailable,
)
from airflow_provider_backpressure.testing import MemoryLedger, MemoryRunner, MemorySink, MemorySource
from tests.unit.core.planning.test_catch_up_windows import COLUMNS, RANGES, WRITE, at, marker

STREAM = uuid.uuid4().hex


@dataclass
class Log:
    """The log of a stream, which ends where a test says."""

    end: int = 100
    stream: str = "slot"
    unit: str = "bytes of log"
    released: list[int] = field(default_factory=list)
    guarded: list[bool | None] = field(default_factory=list)
    begun: int = 0

    def begin(self) -> LogPosition:
        self.begun += 1
        return at(self.end)

    def windows(
        self, start: LogPosition, *, bytes: int, goal: LogPosition | None = None, large: bool = False
    ) -> list[LogBounds]:
        return [LogBounds(stream="slot", start=start, end=at(self.end))] if start.at < self.end else []

    def storage(self, read: ReadSpec) -> TableStorage | None:
        return None

    def release(self, upto: LogPosition) -> None:
        self.released.append(upto.at)

    def guard(self, *, replaying: bool | None) -> None:
        self.guarded.append(replaying)

    def drop(self) -> None:
        raise AssertionError("nobody gives the log up here")


@dataclass
class TableLog(Log):
    """A table's part of it."""

    query: str = "table"
    error: Exception | None = None

    def check(self, position: LogPosition) -> None:
        if self.error is not None:
            raise self.error


@dataclass(kw_only=True)
class StreamSource(MemorySource):
    """The log as a source."""

    own: Log

    def log(self, hydration_id: str) -> Log:
        return self.own

    def slice(self, read: ReadSpec, bounds: Bounds, slice_id: str) -> Slice:
        return Slice(slice_id=slice_id, query="[null, 0, null]", bounds=bounds.to_json())


@dataclass(kw_only=True)
class TableSource(MemorySource):
    """A table whose log is shared."""

    shared: TableLog = field(default_factory=TableLog)

    def get_shared_log(self, stream: str) -> TableLog:
        assert stream == STREAM
        return self.shared


@dataclass(kw_only=True)
class Tables:
    """Tables that share a log."""

    log: Log = field(default_factory=Log)
    ledger: MemoryLedger = field(default_factory=MemoryLedger)
    sink: MemorySink = field(default_factory=lambda: MemorySink(identity="memory://sink/stream", name="stream"))

    def __post_init__(self) -> None:
        self.source = StreamSource(keys=(), identity="memory://source/stream", own=self.log)
        self.runner = MemoryRunner(source=self.source, sink=self.sink)

    @property
    def planner(self) -> StreamPlanner:
        return StreamPlanner(
            stream=STREAM,
            source=self.source,
            sink=self.sink,
            runner=self.runner,
            ledger=self.ledger,
            budget=Budget(),
            owner="dag",
            cluster="spark",
        )

    def member(self, name: str, *, position: int, read: bool = True, sink: MemorySink | None = None) -> Member:
        """Return a table whose plan was made when the log was at a position."""
        source = TableSource(keys=(), identity=f"memory://source/{name}")
        sink = sink or MemorySink(identity=f"memory://sink/{name}", name=name)
        hydration = self.ledger.register(
            environment="default",
            source_identity=source.identity,
            sink_identity=sink.identity,
            owner="dag",
            cluster="spark",
            credits=1,
        )
        plan = replace(
            RANGES,
            plan_id=uuid.uuid4().hex,
            epoch=0,
            position=str(at(position)),
            stream=STREAM,
            hydration_id=hydration.id,
            source_identity=source.identity,
            sink_identity=sink.identity,
            write=replace(WRITE, fence=name, plan_table="plan"),
        )
        whole = KeyBounds(columns=("id",), start=None, end=None)
        ranges = [] if read else [PlannedRange(seq=0, bounds=whole, rows=1, bytes=8)]
        self.ledger.save_plan(hydration.id, plan, ranges)
        plan = replace(plan, epoch=sink.begin(plan))
        self.ledger.take_over(hydration.id, plan)
        return Member(hydration=self.ledger.hydration(hydration.id), source=source, sink=sink)

    def replay(self) -> None:
        """Replay what is planned."""
        plan = self.ledger.hydration(STREAM).plan
        assert plan is not None
        Hydrator(
            hydration_id=STREAM,
            plan=plan,
            lane="lane",
            ledger=self.ledger,
            source=self.source,
            sink=self.sink,
            runner=self.runner,
            limiter=Limiter(ledger=self.ledger, hydration_id=STREAM, budget=Budget(), memory=self.runner.memory),
            budget=Budget(),
        ).run()


@pytest.fixture
def tables() -> Tables:
    made = Tables()
    made.planner.begin()
    return made


def fences(plan: Plan) -> list[str]:
    return [table.write.fence for table in plan.tables]


def test_a_stream_begins_without_windows_and_then_follows_its_tables(tables):
    first = tables.ledger.hydration(STREAM).plan
    assert (first.tables, first.position, first.epoch, first.total) == ((), str(at(100)), 1, 0)
    assert not first.replays
    members = [tables.member(name, position=100) for name in "ab"]
    tables.log.end = 150
    found = tables.planner.follow(members)
    assert found.left_out == {}
    plan = found.planned.plan
    assert (found.planned.verdict, found.planned.ranges, fences(plan)) == (Verdict.PLANNED, 1, ["a", "b"])
    assert [(each.plan_id, each.epoch) for each in plan.tables] == [(m.plan.plan_id, m.plan.epoch) for m in members]
    assert {each.read.kind for each in plan.tables} == {"postgres_log"}
    assert all(each.write.ordered and not each.read.tells_position for each in plan.tables)
    assert plan.total == 50
    tables.replay()
    (spec,) = tables.runner.submitted
    assert spec.tables == plan.tables
    assert tables.planner.follow(members).planned is None
    assert tables.log.released[-1] == 150


def test_open_windows_are_continued(tables):
    members = [tables.member("a", position=100)]
    tables.log.end = 150
    planned = tables.planner.follow(members).planned
    tables.log.end = 190
    again = tables.planner.follow(members).planned
    assert (again.verdict, again.plan.plan_id) == (Verdict.RESUMED, planned.plan.plan_id)


def test_a_table_that_joins_meanwhile_waits_for_the_windows_that_follow(tables):
    members = [tables.member("a", position=100)]
    tables.log.end = 150
    tables.planner.follow(members)
    members.append(tables.member("b", position=160))
    again = tables.planner.follow(members)
    assert (again.planned.verdict, fences(again.planned.plan), again.left_out) == (Verdict.RESUMED, ["a"], {})
    tables.replay()
    tables.log.end = 190
    assert fences(tables.planner.follow(members).planned.plan) == ["a", "b"]


def test_no_window_passes_the_position_of_a_table_that_is_not_read(tables):
    members = [tables.member("a", position=100), tables.member("b", position=100, read=False)]
    tables.log.end = 150
    with pytest.raises(LedgerRefused, match="1 ranges of memory://sink/b are not read yet"):
        tables.planner.follow(members)
    assert not tables.ledger.hydration(STREAM).plan.replays


@pytest.mark.statement("W4")
def test_windows_go_in_between_the_ranges_of_a_table_that_is_fenced(tables):
    """W4: the window says that it must be seen, and no target is taken for consistent meanwhile."""
    a, b = tables.member("a", position=100), tables.member("b", position=100, read=False)
    tables.log.end = 150
    epoch = tables.planner.fence(b).epoch
    assert epoch == b.plan.epoch + 1 == b.sink.epoch(b.plan.plan_id)
    fenced = replace(b, hydration=tables.ledger.hydration(b.hydration.id), reading=True)
    plan = tables.planner.follow([a, fenced]).planned.plan
    assert [(each.write.fence, each.epoch, each.reading) for each in plan.tables] == [
        ("a", a.plan.epoch, False),
        ("b", epoch, True),
    ]
    assert ReplayWindow.from_window(plan.read.window).hydrating
    # Another lane takes the table: what it has not brought in by then is planned again for its epoch.
    tables.planner.fence(fenced)
    again = replace(fenced, hydration=tables.ledger.hydration(b.hydration.id))
    second = tables.planner.follow([a, again]).planned.plan
    assert second.plan_id != plan.plan_id
    assert second.tables[1].epoch == epoch + 1


@pytest.mark.statement("W4")
def test_a_table_that_another_plan_has_taken_is_not_fenced(tables):
    b = tables.member("b", position=100, read=False)
    tables.member("b", position=120, sink=b.sink)
    with pytest.raises(PlanSuperseded, match="no longer holds b"):
        tables.planner.fence(b)


def test_a_table_that_the_windows_have_passed_is_left_out(tables):
    """It was not among the tables of the last plan, and its position is before the end of that."""
    late, a = tables.member("late", position=120), tables.member("a", position=100)
    tables.log.end = 150
    tables.planner.follow([a])
    tables.replay()
    tables.log.end = 170
    assert list(tables.planner.find_left_out([a, late])) == [late.hydration.id]
    found = tables.planner.follow([a, late])
    assert fences(found.planned.plan) == ["a"]
    assert isinstance(found.left_out[late.hydration.id], LogLost)
    tables.replay()
    tables.log.end = 190
    # At the very end of the windows nothing is lacking.
    again = tables.member("late", position=170)
    assert fences(tables.planner.follow([a, again]).planned.plan) == ["a", "late"]


def test_windows_are_planned_again_behind_what_is_in_where_a_table_was(tables):
    a, b = tables.member("a", position=100), tables.member("b", position=100)
    tables.log.end = 150
    before = tables.planner.follow([a, b]).planned.plan
    again = tables.member("b", position=160, sink=None)
    tables.log.end = 170
    found = tables.planner.follow([a, again]).planned
    assert found.plan.plan_id != before.plan_id
    assert (found.plan.total, fences(found.plan)) == (70, ["a", "b"])
    assert tables.sink.epoch(before.plan_id) is None
    without = tables.planner.follow([a]).planned
    assert (without.plan.total, fences(without.plan)) == (70, ["a"])


def test_a_table_of_which_the_log_does_not_show_all_is_left_out_by_name(tables):
    a, b = tables.member("a", position=100), tables.member("b", position=100)
    b.source.shared.error = LogLost("b was taken out of the publication.")
    tables.log.end = 150
    found = tables.planner.follow([a, b])
    assert fences(found.planned.plan) == ["a"]
    assert {id_: str(error) for id_, error in found.left_out.items()} == {
        b.hydration.id: "b was taken out of the publication."
    }


def test_what_may_pass_leaves_no_table_out(tables):
    a = tables.member("a", position=100)
    a.source.shared.error = SourceUnavailable("The source does not answer.")
    tables.log.end = 150
    with pytest.raises(SourceUnavailable):
        tables.planner.follow([a])
    a.source.shared.error = None
    assert fences(tables.planner.follow([a]).planned.plan) == ["a"]


def test_the_log_stays_where_it_is_while_no_table_can_be_followed(tables):
    """A window for no table would let the server forget what nobody has."""
    a = tables.member("a", position=100)
    a.source.shared.error = LogLost("It is lost.")
    tables.log.end = 150
    found = tables.planner.follow([a])
    assert found.planned is None
    assert list(found.left_out) == [a.hydration.id]
    assert not tables.ledger.hydration(STREAM).plan.replays
    assert tables.planner.follow([]).planned is None


def test_a_log_that_is_kept_anew_leaves_out_every_table_of_before(tables):
    a = tables.member("a", position=100)
    tables.log.end = 150
    tables.planner.follow([a])
    tables.replay()
    tables.ledger.finish(STREAM)
    tables.log.end = 300
    tables.planner.begin()
    assert tables.log.begun == 2
    assert tables.ledger.hydration(STREAM).phase is Phase.REHYDRATION
    tables.log.end = 310
    assert list(tables.planner.follow([a]).left_out) == [a.hydration.id]


def test_tables_of_other_plan_tables_or_streams_are_refused(tables):
    a = tables.member("a", position=100)

    def changed(**values):
        return replace(a, hydration=replace(a.hydration, plan=replace(a.plan, **values)))

    with pytest.raises(SinkRefused, match="give all of them one system_schema"):
        tables.planner.follow([changed(write=replace(a.plan.write, plan_table="other"))])
    with pytest.raises(LedgerRefused, match="does not share the log"):
        tables.planner.follow([changed(stream="other")])
    with pytest.raises(LedgerRefused, match="There is no plan yet"):
        tables.planner.follow([replace(a, hydration=replace(a.hydration, plan=None))])


def test_a_stream_that_was_not_begun_is_refused():
    with pytest.raises(LedgerRefused, match="is not kept yet"):
        Tables().planner.follow([])


def test_a_plan_that_the_target_does_not_know_yet_takes_it(tables, monkeypatch):
    """The planner was killed between ledger and target."""
    a = tables.member("a", position=100)
    tables.log.end = 150
    with monkeypatch.context() as broken:
        broken.setattr(tables.sink, "prepare", raising(SinkUnavailable("The sink does not answer.")))
        with pytest.raises(SinkUnavailable):
            tables.planner.follow([a])
    plan = tables.ledger.hydration(STREAM).plan
    assert (plan.epoch, tables.sink.epoch(plan.plan_id)) == (0, None)
    found = tables.planner.follow([a]).planned
    assert (found.verdict, found.plan.plan_id, found.plan.epoch) == (Verdict.RESUMED, plan.plan_id, 2)
    assert tables.sink.epoch(plan.plan_id) == 2


def raising(error):
    def fail(*args, **values):
        raise error

    return fail


def test_the_goal_is_the_latest_position_at_which_a_table_was_read(tables, monkeypatch):
    """Before the windows reach it no table is as its source was."""
    a = tables.member("a", position=100)
    read: dict[str, Marker] = {"0.0": marker(KeyBounds(columns=("id",), start=None, end=None), at(180))}
    monkeypatch.setattr(a.sink, "markers", lambda plan_id, slice_ids=None: read)
    tables.log.end = 150
    plan = tables.planner.follow([a]).planned.plan
    tables.replay()
    with pytest.raises(SourceUnavailable, match="does not reach 0/B4 yet"):
        tables.planner.follow([a])
    tables.log.end = 200
    assert tables.planner.follow([a]).planned.plan.plan_id != plan.plan_id


@pytest.mark.statement("W6", "X3")
def test_a_table_whose_target_was_restored_is_left_out_of_the_windows(tables, monkeypatch):
    """W6, X3: what the target says of its markers is about that table alone."""
    a, b = (tables.member(name, position=100) for name in "ab")
    monkeypatch.setattr(a.sink, "markers", raising(SinkRefused("It was restored.")))
    tables.log.end = 150
    found = tables.planner.follow([a, b])
    assert [*found.left_out] == [a.hydration.id]
    assert [table.plan_id for table in found.planned.plan.tables] == [b.plan.plan_id]


@pytest.mark.statement("T8", "W6")
@pytest.mark.parametrize("reached", [149, 150])
def test_a_target_with_commits_of_its_own_is_verified_only_where_it_has_every_window(reached):
    """T8, W6: it was restored behind a window that the log's own table has."""
    table = StreamTable(plan_id=RANGES.plan_id, epoch=1, query="", read=RANGES.read, write=WRITE)
    stream = replace(RANGES, plan_id="stream", tables=(table,)), Stand(end=at(150), goal=at(120))
    sink = Mock(find_frontier=lambda _: at(reached), markers=lambda _: {})
    with nullcontext() if reached == 150 else pytest.raises(SinkRefused, match="it was restored"):
        check_member(RANGES, sink, stream)


@pytest.mark.statement("T8")
def test_a_table_is_verified_only_where_the_stream_has_reached_what_was_read_of_it():
    """T8: and only while the stream is replayed into it."""
    table = StreamTable(plan_id=RANGES.plan_id, epoch=1, query="", read=RANGES.read, write=WRITE)
    stream, own = replace(RANGES, plan_id="stream", tables=(table,)), Stand(end=at(100), goal=at(150))
    check_followed_by(stream, Stand(end=at(150), goal=at(120)), RANGES, own)
    for end, goal in ((140, 120), (150, 160)):
        with pytest.raises(LedgerRefused, match="it is consistent from"):
            check_followed_by(stream, Stand(end=at(end), goal=at(goal)), RANGES, own)
    without = replace(stream, tables=())
    with pytest.raises(LedgerRefused, match=r"is not replayed into raw\.t any more"):
        check_followed_by(without, Stand(end=at(150), goal=at(120)), RANGES, own)
    check_followed_by(without, Stand(end=at(100), goal=at(100)), RANGES, replace(own, goal=at(100)))


def of(*sources: str) -> LogPosition:
    """Return a position of a binlog, by its servers' transactions."""
    gtids = GtidSet.parse(
        ",".join(f"{name}0000000-0000-0000-0000-000000000000:{rest}" for name, rest in map(_split, sources))
    )
    return LogPosition(at=gtids.count, text=str(gtids))


def _split(source: str) -> tuple[str, str]:
    return source[0], source[1:]


def test_positions_of_a_binlog_are_compared_by_their_transactions_not_by_their_number(tables):
    """After a fail-over a position may count more of them, and lack some of another server."""
    plan = tables.ledger.hydration(STREAM).plan
    missing, own = of("a1-5"), replace(RANGES, position=str(of("a1-3")))
    window = ReplayWindow(stream="log", start=of("a1-2"), end=of("a1-4", "b1-9"), goal=of("a1-2"))
    stream = replace(plan, path="replay", read=replace(plan.read, window=window.window(None)), tables=())
    later = [tables.member(name, position=0) for name in "ab"]
    for member, position in zip(later, (of("a1-40"), of("a1-40", "b1-9")), strict=True):
        moved = replace(member.plan, position=str(position))
        tables.ledger.take_over(member.hydration.id, moved)
    members = [replace(member, hydration=tables.ledger.hydration(member.hydration.id)) for member in later]
    inside, left_out = tables.planner._select(stream, Stand(end=window.end, goal=window.goal), members)
    assert [member.sink.identity for member in inside] == ["memory://sink/b"]
    assert list(left_out) == [members[0].hydration.id]
    named = replace(
        stream, tables=(StreamTable(plan_id=own.plan_id, epoch=1, query="", read=own.read, write=own.write),)
    )
    check_followed_by(named, Stand(end=window.end, goal=window.goal), own, Stand(end=of("a1-3"), goal=of("a1-4")))
    with pytest.raises(LedgerRefused, match="it is consistent from a0000000"):
        check_followed_by(named, Stand(end=window.end, goal=window.goal), own, Stand(end=of("a1-3"), goal=missing))


def test_a_table_goes_by_its_part_of_the_log(tables):
    """Its lane looks after the log that it shares, and nothing takes its own position for how far it is."""
    a = tables.member("a", position=100)
    guard_log(a.source, a.hydration.id, a.plan)
    assert a.source.shared.guarded == [False]
    assert open_log(a.source, a.hydration.id, a.plan) is a.source.shared
    assert open_log(tables.source, STREAM, None) is tables.log
    tables.ledger.finish(a.hydration.id)
    assert read_committed_frontier(tables.ledger.hydration(a.hydration.id), tables.ledger, before=None) is None
    with pytest.raises(SourceRefused, match="cannot be shared"):
        open_log(MemorySource(keys=()), a.hydration.id, a.plan)


def test_the_tables_of_a_plan_survive_where_it_is_kept(tables):
    table = StreamTable(plan_id="p", epoch=3, query="q", read=RANGES.read, write=WRITE)
    plan = replace(RANGES, tables=(table,), stream="s")
    assert Plan.from_json(plan.to_json()) == plan
    assert plan.tables[0].read.columns == COLUMNS
    a = tables.member("a", position=100, read=False)
    permit = tables.ledger.admit(a.hydration.id, lane="l", session_id="s", lease_seconds=9)
    assert spec_for(plan, permit.range, tables.source).tables == (table,)
    assert (plan.consistency, plan.mode) == (Consistency.CATCH_UP, Mode.UPSERT)
