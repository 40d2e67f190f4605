"""Between two runs a trigger looks after a hydration: the policy at the limit of its log acts, and events are told."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, AsyncCallback, BaseNotifier, SyncCallback
from airflow.serialization.decoders import smart_decode_trigger_kwargs
from airflow.serialization.encoders import encode_trigger
from airflow.serialization.serialized_objects import DagSerialization

from airflow_provider_backpressure.assets import watch_source
from airflow_provider_backpressure.core.config import ActiveSessions, Budget, Consistency, Retention, SlotLag
from airflow_provider_backpressure.exceptions import (
    BackpressureError,
    InvalidDeclaration,
    SnapshotLost,
    SourceRefused,
    SourceUnavailable,
)
from airflow_provider_backpressure.ledger.tables import hydration as hydrations
from airflow_provider_backpressure.sinks import IcebergSink, PostgresSink
from airflow_provider_backpressure.sources import PostgresSource
from airflow_provider_backpressure.testing import MemorySource
from airflow_provider_backpressure.triggers.between_runs import IdleMaintenance
from airflow_provider_backpressure.triggers.event_callbacks import as_callbacks
from airflow_provider_backpressure.triggers.followed_sources_poller import Unread
from tests.support.world import TABLES, World
from tests.unit.triggers.test_new_data_event import fired, hydrated, trigger, world

__all__ = ["world"]
SENT: list[str] = []
BEHIND = SlotLag(bytes=100)


class Note(BaseNotifier):
    """Keeps what it would send, from a task's or the triggerer's process."""

    template_fields = ("text",)

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def notify(self, context) -> None:
        """See ``BaseNotifier.notify``."""
        SENT.append(f"sync {self.text}")


class AsyncNote(Note):
    """The same without blocking."""

    async def async_notify(self, context) -> None:
        """See ``BaseNotifier.async_notify``."""
        SENT.append(f"async {self.text}")


async def heard(*, context, prefix: str) -> None:
    SENT.append(prefix + context["backpressure_event"]["kind"])


async def broken(*, context) -> None:
    raise RuntimeError("mail is down")


TEXT = {"text": "{{ backpressure_event.kind }}: {{ backpressure_event.sentence }}"}


@dataclass
class Log:
    """A log that endangers its source, or was given up, as a test says."""

    trouble: list[BackpressureError] = field(default_factory=list)
    guarded: list[bool | None] = field(default_factory=list)

    def guard(self, *, replaying: bool | None) -> None:
        """See ``ChangeLog.guard``."""
        self.guarded.append(replaying)
        for error in self.trouble:
            raise error


@dataclass(kw_only=True)
class Logged(MemorySource):
    """A table whose log is kept."""

    kept: Log = field(default_factory=Log)

    def log(self, hydration_id: str) -> Log:  # type: ignore[override]
        """See ``Source.log``."""
        return self.kept


@pytest.fixture
def logged(world: World) -> World:
    """A hydration whose plan follows a log."""
    SENT.clear()
    world.source = TABLES["public.t"] = Logged(keys=list(range(20)))
    world.runner.source = world.source
    hydrated(world)
    plan = replace(world.plan, consistency=Consistency.CATCH_UP, position="100 0/64")
    world.ledger.take_over(world.hydration.id, plan)
    return world


def between(world: World, *callbacks, signals: Sequence[SlotLag] = ()) -> IdleMaintenance:
    return IdleMaintenance(
        source=world.flow["source"],
        budget=Budget(signals=tuple(signals)),
        callbacks=as_callbacks(callbacks),
    )


def looked(made: IdleMaintenance, world: World, *, working: bool = False, times: int = 1) -> None:
    async def look() -> None:
        for _ in range(times):
            unread = Unread(hydration=world.hydration, course=world.ledger.course(world.hydration.id))
            made.look(world.ledger, unread, working=working)
            await made.settle()

    asyncio.run(look())


def test_what_the_policy_finds_is_told_once_by_every_kind_of_callback(logged):
    """Until it is over; a callback that fails fails nothing."""
    made = between(
        logged,
        AsyncCallback(broken),
        AsyncCallback(AsyncNote, kwargs=TEXT),
        SyncCallback(Note, kwargs=TEXT),
        AsyncCallback(heard, kwargs={"prefix": "by a function: "}),
    )
    looked(made, logged)
    assert SENT == []
    logged.source.kept.trouble = [SourceRefused("The slot keeps 3.0 MiB of log.")]
    looked(made, logged, times=3)
    told = "data_at_risk: The slot keeps 3.0 MiB of log."
    assert SENT[:2] == [f"async {told}", f"sync {told}"]
    assert SENT[2:] == ["by a function: data_at_risk"]
    assert set(logged.source.kept.guarded) == {None}, "no run is under way"
    logged.source.kept.trouble = [SnapshotLost("The slot was dropped, as declared.")]
    looked(made, logged, times=2)
    assert SENT[3:] == [
        "async log_lost: The slot was dropped, as declared.",
        "sync log_lost: The slot was dropped, as declared.",
        "by a function: log_lost",
    ]


def test_a_lane_that_works_looks_itself(logged):
    """And what it has told is not told again: both note it in the ledger."""
    made = between(logged, AsyncCallback(AsyncNote, kwargs=TEXT), signals=[BEHIND])
    logged.source.figures[BEHIND.name] = 500.0
    logged.source.kept.trouble = [SourceRefused("The slot keeps 3.0 MiB of log.")]
    looked(made, logged, working=True)
    assert (SENT, logged.source.kept.guarded) == ([], [])
    logged.ledger.note(logged.hydration.id, {"data_at_risk": 0.0}, looked={"data_at_risk"})
    looked(made, logged)
    assert SENT == []
    assert logged.source.kept.guarded == [None]
    made.end()


def test_signals_that_warn_are_told_between_runs(logged):
    """F7: beside what the policy says, in one sentence."""
    made = between(logged, AsyncCallback(AsyncNote, kwargs=TEXT), signals=[BEHIND])
    logged.source.figures[BEHIND.name] = 50.0
    looked(made, logged)
    assert SENT == []
    made.end()
    logged.source.figures[BEHIND.name] = 500.0
    looked(made, logged)
    assert SENT == ["async data_at_risk: source slot lag 500 B >= 100 B"]
    made.end()


def test_a_source_that_is_away_is_neither_trouble_nor_its_end(logged, caplog):
    made = between(logged, AsyncCallback(AsyncNote, kwargs=TEXT))
    logged.source.kept.trouble = [SourceRefused("Full.")]
    looked(made, logged)
    logged.source.kept.trouble = [SourceUnavailable("It does not answer.")]
    looked(made, logged)
    assert "It does not answer." in caplog.text
    logged.source.kept.trouble = [SourceRefused("Full.")]
    looked(made, logged)
    assert SENT == ["async data_at_risk: Full."]


def test_where_nobody_is_to_be_told_it_stands_in_the_log_once(logged, caplog):
    """And nothing is noted: a lane's own listeners still hear of it."""
    made = between(logged)
    logged.source.kept.trouble = [SourceRefused("Full.")]
    looked(made, logged, times=3)
    assert [record.message for record in caplog.records if "Full." in record.message] == [
        f"data_at_risk of {logged.source.identity}: Full."
    ]
    hydration_id = logged.hydration.id
    with logged.ledger._database.read() as connection:
        assert hydrations.read_alerts(connection, hydration_id) == {}


def test_the_trigger_looks_after_its_hydration(logged):
    """By what it carries as JSON; while a run is under way nothing is asked."""
    logged.source.kept.trouble = [SourceRefused("Full.")]
    made = trigger(logged, on_event=as_callbacks(AsyncCallback(AsyncNote, kwargs=TEXT)))
    _, kwargs = made.serialize()
    again = type(made)(**json.loads(json.dumps(kwargs)))
    logged.running.add("another")
    logged.ledger.hold(logged.hydration.id, run="another")
    fired(again, seconds=0.3)
    assert SENT == []
    logged.running.clear()
    fired(again, seconds=0.3)
    assert SENT == ["async data_at_risk: Full."]


def test_what_cannot_travel_or_would_close_a_gate_is_refused_at_parse():
    source, sink = PostgresSource(conn_id="shop", table="public.t"), PostgresSink(conn_id="dwh", table="raw.t")
    with pytest.raises(InvalidDeclaration, match="and arguments, not Note"):
        watch_source(source, sink, on_event=Note("x"))
    with pytest.raises(InvalidDeclaration, match="ActiveSessions is none"):
        watch_source(source, sink, signals=[ActiveSessions(on="source", most=5)])
    asset = watch_source(source, sink, signals=[Retention(hours=6)], on_event=AsyncCallback(heard, {"prefix": ""}))
    (watcher,) = asset.watchers
    assert watcher.trigger.subject.signals[0]["hours"] == 6
    assert watcher.trigger.subject.on_event[0]["path"].endswith("test_between_runs.heard")


def test_airflow_carries_it_as_it_is():
    """A serialised DAG, and then a row of the triggerer's: what lies in lists would come as something else."""
    source = PostgresSource(conn_id="shop", table="public.t", columns=("a", "b"))
    sink = IcebergSink(table="raw.t", catalog={"name": "lake", "type": "sql", "uri": "sqlite://"})
    callback = AsyncCallback(heard, {"prefix": {"deep": ["x"]}})
    asset = watch_source(source, sink, signals=[Retention(hours=6)], on_event=callback)
    (declared,) = asset.watchers
    with DAG("carried", schedule=[asset]) as dag:
        EmptyOperator(task_id="only")
    ((_, carried),) = DagSerialization.from_dict(DagSerialization.to_dict(dag)).timetable.asset_condition.iter_assets()
    encoded = encode_trigger(carried.watchers[0].trigger)
    arguments = smart_decode_trigger_kwargs(json.loads(json.dumps(encoded["kwargs"])))
    assert (encoded["classpath"], arguments) == declared.trigger.serialize()
    assert type(declared.trigger)(**arguments).subject == declared.trigger.subject


def test_nothing_is_unread_of_a_followed_source_that_no_look_has_come_back_from(logged):
    """M10: a slow first look is no reason for a run. What was never planned is one, and what is not followed."""
    static = replace(logged.plan, consistency=Consistency.STATIC)
    assert not Unread(hydration=logged.hydration, course=None).any
    assert Unread(hydration=replace(logged.hydration, plan=static), course=None).any
    assert Unread(hydration=None, course=None).any
