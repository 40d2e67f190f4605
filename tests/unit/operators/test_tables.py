"""Several tables in one task: each by itself, failures by table, what a retry touches, what a lane waits for."""

import re
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException, TaskDeferred

from airflow_provider_backpressure.assets import hydrations_of
from airflow_provider_backpressure.core.gate.cluster_queue import Shared
from airflow_provider_backpressure.core.gate.hydration_record import Hydration, Phase
from airflow_provider_backpressure.core.planning.range_repair import repair
from airflow_provider_backpressure.core.snapshot.spark_messages import RangeResult, RangeSpec
from airflow_provider_backpressure.core.table_selection import TableName, match_tables
from airflow_provider_backpressure.exceptions import (
    InvalidDeclaration,
    RangeFailed,
    SinkUnavailable,
    SourceRefused,
    SourceUnavailable,
    TablesFailed,
)
from airflow_provider_backpressure.hooks import recorded_declaration
from airflow_provider_backpressure.operators import HydrateOperator, PlanSnapshotOperator, VerifyHydrationOperator
from airflow_provider_backpressure.testing import MemoryRunner, MemorySink, MemorySource
from tests.support.world import TABLES, MemoryTable, World, context


@dataclass(frozen=True, kw_only=True)
class ManyTables(MemoryTable):
    """Declares several in-memory tables, or one of them."""

    templated: ClassVar[tuple[str, ...]] = ("table",)
    in_sql: ClassVar[bool] = True
    tables: tuple[str, ...] | str = ()

    def parse_name(self, table: str) -> TableName:
        """Return a name as it is."""
        schema, _, name = table.rpartition(".")
        return TableName(schema=schema, name=name, spelled=table)

    def found(self, endpoint: object) -> list[TableName]:
        """Return the tables that the pattern meets."""
        return match_tables(map(self.parse_name, sorted(TABLES)), str(self.tables))


@dataclass(kw_only=True)
class RunnerOfMany(MemoryRunner):
    """Passes each range to the runner of its target."""

    each: dict[str, MemoryRunner] = field(default_factory=dict)

    def run(self, spec: RangeSpec) -> "Future[RangeResult]":
        self.submitted.append(spec)
        return self.each[spec.write.target].run(spec)


@dataclass(kw_only=True)
class Shop(World):
    """Tables ``public.t0`` and so on, into ``raw.t0`` and so on."""

    count: int = 6
    sources: dict[str, MemorySource] = field(default_factory=dict)
    sinks: dict[str, MemorySink] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Make the tables."""
        super().__post_init__()
        self.runner = RunnerOfMany(source=self.source, sink=self.sink)
        TABLES.clear()
        for number in range(self.count):
            name = f"t{number}"
            source = self.sources[name] = MemorySource(keys=range(30), identity=f"memory://source/{name}")
            sink = self.sinks[name] = MemorySink(identity=f"memory://sink/{name}", name=name)
            self.runner.each[name] = MemoryRunner(source=source, sink=sink)
            TABLES.update({f"public.{name}": source, f"raw.{name}": sink})

    @property
    def flow(self) -> dict[str, Any]:
        """Arguments of every operator."""
        return {
            **super().flow,
            "source": ManyTables(conn_id="shop_db", table="", tables="public.*"),
            "sink": ManyTables(conn_id="warehouse", table="raw.{table}"),
        }

    def hydration_of(self, name: str) -> Hydration:
        """Return a table's hydration."""
        (found,) = [one for one in self.ledger.hydrations() if one.sink_identity.endswith(f"/{name}")]
        return found

    def touched(self) -> set[str]:
        """Return the tables whose rows were read since this was asked last."""
        found = {spec.write.target for spec in self.runner.submitted}
        self.runner.submitted.clear()
        return found


@pytest.fixture
def shop(monkeypatch: pytest.MonkeyPatch) -> Shop:
    made = Shop()
    made.install(monkeypatch)
    known = recorded_declaration.classes()
    monkeypatch.setattr(recorded_declaration, "classes", lambda: {**known, "ManyTables": ManyTables})
    return made


def raising(error: BaseException):
    def fail(*args, **values):
        raise error

    return fail


def plan(shop: Shop, given: Any = None, **values) -> Any:
    """Plan, and return what the tasks behind it get; the error of a plan that fails is among it."""
    given = given or context()
    error = None
    try:
        PlanSnapshotOperator(task_id="plan_snapshot", **{**shop.flow, **values}).execute(given)
    except (AirflowFailException, TablesFailed) as raised:
        error = raised
    return given["ti"].pushed["tables"], error


def lane(shop: Shop, tables: Any, **values) -> HydrateOperator:
    return HydrateOperator(task_id="hydrate_ranges", tables=tables, **{**shop.flow, **values})


def verify(shop: Shop, tables: Any, **values) -> VerifyHydrationOperator:
    return VerifyHydrationOperator(
        task_id="verify_hydration", tables=tables, **{"verify": "none", **shop.flow, **values}
    )


def names(planned: Any) -> list[str]:
    return [target.removeprefix("raw.") for _, target, _ in planned["planned"]]


def test_each_table_is_a_hydration_of_its_own(shop):
    """All arrive, by one task each that plans, drains and verifies; each has its event."""
    planned, error = plan(shop)
    assert error is None
    assert names(planned) == [f"t{number}" for number in range(6)]
    assert lane(shop, planned).execute(context()) == {"tables": 6, "committed": 18}
    given = context()
    task = verify(shop, planned)
    assert task.execute(given) == {"tables": 6, "rows": 180}
    assert {one.phase for one in shop.ledger.hydrations()} == {Phase.STEADY_STATE}
    assert all(sorted(sink.rows) == list(range(30)) for sink in shop.sinks.values())
    events = given["outlet_events"][hydrations_of("dag")].asset_alias_events
    assert [event.dest_asset_key.name for event in events] == [
        f"backpressure://default/shop_db/public.t{number}->warehouse/raw.t{number}" for number in range(6)
    ]
    assert {event.extra["rows"] for event in events} == {30}
    with pytest.raises(AirflowSkipException, match="Nothing is left to do for 6 tables"):
        PlanSnapshotOperator(task_id="plan_snapshot", **shop.flow).execute(context(run_id="next"))
    assert {one.holder for one in shop.ledger.hydrations()} == {None}


@pytest.mark.statement("L3")
def test_a_table_is_registered_once_when_it_is_planned(shop, monkeypatch):
    """It is known by then which hydration it is: registering it again was a transaction of six statements."""
    registered: list[str] = []
    register = type(shop.ledger).register

    def note(self, **values):
        registered.append(values["sink_identity"])
        return register(self, **values)

    monkeypatch.setattr(type(shop.ledger), "register", note)
    planned, error = plan(shop)
    assert error is None
    assert len(names(planned)) == 6
    assert len(registered) == len(set(registered)) == 6


def test_tables_that_cannot_be_planned_are_named_and_a_retry_plans_only_those(shop, monkeypatch):
    """The others are planned, drained and verified; every task of the group names the table."""
    with monkeypatch.context() as broken:
        broken.setattr(shop.sources["t1"], "snapshot", raising(SourceRefused("There is no column id in public.t1.")))
        broken.setattr(shop.sinks["t4"], "fit", raising(SourceRefused("raw.t4 has no column id.")))
        planned, error = plan(shop)
    sentence = (
        "2 of 6 tables have failed:\n- public.t1: There is no column id in public.t1."
        "\n- public.t4: raw.t4 has no column id."
    )
    assert str(error) == sentence
    assert isinstance(error, AirflowFailException)
    assert names(planned) == ["t0", "t2", "t3", "t5"]
    with pytest.raises(AirflowFailException, match=re.escape(sentence)):
        lane(shop, planned).execute(context())
    with pytest.raises(AirflowFailException, match=re.escape(sentence)):
        verify(shop, planned).execute(context())
    assert shop.hydration_of("t1").failure == "There is no column id in public.t1."
    good = ["t0", "t2", "t3", "t5"]
    assert {shop.hydration_of(name).phase for name in good} == {Phase.STEADY_STATE}
    assert shop.touched() == set(good)

    asked = []
    for name, source in shop.sources.items():
        monkeypatch.setattr(source, "snapshot", _noting(asked, name, source.snapshot))
    planned, error = plan(shop)
    assert (sorted(asked), error) == (["t1", "t4"], None)
    assert names(planned) == [f"t{number}" for number in range(6)]
    assert lane(shop, planned).execute(context()) == {"tables": 2, "committed": 6}
    assert shop.touched() == {"t1", "t4"}
    given = context()
    assert verify(shop, planned).execute(given) == {"tables": 6, "rows": 180}
    # Airflow has kept no event of the try that failed.
    assert len(given["outlet_events"][hydrations_of("dag")].asset_alias_events) == 6
    assert {one.failure for one in shop.ledger.hydrations()} == {None}


def _noting(asked: list[str], name: str, method: Any) -> Any:
    def note(*args, **values):
        asked.append(name)
        return method(*args, **values)

    return note


def test_a_whole_run_that_is_cleared_plans_again(shop):
    """After all of it was done it is no retry: each table is looked at."""
    planned, _ = plan(shop)
    lane(shop, planned).execute(context())
    verify(shop, planned).execute(context())
    for source in shop.sources.values():
        source.keys = range(40)
    with pytest.raises(AirflowSkipException):
        PlanSnapshotOperator(task_id="plan_snapshot", **shop.flow).execute(context())


def test_what_may_pass_is_tried_again_by_airflow(shop, monkeypatch):
    """The error is none of Airflow's that ends the task for good, and no failure is shown while a try is left."""
    given = context()
    given["ti"].try_number, given["ti"].max_tries = 1, 2
    monkeypatch.setattr(shop.sources["t2"], "snapshot", raising(SourceUnavailable("The source does not answer.")))
    planned, error = plan(shop, given)
    assert isinstance(error, TablesFailed)
    assert len(planned["planned"]) == 5
    assert shop.hydration_of("t2").failure is None


def test_a_range_that_fails_stops_its_table_alone(shop):
    """It has used up its attempts; the verification names it with the same cause, and a retry drains only that."""
    planned, _ = plan(shop)
    shop.runner.each["t3"].failures[1] = [RangeFailed("The disk is full.")] * 3
    sentence = "1 of 6 tables have failed:\n- public.t3: Range 1 failed 3 times; the last time: The disk is full."
    with pytest.raises(TablesFailed, match=re.escape(sentence)):
        lane(shop, planned).execute(context())
    with pytest.raises(AirflowFailException, match=re.escape(sentence)):
        verify(shop, planned).execute(context())
    assert shop.hydration_of("t3").failure is not None
    shop.touched()
    assert lane(shop, planned).execute(context())["committed"] == 1
    assert shop.touched() == {"t3"}
    assert verify(shop, planned).execute(context()) == {"tables": 6, "rows": 180}


def test_a_verification_that_fails_is_of_one_table(shop, monkeypatch):
    planned, _ = plan(shop)
    lane(shop, planned).execute(context())
    with monkeypatch.context() as broken:
        broken.setattr(shop.sinks["t5"], "complete", raising(SinkUnavailable("The sink does not answer.")))
        with pytest.raises(TablesFailed, match=r"1 of 6 tables have failed:\n- public.t5: The sink does not answer"):
            verify(shop, planned).execute(context())
    verified = [name for name in shop.sinks if shop.hydration_of(name).holder is None]
    assert verified == ["t0", "t1", "t2", "t3", "t4"]
    assert verify(shop, planned).execute(context())["tables"] == 6


@pytest.mark.statement("L4")
def test_a_range_that_was_opened_again_is_read_by_a_cleared_run(shop):
    """L4: a verified table is done only as long as nobody plans a range of it again."""
    planned, _ = plan(shop)
    lane(shop, planned).execute(context())
    verify(shop, planned).execute(context())
    found = shop.hydration_of("t4")
    (record, *_) = shop.ledger.ranges(found.plan.plan_id)
    repair(shop.ledger, shop.sources["t4"], shop.sinks["t4"], found.plan, record, who="me")
    shop.touched()
    with pytest.raises(AirflowFailException, match=r"public\.t4: 1 of 3 ranges are not committed yet"):
        verify(shop, planned).execute(context())
    planned, _ = plan(shop)
    assert lane(shop, planned).execute(context())["committed"] == 1
    assert shop.touched() == {"t4"}
    verify(shop, planned).execute(context())
    assert sorted(shop.sinks["t4"].rows) == list(range(30))


def test_a_verification_that_is_cleared_compares_all_tables_again(shop, monkeypatch):
    """Its events say that they were compared."""
    planned, _ = plan(shop)
    lane(shop, planned).execute(context())
    verify(shop, planned).execute(context())
    compared = list[str]()

    def note(task: Any, context: Any, opened: Any, *args: Any) -> None:
        compared.append(opened.sink.identity)

    monkeypatch.setattr(VerifyHydrationOperator, "_report", note)
    assert verify(shop, planned, verify="target").execute(context())["tables"] == 6
    assert len(compared) == 6


def test_lanes_share_the_tables_of_a_snapshot(shop):
    """A snapshot lives in one task: each table is one lane's, and all are drained."""
    flow = {"lanes": 3}
    planned, _ = plan(shop, consistency="snapshot")
    done = [lane(shop, planned, lane_index=index, **flow).execute(context(map_index=index)) for index in range(3)]
    assert sum(one["tables"] for one in done) == 6
    assert [len(source.keepers) for source in shop.sources.values()] == [1] * 6
    verify(shop, planned).execute(context())


def test_a_lane_drains_all_with_one_token(shop):
    """As many at once as there are tokens, one after the other where there is one: nothing waits for nothing."""
    shop.ledger.share(Shared.HYDRATIONS, "spark", 1, who="ada")
    planned, _ = plan(shop)
    assert lane(shop, planned).execute(context())["tables"] == 6


def test_a_table_that_a_person_has_paused_keeps_nobody_else(shop):
    """The others are drained first; then the task waits for that gate alone, without its slot."""
    planned, _ = plan(shop)
    for name in ("t1", "t4"):
        shop.ledger.pause(shop.hydration_of(name).id, who="ada")
    with pytest.raises(TaskDeferred) as deferred:
        lane(shop, planned).execute(context())
    waits = deferred.value.trigger.waits
    ids = [shop.hydration_of(name).id for name in ("t1", "t4")]
    assert sorted(wait["hydration_id"] for wait in waits) == sorted(ids)
    assert not any(wait["also"] for wait in waits), "each of them is waited for"
    assert shop.touched() == {"t0", "t2", "t3", "t5"}
    for id_ in ids:
        shop.ledger.resume(id_, who="ada")
    event = {"why": "open", "sentence": "the gate is open", "waited": 12.0, "hydration_ids": ids}
    task = lane(shop, planned)
    assert task.resume(context(), event)["committed"] == 6
    assert shop.touched() == {"t1", "t4"}


def test_another_run_is_waited_for(shop, monkeypatch):
    """Before anything is planned; the run that is over loses what it has."""
    plan(shop)
    shop.running.add("run")
    with pytest.raises(TaskDeferred) as deferred:
        PlanSnapshotOperator(task_id="plan_snapshot", **shop.flow).execute(context(run_id="next"))
    assert deferred.value.trigger.turn.run_id == "run"
    shop.running.clear()
    given = context(run_id="next")
    planned, _ = plan(shop, given)
    assert len(planned["planned"]) == 6
    assert {one.holder for one in shop.ledger.hydrations()} == {"next"}


def test_a_run_may_foretell_all_plans(shop):
    with pytest.raises(AirflowSkipException):
        PlanSnapshotOperator(task_id="plan_snapshot", **shop.flow).execute(context(conf={"backpressure": "plan"}))
    assert all(shop.ledger.preview(one.id) for one in shop.ledger.hydrations())
    assert {one.plan for one in shop.ledger.hydrations()} == {None}


@pytest.mark.parametrize("make", [lane, verify])
def test_tasks_need_what_was_planned(shop, make):
    with pytest.raises(InvalidDeclaration, match=re.escape('needs tables=plan.output["tables"]')):
        make(shop, None).execute(context())


def test_a_pattern_that_finds_no_table_fails(shop):
    flow = {**shop.flow, "source": replace(shop.flow["source"], tables="public.x*")}
    with pytest.raises(AirflowFailException, match=r"No table of shop_db that its login may read is called public\.x"):
        PlanSnapshotOperator(task_id="plan_snapshot", **flow).execute(context())


def test_tables_that_the_pattern_finds_no_more_are_named(shop, capsys):
    """As where the login has lost its right: with a warning, and as failed where ranges are open."""
    planned, _ = plan(shop)
    lane(shop, {**planned, "planned": planned["planned"][:5]}).execute(context())
    assert "not found by the pattern" not in capsys.readouterr().out
    for name in ("t4", "t5"):
        del TABLES[f"public.{name}"]
    given = context(run_id="next")
    planned, error = plan(shop, given)
    sentence = "2 tables that were planned before are not found by the pattern public.* now: public.t4, public.t5. Most"
    assert sentence in capsys.readouterr().out
    assert str(error).startswith(
        "1 of 5 tables have failed:\n- public.t5: The pattern public.* does not find it any more, and 3 of its ranges "
    )
    assert names(planned) == ["t0", "t1", "t2", "t3"]
    shop.ledger.forget(shop.hydration_of("t5").id)
    assert plan(shop, given)[1] is None
    assert "1 tables that were planned before are not found by the pattern public.* now: public.t4." in (
        capsys.readouterr().out
    )
    TABLES.update({f"other.t{number}": shop.sinks[f"t{number}"] for number in range(4)})
    plan(shop, context(run_id="third"), sink=replace(shop.flow["sink"], table="other.{table}"))
    assert "not found by the pattern" not in capsys.readouterr().out, "those of another group of tables"


def test_a_task_that_is_killed_ends_every_table_s_work(shop, monkeypatch):
    """Credits come back, as from a lane of one table."""
    planned, _ = plan(shop)
    task = lane(shop, planned)
    for runner in shop.runner.each.values():
        runner.held = True
    calls: list[str] = []

    def submitted(spec: Any, method: Any) -> Any:
        calls.append(spec.write.target)
        if len(calls) == 3:
            task.on_kill()
        return method(spec)

    original = RunnerOfMany.run
    monkeypatch.setattr(RunnerOfMany, "run", lambda self, spec: submitted(spec, lambda one: original(self, one)))
    with pytest.raises(Exception, match="Airflow ended the task"):
        task.execute(context())
    assert all(not shop.ledger.gate(one.id).in_flight for one in shop.ledger.hydrations())


def test_a_run_that_may_delete_lifts_the_limit_of_the_tables_that_were_stopped_for_it(shop):
    def run(name: str, wish: str | None = None) -> Any:
        given = context(run_id=name, conf={"backpressure": wish} if wish else None)
        planned, error = plan(shop, given, mode="mirror")
        for task in (lane(shop, planned), verify(shop, planned)):
            try:
                task.execute(given)
            except AirflowFailException as raised:
                error = raised
        return error

    assert run("first") is None
    shop.sources["t1"].keys = range(10)
    assert "t1 30: mirror would delete at least 20" in str(run("second"))
    shop.sources["t2"].keys = range(10)
    shop.sources["t3"].keys = range(100, 130)
    error = str(run("third", wish="allow_deletes"))
    assert "t2 30: mirror would delete at least 20" in error
    assert "public.t3: Range" in error
    assert "t1" not in error
    assert run("fourth", wish="allow_deletes") is None
    assert len(shop.sinks["t1"].rows) == len(shop.sinks["t2"].rows) == 10


@pytest.mark.parametrize("how", ["forgotten", "restored"])
def test_a_ledger_that_does_not_know_what_was_planned_is_no_success(shop, how):
    """What was planned is drained and verified, or named: also where the ledger is one of before the run."""
    flow = {"mode": "replace", "refresh": "each_run"}
    first, _ = plan(shop, **flow)
    lane(shop, first).execute(context())
    verify(shop, first).execute(context())
    backup = _driver_of(shop.ledger).serialize()
    given = context(run_id="next")
    planned, _ = plan(shop, given, **flow)
    assert len(names(planned)) == 6
    if how == "restored":
        _driver_of(shop.ledger).deserialize(backup)
    else:
        shop.ledger.forget(shop.hydration_of("t1").id)
    lane(shop, planned).execute(given)
    with pytest.raises((AirflowFailException, TablesFailed), match=r"public.t1: .*plan") as raised:
        verify(shop, planned).execute(given)
    assert str(raised.value).startswith(f"{1 if how == 'forgotten' else 6} of 6 tables have failed")


def _driver_of(ledger: Any) -> Any:
    with ledger._database.engine.connect() as connection:
        return connection.connection.driver_connection
