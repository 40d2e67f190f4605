"""Topics read by executors that lack confluent-kafka: kafka-python travels with the job."""

import logging
import re
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_backpressure.connectors.kafka.connect import SUBSTITUTE
from airflow_provider_backpressure.connectors.kafka.tasks import kafka_python_client
from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.exceptions import InvalidDeclaration, RangeFailed, SourceRefused, SourceUnavailable
from airflow_provider_backpressure.runners.connect_runner import ConnectRunner
from dev.services import Server
from tests.support.composed import difference
from tests.support.kafka import PASSWORD, ComposedKafka, Topic, endpoint_of, login_of

pytestmark = pytest.mark.integration

ABSENT = """
import sys
from importlib.machinery import PathFinder

class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name == "kafka" else super().find_spec(name, path, target)

sys.meta_path[:] = [Without if finder is PathFinder else finder for finder in sys.meta_path]
raise ModuleNotFoundError("No module named 'confluent_kafka'", name="confluent_kafka")
"""
"""Of workers that have neither confluent-kafka nor kafka-python."""


@pytest.fixture
def bare(connect: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[ConnectRunner, Any]]:
    """A runner whose executors have no client of Kafka, and the logins it looks into."""
    # Workers of its own: what hides the module must reach no other session, as long as no other session has a job.
    monkeypatch.setattr("airflow_provider_backpressure.runners.connect_session.SHARED", {})
    hidden = tmp_path / "confluent_kafka.py"
    hidden.write_text(ABSENT)
    logins: dict[str, Endpoint] = {}
    with closing(ConnectRunner(connect.url, logins, ui_url=connect.ui_url)) as runner:
        runner._open().addArtifacts(str(hidden), pyfile=True)
        assert runner.probe(["confluent_kafka", "kafka"]).modules == {"confluent_kafka": None, "kafka": None}
        yield runner, logins


@pytest.fixture
def topic(kafka: Server) -> Topic:
    """Three partitions with records of every kind: compressed, in transactions, without key or value, with headers."""
    topic = Topic(servers=kafka.url).create(3)
    topic.send(0, *({"n": n, "text": "ä" * (n % 50)} for n in range(2_000)), key={"k": 1})
    with topic.producing(compression_type="gzip") as producer:
        topic.put(producer, 1, *(f"{n:06} ".encode() * 20 for n in range(3_000)), headers=[("a", b"1"), ("a", None)])
    topic.send(1, None, b"", b"\xff\x00", key=b"\xfe")
    for commit in (True, False, True):
        with topic.transaction(commit=commit) as producer:
            topic.put(producer, 2, *({"n": n, "commit": commit} for n in range(500)))
    with topic.transaction(commit=False) as producer:
        topic.put(producer, 2, {"at": "the end"})
    return topic


def hydrate(declared: ComposedKafka, runner: ConnectRunner | None = None) -> None:
    """Plan, drain, verify and end a hydration."""
    with declared.open(runner) as ports:
        ports.planner().plan()
        ports.hydrator().run()
        ports.ledger.finish(ports.hydration.id)


@pytest.mark.statement("V6")
def test_values_are_equal_and_the_log_says_what_it_costs(
    request: pytest.FixtureRequest,
    topic: Topic,
    kafka: Server,
    database: Endpoint,
    ledger_url: str,
    connect: Server,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """V6: everything that a record has, in ranges that end within batches and behind markers of transactions."""
    caplog.set_level(logging.WARNING, "airflow_provider_backpressure")
    source = endpoint_of(kafka)
    declared = ComposedKafka(
        source=source,
        sink=database,
        ledger_url=ledger_url,
        remote=connect.url,
        table=topic.name,
        target="raw.full",
        reading={"format": "raw"},
        budget=Budget(credits=2, range_rows=1_700),
    )
    hydrate(declared)
    assert caplog.messages == []
    # Not before: a job of a session that shares its workers fetches the files of all sessions that are open (4.1.3).
    runner, logins = request.getfixturevalue("bare")
    logins |= {"source": replace(source, conn_id="source"), "sink": replace(database, conn_id="sink")}
    hydrate(replace(declared, target="raw.bare"), runner)
    assert caplog.messages == [
        "The executors of spark lack confluent_kafka: kafka travels with each job and reads instead, "
        f"{SUBSTITUTE.cost}."
    ]
    assert difference(database, "raw.full", database, "raw.bare") == (0, 0)
    assert len(topic.committed()) == 6_003


def test_lost_records_are_refused_or_accepted(
    bare: tuple[ConnectRunner, Any], kafka: Server, database: Endpoint, ledger_url: str
) -> None:
    """Retention removes records between plan and range."""
    topic, source, (runner, logins) = Topic(servers=kafka.url).create(1), endpoint_of(kafka), bare
    topic.send(0, *({"n": n} for n in range(100)))
    declared = ComposedKafka(
        source=source, sink=database, ledger_url=ledger_url, remote="", table=topic.name, target="raw.refused"
    )
    logins |= {"source": replace(source, conn_id="source"), "sink": replace(database, conn_id="sink")}
    accepted = replace(declared, target="raw.accepted", reading={"accept_loss": True})
    for each in (declared, accepted):
        with each.open(runner) as ports:
            ports.planner().plan()
    topic.cut(0, 40)
    with declared.open(runner) as ports, pytest.raises((SourceRefused, RangeFailed), match=r"Offsets \[0, 40\)"):
        ports.hydrator().run()
    with accepted.open(runner) as ports:
        ports.hydrator().run()
        assert ports.ledger.counts(ports.plan.plan_id).committed == 1


def ask(endpoint: Endpoint, seconds: float) -> Exception:
    """Return the error of a task that looks at a topic, in a process of its own: kafka-python leaves sockets open."""
    kafka_python_client.SECONDS = seconds
    try:
        with kafka_python_client.identity(endpoint, {"topic": "t", "topic_id": "x" * 22}, "task") as check:
            check()
    except (SourceRefused, SourceUnavailable) as error:
        return error
    raise AssertionError("nothing was refused")


@pytest.mark.long
def test_errors_are_one_sentence(kafka: Server) -> None:
    """A wrong password, a broker that is gone, settings that kafka-python does not have: none shows the password."""
    wrong, gone = login_of(kafka, "wrong-" + PASSWORD), endpoint_of(kafka, host="127.0.0.1:1")
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        refused, unavailable = pool.map(ask, (wrong, gone), (5.0, 1.0))
    assert re.search("does not let backpressure in: Authentication failed|as after a refused login", str(refused))
    assert isinstance(unavailable, SourceUnavailable)
    other = endpoint_of(kafka, options={"security.protocol": "SASL_SSL", "sasl.oauthbearer.config": PASSWORD})
    with pytest.raises(InvalidDeclaration, match=r"sasl\.oauthbearer\.config, which kafka-python does") as unfit:
        kafka_python_client.settings(other, "task")
    for error in (refused, unavailable, unfit.value):
        assert PASSWORD not in str(error)
        assert "\n" not in str(error)
