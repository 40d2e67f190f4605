"""One suite over every source: in memory, PostgreSQL, MySQL, Kafka."""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass

import pytest

from airflow_provider_backpressure.core.ports import Source
from airflow_provider_backpressure.core.progress.source_position import Unit
from airflow_provider_backpressure.sources import KafkaSource, MySQLSource, PostgresSource
from airflow_provider_backpressure.testing import MemorySource
from tests.support import kafka, mysql, postgres

SERVERS = [pytest.param(name, marks=pytest.mark.integration) for name in ("postgres", "mysql", "kafka")]


@dataclass(kw_only=True)
class Subject:
    """A source under test, and what the port does not do with it."""

    source: Source
    unit: Unit
    write: Callable[[int], None]
    """Bring so many rows into it, each in a transaction of its own."""
    exact: bool
    """Whether each such row is one unit."""
    lose: Callable[[], None]
    """Take away what its first range is read from."""


@pytest.fixture(params=["memory", *SERVERS])
def subject(request: pytest.FixtureRequest) -> Iterator[Subject]:
    """Each source there is, over an empty table ``t``."""
    made: Subject = MAKERS[request.param](request)
    with closing(made.source):
        yield made


def _memory(request: pytest.FixtureRequest) -> Subject:
    keys: list[int] = []
    source = MemorySource(keys=keys)
    return Subject(
        source=source,
        unit=Unit.ROWS,
        write=lambda number: keys.extend(range(len(keys), len(keys) + number)),
        exact=True,
        lose=lambda: setattr(source, "columns", ()),
    )


def _postgres(request: pytest.FixtureRequest) -> Subject:
    endpoint = request.getfixturevalue("database")
    postgres.run(endpoint, "CREATE TABLE t (id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY, v text)")
    return Subject(
        source=PostgresSource(conn_id="test", table="t").open(endpoint),
        unit=Unit.BYTES,
        write=lambda number: [postgres.run(endpoint, "INSERT INTO t (v) VALUES ('x')") for _ in range(number)] and None,
        exact=False,
        lose=lambda: postgres.run(endpoint, "ALTER TABLE t DROP COLUMN v") and None,
    )


def _mysql(request: pytest.FixtureRequest) -> Subject:
    endpoint = request.getfixturevalue("mysql_database")
    mysql.run(endpoint, "CREATE TABLE t (id bigint PRIMARY KEY AUTO_INCREMENT, v text)")
    return Subject(
        source=MySQLSource(conn_id="test", table="t").open(endpoint),
        unit=Unit.TRANSACTIONS,
        write=lambda number: [mysql.run(endpoint, "INSERT INTO t (v) VALUES ('x')") for _ in range(number)] and None,
        exact=True,
        lose=lambda: mysql.run(endpoint, "ALTER TABLE t DROP COLUMN v") and None,
    )


def _kafka(request: pytest.FixtureRequest) -> Subject:
    server = request.getfixturevalue("kafka")
    topic = kafka.Topic(servers=server.url).create(partitions=2)
    # A producer waits until every partition has its leader.
    for partition in (0, 1):
        topic.send(partition, {"id": -1})
    return Subject(
        source=KafkaSource(conn_id="test", topic=topic.name).open(kafka.endpoint_of(server)),
        unit=Unit.OFFSETS,
        write=lambda number: [topic.send(each % 2, {"id": each}) for each in range(number)] and None,
        exact=True,
        lose=lambda: topic.cut(0, 1),
    )


MAKERS = {"memory": _memory, "postgres": _postgres, "mysql": _mysql, "kafka": _kafka}
