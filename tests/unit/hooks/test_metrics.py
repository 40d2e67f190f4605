"""Metrics as they leave the process: caught by a real socket, as StatsD would."""

import json
import socket
from contextlib import closing
from datetime import timedelta

import pytest

from airflow_provider_backpressure.airflow_compat import initialize_metrics
from airflow_provider_backpressure.core.gate.signals import MemoryReading
from airflow_provider_backpressure.core.progress.lag import Sight
from airflow_provider_backpressure.core.progress.source_position import Unit
from airflow_provider_backpressure.core.push.channel_counters import PushCounts
from airflow_provider_backpressure.core.stage_metrics import Stage, StageTime, State
from airflow_provider_backpressure.hooks import metrics
from airflow_provider_backpressure.operators import HydrateOperator, PlanSnapshotOperator
from tests.support.world import World, context

# Airflow's client never closes its socket.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture
def statsd(monkeypatch: pytest.MonkeyPatch):
    """A socket that Airflow's StatsD client sends to."""
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(5)
        settings = {"statsd_on": "True", "statsd_host": "127.0.0.1", "statsd_port": str(server.getsockname()[1])}
        for name, value in settings.items():
            monkeypatch.setenv(f"AIRFLOW__METRICS__{name.upper()}", value)
        initialize_metrics()
        yield server
    monkeypatch.undo()
    initialize_metrics()


def received(server: socket.socket, last: str) -> dict[str, str]:
    """Return the gauges by name, up to the one that is sent last."""
    found: dict[str, str] = {}
    while last not in found:
        name, _, value = server.recv(65536).decode().partition(":")
        found[name] = value
    return found


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    made.install(monkeypatch)
    PlanSnapshotOperator(task_id="plan_snapshot", **made.flow).execute(context())
    return made


@pytest.mark.statement("M7")
def test_every_figure_leaves_under_its_documented_name(world, statsd):
    """M7: as gauges of StatsD; what is not known is not sent."""
    known = world.ledger
    metrics.send(known, world.hydration, None)
    before = received(statsd, "airflow.backpressure.sink.credits")
    assert before["airflow.backpressure.sink.snapshot_total"] == "100|g"
    assert not {name for name in before if name.endswith(("lag", "rate", "offset_known", "memory_used"))}
    for step in range(4):
        at = world.hydration.created_at + timedelta(seconds=10 * step)
        sight = Sight(at=at, unit=Unit.OFFSETS, known={0: 100 * step}, committed={0: 10 * step}, working=True)
        course = known.record_sight(world.hydration.id, sight, least_seconds=5)
    known.record_memory(world.hydration.id, MemoryReading(used_bytes=600, limit_bytes=1000, age_seconds=0))
    times = {Stage.SINK: StageTime(busy=3.0, idle=1.0), Stage.MAINTENANCE: StageTime(busy=1.0, idle=4.0)}
    known.record_flow(world.hydration.id, worker="lane", times=times)
    known.keep_push("process", json.dumps(PushCounts().values()))
    metrics.send(known, world.hydration, course)
    after = received(statsd, "airflow.backpressure.sink.push_lost")
    names = {name.removeprefix("airflow.backpressure.sink.") for name in after}
    unknown = {
        "catch_up_seconds",
        "push_observed_p99",
        *(f"{each}_{state}" for each in ("admit", "read") for state in State),
    }
    assert names == set(metrics.figures(known, world.hydration, course)) - unknown, "never is no number"
    values = {name.rpartition(".")[2]: value for name, value in after.items()}
    assert (values["upstream_rate"], values["process_rate"], values["lag"]) == ("10.0|g", "1.0|g", "270|g")
    assert (values["sink_busy"], values["sink_idle"], values["queue_position"]) == ("0.75|g", "0.25|g", "1|g")
    assert values["maintenance_busy"] == "0.2|g"
    assert values["push_published"] == "0|g"
    assert (values["not_keeping_up"], values["memory_used"]) == ("1.0|g", "600|g")


def test_a_lane_sends_them_while_it_runs(world, statsd):
    HydrateOperator(task_id="hydrate", **world.flow).execute(context())
    assert "airflow.backpressure.sink.snapshot_progress" in received(statsd, "airflow.backpressure.sink.credits")
