"""What a later run compares with the plan before, so that its value committed last still says what has come since."""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from airflow_provider_backpressure.core.config import Budget, Consistency, Mode, NewColumn, Refresh
from airflow_provider_backpressure.core.execution.lane_submission import spec_for
from airflow_provider_backpressure.core.gate.credit_limits import GradedLimit
from airflow_provider_backpressure.core.planning.plan_result import Planned, Verdict
from airflow_provider_backpressure.core.planning.planner import Planner
from airflow_provider_backpressure.core.snapshot.plan import Plan, Snapshot
from airflow_provider_backpressure.core.snapshot.ranges import RangeState
from airflow_provider_backpressure.core.snapshot.spark_messages import ZONE, Column, ReadSpec, Transform, Window
from airflow_provider_backpressure.core.snapshot.table_alterations import StoredColumn, TableStorage
from airflow_provider_backpressure.exceptions import InvalidDeclaration, PlanSuperseded, SourceRefused
from airflow_provider_backpressure.testing import MemoryLedger, MemoryRunner, MemorySink, MemorySource


@dataclass(kw_only=True)
class Estimating(MemorySource):
    """A source whose rows are estimated: an empty window has a total too."""

    def snapshot(self, *args: object, **more: object) -> Snapshot:
        return replace(super().snapshot(*args, **more), total=7, total_exact=False)  # type: ignore[arg-type]


@dataclass(kw_only=True)
class Coarse(MemorySource):
    """A source in whose rising column many rows have one value."""

    def snapshot(self, *args: object, **more: object) -> Snapshot:
        return replace(super().snapshot(*args, **more), coarse=("id",))  # type: ignore[arg-type]


@dataclass(kw_only=True)
class Deleting(MemorySource):
    """A source of which some records delete rows."""

    def read_spec(self, snapshot: Snapshot) -> ReadSpec:
        return replace(super().read_spec(snapshot), holds_deletes=True)


@dataclass(kw_only=True)
class Runs:
    """Runs of one hydration of a rising column."""

    source: MemorySource = field(default_factory=lambda: MemorySource(keys=range(100), increments=True))
    mode: Mode = Mode.UPSERT
    transform: Transform | None = None
    sink: MemorySink = field(default_factory=MemorySink)
    ledger: MemoryLedger = field(default_factory=MemoryLedger)

    def planner(self, *, key: tuple[str, ...] = ()) -> Planner:
        return Planner(
            source=self.source,
            sink=self.sink,
            runner=MemoryRunner(source=self.source, sink=self.sink),
            ledger=self.ledger,
            budget=Budget(range_rows=50),
            mode=self.mode,
            key=key,
            transform=self.transform,
            owner="dag",
            cluster="spark",
        )

    def complete(self, *, verified: bool = True) -> Plan:
        """Plan, or go on with what is planned, and let everything be committed."""
        planned = self.planner().plan()
        for record in self.ledger.ranges(planned.plan.plan_id):
            assert record.state is RangeState.PLANNED
            permit = self.ledger.admit(planned.hydration.id, lane="lane", session_id="s", lease_seconds=60)
            assert permit is not None
            spec = spec_for(planned.plan, permit.range, self.source)
            marker = self.sink.commit(spec, spec.slices[0], self.source.read(spec.slices[0].query))
            self.ledger.commit(
                planned.plan.plan_id,
                permit.range.seq,
                worker="lane",
                attempt=1,
                rows=marker.rows,
                bytes=marker.bytes,
                checksum=marker.checksum,
                limit=GradedLimit(),
                pressure=0.0,
            )
        if verified:
            self.ledger.finish(planned.hydration.id)
        return planned.plan


def test_an_increment_that_was_not_verified_is_not_followed_by_another_one() -> None:
    """Its verification has failed, or was killed: what is wrong in it would be out of reach, and later runs green."""
    runs = Runs()
    runs.complete()
    runs.source.keys = range(120)
    second = runs.complete(verified=False)
    runs.source.keys = range(150)
    planned = runs.planner().plan()
    assert (planned.verdict, planned.plan.plan_id) == (Verdict.RESUMED, second.plan_id)
    assert planned.note == "1 of 1 ranges are committed already"
    runs.ledger.finish(planned.hydration.id)
    assert runs.planner().plan().plan.read.window == Window(column="id", after="119", upto="149")


def test_another_increment_column_is_refused_before_the_source_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The value committed last is one of the old column: above it lies nothing that was changed before."""
    runs = Runs()
    runs.source.increment_column = "id"
    first = runs.complete()
    runs.source.increment_column = "changed_at"
    runs.source.keys = range(120)
    with monkeypatch.context() as patched:
        patched.setattr(runs.source, "snapshot", None)
        with pytest.raises(InvalidDeclaration) as raised:
            runs.planner().plan()
    assert str(raised.value) == (
        "memory://source was read by increment_column='id', not 'changed_at': the value committed last, 99, says "
        'nothing of changed_at. Name id again, or trigger the DAG with {"backpressure": "restart"} to plan again.'
    )
    assert runs.sink.plan == replace(first, epoch=0)
    assert runs.planner().plan(restart=True).plan.read.window == Window(column="changed_at", after=None, upto="119")


@dataclass(kw_only=True)
class Stored(MemorySource):
    """A source that knows its table and column by their numbers."""

    place: str | None = "system/database/1"
    table: int | None = 1
    column: int = 1

    def read_spec(self, snapshot: Snapshot) -> ReadSpec:
        column = StoredColumn(name="id", number=self.column, version="", filled=False)
        storage = TableStorage(table="t", lock="", relations=(), columns=(column,), number=self.table)
        return replace(super().read_spec(snapshot), place=self.place, storage=storage)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"place": "system/database/2", "table": 2}, "it is another table, dropped and made again or renamed"),
        ({"column": 7}, "column id is another one, which was added or renamed"),
        ({"place": None, "table": 2}, None),
        ({"place": "system/database/2", "table": None}, None),
        ({}, None),
    ],
    ids=["table", "column", "unknown", "view", "same"],
)
def test_another_table_under_the_name_is_not_read_above_the_old_value(
    change: dict[str, object], words: str | None
) -> None:
    runs = Runs(source=Stored(keys=range(100), increments=True))
    runs.complete()
    runs.source = replace(runs.source, keys=range(120), **change)  # type: ignore[arg-type]
    if words is None:
        assert runs.planner().plan().plan.increment
        return
    with pytest.raises(SourceRefused, match=rf"has changed since plan \w+: {words}\. What is committed stays; trigger"):
        runs.planner().plan()


def test_another_database_is_read_above_the_old_value_where_a_person_says_so() -> None:
    """The numbers of its tables are others, too: those of the plan are exchanged for them."""
    runs = Runs(source=Stored(keys=range(100), increments=True))
    runs.complete()
    runs.source = replace(runs.source, keys=range(120), place="restored/database/2", table=2)
    with pytest.raises(SourceRefused, match="in another database than before"):
        runs.planner().plan()
    assert replace(runs.planner(), has_same_rows=True).plan().plan.increment


@pytest.mark.parametrize("complete", [True, False])
def test_another_table_under_the_name_does_not_stand_still(complete: bool) -> None:
    """A source without a rising column, declared static: neither is its plan gone on with, nor is it unchanged."""
    runs = Runs(source=Stored(keys=range(100)))
    if complete:
        runs.complete()
    else:
        runs.planner().plan()
    assert runs.planner().plan().verdict is (Verdict.UNCHANGED if complete else Verdict.RESUMED)
    runs.source = Stored(keys=range(100), place="system/database/2", table=2)
    with pytest.raises(SourceRefused, match="it is another table"):
        runs.planner().plan()


def test_a_planner_that_was_frozen_plans_no_window_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another attempt at its task has planned the window when it thaws, and all of it is committed."""
    runs = Runs()
    runs.complete()
    runs.source.keys = range(120)
    begin, frozen = Planner._begin, list[bool]()

    def freeze(planner: Planner, *arguments: Any, **others: Any) -> Planned:
        if not frozen:
            frozen.append(True)
            runs.complete()
        return begin(planner, *arguments, **others)

    monkeypatch.setattr(Planner, "_begin", freeze)
    with pytest.raises(PlanSuperseded, match="has taken it since"):
        runs.planner().plan()
    assert runs.planner().plan().verdict is Verdict.UNCHANGED


@pytest.mark.parametrize(
    ("before", "now"), [(Mode.REPLACE, Mode.UPSERT), (Mode.REPLACE, Mode.APPEND), (Mode.APPEND, Mode.REPLACE)]
)
def test_an_open_plan_is_refused_where_another_mode_is_declared(before: Mode, now: Mode) -> None:
    """A plan under replace would take the place of the rows that upsert is to keep."""
    runs = Runs(source=MemorySource(keys=range(100)), mode=before)
    runs.planner().plan()
    runs.mode = now
    with pytest.raises(InvalidDeclaration, match=rf"was begun with mode='{before}' and is not complete"):
        runs.planner().plan()
    assert runs.planner().plan(restart=True).plan.mode is now


def test_an_open_static_plan_is_refused_where_a_snapshot_is_declared() -> None:
    """Its ranges are of several moments."""
    runs = Runs(source=MemorySource(keys=range(100)))
    static = replace(runs.planner(), consistency=Consistency.STATIC)
    static.plan()
    with pytest.raises(InvalidDeclaration, match="was begun with consistency='static' and is not complete"):
        replace(static, consistency=Consistency.SNAPSHOT).plan()
    assert static.plan().verdict is Verdict.RESUMED


def test_an_open_window_goes_on_by_its_own_column() -> None:
    runs = Runs()
    runs.source.increment_column = "id"
    runs.planner().plan()
    runs.source.increment_column = "changed_at"
    resumed = runs.planner().plan()
    assert (resumed.verdict, resumed.plan.read.window) == (
        Verdict.RESUMED,
        Window(column="id", after=None, upto="99"),
    )


def test_a_lost_ledger_is_not_rebuilt_by_another_increment_column() -> None:
    """What is missing of an open window would be cut by the new column."""
    runs = Runs()
    runs.source.increment_column = "id"
    runs.complete()
    runs.source.keys = range(200)
    runs.planner().plan()
    runs.ledger = MemoryLedger()
    runs.source.increment_column = "changed_at"
    with pytest.raises(InvalidDeclaration, match="increment_column='id', not 'changed_at'"):
        runs.planner().plan()


def test_an_empty_window_is_none_whatever_is_estimated() -> None:
    """The value committed last stays where it is, though the highest row is below it."""
    runs = Runs(source=Estimating(keys=range(100), increments=True), mode=Mode.APPEND)
    runs.complete()
    runs.source.keys = range(90)
    planned = runs.planner().plan()
    assert (planned.verdict, planned.note) == (Verdict.UNCHANGED, "nothing is new above 99")
    runs.source.keys = range(110)
    assert runs.complete().read.window == Window(column="id", after="99", upto="109")
    assert sorted(runs.sink.rows) == list(range(110))


def test_a_coarse_column_is_named_with_each_plan_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    runs = Runs(source=Coarse(keys=range(100), increments=True))
    runs.complete()
    runs.planner().plan()
    runs.source.keys = range(120)
    runs.complete()
    warnings = [text for text in caplog.messages if "in which many rows have one value" in text]
    assert [" 99, is never read" in warnings[0], " 119, is never read" in warnings[1]] == [True] * len(warnings)


def test_rows_are_not_upserted_by_another_key_than_before() -> None:
    runs = Runs()
    runs.complete()
    runs.source.keys = range(120)
    with pytest.raises(InvalidDeclaration, match=r"by the key id, not by code, id: .*Name id as the key of the sink"):
        runs.planner(key=("code", "id")).plan()
    assert runs.planner(key=("id",)).plan().plan.increment


def test_text_in_another_order_has_no_value_that_was_committed_last() -> None:
    """A plan of a release that did not remember the order goes on."""
    runs = Runs()
    runs.source.columns = (Column(name="id", type="bigint", collation="libc en_US.utf8 2.36"),)
    runs.complete()
    runs.source.keys = range(120)
    runs.source.columns = (Column(name="id", type="bigint", collation="C"),)
    with pytest.raises(SourceRefused, match=r"ordered by C, and was by libc en_US\.utf8 2\.36 when"):
        runs.planner().plan()
    runs.source.columns = (Column(name="id", type="bigint"),)
    runs.complete()
    runs.source.keys = range(140)
    runs.source.columns = (Column(name="id", type="bigint", collation="C"),)
    assert runs.planner().plan().plan.increment


def test_a_refresh_reads_the_whole_again_once_in_each_run_that_finds_everything_committed() -> None:
    """A run that is retried gets no second plan, unless its own is complete: it was cleared, or made again.

    One that finds ranges of an earlier run open ends them first.
    """
    runs = Runs(source=MemorySource(keys=range(100)), mode=Mode.UPSERT)
    first = replace(runs.planner(), run="first", refresh=Refresh.EACH_RUN).plan()
    second = replace(runs.planner(), run="second", refresh=Refresh.EACH_RUN)
    assert (first.verdict, second.plan().verdict) == (Verdict.PLANNED, Verdict.RESUMED)
    runs.complete()
    runs.source.keys = range(120)
    assert (again := second.plan()).verdict is Verdict.PLANNED
    assert again.plan.total == 120
    assert second.plan().verdict is Verdict.RESUMED
    runs.complete()
    assert runs.planner().plan().verdict is Verdict.UNCHANGED
    assert (once_more := second.plan()).verdict is Verdict.PLANNED
    assert once_more.plan.plan_id != again.plan.plan_id
    assert second.plan(restart=True).verdict is Verdict.RESUMED
    runs.complete()
    assert second.plan(restart=True).verdict is Verdict.PLANNED


def test_increments_keep_the_zone_of_the_plan_before() -> None:
    """A plan of an earlier release names none: its rows are of the server's zone, and so are those that follow."""
    declared = Transform(sql="SELECT * FROM source", zone=ZONE)
    runs = Runs(transform=replace(declared, zone=None))
    first = runs.complete()
    assert '"zone": null' in first.to_json()
    assert Plan.from_json(first.to_json().replace(', "zone": null', "")) == first
    runs.source.keys, runs.transform = range(120), declared
    assert runs.complete().transform == replace(declared, zone=None)
    assert runs.planner().plan(restart=True).plan.transform == declared


@pytest.mark.parametrize(("mode", "words"), [(Mode.REPLACE, "takes their place"), (Mode.UPSERT, "adds to them")])
def test_a_target_that_holds_rows_of_another_source_is_named(
    mode: Mode, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Two DAGs may write into one target by mistake; a second run from the same source says nothing."""
    first = Runs(mode=mode, source=MemorySource(keys=range(100)))
    first.complete()
    first.planner().plan(restart=True)
    assert "another source" not in caplog.text
    Runs(mode=mode, source=MemorySource(keys=range(100), identity="memory://another"), sink=first.sink).complete()
    assert "holds rows of another source, memory://source: plan " in caplog.text
    assert f"of memory://another {words}" in caplog.text


@pytest.mark.statement("R3")
@pytest.mark.parametrize("mode", [Mode.APPEND, Mode.UPSERT])
def test_records_that_delete_rows_are_not_kept_as_rows(mode: Mode) -> None:
    """R3: only the order of a log says what is left; these records have none."""
    runs = Runs(source=Deleting(keys=range(3)), mode=mode)
    with pytest.raises(InvalidDeclaration, match=r"some delete rows: mode='.*' would keep those. Use mode='upsert'"):
        runs.planner().plan()


@dataclass(kw_only=True)
class Growing(MemorySource):
    """A source whose table gets a column with a default."""

    grown: bool = False

    def snapshot(self, *args: object, **more: object) -> Snapshot:
        found = super().snapshot(*args, **more)  # type: ignore[arg-type]
        columns = (*found.columns, Column(name="kind", type="text")) if self.grown else found.columns
        return replace(found, columns=columns, defaults=("kind",) if self.grown else ())


@pytest.mark.statement("R3")
@pytest.mark.parametrize("deletes", [False, True])
def test_a_default_that_no_change_event_brings_stops_a_target_that_is_a_table(deletes: bool) -> None:
    """R3: its committed rows would keep NULL, where the table has the default; rows that are appended may."""
    source = Growing(keys=range(100), increments=True)
    runs = Runs(source=source)
    plan = runs.complete()
    plan = replace(plan, read=replace(plan.read, holds_deletes=deletes))
    source.grown = True
    planner = replace(runs.planner(), on_new_column=NewColumn.ADD)
    if deletes:
        with pytest.raises(SourceRefused, match="column kind was added with a default"):
            planner._widen(plan, after=None)
        assert runs.sink.widened == []
    else:
        planner._widen(plan, after=None)
        assert runs.sink.widened == ["kind"]


@pytest.mark.statement("R3")
def test_a_column_that_no_window_of_a_shared_log_brings_is_refused_by_name() -> None:
    """R3: the policy to add it would leave it out for ever, without a word. Ranges that are left are read first."""
    source = Growing(keys=range(100))
    runs = Runs(source=source)
    plan = replace(runs.complete(), stream="log")
    hydration, counts = runs.planner().register(), runs.ledger.counts(plan.plan_id)
    add, stop = replace(runs.planner(), on_new_column=NewColumn.ADD), runs.planner()
    assert add._catch_up(hydration, plan, counts).verdict is Verdict.UNCHANGED
    source.grown = True
    words = "column kind was added, and windows of a log that tables share bring no new column"
    for planner in (add, stop):
        with pytest.raises(SourceRefused, match=words):
            planner._catch_up(hydration, plan, counts)
    assert add._catch_up(hydration, plan, replace(counts, planned=1)).verdict is Verdict.RESUMED
