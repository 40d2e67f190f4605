"""A listener that wants OAUTHBEARER and a client's certificate, whose key has a password."""

import json
import logging
import shutil
import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_backpressure.cli.doctor import CHECKS
from airflow_provider_backpressure.connectors.kafka.tasks import kafka_python_client
from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.exceptions import BackpressureError, InvalidDeclaration, SourceRefused
from airflow_provider_backpressure.hooks.source_and_sink_connections import endpoint
from airflow_provider_backpressure.runners.connect_runner import ConnectRunner
from airflow_provider_backpressure.sources import KafkaSource
from dev.servers.server import HOST
from dev.services import Server, Services
from tests.integration.test_canaries import around, framed, shown_by
from tests.integration.test_kafka_pure import ABSENT
from tests.integration.test_tls import everything_in
from tests.support.certificates import Authority
from tests.support.kafka import ComposedKafka, Topic
from tests.support.oauth import JAAS, TokenServer, serving
from tests.support.postgres import run
from tests.support.processes import Processes

pytestmark = [
    pytest.mark.integration,
    pytest.mark.statement("R6"),
]

CLIENT = "reader"


@dataclass(frozen=True, kw_only=True)
class Secured:
    """The broker, and all that lets a client in."""

    broker: Server
    tokens: TokenServer
    key_password: str
    files: dict[str, str]

    @property
    def secrets(self) -> dict[str, str]:
        """All that nothing may show, tokens too."""
        # A token's claims: its first part is the same in all unsigned ones.
        issued = {f"token {number}": token.split(".")[1] for number, token in enumerate(self.tokens.issued)}
        return {"client": self.tokens.clients[CLIENT], "key": self.key_password, **issued}

    def connection(self, **changes: Any) -> dict[str, Any]:
        """Return the fields of Airflow's connection; a change to ``None`` leaves a setting out."""
        extra = {
            "bootstrap.servers": f"{HOST}:{self.broker.login_port}",
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": CLIENT,
            "sasl.oauthbearer.client.secret": self.tokens.clients[CLIENT],
            "sasl.oauthbearer.scope": "kafka",
            "sasl.oauthbearer.token.endpoint.url": self.tokens.url,
            "ssl.key.password": self.key_password,
            **self.files,
        }
        return {"conn_type": "kafka", "extra": {name: value for name, value in {**extra, **changes}.items() if value}}


@pytest.fixture(scope="module")
def secured(services: Services, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """A broker whose second listener wants a token and a client's certificate."""
    folder = tmp_path_factory.mktemp("trust")
    # Made while the tests run: found anywhere, it is a leak.
    key_password, secret = (f"canary-{name}-{uuid.uuid4().hex}" for name in ("key", "client"))
    authority = Authority.made(folder)
    server, client = authority.sign("server"), authority.sign("client", key_password)
    assert "ENCRYPTED" in client.key.read_text()
    store, trusted = folder / "store.pem", folder / "trusted.pem"
    store.touch(mode=0o600)
    store.write_text(server.both)
    shutil.copy(authority.certificate, trusted)
    settings = {
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,LOGIN:SASL_SSL",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "listener.name.login.oauthbearer.sasl.jaas.config": JAAS,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(store),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(trusted),
        "listener.name.login.ssl.client.auth": "required",
    }
    name = "kafka:oauth"
    with serving({CLIENT: secret}) as tokens:
        yield Secured(
            broker=services.up(name, settings={"kafka": settings})[name],
            tokens=tokens,
            key_password=key_password,
            files={
                "ssl.ca.location": str(authority.certificate),
                "ssl.certificate.location": str(client.certificate),
                "ssl.key.location": str(client.key),
            },
        )
        services.down(name)


def made(monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any]) -> Endpoint:
    """Return the endpoint that the hooks make of a connection."""
    monkeypatch.setenv("AIRFLOW_CONN_SECURED", json.dumps(fields))
    return replace(endpoint("secured", "kafka"), conn_id="source")


def hydrated(composed: ComposedKafka, runner: ConnectRunner) -> None:
    """Plan, drain and finish."""
    with composed.open(runner) as ports:
        ports.planner().plan()
        ports.hydrator().run()
        ports.ledger.finish(ports.hydration.id)


def logins(composed: ComposedKafka) -> dict[str, Endpoint]:
    """Return what a runner hands to its jobs."""
    return {name: replace(getattr(composed, name), conn_id=name) for name in ("source", "sink")}


def test_executors_are_let_in_and_nothing_shows_how(
    secured: Secured,
    connect: Server,
    database: Endpoint,
    ledger_url: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """R6: planner and tasks fetch tokens of their own, with the scope; `doctor` names the client."""
    topic = Topic(servers=secured.broker.url).create(2)
    for partition in (0, 1):
        topic.send(partition, *range(50))
    source = made(monkeypatch, secured.connection())
    composed = ComposedKafka(
        source=source,
        sink=database,
        ledger_url=ledger_url,
        remote="",
        table=topic.name,
        target="raw.by_oauth",
        budget=Budget(credits=2, range_rows=50),
    )
    with caplog.at_level(logging.DEBUG), closing(ConnectRunner(connect.url, logins(composed))) as runner:
        hydrated(composed, runner)
    assert run(database, "SELECT count(*) FROM raw.by_oauth") == [(100,)]
    assert len(secured.tokens.issued) >= 3, "of the planner, and of each range"
    assert secured.tokens.scopes == {"kafka"}
    answers, _ = CHECKS["kafka"](source)
    assert f"Kafka answers {CLIENT} at {HOST}:{secured.broker.login_port}" in answers
    seen = {
        "kept": everything_in(ledger_url, database).encode(),
        "logged": caplog.text.encode(),
        "shown": repr(source).encode(),
    }
    assert topic.name.encode() in seen["kept"]
    assert {name: found for name, secret in secured.secrets.items() if (found := around(secret, seen))} == {}


def open_bare(place: Endpoint) -> None:
    """Connect as a task does that lacks confluent-kafka."""
    with kafka_python_client.consumer(place, "task"):
        pass


def open_planner(place: Endpoint) -> None:
    """Connect as the planner does."""
    KafkaSource(conn_id="source", topic="t").open(place).snapshot()


@pytest.mark.parametrize("pure", [False, True], ids=["confluent-kafka", "kafka-python"])
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sasl.oauthbearer.client.secret": "wrong-canary"}, "401|invalid_client"),
        ({"ssl.key.password": "wrong-canary"}, "ssl.key|certificate|key"),
        ({"ssl.key.password": None}, "ssl.key|certificate|key"),
    ],
)
def test_what_is_wrong_is_one_sentence_without_the_secret(
    secured: Secured, monkeypatch: pytest.MonkeyPatch, changes: dict[str, str | None], words: str, pure: bool
) -> None:
    """R6: a wrong secret and a wrong password of a key, by both clients, in the error and in what its frames held."""
    place = made(monkeypatch, secured.connection(**changes))
    with pytest.raises(BackpressureError, match=words) as refused:
        (open_bare if pure else open_planner)(place)
    assert isinstance(refused.value, SourceRefused | InvalidDeclaration)
    assert "\n" not in str(refused.value)
    told = framed(refused.value)
    for secret in (*secured.secrets.values(), "wrong-canary"):
        assert secret not in told


@pytest.mark.long
def test_no_secret_is_left_where_spark_runs(
    services: Services,
    secured: Secured,
    database: Endpoint,
    ledger_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """R6: event log, Spark's pages and log, ledger, target, `ps`: by each of the two clients, and on failure."""
    topic = Topic(servers=secured.broker.url).create(1)
    topic.send(0, *({"id": number} for number in range(400)))
    events, name = tmp_path / "events", "connect:oauth"
    events.mkdir()
    conf = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": events.as_uri(),
    }
    server = services.up(name, spark_conf=conf)[name]
    source = made(monkeypatch, secured.connection())
    composed = ComposedKafka(
        source=source,
        sink=database,
        ledger_url=ledger_url,
        remote="",
        table=topic.name,
        target="raw.full",
        budget=Budget(credits=2, range_rows=100),
    )
    wrong = replace(source, conn_id="source", secrets={"ssl.key.password": f"wrong-{uuid.uuid4().hex}"})
    with caplog.at_level(logging.DEBUG), Processes().looking() as processes:
        with closing(ConnectRunner(server.url, logins(composed), ui_url=server.ui_url)) as runner:
            hydrated(composed, runner)
        failing = replace(composed, target="raw.failed")
        with (
            closing(ConnectRunner(server.url, {**logins(failing), "source": wrong}, ui_url=server.ui_url)) as runner,
            failing.open(runner) as ports,
        ):
            ports.planner().plan()
            with pytest.raises(BackpressureError) as raised:
                ports.hydrator().run()
            told = framed(raised.value)
        monkeypatch.setattr("airflow_provider_backpressure.runners.connect_session.SHARED", {})
        hidden = tmp_path / "confluent_kafka.py"
        hidden.write_text(ABSENT)
        bare = replace(composed, target="raw.bare")
        with closing(ConnectRunner(server.url, logins(bare), ui_url=server.ui_url)) as runner:
            runner._open().addArtifacts(str(hidden), pyfile=True)
            hydrated(bare, runner)
    for table in ("full", "bare"):
        assert run(database, f"SELECT count(*) FROM raw.{table}") == [(400,)]
    assert "kafka travels with each job" in caplog.text
    seen = shown_by(server, events)
    services.down(name)
    seen["kept"] = everything_in(ledger_url, database).encode()
    seen["logged"], seen["error"] = caplog.text.encode(), told.encode()
    assert b"SparkListenerJobEnd" in seen["events"]
    secrets = {**secured.secrets, "wrong": wrong.secrets["ssl.key.password"]}
    assert len(secrets) > 6
    assert {each: found for each, secret in secrets.items() if (found := around(secret, seen))} == {}
    assert processes.leaks(secrets) == {}
