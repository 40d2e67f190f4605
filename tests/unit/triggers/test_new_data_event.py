"""The trigger that says once that something is unread, and the poller that all of its kind share."""

import asyncio
import json
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from importlib import import_module

import pytest
from airflow.triggers.shared_stream import SharedStreamManager

from airflow_provider_backpressure.assets import hydration_asset, watch_source
from airflow_provider_backpressure.core.progress.lag import Sight, advance
from airflow_provider_backpressure.core.progress.source_position import Unit, Upstream
from airflow_provider_backpressure.exceptions import InvalidDeclaration, SourceUnavailable
from airflow_provider_backpressure.hooks import recorded_declaration as recorded
from airflow_provider_backpressure.operators import HydrateOperator, PlanSnapshotOperator, VerifyHydrationOperator
from airflow_provider_backpressure.sinks import DeltaSink, PostgresSink
from airflow_provider_backpressure.sources import KafkaSource, MySQLSource, PostgresSource
from airflow_provider_backpressure.testing import MemoryLedger, MemorySink, MemorySource
from airflow_provider_backpressure.triggers import UnreadTrigger, new_data_event
from airflow_provider_backpressure.triggers import followed_sources_poller as poller
from airflow_provider_backpressure.triggers import shared_ledger as ledger
from airflow_provider_backpressure.triggers.followed_sources_poller import Unread
from airflow_provider_backpressure.triggers.new_data_event import Debounce, Subject
from tests.conformance.ledger.support import commit, take
from tests.support.world import TABLES, MemoryTable, World, context
from tests.unit.core.monitoring.test_source_observer import planned_topic

NOON = datetime(2026, 7, 1, 12, tzinfo=UTC)


class Growing(MemorySource):
    """A rising table whose log counts its rows; it is asked by any number of threads."""

    increments: bool = True
    trouble: Exception | None = None

    def upstream(self) -> Upstream:
        """See ``Source.upstream``."""
        if self.trouble is not None:
            raise self.trouble
        return super().upstream()


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World(rows=20)
    made.source = Growing(keys=list(range(20)), increments=True)
    made.runner.source = made.source
    made.install(monkeypatch)
    TABLES["public.t"] = made.source
    monkeypatch.setattr(ledger, "get_shared_ledger", lambda address: made.ledger)
    monkeypatch.setattr(new_data_event, "under_way", lambda dag_id, run_id: run_id in made.running)
    monkeypatch.setattr(recorded, "classes", lambda: {"MemoryTable": MemoryTable})
    monkeypatch.setitem(recorded.SOURCES, "memory", lambda read, identity: made.flow["source"])
    monkeypatch.setitem(recorded.SINKS, "memory", lambda write, identity: made.flow["sink"])
    return made


def trigger(world: World, *, backpressure_conn_id="backpressure_default", interval=0.02, **values) -> UnreadTrigger:
    own = {"source": recorded.plain(world.flow["source"]), "sink": recorded.plain(world.flow["sink"])}
    subject = Subject(**{**own, **values}).to_json()
    return UnreadTrigger(subject=subject, backpressure_conn_id=backpressure_conn_id, interval=interval)


def hydrated(world: World, run: str = "run") -> None:
    PlanSnapshotOperator(task_id="plan", **world.flow).execute(context(run_id=run))
    HydrateOperator(task_id="hydrate", **world.flow).execute(context(run_id=run))
    VerifyHydrationOperator(task_id="verify", **world.flow).execute(context(run_id=run))


def fired(made: UnreadTrigger, *, acts=(), seconds: float = 0.4) -> list[dict]:
    """Return the events of some seconds; each act is followed by as many seconds more."""

    async def watched() -> list[dict]:
        events: list[dict] = []

        async def collect() -> None:
            async for event in made.run():
                events.append(event.payload)

        task = asyncio.ensure_future(collect())
        for act in (lambda: None, *acts):
            await asyncio.to_thread(act)
            await asyncio.sleep(seconds)
        assert not task.done() or task.result() is None
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        return events

    return asyncio.run(watched())


def test_it_is_rebuilt_from_what_it_serialises(world):
    made = trigger(world, again=3.0)
    path, kwargs = made.serialize()
    assert path == "airflow_provider_backpressure.triggers.unread.UnreadTrigger", "as stored rows have it"
    assert getattr(import_module(path.rpartition(".")[0]), UnreadTrigger.__name__) is UnreadTrigger
    assert UnreadTrigger(**json.loads(json.dumps(kwargs))).serialize() == (path, kwargs)
    with pytest.raises(TypeError, match="renamed"):
        trigger(world, renamed=1)


def test_triggers_of_a_ledger_share_one_poller(world):
    one, other = trigger(world), trigger(world, sink=recorded.plain(MemoryTable(conn_id="warehouse", table="other")))
    assert one.shared_stream_key() == other.shared_stream_key()
    assert one.shared_stream_key() != trigger(world, backpressure_conn_id="another").shared_stream_key()


@pytest.mark.statement("M13")
def test_airflows_own_manager_lets_them_share_one_poll(world, monkeypatch):
    """M13: two triggers in a triggerer, one poller; each has its own event."""
    opened = []
    monkeypatch.setattr(new_data_event, "Poller", lambda **given: opened.append(given) or poller.Poller(**given))
    other = recorded.plain(MemoryTable(conn_id="warehouse", table="other"))
    TABLES["other"] = MemorySink(identity="memory://other")
    triggers = [trigger(world), trigger(world, sink=other)]

    async def watched() -> list[dict]:
        manager = SharedStreamManager()
        streams = [
            made.filter_shared_stream(manager.subscribe(trigger_id=number, trigger=made, key=made.shared_stream_key()))
            for number, made in enumerate(triggers)
        ]
        found = await asyncio.wait_for(asyncio.gather(*(anext(stream) for stream in streams)), timeout=20)
        await manager.stop_all()
        return [event.payload for event in found]

    assert len(asyncio.run(watched())) == 2
    assert len(opened) == 1


def test_what_was_never_planned_is_said_once(world):
    """So a DAG that is scheduled on nothing else begins by itself."""
    assert fired(trigger(world)) == [{"hydration_id": None, "lag": None, "unit": None, "upstream": None}]


def test_nothing_is_said_while_a_run_is_under_way_or_a_person_has_paused(world):
    world.running.add("run")
    PlanSnapshotOperator(task_id="plan", **world.flow).execute(context())
    assert fired(trigger(world)) == []
    world.running.clear()
    world.ledger.pause(world.hydration.id, who="ada")
    assert fired(trigger(world)) == []
    world.ledger.resume(world.hydration.id, who="ada")
    assert len(fired(trigger(world))) == 1, "the run is over and has left something to do"


def test_what_was_committed_since_the_last_look_is_not_unread():
    """A run may end between two looks: its last commits must not bring another run that finds nothing."""
    ledger = MemoryLedger()
    hydration_id, plan_id = planned_topic(ledger, end=10)
    look = Sight(at=NOON, unit=Unit.OFFSETS, known={0: 10}, committed={0: 0})
    ledger.record_sight(hydration_id, look, least_seconds=1)
    assert poller._unread(ledger, ledger.hydration(hydration_id)).any
    take(ledger, hydration_id)
    commit(ledger, plan_id, 0)
    assert not poller._unread(ledger, ledger.hydration(hydration_id)).any


@pytest.mark.statement("M13", "T10")
def test_statistics_go_on_between_runs(world):
    """M13: the poller keeps frontiers fresh while no task runs; each source is asked once an interval."""
    hydrated(world)
    asked = world.source.asked
    fired(trigger(world, interval=0.1), acts=[lambda: world.source.keys.append(20)], seconds=1.0)
    assert 4 < world.source.asked - asked <= 21
    course = world.ledger.course(world.hydration.id)
    assert course.latest.known == {world.source.identity: 21}


def test_a_source_that_is_away_holds_nobody_up(world, caplog):
    hydrated(world)
    made = trigger(world)
    world.source.trouble = SourceUnavailable("It does not answer.")

    def back() -> None:
        world.source.trouble = None
        world.source.keys.append(20)

    fired(made, acts=[back])
    assert "It does not answer." in caplog.text
    assert world.ledger.course(world.hydration.id).latest.known == {world.source.identity: 21}


def seen(known: int, committed: int | None, seconds: int = 0):
    at = NOON + timedelta(seconds=seconds)
    done = None if committed is None else {0: committed}
    sight = Sight(at=at, unit=Unit.OFFSETS, known={0: known}, committed=done)
    return Unread(hydration=None, course=advance(None, sight, least_seconds=1))


def test_it_is_said_once_until_a_run_has_brought_something():
    debounce = Debounce(again=900)
    assert not debounce.due(seen(10, 10), now=0)
    assert debounce.due(seen(15, 10), now=10)
    assert not debounce.due(seen(15, 10), now=20)
    assert not debounce.due(seen(18, 10), now=30), "the run that was asked for brings that too"
    assert not debounce.due(seen(18, 18), now=40)
    assert debounce.due(seen(19, 18), now=50)


def test_what_has_led_to_nothing_is_said_again_after_a_while_if_more_has_come():
    debounce = Debounce(again=900)
    assert debounce.due(seen(15, 10), now=0)
    assert not debounce.due(seen(15, 10), now=1000)
    assert debounce.due(seen(16, 10), now=1000)
    assert not debounce.due(seen(17, 10), now=1100)


@pytest.mark.parametrize(
    "declaration",
    [
        KafkaSource(conn_id="k", topic="t", start=NOON, fields={"id": "bigint"}),
        KafkaSource(conn_id="k", topic="t", start={0: 7}),
        PostgresSource(conn_id="p", table="t", columns=("a", "b"), increment_column="a"),
        MySQLSource(conn_id="m", table="t", as_text=("a",)),
        PostgresSink(conn_id="p", table="t", key=("a",)),
        DeltaSink(path="/tmp/t"),
    ],
    ids=lambda one: type(one).__name__,
)
def test_declarations_travel_as_json(declaration):
    there = recorded.from_plain(json.loads(json.dumps(recorded.plain(declaration))))
    assert recorded.plain(there) == recorded.plain(declaration)
    assert type(there) is type(declaration)


def test_a_class_of_others_does_not_travel():
    with pytest.raises(InvalidDeclaration, match="no declaration"):
        recorded.from_plain({"class": "Popen", "args": "rm"})


def test_the_asset_is_another_than_that_of_the_commits():
    """A DAG scheduled on what it brings itself would never end."""
    source, sink = PostgresSource(conn_id="shop", table="public.t"), PostgresSink(conn_id="dwh", table="raw.t")
    asset = watch_source(source, sink)
    assert asset.uri != hydration_asset(source, sink).uri
    (watcher,) = asset.watchers
    assert isinstance(watcher.trigger, UnreadTrigger)
    with pytest.raises(InvalidDeclaration, match="not templates"):
        watch_source(PostgresSource(conn_id="shop", table="{{ params.t }}"), sink)
    with pytest.raises(InvalidDeclaration, match="one table"):
        watch_source(PostgresSource(conn_id="shop", tables=("a", "b")), sink)
