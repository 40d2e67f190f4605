"""Tables that share a slot: a window is read once, split by table, and written in one transaction."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_backpressure.connectors.postgres.tasks import change_apply
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.failpoints import VARIABLE, Step
from airflow_provider_backpressure.core.snapshot.ranges import attempt_tag
from airflow_provider_backpressure.core.snapshot.spark_messages import RangeSpec
from airflow_provider_backpressure.exceptions import BackpressureError, LogLost, PlanSuperseded, RangeFailed
from tests.support.attempt_process import in_process
from tests.support.postgres import connected
from tests.support.streaming import Stream, Writer

pytestmark = pytest.mark.integration


@pytest.fixture
def stream(database: Endpoint) -> Iterator[Stream]:
    made = Stream(database)
    yield made
    made.close()


def again(spec: RangeSpec) -> RangeSpec:
    """Return the next attempt of a window."""
    number = spec.attempt + 1
    return replace(spec, attempt=number, tag=attempt_tag(spec.plan_id, spec.slices[0].slice_id, number))


@pytest.mark.statement("W2")
@pytest.mark.parametrize("seed", range(int(os.environ.get("BACKPRESSURE_STREAM_SEEDS", "1"))))
def test_all_tables_equal_their_sources_at_one_frontier(
    stream: Stream, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W2: under a writer with transactions over several tables, while they are copied and while they are followed."""
    monkeypatch.setattr(change_apply, "HELD_BYTES", 50_000)
    for name in stream.names:
        stream.do(f"INSERT INTO {name} SELECT g, 0, repeat('x', 2500) FROM generate_series(1, 60) g")
    writer = Writer(stream, seed)
    for _ in range(2):
        with writer.writing():
            if stream.at == stream.goal:
                for name in stream.names:
                    stream.copy(name, "id <= 30")
                    stream.copy(name, "id > 30")
            for _ in range(3):
                time.sleep(0.2)
                stream.replay(bytes=500_000)
        stream.catch_up()
        assert stream.differs() == {}
    assert writer.transactions > 20


@pytest.mark.statement("W3")
def test_a_transaction_over_several_tables_becomes_visible_as_a_whole(stream: Stream) -> None:
    """W3: amounts move from table to table, and their sum is the same whenever somebody looks."""
    for name in stream.names:
        stream.do(f"INSERT INTO {name} SELECT g, 100, '' FROM generate_series(1, 20) g")
    stream.replay()
    total = "SELECT sum(v) FROM (SELECT v FROM {0}.a UNION ALL SELECT v FROM {0}.b UNION ALL SELECT v FROM {0}.c) t"
    seen: list[int] = []

    def look(over: threading.Event) -> None:
        with connected(stream.database) as connection:
            while not over.is_set():
                row = connection.execute(total.format("raw")).fetchone()
                seen.append(row[0] if row else 0)

    over = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(look, over)
        for amount in range(15):
            taken, given = stream.names[amount % 3], stream.names[(amount + 1) % 3]
            with connected(stream.database) as connection, connection.transaction():
                connection.execute(f"UPDATE {taken} SET v = v - {amount}")
                connection.execute(f"UPDATE {given} SET v = v + {amount}")
            stream.replay()
        over.set()
        done.result()
    assert len(seen) > 15
    assert set(seen) == {6000}
    assert stream.differs() == {}


def test_one_truncate_of_two_tables_empties_both(stream: Stream) -> None:
    for name in stream.names:
        stream.do(f"INSERT INTO {name} VALUES (1, 1, 'x')")
    stream.do("TRUNCATE a, c", "INSERT INTO c VALUES (2, 2, 'y')")
    stream.replay()
    assert stream.do("SELECT count(*) FROM raw.b") == [(1,)]
    assert stream.differs() == {}


@pytest.mark.statement("X2")
@pytest.mark.parametrize("step", [Step.IN_COPY, Step.BEFORE_SINK_COMMIT, Step.AFTER_SINK_COMMIT])
def test_an_attempt_that_is_killed_changes_nothing_or_everything(
    stream: Stream, step: Step, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X2: the next attempt brings the window in once, whatever the one before had done."""
    for name in stream.names:
        stream.do(f"INSERT INTO {name} VALUES (1, 1, 'x')")
    (spec,) = stream.plan()
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    (tmp_path / "points").write_text(f"{step}=kill")
    with in_process(change_apply.replay_slice, spec, stream.source, stream.sink) as child:
        child.process.join(120)
        assert child.process.exitcode == -signal.SIGKILL
    there = step is Step.AFTER_SINK_COMMIT
    assert stream.do("SELECT count(*) FROM raw.a, raw.b, raw.c") == [(int(there),)]
    assert stream.attempt(again(spec)).rows == 3
    assert stream.differs() == {}
    assert stream.do("SELECT count(*), sum(rows), max(attempt) FROM raw.backpressure_commit") == [(1, 3, 2 - there)]


@pytest.mark.statement("W4")
def test_an_attempt_that_wakes_up_late_is_refused(
    stream: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W4: it was frozen before its commit; the next attempt ended its session, and later windows went in."""
    stream.do("INSERT INTO a VALUES (1, 1, 'x')", "INSERT INTO b VALUES (1, 1, 'x')")
    (spec,) = stream.plan()
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    (tmp_path / "points").write_text(f"{Step.BEFORE_SINK_COMMIT}=freeze")
    with in_process(change_apply.replay_slice, spec, stream.source, stream.sink) as child:
        child.await_frozen()
        stream.attempt(again(spec))
        stream.do("UPDATE a SET v = 2", "DELETE FROM b")
        stream.replay()
        child.thaw()
        assert isinstance(child.outcome(), BackpressureError)
    assert stream.differs() == {}
    assert stream.do("SELECT v FROM raw.a") == [(2,)]


@pytest.mark.statement("X2")
def test_an_attempt_is_refused_once_a_later_window_is_in(stream: Stream) -> None:
    """X2: it has no marker in its way where its plan was pruned; the frontier refuses it."""
    stream.do("INSERT INTO a VALUES (1, 1, 'x')")
    (spec,) = stream.plan()
    stream.attempt(spec)
    stream.do("DELETE FROM raw.backpressure_commit")
    # As if the slot still showed it.
    with pytest.raises((RangeFailed, LogLost)):
        change_apply.replay_slice(again(spec), spec.slices[0], stream.source, stream.sink)
    assert stream.do("SELECT count(*) FROM raw.backpressure_commit") == [(0,)]


@pytest.mark.statement("W4")
def test_no_window_goes_in_where_one_of_its_tables_was_planned_again(stream: Stream) -> None:
    """W4: such a table is read again, and its rows of before would come back. The others wait for the next window."""
    stream.do("INSERT INTO a VALUES (1, 1, 'x')", "INSERT INTO b VALUES (1, 1, 'x')")
    (spec,) = stream.plan()
    before = stream.tables["b"]
    stream.hold("b")
    with pytest.raises(PlanSuperseded, match=r"no longer holds raw\.b"):
        stream.attempt(spec)
    assert stream.do("SELECT count(*) FROM raw.a") == [(0,)]
    assert stream.tables["b"].epoch > before.epoch
    stream.replay()
    assert stream.differs() == {}


def test_a_table_that_has_changed_stops_the_window_before_anything_is_written(stream: Stream) -> None:
    stream.do(
        "INSERT INTO a VALUES (1, 1, 'x')", "ALTER TABLE c ALTER v TYPE bigint", "INSERT INTO c VALUES (1, 1, '')"
    )
    (spec,) = stream.plan()
    with pytest.raises(BackpressureError, match=r"public\.c has changed: v was integer and is bigint"):
        stream.attempt(spec)
    assert stream.do("SELECT count(*) FROM raw.a") == [(0,)]


@pytest.mark.parametrize("change", ["DROP TABLE {}.b", "SET TABLE a, c"])
def test_a_publication_that_has_lost_a_table_is_named(stream: Stream, change: str) -> None:
    name = f'"{stream.log.stream}"'
    stream.do(f"ALTER PUBLICATION {name} {change.format('public')}")
    stream.do("INSERT INTO a VALUES (1, 1, 'x')")
    with pytest.raises(LogLost, match=r"no longer holds public\.b"):
        stream.plan()
