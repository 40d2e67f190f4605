"""The ledger on SQLite in memory: the tables and statements of a real one, without a file."""

import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from typing import Any

import sqlalchemy as sa

from airflow_provider_backpressure.ledger.manual_control import Publish, nobody
from airflow_provider_backpressure.ledger.models import metadata
from airflow_provider_backpressure.ledger.repository import SqlLedger
from airflow_provider_backpressure.ledger.sql_types import SQLITE_NOW


class MemoryLedger(SqlLedger):
    """A ledger within one process, empty at first. ``now`` is its database's clock. Threads share it one at a time."""

    def __init__(self, now: Callable[[], datetime] = lambda: datetime.now(UTC), *, publish: Publish = nobody) -> None:
        # One connection, for which threads wait: the database lives as long as it does.
        engine = sa.create_engine(
            "sqlite://", creator=_open_database, poolclass=sa.QueuePool, pool_size=1, max_overflow=0
        )

        def set_clock(_: Any, __: Any, statement: str, parameters: Any, *___: Any) -> tuple[str, Any]:
            if SQLITE_NOW in statement:
                moment = now().astimezone(UTC)
                statement = statement.replace(SQLITE_NOW, f"'{moment:%Y-%m-%d %H:%M:%S.%f}'")
            return statement, parameters

        sa.event.listen(engine, "before_cursor_execute", set_clock, retval=True)
        super().__init__(engine, publish=publish)


def _open_database() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", check_same_thread=False)
    connection.deserialize(_empty_database())
    return connection


@cache
def _empty_database() -> bytes:
    """Return the image of a database with all tables: a copy takes a fraction of the time that creating them does."""
    engine = sa.create_engine("sqlite://", poolclass=sa.StaticPool)
    metadata.create_all(engine)
    with engine.connect() as connection:
        driver: Any = connection.connection.driver_connection
        return bytes(driver.serialize())
