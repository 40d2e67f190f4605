"""Names that a person never gives, and that a database takes: quotes, percent signs, semicolons, lines, 63 bytes.

Each goes the whole way, from the plan to what ``uninstall`` removes; an oracle of its own says what has arrived.
"""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_backpressure.connectors.mysql import identifiers as on_mysql_names
from airflow_provider_backpressure.connectors.postgres.identifiers import quote
from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.planning.catch_up_windows import check_caught_up
from airflow_provider_backpressure.core.planning.plan_result import Verdict
from airflow_provider_backpressure.core.verification.verifier import Verify
from airflow_provider_backpressure.ledger.migration import migrate
from airflow_provider_backpressure.runners.connect_runner import ConnectRunner
from dev.services import Server
from tests.support import mysql
from tests.support.composed import Composed, Ports
from tests.support.postgres import run

pytestmark = pytest.mark.integration

SCHEMA = "It\"s 100%s; DROP --\\ '{0}'\n$1 é"
TABLE = ("T\"able %(x)s %%\t'; --\\ {name} \n" + "ü" * 30)[:47]
KEY, NUMBER, TEXT, LAST = 'k"e%y', "v;'\\ --", "d{oc}\n$2 %(a)s", "%s"
ROWS = 300
SOURCE = f"{quote(SCHEMA)}.{quote(TABLE)}"
TARGET = f"{quote(SCHEMA[::-1])}.{quote(TABLE[::-1])}"


def once(ports: Ports, consistency: str) -> Verdict:
    """Do what a run of the DAG does, with every range verified against the source where it stands still."""
    planned = ports.planner().plan()
    ports.hydrator().run()
    while ports.planner().follow():
        ports.hydrator().run()
    if consistency == "catch_up":
        check_caught_up(ports.plan, ports.sink)
    else:
        how = Verify.TARGET if consistency == "snapshot" else Verify.FULL
        report = ports.verifier().verify(ports.ledger.ranges(ports.plan.plan_id), how)
        assert (report.rows, report.mismatches) == (ROWS, ())
    ports.sink.complete(ports.plan)
    ports.sink.publish(ports.plan)
    ports.ledger.finish(ports.hydration.id)
    return planned.verdict


def of_postgres(database: Endpoint) -> None:
    """Make the source."""
    run(
        database,
        f"CREATE SCHEMA {quote(SCHEMA)}",
        f"CREATE TABLE {SOURCE} ({quote(KEY)} bigint PRIMARY KEY, {quote(NUMBER)} int, {quote(TEXT)} text,"
        f" {quote(LAST)} varchar(20))",
        f"INSERT INTO {SOURCE} SELECT i, i % 7, 'x%s' || i, NULL FROM generate_series(1, {ROWS}) i",
        f"ANALYZE {SOURCE}",
    )


def arrived(database: Endpoint) -> Counter[Any]:
    """The target's rows."""
    return Counter(run(database, f"SELECT * FROM {TARGET}"))


@pytest.mark.parametrize(
    ("mode", "consistency", "transform"),
    [
        ("append", "static", None),
        ("append", "snapshot", "SELECT * FROM source"),
        # ``catch_up`` upserts too.
        pytest.param("upsert", "static", None, marks=pytest.mark.long),
        ("replace", "static", None),
        ("upsert", "catch_up", None),
    ],
)
def test_names_of_postgresql_stay_names(
    database: Endpoint,
    connect: Server,
    ledger_url: str,
    runner: ConnectRunner,
    logins: dict[str, Endpoint],
    tmp_path: Path,
    mode: str,
    consistency: str,
    transform: str | None,
) -> None:
    """By every mode, with and without a transform; then the ledger is lost, and in the end nothing of ours is left."""
    assert max(len(name.encode()) for name in (SCHEMA, TABLE)) == 63
    of_postgres(database)
    logins.update({name: replace(database, conn_id=name) for name in ("source", "sink")})
    composed = Composed(
        source=database,
        sink=database,
        ledger_url=ledger_url,
        remote=connect.url,
        table=SOURCE,
        target=TARGET,
        mode=mode,
        consistency=consistency,
        transform=transform,
        quarantine=5 if transform else None,
        budget=Budget(credits=2, range_rows=100),
    )
    with composed.open(runner) as ports:
        assert once(ports, consistency) is Verdict.PLANNED
        assert arrived(database) == Counter(run(database, f"SELECT * FROM {SOURCE}"))
        if consistency == "catch_up":
            run(
                database,
                f"UPDATE {SOURCE} SET {quote(NUMBER)} = 99, {quote(LAST)} = '%s' WHERE {quote(KEY)} < 9",
                f"UPDATE {SOURCE} SET {quote(KEY)} = 1000 WHERE {quote(KEY)} = 20",
                f"DELETE FROM {SOURCE} WHERE {quote(KEY)} > 290 AND {quote(KEY)} < 300",
            )
            assert once(ports, consistency) is Verdict.PLANNED
            assert arrived(database) == Counter(run(database, f"SELECT * FROM {SOURCE}"))
            ports.source.log(ports.hydration.id).drop()
            assert run(database, "SELECT count(*) FROM pg_publication") == [(0,)]
    if (mode, consistency) == ("append", "static"):
        fresh = f"sqlite:///{tmp_path / 'fresh.db'}"
        migrate(fresh)
        with replace(composed, ledger_url=fresh).open(runner) as ports:
            assert ports.planner().plan().verdict is Verdict.RESUMED
            record = ports.ledger.ranges(ports.plan.plan_id)[0]
            assert ports.sink.discard(ports.plan, record.slice_id, record.bounds) == record.rows
    with composed.open(runner) as ports:
        assert ports.sink.traces() != ()
        ports.sink.erase()
        assert ports.sink.traces() == ()
    left = run(database, "SELECT relname FROM pg_class WHERE relname LIKE 'backpressure%'")
    assert left == []


MYSQL_TABLE = ("T`able %(x)s %%'; --\\ {name} \"\n" + "ü" * 64)[:64]


@pytest.mark.parametrize(("mode", "consistency"), [("append", "static"), ("upsert", "catch_up")])
def test_names_of_mysql_stay_names(
    mysql_database: Endpoint,
    database: Endpoint,
    connect: Server,
    ledger_url: str,
    runner: ConnectRunner,
    logins: dict[str, Endpoint],
    mode: str,
    consistency: str,
) -> None:
    """As in PostgreSQL; the target has the source's columns."""
    mine = on_mysql_names.quote
    key, last = "k`e%y", "%s"
    schema = f"{mysql_database.database} `%s; --'"
    place = f"{mine(schema)}.{mine(MYSQL_TABLE)}"
    mysql.run(
        mysql_database,
        f"CREATE DATABASE {mine(schema)}",
        f"CREATE TABLE {place} ({mine(key)} bigint PRIMARY KEY, {mine(NUMBER)} int, {mine(TEXT)} text,"
        f" {mine(last)} varchar(20))",
        f"INSERT INTO {place} WITH RECURSIVE n AS (SELECT 1 i UNION ALL SELECT i + 1 FROM n WHERE i < {ROWS})"
        " SELECT i, i MOD 7, CONCAT('x%s', i), NULL FROM n",
    )
    logins.update({"source": replace(mysql_database, conn_id="source"), "sink": replace(database, conn_id="sink")})
    composed = Composed(
        source=mysql_database,
        sink=database,
        ledger_url=ledger_url,
        remote=connect.url,
        kind="mysql",
        table=place,
        target=TARGET,
        mode=mode,
        consistency=consistency,
        budget=Budget(credits=2, range_rows=100),
    )
    try:
        with composed.open(runner) as ports:
            once(ports, consistency)
            assert arrived(database) == Counter(mysql.run(mysql_database, f"SELECT * FROM {place}"))
            if consistency == "catch_up":
                mysql.run(
                    mysql_database,
                    f"UPDATE {place} SET {mine(NUMBER)} = 99, {mine(last)} = '%s' WHERE {mine(key)} < 9",
                    f"DELETE FROM {place} WHERE {mine(key)} > 290",
                )
                assert once(ports, consistency) is Verdict.PLANNED
                assert arrived(database) == Counter(mysql.run(mysql_database, f"SELECT * FROM {place}"))
    finally:
        mysql.run(mysql_database, f"DROP DATABASE {mine(schema)}")
