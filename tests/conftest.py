"""Real services for the tests: started once by the first test that asks, ended with the session, also after a crash."""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_backpressure.core.endpoints import Endpoint
from dev.services import Server, Services
from tests.support import mysql as on_mysql
from tests.support.postgres import run

ROOMS = ("system", "integration/test_faucet.py", "integration/test_submit_runner.py", "chaos", "conformance")
"""What takes longest, in this order, each on one worker: the tests of a room share servers that take long to start."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the rooms that take longest, where several workers share the suite."""
    if not hasattr(config, "workerinput"):
        return
    places = [*ROOMS, ""]
    items.sort(key=lambda item: next(n for n, room in enumerate(places) if _place(item.nodeid).startswith(room)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Let two workers share the suite room by room, every other file being a room of its own."""
    from xdist.scheduler import LoadScopeScheduling

    class ByRoom(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            place = _place(nodeid)
            return next((room for room in ROOMS if place.startswith(room)), place)

    return ByRoom(config, log)


def _place(nodeid: str) -> str:
    """Return a test's file below ``tests``."""
    return nodeid.partition("::")[0].removeprefix("tests/")


@pytest.fixture(scope="session")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    """The session's servers; a watcher ends them should the session be killed."""
    home = tmp_path_factory.mktemp("services")
    running = Services(home, owner_pid=os.getpid())
    yield running
    running.down()


@pytest.fixture(scope="session")
def postgres(services: Services) -> Server:
    """A real PostgreSQL 18."""
    return services.up("postgres")["postgres"]


@pytest.fixture(scope="session")
def mysql(services: Services) -> Endpoint:
    """A real MySQL 8, as its root."""
    return endpoint_of(services.up("mysql")["mysql"], "mysql")


@pytest.fixture(scope="session")
def kafka(services: Services) -> Server:
    """A real Kafka broker."""
    return services.up("kafka")["kafka"]


@pytest.fixture(scope="session")
def connect(services: Services) -> Server:
    """A real Spark Connect server."""
    return services.up("connect")["connect"]


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
def fresh_database(server: Server) -> Iterator[Endpoint]:
    """Give a new database, dropped afterwards."""
    name, admin = f"test_{uuid.uuid4().hex[:12]}", endpoint_of(server, "postgres")
    run(admin, f"CREATE DATABASE {name}")
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


@pytest.fixture
def ledger_url(postgres: Server) -> Iterator[str]:
    """SQLAlchemy URL of a migrated ledger in a fresh database."""
    from airflow_provider_backpressure.ledger.migration import migrate

    with fresh_database(postgres) as endpoint:
        url = f"postgresql+psycopg://{endpoint.user}:{endpoint.password}@{endpoint.address}"
        migrate(url)
        yield url


@pytest.fixture
def repository() -> Path:
    """The root of the checkout."""
    return Path(__file__).parent.parent
