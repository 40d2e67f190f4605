"""Windows of a log that several tables share, in the notes of one of them: its frontier, its fence, what is kept."""

from dataclasses import replace
from typing import Any, cast
from unittest.mock import Mock

import pytest

from airflow_provider_backpressure.connectors.lake.markers import Attempt, Holder, Mark
from airflow_provider_backpressure.connectors.lake.sink.spark_target import SparkTableTarget
from airflow_provider_backpressure.connectors.lake.spark.commit_notes import (
    LogState,
    Note,
    name_window,
    note_of_fence,
    note_of_mark,
    note_of_plan,
    pack_state,
)
from airflow_provider_backpressure.core.endpoints import NOWHERE
from airflow_provider_backpressure.core.snapshot.bounds import LogBounds, LogPosition
from airflow_provider_backpressure.exceptions import InvalidDeclaration, SinkUnavailable
from airflow_provider_backpressure.hooks.recorded_declaration import from_plain, plain
from airflow_provider_backpressure.sinks import SparkTableSink
from tests.support.lake_plans import make_followed_plan

PLAN = replace(make_followed_plan("p", ranges=1), stream="stream", position="100 0/64")
START = LogPosition.parse("100 0/64")


def at(number: int) -> LogPosition:
    return LogPosition(at=number, text=f"0/{number:X}")


def window(start: int, end: int, epoch: int = 1) -> Note:
    bounds = LogBounds(stream="stream", start=at(start), end=at(end)).to_json()
    attempt = Attempt(plan_id="p", epoch=epoch, slice_id=name_window(at(start)), attempt=1, bounds=bounds)
    return note_of_mark(Mark.made(attempt, rows=3, bytes=1, checksum="c", files=()))


def own_range(epoch: int = 1) -> Note:
    attempt = Attempt(plan_id="p", epoch=epoch, slice_id="0.0", attempt=1, bounds={"kind": "key"})
    return note_of_mark(Mark.made(attempt, rows=10, bytes=1, checksum="c", files=()))


class ListedTable:
    """Takes a commit for each token, as a table does; ``late`` comes before the next fence."""

    name = quoted = "lake.raw.t"

    def __init__(self, *notes: Note) -> None:
        self.notes, self.late = [*notes], list[Note]()

    def state(self, *, with_losses: bool = False) -> LogState:
        return LogState.read(self.notes, {})

    def publish(self, note: Note) -> None:
        for each in (*self.late, note):
            if each.token not in {known.token for known in self.notes}:
                self.notes.append(each)
        self.late = []


def make_target(table: ListedTable) -> SparkTableTarget:
    target = SparkTableTarget(Mock(address="sc://h:1"), table.name, conn_id="s", format_="delta", tasks=1)
    target._opened = cast("Any", table)
    target.tell_submitted({"p": list[str]()}.get)
    return target


@pytest.fixture
def table() -> ListedTable:
    """A table of which one range and two windows are in."""
    taken = note_of_plan(Holder.create(PLAN, 1), settled=True)
    return ListedTable(taken, own_range(), window(100, 150), window(150, 200))


@pytest.mark.statement("W2", "X1")
def test_of_all_windows_that_begin_at_the_frontier_one_goes_in(table: ListedTable) -> None:
    """W2, X1: also one of another plan of windows, with another end."""
    table.publish(window(150, 300))
    state = table.state()
    assert state.find_frontier("p", START) == at(200)
    assert not state.admits(window(150, 400))
    assert state.admits(window(200, 400))
    assert LogState().find_frontier("p", START) == START


@pytest.mark.statement("W4", "X1")
def test_a_table_that_was_set_back_while_a_window_was_staged_does_not_take_it(table: ListedTable) -> None:
    """W4, X1: what is asked on top of is another state than the attempt has looked at; a gap is no frontier either."""
    staged = window(200, 400)
    assert table.state().admits(staged)
    for left, end in ((table.notes[:3], at(150)), (table.notes[:2], START)):
        state = LogState.read(left, {})
        assert not state.admits(staged)
        assert state.admits(window(end.at, 400))
        assert LogState.read([*left, staged], {}).find_frontier("p", START).at == (150 if end.at == 150 else 400)
    forgotten = LogState.read([table.notes[0], table.notes[3]], {})
    assert forgotten.find_frontier("p", START) == at(200), "of the oldest windows the marks are gone in time"
    assert forgotten.admits(staged)


@pytest.mark.statement("W4", "X1")
def test_a_new_epoch_refuses_the_window_that_comes_next(table: ListedTable) -> None:
    """W4, X1: whichever plan of windows it is of; only tables that share a log have such a fence."""
    assert make_target(table).renew("p") == 2
    assert [*table.state().fences] == [note_of_fence("p", name_window(at(200)), 1).token]
    late = window(200, 250)
    table.publish(late)
    assert late not in table.notes
    alone = ListedTable(note_of_plan(Holder.create(replace(PLAN, stream=""), 1), settled=True))
    make_target(alone).renew("p")
    assert not alone.state().fences


@pytest.mark.statement("W4", "X1")
def test_a_window_that_comes_before_the_fence_is_followed_by_another_fence(table: ListedTable) -> None:
    """W4, X1: the next window of a late lane would begin where that one has ended."""
    target, late = make_target(table), window(200, 250)
    publish = table.publish

    def overtake(note: Note) -> None:
        if note.token == note_of_fence("p", name_window(at(200)), 1).token:
            table.late = [late]
        publish(note)

    table.publish = overtake  # type: ignore[method-assign]
    target.renew("p")
    assert late in table.notes
    assert note_of_fence("p", name_window(at(250)), 1).token in table.state().fences


@pytest.mark.statement("W4", "X1")
def test_a_lane_that_never_stops_is_no_reason_to_wait_for_ever(table: ListedTable) -> None:
    """W4, X1: the planner says so, and asks again."""
    target, publish = make_target(table), table.publish

    def overtake(note: Note) -> None:
        end = table.state().find_frontier("p", START).at
        table.late = [window(end, end + 1)]
        publish(note)

    table.publish = overtake  # type: ignore[method-assign]
    with pytest.raises(SinkUnavailable, match="while it was fenced"):
        target.renew("p")


@pytest.mark.statement("X2")
def test_windows_are_no_ranges_of_the_plan_and_the_last_one_is_kept(table: ListedTable) -> None:
    """X2: a lost ledger finds the ranges, and the frontier outlives the table's own log."""
    assert [*make_target(table).markers("p")] == ["0.0"]
    held = make_target(table).held()
    assert held is not None
    assert held.committed == 1
    kept = LogState.read((), pack_state(table.state(), "p"))
    assert {*kept.marks_of("p")} == {"0.0", name_window(at(150))}
    assert kept.find_frontier("p", START) == at(200)


def test_the_log_is_kept_in_a_table_beside_its_tables() -> None:
    """Also where the declaration travels; its format has to be known."""
    sink = SparkTableSink(table="lake.raw.{table}", spark_conn_id="spark", format="iceberg")
    stream = sink.declare_stream("abc")
    assert stream.table == "lake.raw.backpressure_abc"
    assert from_plain(plain(stream)) == stream
    assert replace(sink, system_schema="lake.ops").declare_stream("abc").table == "lake.ops.backpressure_abc"
    opened = stream.open(replace(NOWHERE, conn_id="spark", password="sc://127.0.0.1:1/"))
    assert opened.identity == "spark://127.0.0.1:1/lake.raw.backpressure_abc"
    assert opened.fit((), mode="upsert", key=()).target == stream.table
    with pytest.raises(InvalidDeclaration, match="are of one format: name it"):
        replace(sink, format=None).declare_stream("abc")
