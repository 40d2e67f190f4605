"""What only MySQL does: its session, its deadlocks, its errors in our words."""

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from typing import Any

import pymysql
import pytest
import sqlalchemy as sa

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.exceptions import LedgerRefused, LedgerUnavailable
from airflow_provider_backpressure.ledger.database import WAIT_SECONDS, Database
from airflow_provider_backpressure.ledger.repository import SqlLedger
from airflow_provider_backpressure.ledger.role_grants import TABLES, find_missing_rights, write_grants_on_mysql
from tests.conformance.ledger.support import admit, planned, register, take
from tests.support.mysql import address, new_role, run
from tests.support.waiting import until

pytestmark = pytest.mark.integration

WAITING = "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"


@pytest.fixture
def ledger(mysql_ledger: Endpoint) -> Iterator[SqlLedger]:
    with closing(SqlLedger(address(mysql_ledger))) as ledger:
        yield ledger


@pytest.fixture
def other(mysql_ledger: Endpoint) -> Iterator[Any]:
    """A session of somebody else's, within a transaction."""
    link = pymysql.connect(
        host=mysql_ledger.host,
        port=mysql_ledger.port,
        user=mysql_ledger.user,
        password=mysql_ledger.password,
        database=mysql_ledger.database,
    )
    with closing(link), link.cursor() as cursor:
        yield cursor


def test_a_transaction_that_a_deadlock_undid_is_begun_again(ledger, other, mysql_ledger, caplog):
    """InnoDB undoes the one that has written less; nobody above the ledger hears of it."""
    hydration_id, plan_id = planned(ledger)
    for _ in range(50):
        other.execute(
            "INSERT INTO backpressure_control (hydration_id, at, who, action) VALUES (%s, now(), 'me', 'x')", ("other",)
        )
    other.execute("SELECT seq FROM backpressure_range WHERE plan_id = %s AND seq = 0 FOR UPDATE", (plan_id,))
    with ThreadPoolExecutor(1) as pool, caplog.at_level(logging.DEBUG):
        permit = pool.submit(admit, ledger, hydration_id)
        until(lambda: run(mysql_ledger, WAITING)[0][0] == 1)
        other.execute("SELECT id FROM backpressure_hydration WHERE id = %s FOR UPDATE", (hydration_id,))
        other.execute("ROLLBACK")
        assert permit.result(timeout=30).range.seq == 0
    assert "Deadlock found" in caplog.text
    assert ledger.gate(hydration_id).in_flight == 1


def test_a_lock_that_is_not_given_is_unavailable_and_leaves_nothing(mysql_ledger, other):
    wait = "SET SESSION innodb_lock_wait_timeout = 1"
    with closing(SqlLedger(address(mysql_ledger).update_query_dict({"init_command": wait}))) as ledger:
        hydration_id, _ = planned(ledger)
        other.execute("SELECT seq FROM backpressure_range FOR UPDATE")
        with pytest.raises(LedgerUnavailable, match="does not answer: Lock wait timeout exceeded"):
            admit(ledger, hydration_id)
        other.execute("ROLLBACK")
        assert ledger.gate(hydration_id).in_flight == 0
        assert take(ledger, hydration_id).attempt == 1


def test_sessions_are_strict_patient_for_a_while_and_read_what_is_committed(mysql_ledger):
    """A frozen client's session, and with it its row lock, ends by ``wait_timeout``."""
    names = "innodb_lock_wait_timeout", "lock_wait_timeout", "wait_timeout"
    with closing(Database(address(mysql_ledger))) as database:
        with database.write() as connection:
            asked = ", ".join(f"@@session.{name}" for name in names)
            assert connection.exec_driver_sql(f"SELECT {asked}").one() == (WAIT_SECONDS,) * 3
            assert "STRICT_ALL_TABLES" in connection.exec_driver_sql("SELECT @@session.sql_mode").scalar_one()
            level = connection.exec_driver_sql("SELECT @@session.transaction_isolation").scalar_one()
            assert level == "READ-COMMITTED"
            with pytest.raises(sa.exc.DataError):
                connection.exec_driver_sql(
                    "INSERT INTO backpressure_control (hydration_id, at, who, action) "
                    f"VALUES ('{'x' * 33}', now(), 'me', 'x')"
                )
        with database.read() as connection:
            assert connection.exec_driver_sql("SELECT @@session.transaction_isolation").scalar_one() == level


@pytest.mark.statement("X5")
def test_a_refused_login_shows_no_password(mysql_ledger):
    """X5."""
    ledger = SqlLedger(address(replace(mysql_ledger, password="hunter-two")))
    with pytest.raises(LedgerUnavailable, match="does not answer: Access denied for user") as caught:
        ledger.hydrations()
    error: BaseException | None = caught.value
    while error is not None:
        assert "hunter-two" not in f"{error!r} {error}"
        error = error.__cause__


def test_a_lost_connection_is_unavailable_and_the_next_call_goes_well(ledger, mysql_ledger):
    """Ended while idle, the pool notices by itself; ended within a transaction, the call says so once."""
    hydration_id, plan_id = planned(ledger)

    def end(condition: str = "TRUE") -> None:
        find = "SELECT id FROM information_schema.processlist WHERE id <> connection_id() AND db = database()"
        for (number,) in run(mysql_ledger, f"{find} AND {condition}"):
            run(mysql_ledger, f"KILL {number}")

    end()
    assert ledger.hydration(hydration_id).id == hydration_id
    link = pymysql.connect(
        host=mysql_ledger.host, port=mysql_ledger.port, user="root", password=mysql_ledger.password, database="mysql"
    )
    with closing(link), link.cursor() as holder, ThreadPoolExecutor(1) as pool:
        holder.execute(f"SELECT seq FROM `{mysql_ledger.database}`.backpressure_range FOR UPDATE")
        permit = pool.submit(admit, ledger, hydration_id)
        until(lambda: run(mysql_ledger, WAITING)[0][0] == 1)
        end()
        with pytest.raises(LedgerUnavailable, match="does not answer"):
            permit.result(timeout=30)
    assert ledger.range(plan_id, 0).attempt == 0
    assert take(ledger, hydration_id).seq == 0


def test_a_role_has_the_rights_that_it_was_granted(mysql_ledger):
    """Without them it is told where to get them; with them a range can live its whole life."""
    with new_role(mysql_ledger) as role, closing(SqlLedger(address(role))) as ledger:
        with pytest.raises(LedgerRefused, match=r"too few rights .*airflow backpressure grants"):
            ledger.hydrations()
        assert len(find_missing_rights(address(role))) == 4 * len(TABLES)
        statements = write_grants_on_mysql(f"'{role.user}'@'%'", schema=mysql_ledger.database)
        run(mysql_ledger, *(statement.replace("DELETE ", "DROP ") for statement in statements))
        assert find_missing_rights(address(role)) == [f"DELETE on {table}" for table in TABLES]
        run(mysql_ledger, *statements)
        assert find_missing_rights(address(role)) == []
        hydration_id, plan_id = planned(ledger)
        record = take(ledger, hydration_id)
        ledger.pause(hydration_id, who="ada")
        assert ledger.release(plan_id, record.seq, attempt=1, error="again")


def test_a_plan_of_any_length_is_listed(ledger):
    """This one is longer than MySQL's TEXT, and than the buffer in which MySQL sorts what is listed."""
    hydration_id, _ = planned(ledger, 1, frontier={f"{number:0>300}": number for number in range(5_000)})
    register(ledger, source_identity="another")
    assert {found.id for found in ledger.hydrations()} >= {hydration_id}


@pytest.mark.statement("X5")
@pytest.mark.parametrize("scheme", ["mysql", "mysql+pymysql"])
def test_a_missing_driver_is_named(monkeypatch, scheme):
    """X5: with what to install."""
    monkeypatch.setattr("airflow_provider_backpressure.ledger.database.find_spec", lambda name: None)
    packages = "pymysql or MySQLdb" if scheme == "mysql" else "pymysql"
    with pytest.raises(LedgerRefused, match=rf"needs the Python package {packages}: `pip install .*\[mysql\]'`"):
        SqlLedger(f"{scheme}://u:hunter-two@nowhere/ledger")
