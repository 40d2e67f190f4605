"""Real services for the tests: started once by the first test that asks, ended with the session, also after a crash."""

import os
import platform
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.terminal import TerminalReporter
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from airflow_provider_backpressure.core.endpoints import Endpoint
from dev.servers.registry import MISSING, find_java
from dev.services import Server, Services
from tests.support import faults
from tests.support import mysql as on_mysql
from tests.support.marks import without_spark
from tests.support.page import PageServer, page_server
from tests.support.postgres import run
from tests.support.standby import primary_and_standby

if TYPE_CHECKING:
    from tests.support.composed import Composed
    from tests.support.lakes import Cluster

# Most of what a JVM does in a short test is to compile itself; its first compiler takes half as long over it. By itself
# it then has 48 MiB for what it has compiled: a Spark server of one run of the lake tests fills that and ends.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC")

# How fast values are made up says something of the machine, and nothing of what is tested.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add what ``make chaos`` needs."""
    parser.addoption("--write-docs", action="store_true", help="write docs/reference/faults.md from this run")
    parser.addoption("--all-faults", action="store_true", help="fail unless every fault of the matrix was shown")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let reports tell which faults they show. Where tests get a second try, no oracle of theirs is asked twice."""
    faults.note(items)
    if config.getoption("reruns", None):
        again = pytest.mark.flaky(reruns=config.option.reruns, rerun_except=["AssertionError"])
        for item in items:
            if item.get_closest_marker("fault"):
                item.add_marker(again)


class FileScheduling(LoadScopeScheduling):
    """Gives each file to one process, and each suite that shares an Airflow as a whole."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::", 1)[0]
        return next((suite for suite in ("tests/browser", "tests/system") if file.startswith(suite)), file)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FileScheduling:
    """Return how tests are shared between processes, each of which has servers of its own."""
    return FileScheduling(config, log)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run that was to show every fault and did not, be it that one was skipped."""
    reporter: TerminalReporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if session.config.option.all_faults and not faults.Matrix.of(reporter.stats).complete:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: TerminalReporter, config: pytest.Config) -> None:
    """Print the matrix of faults where it was asked for, and in any case how much was simulated."""
    matrix = faults.Matrix.of(terminalreporter.stats)
    if "fault" not in config.option.markexpr:
        if matrix.schedules:
            terminalreporter.write_line(matrix.simulation)
        return
    terminalreporter.section("faults")
    for line in matrix.lines():
        terminalreporter.write_line(line)
    if config.option.write_docs:
        machine = (
            f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
        )
        faults.PAGE.write_text(faults.page(matrix, machine=machine))
        terminalreporter.write_line(f"written: {faults.PAGE}")


@pytest.fixture(scope="session")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    """The session's servers; a watcher ends them should the session be killed."""
    home = tmp_path_factory.mktemp("services")
    running = Services(home, owner_pid=os.getpid())
    yield running
    from tests.support.composed import close_runners

    close_runners()
    running.down()


@pytest.fixture(scope="session")
def page(services: Services, postgres: Server) -> Iterator[PageServer]:
    """An API server of Airflow with the page, over made-up hydrations on PostgreSQL."""
    with (
        fresh_database(postgres) as database,
        page_server(services.guest("page"), database) as made,
    ):
        yield made


@pytest.fixture(scope="session")
def postgres(services: Services) -> Server:
    """A real PostgreSQL 18."""
    return services.up("postgres")["postgres"]


@pytest.fixture(scope="session")
def pair(services: Services) -> Iterator[tuple[Endpoint, Endpoint]]:
    """A PostgreSQL and its standby, which says each second how far it is and which rows its snapshots still see."""
    settings = {"wal_receiver_status_interval": "1s", "hot_standby_feedback": "on"}
    with primary_and_standby(services, **settings) as (primary, standby):
        yield endpoint_of(primary, "postgres"), endpoint_of(standby, "postgres")


@pytest.fixture(scope="session")
def mysql(services: Services) -> Endpoint:
    """A real MySQL 8, as its root."""
    return endpoint_of(services.up("mysql")["mysql"], "mysql")


@pytest.fixture(scope="session")
def mariadb(services: Services) -> Endpoint:
    """A real MariaDB, as its root."""
    return endpoint_of(services.up("mariadb")["mariadb"], "mysql")


@pytest.fixture(scope="session")
def kafka(services: Services) -> Server:
    """A real Kafka broker."""
    return services.up("kafka")["kafka"]


@pytest.fixture(scope="session")
def registry(services: Services) -> Server:
    """A real schema registry, where a Java that runs it is installed."""
    if find_java() is None:
        (pytest.fail if os.environ.get("REGISTRY_TESTS") == "required" else pytest.skip)(MISSING)
    return services.up("registry")["registry"]


@pytest.fixture(scope="session")
def connect(services: Services) -> Server:
    """A real Spark Connect server."""
    return services.up("connect")["connect"]


@pytest.fixture(scope="session")
def lake_cluster(services: Services) -> "Cluster":
    """A real Spark Connect server with the connectors of Delta and Iceberg."""
    from dev.lake_connectors import SMALL, make_connector_conf
    from tests.support.lakes import Cluster

    folder, name = services.guest("lakes"), "connect:lakes"
    conf = {**SMALL, **make_connector_conf(folder)}
    server = services.up(name, jars=(), driver_memory="1500m", spark_conf=conf)[name]
    return Cluster(url=server.url, ui_url=server.ui_url, folder=folder)


def endpoint_of(server: Server, database: str, **changes: Any) -> Endpoint:
    """Return the endpoint of a database on a server, as its superuser unless changed."""
    values: dict[str, Any] = {
        "conn_id": "test",
        "host": server.host,
        "port": server.port,
        "database": database,
        "user": server.user,
        "password": server.password,
    }
    return Endpoint(**{**values, **changes})


@contextmanager
def fresh_database(server: Server, template: str = "template1") -> Iterator[Endpoint]:
    """Give a new database, dropped afterwards."""
    name, admin = f"test_{uuid.uuid4().hex[:12]}", endpoint_of(server, "postgres")
    run(admin, f"CREATE DATABASE {name} TEMPLATE {template}")
    yield endpoint_of(server, name)
    run(admin, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def database(postgres: Server) -> Iterator[Endpoint]:
    """A fresh database of its own."""
    with fresh_database(postgres) as endpoint:
        yield endpoint


@pytest.fixture
def mysql_database(mysql: Endpoint) -> Iterator[Endpoint]:
    """A fresh database of its own on MySQL."""
    with on_mysql.fresh_database(mysql) as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def migrated_mysql(mysql: Endpoint) -> Iterator[Endpoint]:
    """The session's ledger on MySQL, where tables take long to make: see ``mysql_ledger``."""
    from airflow_provider_backpressure.ledger.migration import migrate

    with on_mysql.fresh_database(mysql) as endpoint:
        migrate(on_mysql.address(endpoint))
        yield endpoint


@pytest.fixture
def mysql_ledger(migrated_mysql: Endpoint) -> Endpoint:
    """A migrated ledger on MySQL with nothing in it."""
    from airflow_provider_backpressure.ledger.models import metadata

    on_mysql.run(migrated_mysql, *(f"DELETE FROM {table}" for table in metadata.tables))
    return migrated_mysql


@pytest.fixture(scope="session")
def migrated_postgres(postgres: Server) -> Iterator[str]:
    """The name of a database with an empty ledger, from which others are copied."""
    from airflow_provider_backpressure.ledger.migration import migrate

    with fresh_database(postgres) as endpoint:
        migrate(_url(endpoint))
        assert endpoint.database
        yield endpoint.database


@pytest.fixture
def ledger_url(postgres: Server, migrated_postgres: str) -> Iterator[str]:
    """SQLAlchemy URL of an empty ledger in a database of its own."""
    with fresh_database(postgres, template=migrated_postgres) as endpoint:
        yield _url(endpoint)


def _url(endpoint: Endpoint) -> str:
    return f"postgresql+psycopg://{endpoint.user}:{endpoint.password}@{endpoint.address}"


@pytest.fixture
def hydration(database: Endpoint, ledger_url: str, request: pytest.FixtureRequest) -> "Composed":
    """``public.t`` of a fresh database into ``raw.t`` beside it; a test replaces what it has otherwise."""
    from tests.support.composed import IN_PROCESS, Composed

    here = Composed(source=database, sink=database, ledger_url=ledger_url, remote=IN_PROCESS)
    if without_spark(request.node):
        return here
    connect = request.getfixturevalue("connect")
    return replace(here, remote=connect.url, ui_url=connect.ui_url)


@pytest.fixture
def repository() -> Path:
    """The root of the checkout."""
    return Path(__file__).parent.parent
