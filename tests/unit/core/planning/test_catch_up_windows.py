"""What follows a plan under ``catch_up``: windows until the goal, and no steady state before."""

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import pairwise

import pytest

from airflow_provider_backpressure.core.config import Budget, Consistency, Mode
from airflow_provider_backpressure.core.planning.catch_up_windows import (
    find_released_position,
    next_windows,
    stand,
)
from airflow_provider_backpressure.core.planning.preconditions import check_replayable
from airflow_provider_backpressure.core.ports.sink import Marker
from airflow_provider_backpressure.core.reconciliation.ranges_from_markers import BEYOND, Rebuilt
from airflow_provider_backpressure.core.snapshot.bounds import KeyBounds, LogBounds, LogPosition
from airflow_provider_backpressure.core.snapshot.plan import Plan, Snapshot
from airflow_provider_backpressure.core.snapshot.ranges import RangeState
from airflow_provider_backpressure.core.snapshot.replay_window import ReplayWindow
from airflow_provider_backpressure.core.snapshot.spark_messages import Column, ReadSpec, WriteSpec
from airflow_provider_backpressure.exceptions import (
    InvalidDeclaration,
    SinkRefused,
    SourceRefused,
    SourceUnavailable,
)

COLUMNS = (Column(name="id", type="bigint"),)
WRITE = WriteSpec(
    kind="postgres",
    conn_id="sink",
    target="raw.t",
    columns=COLUMNS,
    mode="upsert",
    key=("id",),
    plan_table="p",
    commit_table="c",
    fence="raw.t",
    frontier_table="f",
)


def at(number: int) -> LogPosition:
    return LogPosition(at=number, text=f"0/{number:X}")


RANGES = Plan(
    plan_id="ranges",
    epoch=1,
    source_identity="s",
    sink_identity="t",
    consistency=Consistency.CATCH_UP,
    mode=Mode.UPSERT,
    frontier={"t": 3},
    fingerprint="",
    total=3,
    total_exact=True,
    path="copy",
    read=ReadSpec(kind="postgres", conn_id="source", columns=COLUMNS, tells_position=True),
    write=WRITE,
    position=str(at(100)),
)


def marker(bounds: KeyBounds | LogBounds, read_at: LogPosition | None = None) -> Marker:
    return Marker(
        plan_id="p",
        slice_id="0.0",
        epoch=1,
        attempt=1,
        bounds=bounds.to_json(),
        rows=1,
        bytes=1,
        checksum="",
        committed_at=datetime.now(UTC),
        read_at=str(read_at or ""),
    )


READ = [marker(KeyBounds.of_column(column="id", start=None, end=None), at(place)) for place in (130, 150)]


@dataclass
class Log:
    """A log that stands somewhere."""

    end: int
    stream: str = "slot"
    unit: str = "bytes of log"
    asked: list[int] = field(default_factory=list)
    large: bool = False

    def windows(
        self, start: LogPosition, *, bytes: int, goal: LogPosition | None = None, large: bool = False
    ) -> list[LogBounds]:
        self.asked.append(start.at)
        self.large = large
        return [LogBounds(stream="slot", start=start, end=at(self.end))] if start.at < self.end else []


@pytest.mark.statement("T8")
def test_ranges_alone_are_not_consistent_until_the_log_is_replayed_to_what_was_read_last():
    """T8: the formula."""
    assert not stand(RANGES, READ).reached
    plan, windows = next_windows(RANGES, Log(end=140), READ, budget=Budget(), hydrating=True)
    assert [str(each) for each in windows] == ["log [0/64, 0/8C)"]
    assert (plan.read.kind, plan.path, plan.unit, plan.total) == ("postgres_log", "replay", "bytes of log", 40)
    assert plan.write.ordered
    assert plan.increment
    assert not stand(plan, []).reached
    following, _ = next_windows(plan, Log(end=150), [], budget=Budget(), hydrating=True)
    assert stand(following, []).reached
    assert ReplayWindow.from_window(following.read.window) == ReplayWindow(
        stream="slot", start=at(140), end=at(150), goal=at(150), hydrating=True
    )


@pytest.mark.statement("K3")
def test_windows_into_a_lake_are_as_large_as_ranges_may_be():
    """K3: each of them costs seconds, however few changes it has."""
    log = Log(end=140)
    next_windows(RANGES, log, READ, budget=Budget(), hydrating=True)
    assert not log.large
    lake = replace(RANGES, write=replace(RANGES.write, kind="spark_table"))
    next_windows(lake, log, READ, budget=Budget(), hydrating=True)
    assert log.large


@pytest.mark.statement("T8")
def test_a_row_that_was_read_again_moves_the_goal():
    """T8: the target holds something from later than its frontier."""
    plan, windows = next_windows(RANGES, Log(end=160), READ, budget=Budget(), hydrating=True)
    assert stand(plan, []).reached
    assert not stand(plan, [marker(windows[0], at(170))]).reached


def gtids(*numbers: int) -> LogPosition:
    servers = [f"00000000-0000-0000-0000-{server:012}" for server in range(len(numbers))]
    text = ",".join(f"{server}:1-{number}" for server, number in zip(servers, numbers, strict=True))
    return LogPosition(at=sum(numbers), text=text)


@pytest.mark.statement("T8")
def test_ranges_of_a_server_that_had_not_come_to_the_logs_start_are_refused():
    """T8: their rows lack changes of before the start; nothing else of the plan shows that."""
    plan = replace(RANGES, position=str(gtids(5, 9)))
    bounds = KeyBounds.of_column(column="id", start=None, end=None)
    assert stand(plan, [marker(bounds, gtids(5, 9)), marker(bounds)]).reached
    with pytest.raises(SourceRefused, match=r"had only [^\n]*:1-4[^\n]*lead to one server, and trigger"):
        stand(plan, [marker(bounds, gtids(7, 9)), marker(bounds, gtids(4, 90))])
    assert stand(RANGES, [marker(bounds, at(90))]).reached, "bytes of a log are not compared so"


@pytest.mark.statement("T8")
def test_windows_of_another_server_are_consistent_only_with_all_transactions_that_ranges_have_seen():
    """T8: by their number they would be: a server with others of its own has as many."""

    @dataclass
    class Binlog(Log):
        goals: list[LogPosition | None] = field(default_factory=list)

        def windows(
            self, start: LogPosition, *, bytes: int, goal: LogPosition | None = None, large: bool = False
        ) -> list[LogBounds]:
            self.goals.append(goal)
            return [LogBounds(stream="slot", start=start, end=gtids(8, 9))]

    seen = [marker(KeyBounds.of_column(column="id", start=None, end=None), gtids(10))]
    log = Binlog(end=0)
    plan, _ = next_windows(replace(RANGES, position=str(gtids(5))), log, seen, budget=Budget(), hydrating=True)
    assert not stand(plan, []).reached
    assert log.goals == [gtids(10)], "the log is asked whether it has them"


def test_nothing_follows_where_nothing_was_written():
    plan, _ = next_windows(RANGES, Log(end=160), READ, budget=Budget(), hydrating=True)
    assert next_windows(plan, Log(end=160), [], budget=Budget(), hydrating=False) is None
    with pytest.raises(SourceUnavailable, match="does not reach 0/96 yet"):
        next_windows(RANGES, Log(end=100), READ, budget=Budget(), hydrating=True)


def test_windows_that_no_marker_is_about_are_planned_again_up_to_the_end_of_their_plan():
    """A lost ledger: the log goes on beyond what the plan was about, which is left to the plan that follows."""
    plan, windows = next_windows(RANGES, Log(end=200), READ, budget=Budget(), hydrating=True)
    plan = replace(plan, ranges=len(windows), plan_id="p")
    first = LogBounds(stream="slot", start=at(100), end=at(140))
    found = Rebuilt(hydration_id="h", plan=plan, markers={"0.0": marker(first)})
    assert not found.complete()
    records = found.windows(Log(end=900))
    assert [(str(each.bounds), each.state) for each in records] == [
        ("log [0/64, 0/8C)", RangeState.COMMITTED),
        ("log [0/8C, 0/C8)", RangeState.PLANNED),
    ]
    assert records[1].seq >= BEYOND
    assert found.list_later() == {"1.0", f"{BEYOND}.0"}, "what is to be fenced where the ledger is lost once more"
    behind = replace(found, markers={**found.markers, f"{BEYOND}.0": marker(first)})
    assert f"{BEYOND + 1}.0" in behind.list_later()
    assert replace(found, plan=RANGES).list_later() == set()
    assert (records[1].planned_rows, records[1].planned_bytes) == (60, 60)
    none = replace(found, markers={})
    assert [str(each.bounds) for each in none.windows(Log(end=900))] == ["log [0/64, 0/C8)"]
    whole = replace(found, markers={"0.0": marker(replace(first, end=at(200)))})
    assert [each.state for each in whole.windows(Log(end=900))] == [RangeState.COMMITTED]


@pytest.mark.statement("T8")
def test_windows_that_are_planned_again_in_another_server_s_order_stay_within_their_plan():
    """T8: a cut with fewer transactions than the plan's end may have others, which the plan has not."""

    @dataclass
    class Binlog(Log):
        def windows(
            self, start: LogPosition, *, bytes: int, goal: LogPosition | None = None, large: bool = False
        ) -> list[LogBounds]:
            ends = [start, gtids(7, 2), gtids(7, 4), gtids(10, 4)]
            return [LogBounds(stream="slot", start=first, end=last) for first, last in pairwise(ends)]

    window = ReplayWindow(stream="slot", start=gtids(5, 2), end=gtids(10, 2), goal=gtids(10, 2))
    plan = replace(RANGES, read=replace(RANGES.read, window=window.window(None)), ranges=2)
    found = Rebuilt(
        hydration_id="h",
        plan=plan,
        markers={"0.0": marker(LogBounds(stream="slot", start=gtids(5, 2), end=gtids(6, 2)))},
    )
    assert not found.complete()
    planned = [each.bounds for each in found.windows(Binlog(end=0))[1:]]
    assert planned == [
        LogBounds(stream="slot", start=gtids(6, 2), end=gtids(7, 2)),
        LogBounds(stream="slot", start=gtids(7, 2), end=gtids(10, 2)),
    ]
    assert [each.end.label for each in planned] == [gtids(7, 2).label, gtids(10, 2).label]


def test_the_log_is_released_up_to_what_markers_tell_and_no_further():
    windows = [LogBounds(stream="slot", start=at(n), end=at(n + 10)) for n in (100, 110)]
    assert find_released_position([*map(marker, windows), *READ]) == at(120)
    assert find_released_position(READ) is None
    assert find_released_position([replace(marker(windows[1]), revoked=True)]) is None


@pytest.mark.statement("X5")
def test_what_cannot_be_replayed_into_is_refused():
    """X5: by what is missing."""
    snapshot = Snapshot(
        source_identity="s",
        columns=tuple(replace(column, nullable=False) for column in COLUMNS),
        key=("id",),
        split=("id",),
        unique=True,
        frontier={},
        total=None,
        total_exact=False,
        row_bytes=8.0,
        consistency=Consistency.CATCH_UP,
        log_keys=(("id",),),
    )
    spark = replace(WRITE, kind="spark_table", frontier_table="")
    for kind in ("postgres", "mysql"):
        for declared in (WRITE, spark):
            check_replayable(snapshot, declared, kind=kind, mode=Mode.UPSERT, transformed=False)
    with pytest.raises(SinkRefused, match="changes of a kafka table do not go into a spark_table sink"):
        check_replayable(snapshot, spark, kind="kafka", mode=Mode.UPSERT, transformed=False)
    for declared, mode, transformed, error in (
        (WRITE, Mode.APPEND, False, InvalidDeclaration),
        (WRITE, Mode.UPSERT, True, InvalidDeclaration),
        (replace(WRITE, kind="delta", frontier_table=""), Mode.UPSERT, False, SinkRefused),
        (replace(WRITE, key=("code",)), Mode.UPSERT, False, SourceRefused),
    ):
        with pytest.raises(error):
            check_replayable(snapshot, declared, kind="postgres", mode=mode, transformed=transformed)
