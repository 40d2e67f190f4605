"""Servers that let nobody in without TLS, by connections as Airflow has them: control side, gate and tasks alike."""

import json
import logging
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from airflow_provider_backpressure.cli.doctor import CHECKS
from airflow_provider_backpressure.core.config import ActiveSessions, Budget, Consistency, Retention, ThreadsRunning
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.health_signal_declarations import Figure, Watched
from airflow_provider_backpressure.core.verification.verifier import Verify
from airflow_provider_backpressure.exceptions import InvalidDeclaration, SourceRefused
from airflow_provider_backpressure.hooks.source_and_sink_connections import endpoint
from airflow_provider_backpressure.runners.connect_runner import ConnectRunner
from airflow_provider_backpressure.sources import KafkaSource, MySQLSource, PostgresSource
from dev.servers.server import HOST
from dev.services import Server, Services
from tests.conftest import endpoint_of
from tests.support import mysql as on_mysql
from tests.support.certificates import Authority, Signed
from tests.support.composed import Composed
from tests.support.kafka import ComposedKafka, Topic
from tests.support.kept import stands_in
from tests.support.postgres import new_role, run
from tests.support.waiting import until

pytestmark = pytest.mark.integration

SECRET = "scram-secret-word"


@dataclass(frozen=True, kw_only=True)
class Trust:
    """Whom clients trust, whom they do not, and what servers and clients show."""

    ca: Path
    stranger: Path
    server: Signed
    client: Signed


@pytest.fixture(scope="module")
def trust(tmp_path_factory: pytest.TempPathFactory) -> Trust:
    """Certificates for the module's servers and clients."""
    folder = tmp_path_factory.mktemp("trust")
    authority, stranger = Authority.made(folder), Authority.made(folder, "stranger")
    return Trust(
        ca=authority.certificate,
        stranger=stranger.certificate,
        server=authority.sign("server"),
        client=authority.sign("client"),
    )


@pytest.fixture(scope="module")
def broker(services: Services, trust: Trust, tmp_path_factory: pytest.TempPathFactory) -> Server:
    """A broker whose second listener wants TLS, the client's certificate and a SCRAM login."""
    store, trusted = (tmp_path_factory.mktemp("store") / name for name in ("server.pem", "trusted.pem"))
    trusted = store.with_name("trusted.pem")
    store.touch(mode=0o600)
    store.write_text(trust.server.both)
    shutil.copy(trust.ca, trusted)
    settings = {
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,LOGIN:SASL_SSL",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "listener.name.login.scram-sha-512.sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        ),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(store),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(trusted),
        "listener.name.login.ssl.client.auth": "required",
    }
    server = services.up("kafka:tls", settings={"kafka": settings})["kafka:tls"]
    account = UserScramCredentialUpsertion(
        "reader", ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096), SECRET.encode()
    )
    admin = AdminClient({"bootstrap.servers": server.url, "log_level": 0})
    for future in admin.alter_user_scram_credentials([account]).values():
        future.result(30)
    return server


def scram(broker: Server, trust: Trust, **changes: Any) -> dict[str, Any]:
    """The fields of a connection of Airflow's to the broker's second listener."""
    extra = {
        "bootstrap.servers": f"{HOST}:{broker.login_port}",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "reader",
        "sasl.password": SECRET,
        "ssl.ca.location": str(trust.ca),
        "ssl.certificate.location": str(trust.client.certificate),
        "ssl.key.location": str(trust.client.key),
    }
    return {"conn_type": "kafka", "extra": {name: value for name, value in {**extra, **changes}.items() if value}}


def made(monkeypatch: pytest.MonkeyPatch, **fields: Any) -> Endpoint:
    """Return the endpoint that the hooks make of a connection."""
    monkeypatch.setenv("AIRFLOW_CONN_SECURED", json.dumps(fields))
    return replace(endpoint("secured", fields["conn_type"]), conn_id="source")


def hydrated(composed: Composed, connect: Server, watched: Watched) -> None:
    """Plan, look at the source's health, copy and verify against the source, each over connections of its own."""
    logins = {
        "source": replace(composed.source, conn_id="source"),
        "sink": replace(composed.sink, conn_id="sink"),
    }
    with closing(ConnectRunner(connect.url, logins)) as runner, composed.open(runner) as ports:
        ports.planner().plan()
        with closing(ports.source.health([watched], seconds=30)) as health:
            (seen,) = health.look().values()
            assert isinstance(seen, Figure)
        ports.hydrator().run()
        report = ports.verifier().verify(ports.ledger.ranges(ports.plan.plan_id), Verify.FULL)
        assert (report.rows, report.mismatches) == (100, ())
        ports.ledger.finish(ports.hydration.id)


def everything_in(ledger_url: str, database: Endpoint) -> str:
    """Return all that the ledger and the target hold, as text."""
    address, _, name = ledger_url.rpartition("@")[2].partition("/")
    texts = []
    for place in (replace(database, database=name, host=address.partition(":")[0]), database):
        tables = run(place, "SELECT schemaname, tablename FROM pg_tables WHERE schemaname IN ('public', 'raw')")
        for schema, table in tables:
            texts += [text for (text,) in run(place, f'SELECT t::text FROM "{schema}"."{table}" t')]
    return "\n".join(texts)


def composed(made: type[Composed], source: Endpoint, sink: Endpoint, ledger_url: str, **fields: Any) -> Composed:
    """Return a hydration into a table of its own."""
    budget = Budget(credits=2, range_rows=50)
    return made(source=source, sink=sink, ledger_url=ledger_url, remote="", budget=budget, **fields)


@pytest.mark.statement("X5")
def test_a_topic_over_tls_and_scram(
    broker: Server,
    trust: Trust,
    connect: Server,
    database: Endpoint,
    ledger_url: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """X5: planner, gate and tasks come in by the connection's own settings, and no secret is left anywhere."""
    topic = Topic(servers=broker.url).create(2)
    for partition in (0, 1):
        topic.send(partition, *range(50))
    source = made(monkeypatch, **scram(broker, trust))
    with caplog.at_level(logging.DEBUG):
        hydrated(composed(ComposedKafka, source, database, ledger_url, table=topic.name), connect, Retention(hours=1))
    left = everything_in(ledger_url, database) + caplog.text + repr(source)
    assert topic.name in left
    for secret in (SECRET, trust.client.key.read_text().splitlines()[1]):
        assert not stands_in(secret, left)
    answers, _ = CHECKS["kafka"](source)
    assert f"Kafka answers reader at {HOST}:{broker.login_port}" in answers


@pytest.mark.statement("X5")
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sasl.password": "wrong-word"}, "does not let reader in: .*invalid credentials"),
        ({"sasl.username": "nobody"}, "does not let nobody in: .*invalid credentials"),
        ({"ssl.ca.location": "stranger"}, "does not let reader in: .*certificate"),
        ({"ssl.ca.location": "/no/such.pem"}, r"are none that a client takes: .* \(ssl\.ca\.location\)"),
        ({"ssl.certificate.location": None, "ssl.key.location": None}, "does not let reader in: .*alert"),
    ],
)
def test_what_a_broker_refuses_is_said_in_one_sentence(
    broker: Server, trust: Trust, monkeypatch: pytest.MonkeyPatch, changes: Mapping[str, str | None], words: str
) -> None:
    """X5: the wrong login, an authority nobody knows or has, no certificate; never a secret."""
    chosen = {name: str(trust.stranger) if value == "stranger" else value for name, value in changes.items()}
    source = KafkaSource(conn_id="source", topic="t").open(made(monkeypatch, **scram(broker, trust, **chosen)))
    with pytest.raises((SourceRefused, InvalidDeclaration), match=words) as refused:
        source.snapshot()
    assert "\n" not in str(refused.value)
    assert SECRET not in str(refused.value)
    assert "wrong-word" not in str(refused.value)


@pytest.fixture(scope="module")
def secured_postgres(postgres: Server, trust: Trust) -> Iterator[str]:
    """A role of whose members the session's PostgreSQL wants TLS and a client's certificate."""
    admin, group = endpoint_of(postgres, "postgres"), "tls_only"
    data = Path(run(admin, "SHOW data_directory")[0][0])
    files = {"ssl_ca_file": trust.ca, "ssl_cert_file": trust.server.certificate, "ssl_key_file": trust.server.key}
    for name, file in files.items():
        there, owner = data / f"test_{name}", data.stat()
        shutil.copyfile(file, there)
        there.chmod(0o600)
        os.chown(there, owner.st_uid, owner.st_gid)
        run(admin, f"ALTER SYSTEM SET {name} = 'test_{name}'")
    rules, before = data / "pg_hba.conf", (data / "pg_hba.conf").read_text()
    ours = f"hostssl all +{group} {HOST}/32 scram-sha-256 clientcert=verify-ca\nhost all +{group} all reject\n"
    rules.write_text(ours + before)
    run(admin, f"CREATE ROLE {group}", "ALTER SYSTEM SET ssl = on", "SELECT pg_reload_conf()")
    until(lambda: run(admin, "SHOW ssl") == [("on",)], timeout=30)
    yield group
    rules.write_text(before)
    for name in ("ssl", *files):
        run(admin, f"ALTER SYSTEM RESET {name}")
    run(admin, "SELECT pg_reload_conf()", f"DROP ROLE {group}")
    until(lambda: run(admin, "SHOW ssl") == [("off",)], timeout=30)


@pytest.fixture
def secured_role(secured_postgres: str, database: Endpoint) -> Iterator[Endpoint]:
    """A role with a table of its own in the test's database."""
    with new_role(database) as role:
        run(
            database,
            f"GRANT {secured_postgres}, pg_monitor TO {role.user}",
            f"GRANT CREATE ON DATABASE {database.database} TO {role.user}",
            "CREATE TABLE t (id bigint PRIMARY KEY, name text)",
            "INSERT INTO t SELECT i, 'row ' || i FROM generate_series(1, 100) i",
            f"GRANT SELECT ON t TO {role.user}",
        )
        yield role


def libpq(role: Endpoint, trust: Trust, **changes: str | None) -> dict[str, Any]:
    """The fields of a connection of Airflow's to PostgreSQL."""
    extra = {
        "sslmode": "verify-full",
        "sslrootcert": str(trust.ca),
        "sslcert": str(trust.client.certificate),
        "sslkey": str(trust.client.key),
    }
    return {**plain("postgres", role), "extra": {name: value for name, value in {**extra, **changes}.items() if value}}


def plain(kind: str, role: Endpoint) -> dict[str, Any]:
    """The fields of a connection of Airflow's to a database."""
    login = {"login": role.user, "password": role.password}
    return {"conn_type": kind, "host": role.host, "port": role.port, "schema": role.database, **login}


@pytest.mark.statement("X5")
def test_postgresql_over_tls(
    secured_role: Endpoint,
    trust: Trust,
    connect: Server,
    ledger_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """X5: source and target, by each extra that libpq has for it; the server lets nobody in otherwise."""
    place = made(monkeypatch, **libpq(secured_role, trust))
    there = composed(Composed, place, place, ledger_url, table="public.t")
    hydrated(there, connect, ActiveSessions(on="source", most=1_000))
    for changes, words in {
        ("sslmode", "disable"): "pg_hba.conf rejects",
        ("sslrootcert", str(trust.stranger)): "certificate verify failed",
        ("sslcert", None): "requires a valid client certificate",
    }.items():
        without = {"sslkey": None} if changes[1] is None else {}
        refused = made(monkeypatch, **libpq(secured_role, trust, **dict([changes]), **without))
        with closing(PostgresSource(conn_id="source", table="t").open(refused)) as source:
            with pytest.raises(SourceRefused, match=words) as said:
                source.snapshot()
            assert secured_role.password not in str(said.value)


@pytest.fixture(scope="module")
def secured_mysql(mysql: Endpoint, trust: Trust) -> Iterator[None]:
    """The session's MySQL with a certificate."""
    files = {"ssl_ca": trust.ca, "ssl_cert": trust.server.certificate, "ssl_key": trust.server.key}
    before = {name: value for name in files for _, value in on_mysql.run(mysql, f"SHOW VARIABLES LIKE '{name}'")}
    on_mysql.run(mysql, *(f"SET GLOBAL {name} = '{path}'" for name, path in files.items()), "ALTER INSTANCE RELOAD TLS")
    yield
    on_mysql.run(
        mysql,
        *(f"SET GLOBAL {name} = '{path}'" for name, path in before.items()),
        "ALTER INSTANCE RELOAD TLS NO ROLLBACK ON ERROR",
    )


def driver(role: Endpoint, trust: Trust, mode: str, **files: str) -> dict[str, Any]:
    """The fields of a connection of Airflow's to MySQL."""
    shown = {"ca": str(trust.ca), "cert": str(trust.client.certificate), "key": str(trust.client.key), **files}
    return {**plain("mysql", role), "extra": {"ssl_mode": mode, "ssl": {n: path for n, path in shown.items() if path}}}


@pytest.mark.statement("X5")
@pytest.mark.usefixtures("secured_mysql")
def test_mysql_over_tls(
    mysql_database: Endpoint,
    trust: Trust,
    connect: Server,
    database: Endpoint,
    ledger_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """X5: by each extra; an account that needs a client's certificate is let in by nothing else."""
    on_mysql.run(mysql_database, "CREATE TABLE t (id bigint PRIMARY KEY, name varchar(40))")
    rows = ", ".join(f"({number}, 'row {number}')" for number in range(100))
    on_mysql.run(mysql_database, f"INSERT INTO t VALUES {rows}")
    with on_mysql.new_role(mysql_database) as role:
        on_mysql.run(
            mysql_database,
            f"GRANT SELECT ON {mysql_database.database}.* TO '{role.user}'@'%'",
            f"ALTER USER '{role.user}'@'%' REQUIRE X509",
        )
        for mode in ("VERIFY_IDENTITY", "VERIFY_CA", "REQUIRED"):
            place = made(monkeypatch, **driver(role, trust, mode))
            with closing(MySQLSource(conn_id="source", table="t").open(place)) as source:
                assert source.snapshot(Consistency.STATIC).total == 100
        place = made(monkeypatch, **driver(role, trust, "VERIFY_IDENTITY"))
        there = composed(Composed, place, database, ledger_url, kind="mysql", table="t")
        hydrated(there, connect, ThreadsRunning(on="source", most=1_000))
        for fields, words in (
            (driver(role, trust, "DISABLED"), "does not let .* in"),
            (driver(role, trust, "VERIFY_CA", cert="", key=""), "does not let .* in"),
            (driver(role, trust, "VERIFY_CA", ca=str(trust.stranger)), "certificate verify failed"),
        ):
            with closing(MySQLSource(conn_id="source", table="t").open(made(monkeypatch, **fields))) as source:
                with pytest.raises(SourceRefused, match=words) as said:
                    source.snapshot(Consistency.STATIC)
                assert role.password not in str(said.value)
