"""A database that cannot serve says so in one sentence."""

import uuid

import pytest
import sqlalchemy as sa
from alembic.script import ScriptDirectory

from airflow_provider_backpressure.exceptions import LedgerRefused, LedgerUnavailable
from airflow_provider_backpressure.ledger import database as module
from airflow_provider_backpressure.ledger import models
from airflow_provider_backpressure.ledger.database import normalize_url
from airflow_provider_backpressure.ledger.migration import MIGRATIONS, migrate
from airflow_provider_backpressure.ledger.repository import SqlLedger
from airflow_provider_backpressure.ledger.revision import REVISION
from tests.conformance.ledger.support import address, planned, register, take


@pytest.mark.statement("X5")
def test_missing_tables_say_what_to_do(url):
    """X5: one clear sentence, of a terminal kind, with its cause."""
    ledger = SqlLedger(url)
    for ask in (lambda: register(ledger), ledger.hydrations, lambda: ledger.gate("0" * 32)):
        with pytest.raises(LedgerRefused, match=r"tables are missing in .*: run `airflow db migrate`") as caught:
            ask()
        assert caught.value.__cause__ is not None
    ledger.close()


def test_tables_of_another_release_say_what_to_do(url):
    migrate(url)
    engine = sa.create_engine(normalize_url(url), poolclass=sa.NullPool)
    with engine.begin() as connection:
        connection.execute(sa.text("ALTER TABLE backpressure_hydration DROP COLUMN sampled_at"))
    ledger = SqlLedger(url)
    with pytest.raises(LedgerRefused, match="another version: run `airflow db migrate`"):
        register(ledger)
    ledger.close()


def test_a_ledger_is_migrated_twice_without_harm(url):
    migrate(url)
    ledger = SqlLedger(url)
    hydration_id = register(ledger)
    migrate(url)
    assert ledger.hydration(hydration_id).id == hydration_id
    ledger.close()


def test_a_caller_keeps_an_engine_of_its_own(url):
    """Only the ledger's own transactions take SQLite's write lock, and closing the ledger leaves the engine alone."""
    migrate(url)
    engine = sa.create_engine(normalize_url(url))
    ledger = SqlLedger(engine)
    hydration_id, _ = planned(ledger, 2)
    with engine.connect() as connection:
        assert connection.execute(sa.select(models.hydration.c.id)).scalar_one() == hydration_id
        assert take(ledger, hydration_id).seq == 0
    pool = engine.pool
    ledger.close()
    assert engine.pool is pool
    engine.dispose()


@pytest.mark.statement("X5")
@pytest.mark.integration
def test_a_refused_login_shows_no_password(database):
    """X5: the sentence names the place; the password stands nowhere, in no cause either."""
    ledger = SqlLedger(address(database, password="hunter-two"))
    with pytest.raises(LedgerUnavailable, match=r"does not answer: .*password authentication failed") as caught:
        ledger.hydrations()
    error: BaseException | None = caught.value
    while error is not None:
        assert "hunter-two" not in f"{error!r} {error}"
        error = error.__cause__
    assert f"{database.port}/{database.database}" in str(caught.value)
    assert "hunter-two" not in repr(ledger)


@pytest.mark.statement("X5")
def test_an_unreachable_ledger_is_unavailable(tmp_path):
    """X5: unreachable host, missing folder."""
    servers = [f"{kind}://u:hunter-two@127.0.0.1:1/nowhere" for kind in ("postgresql", "mysql")]
    for url in (*servers, f"sqlite:///{tmp_path}/no/such/folder.db"):
        with pytest.raises(LedgerUnavailable, match="does not answer") as caught:
            SqlLedger(url).hydrations()
        assert "hunter-two" not in str(caught.value)
        assert caught.value.__cause__ is not None


@pytest.mark.integration
def test_a_role_without_rights_is_told_where_to_get_them(database):
    import psycopg

    migrate(address(database))
    with psycopg.connect(
        host=database.host, port=database.port, user=database.user, password=database.password, dbname=database.database
    ) as connection:
        name = f"poor_{uuid.uuid4().hex[:8]}"
        connection.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'poor'")
    ledger = SqlLedger(address(database, username=name, password="poor"))
    with pytest.raises(LedgerRefused, match=r"too few rights .*airflow backpressure grants"):
        ledger.hydrations()
    ledger.close()


@pytest.mark.integration
def test_a_lost_connection_is_unavailable_and_the_next_call_goes_well(database):
    """A server that ended our sessions: the pool notices by itself."""
    import psycopg

    migrate(address(database))
    ledger = SqlLedger(address(database))
    hydration_id = register(ledger)
    parameters = {"host": database.host, "port": database.port, "user": database.user, "password": database.password}
    with psycopg.connect(dbname=database.database, autocommit=True, **parameters) as connection:
        ended = connection.execute(
            "SELECT count(pg_terminate_backend(pid, 10000)) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        ).fetchone()
        assert ended[0] > 0
    assert ledger.hydration(hydration_id).id == hydration_id
    ledger.close()


@pytest.mark.integration
def test_a_connection_that_was_just_used_is_not_asked_whether_it_is_there(database, monkeypatch):
    """It would be a second round trip for each call; many tables make many calls."""
    migrate(address(database))
    ledger = SqlLedger(address(database))
    hydration_id = register(ledger)
    dialect, asked = ledger._database.engine.dialect, []
    ping = dialect.do_ping
    monkeypatch.setattr(module, "IDLE_SECONDS", 60.0)
    monkeypatch.setattr(dialect, "do_ping", lambda connection: asked.append(1) or ping(connection))
    ledger.hydration(hydration_id)
    assert not asked
    monkeypatch.setattr(module, "IDLE_SECONDS", 0.0)
    ledger.hydration(hydration_id)
    assert asked
    ledger.close()


@pytest.mark.parametrize(("version", "said"), [("0000", "run `airflow db migrate`"), ("9999", "upgrade airflow-prov")])
def test_a_ledger_of_another_version_is_refused_at_the_first_use(url, version, said):
    """A later release may have given rows a meaning that this one does not know; ``migrate`` leaves it alone too."""
    migrate(url)
    engine = sa.create_engine(normalize_url(url), poolclass=sa.NullPool)
    with engine.begin() as connection:
        connection.execute(sa.text(f"UPDATE alembic_version_backpressure SET version_num = '{version}'"))
    ledger = SqlLedger(url)
    for ask in (ledger.hydrations, lambda: register(ledger)):
        with pytest.raises(LedgerRefused, match=f"is of version {version}, and this release .*{REVISION}.*{said}"):
            ask()
    if version > REVISION:
        with pytest.raises(LedgerRefused, match=said):
            migrate(url)
    with engine.begin() as connection:
        connection.execute(sa.text(f"UPDATE alembic_version_backpressure SET version_num = '{REVISION}'"))
    assert ledger.hydrations() == [], "a process that lives on goes on once it is migrated"
    ledger.close()


def test_the_version_is_that_of_the_newest_migration():
    assert ScriptDirectory(str(MIGRATIONS)).get_heads() == [REVISION]
