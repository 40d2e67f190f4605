"""One suite over every ledger: in memory, SQLite, PostgreSQL, MySQL. The port's docstrings are what is tested."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from airflow_provider_backpressure.core.ports.ledger import Ledger
from airflow_provider_backpressure.testing import MemoryLedger
from tests.conformance.ledger.support import Subject, address, opened_sql
from tests.support import mysql
from tests.support.ledgers import new_ledger

SERVERS = [pytest.param(name, marks=pytest.mark.integration) for name in ("postgresql", "mysql")]


@pytest.fixture(params=["memory", "sqlite", *SERVERS])
def subject(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Subject]:
    """Each ledger there is, empty."""
    if request.param == "memory":
        memory = MemoryLedger()
        acts = lambda: [(act.who, act.action, act.why) for act in reversed(memory.controls())]  # noqa: E731
        yield Subject(ledger=memory, another=lambda: memory, audit=acts)
    else:
        yield from _on_tables(request, tmp_path)


@pytest.fixture(params=["sqlite", *SERVERS])
def on_tables(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Subject]:
    """Each ledger that several processes can share, empty."""
    yield from _on_tables(request, tmp_path)


@pytest.fixture(params=SERVERS)
def on_server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Subject]:
    """Each ledger in which one process may write while another is in a transaction, empty."""
    yield from _on_tables(request, tmp_path)


def _on_tables(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Subject]:
    if request.param == "mysql":
        yield from opened_sql(mysql.address(request.getfixturevalue("mysql_ledger")))
    elif request.param == "sqlite":
        yield from opened_sql(new_ledger(tmp_path / "ledger.db"))
    else:
        yield from opened_sql(request.getfixturevalue("ledger_url"))


@pytest.fixture
def ledger(subject: Subject) -> Ledger:
    return subject.ledger


@pytest.fixture(params=["sqlite", *SERVERS])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str | sa.URL:
    """A database without the ledger's tables."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'empty.db'}"
    if request.param == "mysql":
        return mysql.address(request.getfixturevalue("mysql_database"))
    return address(request.getfixturevalue("database"))
