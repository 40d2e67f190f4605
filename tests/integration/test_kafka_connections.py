"""The example DAG's own declaration, opened from Airflow's connections, and what ``doctor`` says of them."""

import json
from pathlib import Path

import pytest

from airflow_provider_backpressure.base_operator import TransformTask
from airflow_provider_backpressure.cli.doctor import CHECKS
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.verification.verifier import Verify
from airflow_provider_backpressure.exceptions import SourceRefused
from airflow_provider_backpressure.hooks.hydration_session import Declaration
from airflow_provider_backpressure.hooks.recorded_declaration import declaration_of
from airflow_provider_backpressure.hooks.source_and_sink_connections import endpoint
from airflow_provider_backpressure.operators import PlanSnapshotOperator
from dev.services import Server
from tests.support.kafka import PASSWORD, Topic
from tests.support.postgres import run
from tests.support.world import context

pytestmark = pytest.mark.integration


@pytest.fixture
def connections(
    kafka: Server, connect: Server, database: Endpoint, ledger_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Airflow's connections as the example DAG names them."""
    host, _, port = connect.url.removeprefix("sc://").partition("/")[0].partition(":")
    address, _, name = ledger_url.rpartition("@")[2].partition("/")
    login = {"sasl.mechanism": "PLAIN", "sasl.username": kafka.user, "sasl.password": kafka.password}
    servers = {"bootstrap.servers": f"{kafka.host}:{kafka.login_port}", "security.protocol": "SASL_PLAINTEXT"}
    ledger_host, _, ledger_port = address.partition(":")
    owner = {"login": database.user, "password": database.password}
    found = {
        "EVENTS": {"conn_type": "kafka", "extra": {**servers, **login, "group.id": "other"}},
        "WAREHOUSE": {
            "conn_type": "postgres",
            "host": database.host,
            "port": database.port,
            "schema": database.database,
            **owner,
        },
        "BACKPRESSURE_DEFAULT": {
            "conn_type": "backpressure",
            "host": ledger_host,
            "port": int(ledger_port),
            "schema": name,
            **owner,
        },
        "SPARK_CONNECT_DEFAULT": {
            "conn_type": "spark_connect",
            "host": host,
            "port": int(port),
            "extra": {"ui_url": connect.ui_url},
        },
    }
    for conn_id, fields in found.items():
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id}", json.dumps(fields))


def example(repository: Path) -> Declaration:
    """Return what the example DAG's planner is told."""
    from airflow.dag_processing.dagbag import DagBag

    (dag,) = DagBag(str(repository / "dags" / "kafka_hydrate.py")).dags.values()
    (task,) = (task for task in dag.tasks if isinstance(task, PlanSnapshotOperator))
    assert isinstance(task, TransformTask)
    return task.declaration(context())


@pytest.mark.long
@pytest.mark.usefixtures("connections")
def test_the_example_hydrates_its_topic_and_follows_it(kafka: Server, database: Endpoint, repository: Path) -> None:
    """Through every hook: login by the connection's extra, ledger, Spark Connect, target; then an increment."""
    topic = Topic(servers=kafka.url, name="orders").create(3)
    declaration = example(repository)
    for count in (3, 2):
        for partition in range(3):
            topic.send(partition, *({"id": number} for number in range(count)), key=b"k")
        with declaration.open() as opened:
            planned = opened.planner().plan()
            assert planned.plan.total == 3 * count
            opened.hydrator(lane="lane", inline_wait=30.0).run()
            ranges = opened.ledger.ranges(planned.plan.plan_id)
            assert opened.verifier(planned.plan).verify(ranges, Verify.FULL).equal
            hydration = opened.ledger.finish(planned.hydration.id)
    assert run(database, 'SELECT count(*), count(DISTINCT ("partition", "offset")) FROM raw.orders') == [(15, 15)]
    again = declaration_of(hydration)
    with again.open() as opened:
        assert opened.find() == hydration
        assert opened.verifier(planned.plan).verify(opened.ledger.ranges(planned.plan.plan_id), Verify.FULL).equal
    topic.delete()


@pytest.mark.statement("X5", "X7")
@pytest.mark.usefixtures("connections")
def test_doctor_looks_at_a_broker(monkeypatch: pytest.MonkeyPatch, kafka: Server) -> None:
    """X5, X7: what answers and by which client; a refused login is a sentence without the password."""
    answers, client = CHECKS["kafka"](endpoint("events", *CHECKS))
    assert f"Kafka answers {kafka.user} at {kafka.host}:{kafka.login_port}: cluster" in answers
    assert "1 broker." in answers
    assert "librdkafka 2." in client
    events = {"conn_type": "kafka", "host": kafka.host, "port": kafka.login_port, "login": "x", "password": PASSWORD}
    extra = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
    monkeypatch.setenv("AIRFLOW_CONN_EVENTS", json.dumps({**events, "extra": extra}))
    with pytest.raises(SourceRefused, match="does not let x in") as refused:
        list(CHECKS["kafka"](endpoint("events", *CHECKS)))
    assert PASSWORD not in str(refused.value)
