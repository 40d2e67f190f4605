"""Counts and times keep their value on SQLite, and every dialect spells them."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.schema import CreateIndex, CreateTable

from airflow_provider_backpressure.ledger import models
from airflow_provider_backpressure.ledger.sql_types import Unsigned64, UtcDateTime, utc_now

TABLE = sa.Table(
    "t",
    sa.MetaData(),
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("n", Unsigned64),
    sa.Column("at", UtcDateTime),
)


@pytest.fixture
def connection():
    engine = sa.create_engine("sqlite://")
    with engine.connect() as connection:
        TABLE.create(connection)
        yield connection
    engine.dispose()


@pytest.mark.statement("M2")
def test_counts_keep_their_value_and_their_order(connection):
    """M2: unsigned 64-bit, also where the database has no such type."""
    counts = [0, 1, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1]
    connection.execute(sa.insert(TABLE), [{"n": count} for count in reversed(counts)])
    assert list(connection.scalars(sa.select(TABLE.c.n).order_by(TABLE.c.n))) == counts
    assert connection.scalar(sa.select(TABLE.c.id).where(TABLE.c.n == 2**64 - 1)) == 1
    assert connection.exec_driver_sql("SELECT sum(n) FROM t WHERE n < 9000000000000000000").scalar() == 2**53 + 2
    connection.execute(sa.insert(TABLE), [{"n": None}])
    assert connection.scalar(sa.select(TABLE.c.n).order_by(TABLE.c.id.desc()).limit(1)) is None


def test_times_come_back_aware_and_in_utc(connection):
    noon = datetime(2024, 1, 1, 12, 0, 0, 5, tzinfo=timezone(timedelta(hours=2)))
    connection.execute(sa.insert(TABLE), [{"at": noon}])
    found = connection.scalar(sa.select(TABLE.c.at))
    assert found == noon
    assert found.tzinfo is UTC


def test_the_databases_clock_compares_with_stored_times(connection):
    now = connection.scalar(sa.select(utc_now()))
    assert abs(now - datetime.now(UTC)) < timedelta(seconds=5)
    connection.execute(sa.insert(TABLE), [{"at": now - timedelta(milliseconds=1)}, {"at": now + timedelta(hours=1)}])
    assert list(connection.scalars(sa.select(TABLE.c.id).where(TABLE.c.at <= utc_now()))) == [1]


@pytest.mark.parametrize("dialect", [postgresql.dialect(), sqlite.dialect(), mysql.dialect()], ids=lambda d: d.name)
def test_every_table_can_be_spelled_in_every_dialect(dialect):
    """MySQL, which Airflow supports, gets microseconds and long text."""
    spelled = "\n".join(str(CreateTable(table).compile(dialect=dialect)) for table in models.metadata.sorted_tables)
    spelled += "\n".join(
        str(CreateIndex(index).compile(dialect=dialect))
        for table in models.metadata.sorted_tables
        for index in table.indexes
    )
    assert spelled.count("CREATE TABLE backpressure_") == len(models.metadata.tables)
    if dialect.name == "mysql":
        assert "DATETIME(6)" in spelled
        assert "MEDIUMTEXT" in spelled
    else:
        assert "WHERE state IN ('admitted', 'failed')" in spelled
