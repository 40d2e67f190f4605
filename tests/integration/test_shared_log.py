"""Tables that share a log, planned and replayed through ledger, gate and lane: one slot and one publication for all."""

import os
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.planning.plan_result import Verdict
from airflow_provider_backpressure.exceptions import (
    LedgerRefused,
    PlanSuperseded,
    SourceRefused,
)
from tests.support.ledgers import new_ledger
from tests.support.marks import mark_long
from tests.support.postgres import connected, run
from tests.support.shared_log import Group
from tests.support.waiting import beside

pytestmark = pytest.mark.integration


@pytest.fixture
def group(database: Endpoint, tmp_path: Path) -> Iterator[Group]:
    made = Group(database, new_ledger(tmp_path / "ledger.db"))
    yield made
    made.close()


@contextmanager
def writing(group: Group, *names: str, seed: int = 0) -> Iterator[None]:
    """Write transactions over several tables until the block is left."""
    tables = names or group.names

    def write(over: threading.Event) -> None:
        draw = random.Random(seed)
        with connected(group.database, autocommit=False) as connection:
            while not over.wait(0.005):
                try:
                    for _ in range(draw.randint(1, 6)):
                        _change(connection, draw.choice(tables), draw)
                    connection.commit() if draw.random() < 0.9 else connection.rollback()
                except (psycopg.errors.UniqueViolation, psycopg.errors.DeadlockDetected):
                    connection.rollback()

    with beside(write):
        yield


def _change(connection: psycopg.Connection[Any], name: str, draw: random.Random) -> None:
    key, other = draw.randint(1, 150), draw.randint(1, 150)
    match draw.randint(0, 9):
        case 0 | 1:
            connection.execute(f"DELETE FROM {name} WHERE id = {key}")
        case 2 | 3:
            connection.execute(
                f"UPDATE {name} SET id = {other} WHERE id = {key}"
                f" AND NOT EXISTS (SELECT FROM {name} WHERE id = {other})"
            )
        case 4 | 5 | 6:
            connection.execute(f"UPDATE {name} SET v = v + 1 WHERE id IN ({key}, {other})")
        case _:
            connection.execute(
                f"INSERT INTO {name} VALUES ({key}, 0, repeat('y', {draw.choice((3, 3000))}))"
                " ON CONFLICT (id) DO UPDATE SET doc = excluded.doc"
            )


@pytest.mark.statement("W2")
@pytest.mark.parametrize("seed", mark_long(range(2), quick=[0]))
def test_tables_are_copied_and_followed_by_one_slot_and_one_publication(group: Group, seed: int) -> None:
    """W2: under transactions over all of them, in the run that copies them and in those that follow."""
    group.begin()
    with writing(group, seed=seed):
        assert {planned.verdict for planned in group.plan()} == {Verdict.PLANNED}
        group.drain()
        group.advance(2)
    for _ in range(2):
        with writing(group, seed=seed + 10):
            group.advance(2)
        assert group.follow() == {}
        assert group.differs() == {}
    name = f"backpressure_{group.stream}"
    assert group.slots() == [name]
    assert group.published() == [(name, table) for table in group.names]
    rows = group.do("SELECT target, consistent FROM raw.backpressure_plan ORDER BY 1")
    assert rows == [("raw.a", True), ("raw.b", True), (f"raw.{name}", True), ("raw.c", True)]
    assert group.do("SELECT count(DISTINCT stream) FROM raw.backpressure_frontier") == [(1,)]


def test_a_run_without_changes_plans_nothing_for_a_table_and_releases_the_log(group: Group) -> None:
    group.hydrate()
    assert {planned.verdict for planned in group.plan()} == {Verdict.UNCHANGED}
    group.do("UPDATE a SET v = 7 WHERE id = 1")
    group.follow()
    end = group.do("SELECT pos FROM raw.backpressure_frontier")
    kept = group.do("SELECT confirmed_flush_lsn - '0/0' FROM pg_replication_slots WHERE database = current_database()")
    assert kept == end
    assert group.differs() == {}


def test_no_window_is_planned_while_a_table_is_not_read(group: Group) -> None:
    """It would pass the position from which on the table's changes are shown."""
    group.begin()
    group.plan()
    group.drain("a", "b")
    with pytest.raises(LedgerRefused, match=r"ranges of .*raw\.c are not read yet"):
        group.windows()
    group.drain("c")
    assert group.follow() == {}
    assert group.differs() == {}


@pytest.mark.statement("W6")
def test_a_table_joins_while_others_are_followed(group: Group) -> None:
    """W6: nothing of it is skipped, also of a transaction that was open when it joined."""
    group.hydrate()
    group.make("d")
    group.names = ("a", "b", "c", "d")
    ready, over = threading.Event(), threading.Event()

    def straddle(stop: threading.Event) -> None:
        with connected(group.database, autocommit=False) as connection:
            connection.execute("INSERT INTO d VALUES (1001, 1, 'before')")
            ready.set()
            over.wait(20)
            connection.execute("INSERT INTO d VALUES (1002, 1, 'after')")
            connection.commit()

    with beside(straddle), writing(group):
        assert ready.wait(20)
        threading.Timer(1.0, over.set).start()
        (planned,) = group.plan("d")
        assert planned.plan.stream == group.stream
        group.drain("d")
        group.advance(2)
    assert group.follow() == {}
    assert group.differs() == {}
    assert group.do("SELECT count(*) FROM raw.d WHERE id IN (1001, 1002)") == [(2,)]
    assert len(group.slots()) == 1


def test_a_server_that_leaves_out_changes_lets_no_table_join(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    group.hydrate()
    group.make("d")
    monkeypatch.setattr(
        "airflow_provider_backpressure.connectors.postgres.source.shared_log.JOINS", dict.fromkeys(range(30), 999999)
    )
    with pytest.raises(SourceRefused, match="Update the server"):
        group.plan("d")
    assert group.plan("a")[0].verdict is Verdict.UNCHANGED


@pytest.mark.statement("W6")
def test_a_table_that_is_left_out_is_refused_until_it_is_planned_again(group: Group) -> None:
    """W6: the others are followed without it, and it comes right by being read again."""
    group.hydrate()
    group.do("UPDATE a SET v = 1", "UPDATE b SET v = 1", "DELETE FROM c WHERE id < 50")
    assert group.follow("a", "b") == {}
    assert group.differs("a", "b") == {}
    group.do("UPDATE c SET v = 2")
    left_out = group.follow()
    assert list(left_out) == ["c"]
    assert "was replayed without it" in left_out["c"]
    assert group.differs("a", "b") == {}
    with group.ports("c") as ports:
        group.planner(ports).close(ports.hydration, ports.plan)
    group.drain("c")
    group.do("UPDATE a SET v = 3", "UPDATE c SET v = 3")
    assert group.follow() == {}
    assert group.differs() == {}


def test_a_table_that_gets_a_task_of_its_own_leaves_the_log(group: Group) -> None:
    """Nobody else would replay changes into it."""
    group.hydrate()
    group.do("DELETE FROM a WHERE id < 50")
    with group.ports("a") as ports:
        planned = ports.planner().plan()
        assert (planned.verdict, planned.plan.stream) == (Verdict.PLANNED, "")
        ports.hydrator().run()
        while ports.planner().follow():
            ports.hydrator().run()
    assert group.differs("a") == {}
    assert [table for _, table in group.published()] == ["a", "b", "c"]
    assert len({name for name, _ in group.published()}) == len(group.slots()) == 2
    assert group.follow("b", "c") == {}
    assert group.differs("b", "c") == {}


@pytest.mark.statement("W4")
def test_windows_that_are_open_are_planned_again_where_a_table_was(group: Group) -> None:
    """W4: no attempt at them is let in, and what is in of them stays."""
    group.hydrate()
    group.do("UPDATE a SET v = 1", "UPDATE b SET v = 1", "UPDATE c SET v = 1")
    before = group.windows().planned
    assert before is not None
    group.plan("b", restart=True)
    with pytest.raises(PlanSuperseded, match=r"no longer holds raw\.b"):
        group.replay()
    assert group.do("SELECT count(*) FROM raw.a WHERE v = 1") == [(0,)]
    group.drain("b")
    again = group.windows().planned
    assert again is not None
    assert again.plan.plan_id != before.plan.plan_id
    assert group.windows().planned.verdict is Verdict.RESUMED
    assert group.follow() == {}
    assert group.differs() == {}


@pytest.mark.long
@pytest.mark.statement("W1")
def test_many_tables_cost_the_server_no_more_decoding_than_one(
    database: Endpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    """W1: CPU of the server's process that shows the same changes, of 50 tables by one slot or of one table."""
    many = [f"t{number}" for number in range(50)]
    run(database, *(f"CREATE TABLE {name} (id int PRIMARY KEY, v int, note text)" for name in many))

    def measure(names: list[str]) -> float:
        run(database, f"CREATE PUBLICATION shown FOR TABLE {', '.join(names)}")
        run(database, "SELECT pg_create_logical_replication_slot('shown', 'pgoutput')")
        each, rows = 100_000 // len(names), "g, 0, repeat('x', 60)"
        for name in names:
            run(database, f"INSERT INTO {name} SELECT {rows} FROM generate_series(1, {each}) g")
        with connected(database) as connection:
            (pid,) = connection.execute("SELECT pg_backend_pid()").fetchone() or (0,)
            before = _cpu_seconds(pid)
            query = (
                "SELECT count(*) FROM pg_logical_slot_peek_binary_changes('shown', NULL, NULL, 'proto_version', '1',"
                " 'publication_names', 'shown')"
            )
            (shown,) = connection.execute(query).fetchone() or (0,)
            seconds = _cpu_seconds(pid) - before
        assert shown >= 100_000
        run(database, "SELECT pg_drop_replication_slot('shown')", "DROP PUBLICATION shown")
        run(database, f"TRUNCATE {', '.join(names)}")
        return seconds

    figures = [(measure(many), measure(many[:1])) for _ in range(5)]
    of_many, of_one = (min(column) for column in zip(*figures, strict=True))
    with capsys.disabled():
        print(f"\n50 tables {of_many:.2f} s, one table {of_one:.2f} s of the server's CPU for 100,000 changes")
    assert of_many <= 1.1 * of_one + 2 / os.sysconf("SC_CLK_TCK")


def _cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process of this host."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
