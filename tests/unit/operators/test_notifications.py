"""A lane tells notifiers of Airflow's: once, with templates, also of what becomes due while it waits without a slot."""

import time
from datetime import timedelta

import pytest
from airflow.sdk import BaseNotifier
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred

from airflow_provider_backpressure.core.progress.lag import Sight
from airflow_provider_backpressure.core.progress.notified_events import Kind
from airflow_provider_backpressure.core.progress.source_position import Unit
from airflow_provider_backpressure.exceptions import InvalidDeclaration, QuarantineFull
from airflow_provider_backpressure.ledger.tables import hydration as hydrations
from airflow_provider_backpressure.operators import HydrateOperator, PlanSnapshotOperator
from airflow_provider_backpressure.operators.lane_progress import Teller
from airflow_provider_backpressure.sinks import PostgresSink
from airflow_provider_backpressure.sources import PostgresSource
from airflow_provider_backpressure.task_groups import hydrate
from tests.support.world import World, context

SENT: list[str] = []


class Note(BaseNotifier):
    """Keeps what it would send."""

    template_fields = ("text",)

    def __init__(self, text: str = "{{ backpressure_event.kind }}: {{ backpressure_event.sentence }}") -> None:
        super().__init__()
        self.text = text

    def notify(self, context) -> None:
        """See ``BaseNotifier.notify``."""
        SENT.append(self.text)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    SENT.clear()
    made = World()
    made.install(monkeypatch)
    monkeypatch.setenv("AIRFLOW__BACKPRESSURE__GATE_CLOSED_SECONDS", "0.05")
    PlanSnapshotOperator(task_id="plan_snapshot", **made.flow).execute(context())
    return made


def lane(world: World, **values) -> HydrateOperator:
    return HydrateOperator(task_id="hydrate", on_event=[Note()], **world.flow, **values)


def deferred(operator: HydrateOperator, event=None) -> TaskDeferred:
    with pytest.raises(TaskDeferred) as found:
        operator.execute(context()) if event is None else operator.resume(context(), event)
    return found.value


def test_a_gate_that_stays_closed_is_told_once(world):
    """The task gives its slot back before it is due; the trigger wakes it for that, and then no more."""
    world.ledger.pause(world.hydration.id, who="ada", why="release night")
    operator = lane(world)
    first = deferred(operator)
    if first.trigger.wait.remind_after is not None:
        assert SENT == []
        time.sleep(first.trigger.wait.remind_after)
    second = deferred(operator, {"why": "closed", "sentence": "still closed", "waited": 0.1})
    assert SENT == ["gate_closed: paused by ada: release night"]
    assert second.trigger.wait.remind_after is None
    deferred(operator, {"why": "closed", "sentence": "still closed", "waited": 0.1})
    assert len(SENT) == 1
    world.ledger.resume(world.hydration.id, who="ada")
    operator.resume(context(), {"why": "open", "sentence": "open", "waited": 0.1})
    assert len(SENT) == 1


def test_each_event_renders_its_own_text(world):
    """A notifier renders its templates in itself: the second event must not send the first one's text."""
    teller = Teller(listeners=(Note(),), context=context(), ledger=world.ledger, closed_seconds=0, log=lane(world).log)
    for step, committed in enumerate([0, 1, 2, 3]):
        at = world.hydration.created_at + timedelta(seconds=10 * step)
        sight = Sight(at=at, unit=Unit.OFFSETS, known={0: 100 * step}, committed={0: committed}, working=True)
        course = world.ledger.record_sight(world.hydration.id, sight, least_seconds=5)
    teller.look(world.hydration, course)
    world.ledger.pause(world.hydration.id, who="ada")
    teller.look(world.hydration, course)
    teller.look(world.hydration, course)
    assert [text.partition(":")[0] for text in SENT] == [Kind.NOT_KEEPING_UP, Kind.GATE_CLOSED]


def test_a_full_quarantine_is_told_on_its_way_out(world):
    world.runner.failures[0] = [QuarantineFull("More than 3 rows cannot go into raw.t.")]
    with pytest.raises(AirflowFailException):
        lane(world).execute(context())
    assert SENT == ["quarantine_full: More than 3 rows cannot go into raw.t."]


def test_a_listener_that_fails_fails_nothing(world):
    """Callables are listeners too; the next one still hears of it."""
    heard = []

    def broken(given) -> None:
        raise RuntimeError("mail is down")

    teller = Teller(
        listeners=(broken, lambda given: heard.append(given["backpressure_event"]["kind"])),
        context=context(),
        ledger=world.ledger,
        closed_seconds=0,
        log=lane(world).log,
    )
    world.ledger.pause(world.hydration.id, who="ada")
    teller.look(world.hydration, None)
    assert heard == ["gate_closed"]


def test_without_listeners_nothing_is_written(world):
    HydrateOperator(task_id="hydrate", **world.flow).execute(context())
    hydration_id = world.hydration.id
    with world.ledger._database.read() as connection:
        assert hydrations.read_alerts(connection, hydration_id) == {}


def test_what_cannot_be_meant_is_refused_at_parse(world):
    with pytest.raises(InvalidDeclaration, match="takes notifiers and callables, not str"):
        HydrateOperator(task_id="hydrate", on_event="mail", **world.flow)
    source, sink = PostgresSource(conn_id="shop_db", table="t"), PostgresSink(conn_id="warehouse", table="t")
    with pytest.raises(InvalidDeclaration, match="no use with task_per_range"):
        hydrate(source, sink, spark_conn_id="spark", consistency="static", task_per_range=True, on_event=Note())
