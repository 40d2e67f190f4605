"""A plan that takes a table: what it fences, and what it removes, over a table that is a list of notes."""

from collections.abc import Sequence
from typing import Any, cast
from unittest.mock import Mock

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.types import DataType, StringType, StructField, StructType, TimestampNTZType

from airflow_provider_backpressure.connectors.lake.markers import Attempt, Holder, Mark
from airflow_provider_backpressure.connectors.lake.sink.spark_target import SparkTableTarget
from airflow_provider_backpressure.connectors.lake.spark.commit_notes import (
    Kind,
    LogState,
    Note,
    note_of_fence,
    note_of_mark,
)
from airflow_provider_backpressure.core.config import Mode
from airflow_provider_backpressure.core.snapshot.spark_messages import Column, Window
from airflow_provider_backpressure.exceptions import PlanSuperseded, SinkRefused, SinkUnavailable
from tests.support.lake_plans import make_followed_plan

CLOSED, PLAN = "closed", "plan"


class ListedTable:
    """Takes a commit for each token, as a table does."""

    name = quoted = "lake.raw.t"

    def __init__(self) -> None:
        self.notes: list[Note] = []
        self.taken: set[str] = set()
        self.cleared = 0
        self.held_elsewhere = False
        self.expired = ""
        """A plan of which slices are missing while it holds the table."""
        self.rows = Mock()

    def state(self, *, with_losses: bool = False) -> LogState:
        state = LogState.read(self.notes, {})
        if not with_losses and state.holder is not None and state.holder.plan_id == self.expired:
            raise SinkRefused("its snapshots were expired")
        return state

    def is_held_by_task_sink(self) -> bool:
        return self.held_elsewhere

    def publish(self, note: Note) -> None:
        if note.token not in self.taken:
            self.taken.add(note.token)
            self.notes.append(note)

    def clear(self, note: Note) -> None:
        if note.token not in self.taken:
            self.cleared += 1


def target_of(table: ListedTable, rows: int) -> SparkTableTarget:
    table.rows.return_value.count.return_value = rows
    target = SparkTableTarget(Mock(address="sc://h:1"), table.name, conn_id="spark", format_="delta", tasks=1)
    target._opened = cast("Any", table)
    return target


def plan_of(plan_id: str, mode: Mode = Mode.APPEND) -> Any:
    plan = Mock(plan_id=plan_id, frontier={}, mode=mode)
    plan.consistency.value = "x"
    return plan


def write(table: ListedTable, plan_id: str, epoch: int) -> None:
    attempt = Attempt(plan_id=plan_id, epoch=epoch, slice_id="0.0", attempt=1, bounds={})
    table.publish(note_of_mark(Mark.made(attempt, rows=10, bytes=1, checksum="c", files=())))


def make_holder(plan: Any, epoch: int, **about: Any) -> Holder:
    return Holder(plan_id=plan.plan_id, epoch=epoch, about=about)


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> ListedTable:
    """A table with ten rows of a plan that is closed."""
    monkeypatch.setattr(Holder, "create", make_holder)
    table = ListedTable()
    target_of(table, 0).begin(plan_of(CLOSED))
    write(table, CLOSED, 1)
    return table


@pytest.mark.statement("X1", "X2")
def test_rows_of_a_closed_plan_are_removed_once(table: ListedTable) -> None:
    """X1, X2: not when the plan takes the table again or renews its epoch, with as many rows of its own by then."""
    target = target_of(table, 10)
    epoch = target.begin(plan_of(PLAN), clear=CLOSED)
    assert table.cleared == 1
    write(table, PLAN, epoch)
    assert target.begin(plan_of(PLAN), clear=CLOSED) == epoch + 1
    assert target.renew(PLAN) == epoch + 2
    assert table.cleared == 1


@pytest.mark.statement("X1")
def test_a_table_that_tasks_write_is_no_plans_of_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """X1: nothing is committed; of a table that a plan of Spark holds it is not asked."""
    monkeypatch.setattr(Holder, "create", make_holder)
    table = ListedTable()
    table.held_elsewhere = True
    with pytest.raises(SinkRefused, match="is held by a plan of DeltaSink"):
        target_of(table, 0).begin(plan_of(PLAN))
    assert table.notes == []
    table.held_elsewhere = False
    target_of(table, 0).begin(plan_of(CLOSED))
    table.held_elsewhere = True
    target_of(table, 0).begin(plan_of(PLAN))


def test_rows_that_are_replaced_by_key_stay(table: ListedTable) -> None:
    """A closed plan's rows are those that the new plan upserts."""
    target_of(table, 10).begin(plan_of(PLAN, Mode.UPSERT), clear=CLOSED)
    assert table.cleared == 0


@pytest.mark.statement("X2")
def test_a_killed_planner_leaves_the_removal_to_the_next_one(
    table: ListedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X2: it had taken the table, and neither fenced nor removed anything."""
    killed = target_of(table, 10)
    monkeypatch.setattr(killed, "_settle", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        killed.begin(plan_of(PLAN), clear=CLOSED)
    assert table.cleared == 0
    target_of(table, 10).begin(plan_of(PLAN), clear=CLOSED)
    assert table.cleared == 1
    assert table.notes[-1].kind is Kind.SETTLED


@pytest.mark.statement("X1", "X2")
def test_every_plan_that_nobody_has_settled_is_asked_for(table: ListedTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """X1, X2: the plan of a killed planner lies in between; a range that was cut is in no plan, but in the ledger."""
    killed = target_of(table, 10)
    monkeypatch.setattr(killed, "_settle", Mock())
    killed.begin(plan_of("between"))
    target = target_of(table, 10)
    target.tell_submitted({CLOSED: ["0.0", "1.0", "7.0"], "between": []}.get)
    target.begin(plan_of(PLAN))
    fenced = {note_of_fence(CLOSED, slice_id, 1).token for slice_id in ("1.0", "7.0")}
    assert set(table.state().fences) == fenced, "the first one is in"


@pytest.mark.statement("X1", "X2")
def test_a_planner_that_wakes_up_late_removes_nothing(table: ListedTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """X1, X2: the next one has removed the rows, and as many of the plan itself are in by now."""
    late, frozen = target_of(table, 10), list[Any]()
    settle = late._settle
    monkeypatch.setattr(late, "_settle", lambda *found: frozen.append(found))
    late.begin(plan_of(PLAN), clear=CLOSED)
    write(table, PLAN, target_of(table, 10).begin(plan_of(PLAN), clear=CLOSED))
    assert table.cleared == 1
    settle(*frozen[0])
    assert table.cleared == 1


@pytest.mark.statement("X2")
def test_a_planner_that_is_no_longer_the_latest_removes_nothing(
    table: ListedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X2: the planner that took the table last removes them."""
    first, second, frozen = target_of(table, 10), target_of(table, 10), list[Any]()
    settle = first._settle
    for each in (first, second):
        monkeypatch.setattr(each, "_settle", lambda *found: frozen.append(found))
        each.begin(plan_of(PLAN), clear=CLOSED)
    with pytest.raises(PlanSuperseded, match="no longer holds"):
        settle(*frozen[0])
    assert table.cleared == 0
    settle(*frozen[1])
    assert table.cleared == 1


@pytest.mark.statement("X2")
def test_a_table_whose_log_has_lost_what_took_it_is_taken_under_a_later_epoch(table: ListedTable) -> None:
    """X2: Delta keeps tokens for ever, and what its commits say for a month."""
    for number in range(1, 4):
        assert target_of(table, 0).begin(plan_of(PLAN)) == number + 1
        assert table.state().find_loss() == "", "the plan began where it took the table first"
    table.notes.clear()
    assert target_of(table, 0).begin(plan_of("later")) == 8
    assert table.state().find_loss() == "", "and where it could have an epoch"
    assert target_of(table, 0).renew("later") == 9
    del table.notes[0]
    assert table.state().find_loss()


@pytest.mark.statement("X2")
def test_a_plan_whose_slices_are_missing_is_followed_by_another_one(table: ListedTable) -> None:
    """X2: it does not go on, and where its rows cannot be told from others' they are not removed."""
    table.expired = CLOSED
    with pytest.raises(SinkRefused, match="expired"):
        target_of(table, 10).begin(plan_of(CLOSED))
    with pytest.raises(SinkRefused, match="it holds 30 rows"):
        target_of(table, 30).begin(plan_of(PLAN), clear=CLOSED)
    assert target_of(table, 10).begin(plan_of(PLAN, Mode.UPSERT)) == 2


@pytest.mark.statement("X2")
def test_a_server_that_was_started_again_is_asked_in_another_session(table: ListedTable) -> None:
    """X2: it does not know the session of before, and the next question must not fail for that."""
    lost = Mock(state=Mock(side_effect=PySparkException("[INVALID_HANDLE.SESSION_CHANGED] No such session.")))
    target = target_of(table, 10)
    target._opened = lost
    with pytest.raises(SinkUnavailable):
        target.held()
    cast("Mock", target._session).forget.assert_called_once_with()
    assert target._opened is None


@pytest.mark.statement("K3", "X1")
@pytest.mark.parametrize(
    ("submitted", "kinds"), [([], []), (["0.1"], [Kind.FENCE, Kind.SETTLED]), (None, [Kind.SETTLED])]
)
def test_windows_behind_a_plan_that_is_in_take_the_table_by_one_commit(
    submitted: list[str] | None, kinds: list[Kind]
) -> None:
    """K3, X1: unless a late attempt of it may be there, or nobody knows."""
    table = ListedTable()
    target_of(table, 0).begin(make_followed_plan(CLOSED, ranges=1))
    write(table, CLOSED, 1)
    target, before = target_of(table, 10), len(table.notes)
    target.tell_submitted(lambda plan_id: submitted)
    windows = make_followed_plan(PLAN, ranges=1, held_by=CLOSED, window=Window(column="log", after="0/1", upto="0/2"))
    assert target.begin(windows) == 2
    assert [note.kind for note in table.notes[before:]] == [Kind.PLAN, *kinds]
    assert table.state().settled == 2
    assert table.state().unsettled == []


class OddCatalog(ListedTable):
    """Makes another table than the one that it is asked for."""

    def __init__(self, made: StructType) -> None:
        super().__init__()
        self.made: StructType | None = None
        self._makes = made

    def schema(self) -> StructType | None:
        return self.made

    def create(self, columns: Sequence[Column], *, follows: bool) -> None:
        self.made = self._makes

    def check(self, there: StructType | None) -> None:
        assert there is not None

    def takes(self, there: DataType, arriving: DataType) -> bool:
        return there == arriving


@pytest.mark.statement("X4")
@pytest.mark.parametrize(
    ("type_", "made", "sentence"),
    [
        ("text", StringType("UTF8_LCASE"), "string collate UTF8_LCASE there"),
        ("timestamp with time zone", TimestampNTZType(), "timestamp_ntz there"),
    ],
)
def test_a_table_that_was_made_otherwise_than_asked_is_refused(type_: str, made: DataType, sentence: str) -> None:
    """X4: by a schema's default collation keys that differ by case would be one, for example."""
    table = OddCatalog(StructType([StructField("v", made)]))
    write = Mock(columns=(Column(name="v", type=type_),), plan_table="{}")
    with pytest.raises(SinkRefused, match=sentence):
        target_of(table, 0).prepare(write)
    # What is there is compared before, each time that a plan is fitted.
    target_of(table, 0).prepare(write)
