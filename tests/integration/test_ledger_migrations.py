"""The way to the ledger's tables: by Airflow's commands, by our own, from nothing and back."""

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.exceptions import LedgerRefused
from airflow_provider_backpressure.ledger.database import normalize_url
from airflow_provider_backpressure.ledger.migration import downgrade, migrate
from airflow_provider_backpressure.ledger.models import metadata
from airflow_provider_backpressure.ledger.repository import SqlLedger
from airflow_provider_backpressure.ledger.revision import REVISION, VERSION_TABLE
from tests.support import mysql

pytestmark = pytest.mark.integration

NAMES = set(metadata.tables)


@pytest.fixture(params=["sqlite", "postgresql", "mysql"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[sa.Engine]:
    """An empty database."""
    url = sa.make_url(f"sqlite:///{tmp_path / 'ledger.db'}")
    if request.param == "postgresql":
        place: Endpoint = request.getfixturevalue("database")
        url = sa.URL.create(
            "postgresql+psycopg",
            username=place.user,
            password=place.password,
            host=place.host,
            port=place.port,
            database=place.database,
        )
    elif request.param == "mysql":
        url = normalize_url(mysql.address(request.getfixturevalue("mysql_database")))
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    yield engine
    engine.dispose()


def schema(engine: sa.Engine) -> dict[str, Any]:
    """Return all that the database itself says of our tables."""
    inspector = sa.inspect(engine)
    return {
        name: {
            "columns": [{**column, "type": str(column["type"])} for column in inspector.get_columns(name)],
            "options": inspector.get_table_options(name),
            "primary key": inspector.get_pk_constraint(name),
            "unique": inspector.get_unique_constraints(name),
            "indexes": [
                {
                    **index,
                    "dialect_options": {key: str(value) for key, value in index.get("dialect_options", {}).items()},
                }
                for index in inspector.get_indexes(name)
            ],
        }
        for name in sorted(NAMES)
    }


def test_migrated_from_nothing_equals_made_from_the_models(engine):
    """Airflow makes a fresh database from the models and stamps it, so the two must never differ."""
    migrate(engine.url)
    with engine.connect() as connection:
        context = MigrationContext.configure(
            connection,
            opts={
                "version_table": VERSION_TABLE,
                "compare_type": True,
                "compare_server_default": True,
            },
        )
        assert compare_metadata(context, metadata) == []
    migrated = schema(engine)
    downgrade(engine.url, "base")
    metadata.create_all(engine)
    assert schema(engine) == migrated


def test_the_way_back_drops_what_the_way_there_made(engine):
    migrate(engine.url)
    downgrade(engine.url, "base")
    assert sa.inspect(engine).get_table_names() == [VERSION_TABLE]
    ledger = SqlLedger(engine.url)
    with pytest.raises(LedgerRefused, match="airflow db migrate"):
        ledger.hydrations()
    migrate(engine.url)
    assert ledger.hydrations() == []
    ledger.close()


def test_tables_of_others_are_left_alone(engine):
    """A ledger may live beside other tables, also beside those that look like its own."""
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE backpressure_mine (id integer)"))
        connection.execute(sa.text("CREATE TABLE alembic_version (version_num varchar(32))"))
    migrate(engine.url)
    downgrade(engine.url, "base")
    assert {"backpressure_mine", "alembic_version"} <= set(sa.inspect(engine).get_table_names())


class Airflow:
    """Airflow's commands over a home of its own, with its metadata on SQLite."""

    def __init__(self, home: Path) -> None:
        self.database = home / "airflow.db"
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")},
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "false",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{self.database}",
        }

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run ``airflow`` with these arguments; it may fail."""
        return subprocess.run(
            [sys.executable, "-m", "airflow", *arguments],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def must(self, *arguments: str) -> None:
        """Run ``airflow`` with these arguments; it must not fail."""
        done = self.run(*arguments)
        assert done.returncode == 0, done.stdout + done.stderr

    def query(self, statement: str) -> list[Any]:
        """Return the first column of what the metadata database answers."""
        connection = sqlite3.connect(self.database)
        try:
            rows = [row[0] for row in connection.execute(statement)]
            connection.commit()
            return rows
        finally:
            connection.close()

    def tables(self) -> set[str]:
        """Return the names of all tables."""
        return set(self.query("SELECT name FROM sqlite_master WHERE type = 'table'"))


@pytest.mark.long
@pytest.mark.timeout(900)
def test_airflows_own_commands_handle_our_tables(tmp_path):
    """``db migrate`` makes them, ``check-migrations`` looks at them, ``reset`` makes them again."""
    airflow = Airflow(tmp_path)
    airflow.must("db", "migrate")
    assert airflow.tables() >= NAMES | {VERSION_TABLE, "dag"}
    assert airflow.query(f"SELECT version_num FROM {VERSION_TABLE}") == [REVISION]
    ledger = SqlLedger(f"sqlite:///{airflow.database}")
    found = ledger.register(
        environment="test", source_identity="s", sink_identity="k", owner="dag", cluster="spark", credits=1
    )
    airflow.must("db", "migrate")
    airflow.must("db", "check-migrations", "-t", "5")
    assert ledger.hydrations() == [found], "a second migration keeps what is there"
    airflow.query(f"DELETE FROM {VERSION_TABLE}")
    assert airflow.run("db", "check-migrations", "-t", "1").returncode != 0
    airflow.must("db", "reset", "--yes")
    assert airflow.tables() >= NAMES | {VERSION_TABLE, "dag"}
    assert ledger.hydrations() == []
    ledger.close()
