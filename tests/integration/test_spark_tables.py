"""PostgreSQL into tables that Spark's own connectors write, over a real Spark Connect server."""

import secrets
import signal
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_backpressure.connectors.lake.spark.commit_notes import note_of_fence
from airflow_provider_backpressure.connectors.lake.spark.sql_session import SqlSession
from airflow_provider_backpressure.connectors.lake.spark.table import open_table
from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.endpoints import NOWHERE, Endpoint
from airflow_provider_backpressure.core.failpoints import VARIABLE, Step
from airflow_provider_backpressure.core.planning.plan_result import Verdict
from airflow_provider_backpressure.core.verification.verifier import Verify
from airflow_provider_backpressure.runners.connect_runner import ConnectRunner
from dev.services import Server
from tests.chaos.test_ordered_lakes import said
from tests.integration.test_lakes import compose, hydrate, source_rows, upsert_changes
from tests.support import duck
from tests.support.composed import Composed
from tests.support.kafka import Topic, endpoint_of
from tests.support.lakes import Cluster
from tests.support.ledgers import new_ledger
from tests.support.postgres import run

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def runner(lake_cluster: Cluster, logins: dict[str, Endpoint]) -> Iterator[ConnectRunner]:
    """One session for all tests of the module, as a lane has one for all ranges."""
    with closing(ConnectRunner(lake_cluster.url, logins, ui_url=lake_cluster.ui_url)) as runner:
        yield runner


@pytest.fixture(params=["delta", "iceberg"])
def composed(
    request: pytest.FixtureRequest,
    database: Endpoint,
    ledger_url: str,
    lake_cluster: Cluster,
    logins: dict[str, Endpoint],
) -> Composed:
    """The hydration into a new table of each format; two tasks read a range."""
    into = lake_cluster.place(request.param, f"t_{uuid.uuid4().hex[:8]}", tasks=2)
    return compose(database, ledger_url, logins, lake_cluster, into)


@pytest.mark.statement("K1", "X1")
@pytest.mark.long
def test_every_row_arrives_with_its_values(
    composed: Composed, runner: ConnectRunner, database: Endpoint, lake_cluster: Cluster
) -> None:
    """K1, X1: two ranges at once, two tasks each; by count, by checksum, and by value with the format's own reader."""
    verdict, report = hydrate(composed, runner, Verify.TARGET)
    assert (verdict, report.rows, report.mismatches) == (Verdict.PLANNED, 2500, ())
    assert lake_cluster.rows(composed.into) == source_rows(database)

    run(database, "INSERT INTO sales (id, code) SELECT i, 'later' FROM generate_series(2501, 2600) i", "ANALYZE sales")
    verdict, report = hydrate(composed, runner, Verify.TARGET)
    assert (verdict, report.rows, report.mismatches) == (Verdict.PLANNED, 100, ())
    assert lake_cluster.rows(composed.into) == source_rows(database)


@pytest.mark.statement("K1", "X1")
@pytest.mark.long
@pytest.mark.parametrize("format_", ["delta", "iceberg"])
def test_ranges_that_commit_at_the_same_moment_are_all_in(lake_cluster: Cluster, format_: str) -> None:
    """K1, X1: at their first try, by one session: what one range has read of the table is not changed by another."""
    with closing(SqlSession(replace(NOWHERE, conn_id="spark", password=lake_cluster.url))) as opened:
        session = opened.get()
        for _ in range(8):
            name = lake_cluster.place(format_, f"t_{uuid.uuid4().hex[:8]}")["table"]
            open_table(session, format_, name)
            session.sql(f"CREATE TABLE {name} (id bigint) USING {format_}").collect()
            rows, moment = session.range(0, 100, 1, 1), threading.Barrier(2)

            def publish(seq: int, name: str = name, rows: Any = rows, moment: threading.Barrier = moment) -> list[str]:
                tokens = []
                for attempt in range(2):
                    table = open_table(session, format_, name)
                    note = note_of_fence("plan", f"{seq}.{attempt}", 1)
                    moment.wait(60)
                    table.publish(replace(note, nonce=secrets.randbelow(2**52)), rows)
                    tokens += [note.token] if note.token in table.state().present else []
                return tokens

            with ThreadPoolExecutor(2) as threads:
                found = [token for tokens in threads.map(publish, range(2)) for token in tokens]
            assert len(found) == 4
            assert session.table(name).count() == 400


@pytest.mark.statement("X1")
@pytest.mark.long
def test_changed_rows_are_merged(
    composed: Composed, runner: ConnectRunner, database: Endpoint, lake_cluster: Cluster
) -> None:
    """X1: under ``upsert``, by one MERGE for each range, two ranges at once."""
    upsert_changes(composed, runner, database, lambda: lake_cluster.rows(composed.into))


@pytest.mark.statement("K2", "X1", "X2")
@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.fault(3)
def test_a_topic_is_upserted_in_its_order(
    composed: Composed, runner: ConnectRunner, kafka: Server, lake_cluster: Cluster, tmp_path: Path
) -> None:
    """K2, X1, X2: by one MERGE for each range, with a lane that is killed behind a commit, then without the ledger."""
    topic = Topic(servers=kafka.url).create(2)
    expected = said(topic)
    composed = replace(
        composed,
        source=endpoint_of(kafka),
        table=topic.name,
        kind="kafka",
        reading={},
        consistency="offsets",
        mode="upsert",
        budget=Budget(credits=2, range_rows=60),
    )
    points = tmp_path / "points"
    points.mkdir()
    (points / "points").write_text(f"{Step.AFTER_SINK_COMMIT.value}=kill@2")
    assert composed.process(tmp_path, **{VARIABLE: str(points)}).wait(timeout=600) == -signal.SIGKILL
    assert composed.plan().verdict is Verdict.RESUMED
    composed.run()
    composed.finish()
    check_topic(composed, lake_cluster, expected)

    with topic.producing() as producer:
        for key, value in ((b"0-0", b"[1000]"), (b"0-7", None), (b"new", b"[1]")):
            producer.produce(topic.name, value, key, 0)
    expected = {**expected, b"0-0": "[1000]", b"new": "[1]"}
    expected.pop(b"0-7", None)
    composed = replace(composed, ledger_url=new_ledger(tmp_path / "fresh.db"))
    # The first run finds the plan that the table holds to be complete, the second one brings what is new.
    for _ in range(2):
        composed.plan()
        composed.run()
        composed.finish()
    check_topic(composed, lake_cluster, expected)


@pytest.mark.statement("K2", "X1")
@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_topic_is_upserted_into_an_iceberg_table_that_copies_on_write(
    database: Endpoint, ledger_url: str, lake_cluster: Cluster, logins: dict[str, Endpoint], kafka: Server
) -> None:
    """K2, X1: as the connector creates one by itself. Its MERGE takes no rows that may be others at a second look."""
    into = lake_cluster.place("iceberg", f"t_{uuid.uuid4().hex[:8]}", key=("id",), tasks=2)
    with closing(SqlSession(replace(NOWHERE, conn_id="spark", password=lake_cluster.url))) as opened:
        opened.get().sql(f"CREATE TABLE {into['table']} (id string, v bigint) USING iceberg").collect()
    topic = Topic(servers=kafka.url).create(2)
    composed = replace(
        compose(database, ledger_url, logins, lake_cluster, into),
        source=endpoint_of(kafka),
        table=topic.name,
        kind="kafka",
        reading={"key": "text", "fields": {"id": "text", "v": "bigint"}, "columns": ["id", "v"]},
        consistency="offsets",
        mode="upsert",
    )
    for first, last in ((0, 4), (4, 6)):
        for number in range(first, last):
            topic.send(number % 2, {"id": f"k{number % 2}", "v": number}, key=b"k")
        composed.plan()
        composed.run()
        composed.finish()
        assert lake_cluster.rows(into) == [("k0", last - 2), ("k1", last - 1)]


def check_topic(composed: Composed, cluster: Cluster, expected: dict[bytes, str]) -> None:
    """Fail unless the table has one row for each key that is left, with its last value, as two engines read it."""
    found = [(row["key"], row["value"]) for row in cluster.read(composed.into).to_pylist()]
    again = duck.read_rows(composed.into["format"], cluster.find_folder(composed.into), "key, value")
    assert dict(found) == dict(again) == expected
    assert len(found) == len(again) == len(expected)
