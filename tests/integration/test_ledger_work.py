"""What a range costs the ledger does not depend on how many there are."""

import math
import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.gate.credit_limits import FixedLimit
from airflow_provider_backpressure.core.ports.ledger import Ledger
from airflow_provider_backpressure.core.progress.summary import HydrationSummary
from airflow_provider_backpressure.core.snapshot.bounds import cover
from airflow_provider_backpressure.core.snapshot.ranges import PlannedRange, number_ranges
from airflow_provider_backpressure.core.transitions import hydration_transitions as hydrating
from airflow_provider_backpressure.exceptions import LedgerRefused
from airflow_provider_backpressure.ledger import models
from airflow_provider_backpressure.ledger.database import make_engine
from airflow_provider_backpressure.ledger.migration import migrate
from airflow_provider_backpressure.ledger.repository import SqlLedger
from airflow_provider_backpressure.ledger.tables.range_insert import BATCH
from benchmarks import million
from benchmarks.million import mark_committed
from tests.conformance.ledger.support import address, make_plan, register
from tests.support import mysql
from tests.support.marks import mark_long

pytestmark = pytest.mark.integration

MANY = 100_000


@pytest.fixture
def open_engine() -> Iterator[Callable[[Any], sa.Engine]]:
    """Engines that are disposed of whatever happens."""
    opened: list[sa.Engine] = []

    def open_one(url: Any) -> sa.Engine:
        opened.append(make_engine(url))
        return opened[-1]

    yield open_one
    for engine in opened:
        engine.dispose()


def served(kind: str, request: pytest.FixtureRequest, open_engine: Callable[[Any], sa.Engine]) -> sa.Engine:
    """Return the engine of a ledger on a server, empty."""
    if kind == "mysql":
        return open_engine(mysql.address(request.getfixturevalue("mysql_ledger")))
    url = address(request.getfixturevalue("database"))
    migrate(url)
    return open_engine(url)


class Recorder:
    """Keeps each statement that an engine runs, with its parameters."""

    def __init__(self, engine: sa.Engine) -> None:
        self.statements: list[tuple[str, Any]] = []
        sa.event.listen(engine, "before_cursor_execute", self._keep)

    def _keep(self, connection: Any, cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        self.statements.append((statement, parameters))

    def during(self, step: Callable[[], object]) -> list[tuple[str, Any]]:
        """Return the statements of one step."""
        self.statements.clear()
        step()
        kept = [
            (text, values)
            for text, values in self.statements
            if text.startswith(("SELECT", "WITH", "UPDATE", "DELETE"))
        ]
        assert kept
        return kept


def steps(ledger: Ledger, hydration_id: str) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield what happens to a range, and what is asked about the gate, each to be run once and in this order."""
    held = []

    def admit() -> None:
        permit = ledger.admit(hydration_id, lane="lane", session_id="session", lease_seconds=60.0)
        assert permit is not None
        held.append(permit.range)

    def commit() -> None:
        record = held.pop()
        assert ledger.commit(
            record.plan_id,
            record.seq,
            worker="lane",
            attempt=record.attempt,
            rows=1,
            bytes=8,
            checksum="",
            limit=FixedLimit(),
            pressure=0.0,
        )

    def release() -> None:
        record = held.pop()
        assert ledger.release(record.plan_id, record.seq, attempt=record.attempt, error="again")

    def finish() -> None:
        with pytest.raises(LedgerRefused, match="is still planned"):
            ledger.finish(hydration_id)

    for _ in range(200):
        admit()
        commit()
    yield "admit", admit
    yield "gate", lambda: ledger.gate(hydration_id)
    yield "queue", lambda: ledger.queue("spark_default")
    yield "abandoned", lambda: ledger.find_abandoned(hydration_id, lane="lane")
    yield "renew", lambda: ledger.renew(hydration_id, lane="lane", lease_seconds=60.0)
    yield "commit", commit
    admit()
    yield "release", release
    yield "record_read", lambda: ledger.record_read(hydration_id, worker="lane", in_flight_rows=1)
    yield "rate", lambda: ledger.rate(hydration_id)
    yield "retry_failed", lambda: ledger.retry_failed(ledger.hydration(hydration_id).plan.plan_id)
    yield "finish", finish


def large(engine: sa.Engine) -> tuple[SqlLedger, str]:
    """Return a ledger and its hydration of many ranges, fresh from planning: no statistics have been gathered."""
    ledger = SqlLedger(engine)
    hydration_id = register(ledger)
    pieces = cover(("id",), ((str(number),) for number in range(1, MANY)))
    assert ledger.save_plan(hydration_id, make_plan(), number_ranges(pieces, rows=1, row_bytes=8.0)) == MANY
    return ledger, hydration_id


def blocks(node: dict[str, Any]) -> int:
    """Return the blocks that a statement touched."""
    return int(node["Shared Hit Blocks"]) + int(node["Shared Read Blocks"])


def blocks_of(connection: sa.Connection, text: str, values: Any) -> int:
    """Return the blocks that a statement touches on PostgreSQL."""
    told = connection.exec_driver_sql(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {text}", values)
    return blocks(told.scalar_one()[0]["Plan"])


def rows_of(connection: sa.Connection, text: str, values: Any) -> int:
    """Return the rows that a statement reads on MySQL."""
    connection.exec_driver_sql("FLUSH STATUS")
    connection.exec_driver_sql(text, values)
    return sum(int(count) for _, count in connection.exec_driver_sql("SHOW SESSION STATUS LIKE 'Handler_read%%'"))


COSTS = {"postgresql": blocks_of, "mysql": rows_of}


def work(engine: sa.Engine, ledger: SqlLedger, hydration_id: str) -> dict[str, list[int]]:
    """Return the blocks, or rows, that each statement of a range's life touches, by its step."""
    recorder, found = Recorder(engine), {}
    for name, step in steps(ledger, hydration_id):
        found[name] = []
        for text, values in recorder.during(step):
            with engine.connect() as connection:
                found[name].append(COSTS[engine.dialect.name](connection, text, values))
                connection.rollback()
    return found


@pytest.mark.statement("X8")
@pytest.mark.parametrize("kind", mark_long(COSTS, quick=["postgresql"]))
def test_work_per_range_is_constant(
    kind: str,
    request: pytest.FixtureRequest,
    open_engine: Callable[[Any], sa.Engine],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """X8: right after 100,000 ranges came in, no statement of a range's life touches more than a few blocks or rows.

    With 99,000 of them committed, a range takes as many statements, and none of them touches more.
    """
    # A sample now and then, by the clock, would be two statements more for whichever commit takes it.
    monkeypatch.setattr(hydrating, "SAMPLE_SECONDS", math.inf)
    engine = served(kind, request, open_engine)
    ledger, hydration_id = large(engine)
    first = work(engine, ledger, hydration_id)
    assert all(each < 60 for found in first.values() for each in found), first
    mark_committed(engine, ledger.hydration(hydration_id).plan.plan_id, below=MANY - 1_000)
    last = work(engine, ledger, hydration_id)
    assert {name: len(found) for name, found in last.items()} == {name: len(found) for name, found in first.items()}
    assert all(each < 60 for found in last.values() for each in found), last


@pytest.mark.statement("X8")
def test_work_per_range_is_constant_on_sqlite(tmp_path: Path, open_engine: Callable[[Any], sa.Engine]):
    """X8: no statement of a range's life reads the table of ranges from end to end."""
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    migrate(url)
    engine = open_engine(url)
    ledger, hydration_id = large(engine)
    recorder = Recorder(engine)
    for name, step in steps(ledger, hydration_id):
        for text, values in recorder.during(step):
            with engine.connect() as connection:
                plan = [row[3] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}", values)]
            assert not [line for line in plan if line.startswith("SCAN backpressure_")], (name, text, plan)
            by_key = [line for line in plan if "autoindex_backpressure_range" in line]
            assert all("seq" in line for line in by_key) or "LIMIT" in text, (name, text, plan)


@pytest.mark.parametrize("kind", mark_long(COSTS, quick=["postgresql"]))
def test_an_overview_reads_only_the_last_minutes(
    kind: str, request: pytest.FixtureRequest, open_engine: Callable[[Any], sa.Engine]
):
    """However long hydrations have been under way: the intervals of twenty ETAs, from 300 samples of 3,000 of each."""
    engine = served(kind, request, open_engine)
    ledger = SqlLedger(engine)
    ids = [register(ledger, sink_identity=f"postgres://w:5432/w/raw.t{number}") for number in range(20)]
    now = datetime.now(UTC)
    for hydration_id in ids:
        plan = make_plan(total=100_000)
        ledger.save_plan(hydration_id, plan, number_ranges(cover(("id",), []), rows=1, row_bytes=8.0))
        rest = {"hydration_id": hydration_id, "plan_id": plan.plan_id, "read_rows": 0, "in_flight": 0, "credits": 1}
        rows = [{**rest, "at": now - timedelta(seconds=n), "committed_rows": 10 * (3_000 - n)} for n in range(3_000)]
        with engine.begin() as connection:
            connection.execute(sa.insert(models.sample), rows)
    found: list[HydrationSummary] = []
    statements = Recorder(engine).during(lambda: found.extend(ledger.glances(ids=ids, limit=20)))
    assert all(one.eta is not None and one.eta.latest is not None for one in found)
    for text, values in statements:
        with engine.connect() as connection:
            assert COSTS[kind](connection, text, values) < 20 * {"mysql": 800, "postgresql": 40}[kind], text


@pytest.mark.statement("X8")
@pytest.mark.parametrize("kind", mark_long(["sqlite", "postgresql", "mysql"], quick=["postgresql"]))
def test_ranges_are_stored_as_they_come(kind, request: pytest.FixtureRequest, tmp_path: Path):
    """X8: a million ranges are streamed into the ledger; only a batch of them is ever held."""
    if kind == "mysql":
        url: str | sa.URL = mysql.address(request.getfixturevalue("mysql_ledger"))
    else:
        url = (
            f"sqlite:///{tmp_path / 'ledger.db'}" if kind == "sqlite" else address(request.getfixturevalue("database"))
        )
        migrate(url)
    ledger = SqlLedger(url)
    alive: weakref.WeakSet[PlannedRange] = weakref.WeakSet()
    most = 0

    def watched() -> Iterator[PlannedRange]:
        nonlocal most
        for planned in number_ranges(
            cover(("id",), ((str(number),) for number in range(1, MANY))), rows=1, row_bytes=8.0
        ):
            alive.add(planned)
            most = max(most, len(alive))
            yield planned

    plan = make_plan()
    assert ledger.save_plan(register(ledger), plan, watched()) == MANY
    assert most <= 2 * BATCH
    assert ledger.counts(plan.plan_id).planned == MANY
    ledger.close()


class Turns:
    """A lane in turns of 50 ranges, with the statements that each turn took."""

    def __init__(self, url: Any, name: str, ranges: int, *, left: int | None = None) -> None:
        """``left``: all but so many ranges at the end are marked as committed."""
        engine = make_engine(url)
        self.side = million.Side(ledger=SqlLedger(engine), name=name, ranges=ranges)
        plan = self.side.plan().plan
        if left is not None:
            mark_committed(engine, plan.plan_id, below=ranges - left)
        self.side.begin()
        self._count = 0
        sa.event.listen(engine, "before_cursor_execute", self._one)

    def _one(self, *_: Any) -> None:
        self._count += 1

    def turn(self) -> int:
        """Return the statements of the next turn."""
        self._count = 0
        self.side.turn(measured=False)
        return self._count


@pytest.mark.statement("X8")
@pytest.mark.long
def test_a_lane_takes_as_many_statements_late_as_early(database: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """X8: the last of 20,000 ranges against the first of a fresh plan, by a lane of each, in turns."""
    monkeypatch.setattr(hydrating, "SAMPLE_SECONDS", math.inf)
    url = address(database)
    migrate(url)
    first = Turns(url, "first", 400)
    last = Turns(url, "last", 20_000, left=400)
    with closing(first.side.ledger), closing(last.side.ledger):
        turns = [(first.turn(), last.turn()) for _ in range(5)]
    early, late = zip(*turns[1:], strict=True)
    assert median(early) > 50
    assert median(late) == pytest.approx(median(early), rel=0.02), turns


@pytest.mark.long
@pytest.mark.statement("X8")
def test_one_lane_drains_all_of_it(database: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """X8: each range by itself, none only marked; with ``DRAINED_RANGES=1000000`` it takes two hours."""
    monkeypatch.setattr(hydrating, "SAMPLE_SECONDS", math.inf)
    number = int(os.environ.get("DRAINED_RANGES", 20_000))
    url = address(database)
    migrate(url)
    lane = Turns(url, "drained", number)
    with closing(lane.side.ledger) as ledger:
        turns = [lane.turn() for _ in range(number // million.TURN - 1)]
        assert ledger.counts(lane.side.planned.plan.plan_id).committed == number - million.TURN
    assert median(turns[-20:]) == pytest.approx(median(turns[1:21]), rel=0.02)


@pytest.mark.long
def test_the_benchmark_of_a_million_ranges_goes_through(database: Endpoint):
    """Small: its figures mean nothing, but every range of both sides is drained, in turns."""
    migrate(address(database))
    found = million.measure(address(database), 2_000, 100)
    assert (found.ranges, found.measured) == (2_000, 100)
    assert min(found.first_ms, found.last_ms, found.plan_seconds) > 0
    assert million.section(found, {}).count("\n- ") == len(million.promises(found)) == 4


@pytest.mark.long
@pytest.mark.statement("X8")
def test_a_million_ranges(database: Endpoint):
    """X8: planned within seconds, the last of them as cheap as the first, and the lane's memory flat.

    By processor time: what else the machine does is no matter of ours. The benchmark tells the time by the clock.
    """
    migrate(address(database))
    found = million.measure(address(database), 1_000_000, 2_000)
    assert found.plan_cpu_seconds <= million.PLAN_SECONDS
    assert found.cpu_growth <= million.GROWTH
    assert found.lane_memory_mib <= million.MEMORY_MIB
