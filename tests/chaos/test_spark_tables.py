"""Spark's own connectors write or read the table: lane, worker, executor and driver die around the commits."""

import os
import signal
import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from airflow_provider_backpressure.connectors.lake.spark.sql_session import SqlSession
from airflow_provider_backpressure.core.endpoints import NOWHERE
from airflow_provider_backpressure.core.failpoints import Action, Step
from airflow_provider_backpressure.core.planning.plan_result import Planned
from dev.lake_connectors import SMALL, make_connector_conf
from tests.chaos import oracle
from tests.chaos.conftest import QUICK, SPECULATION
from tests.chaos.lives import SECONDS, Lives, living
from tests.chaos.matrix import SIZES, Draw, Victim
from tests.chaos.stage import Pass, Stage
from tests.support import lakes
from tests.support.composed import Composed
from tests.support.postgres import run

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(600)]

DRAW = Draw(rows=SIZES[0], range_rows=SIZES[0] // 3, credits=2, number=2, release_first=True, pauses=(0.0, 0.0))
IN_COPY, BEFORE, AFTER = Step.IN_COPY, Step.BEFORE_SINK_COMMIT, Step.AFTER_SINK_COMMIT
CELLS = [
    *((Victim.LANE, step) for step in (IN_COPY, BEFORE, AFTER)),
    *((Victim.DRIVER, step) for step in (IN_COPY, BEFORE, AFTER)),
    (Victim.WORKER, IN_COPY),
]
"""The lane commits, so a worker and an executor hold something of a range only while it is read."""
SOURCE_CELLS = [
    *((Victim.LANE, step) for step in (Step.AFTER_SUBMIT, BEFORE, AFTER)),
    *((Victim.DRIVER, step) for step in (IN_COPY, BEFORE, AFTER)),
    *((Victim.WORKER, step) for step in (IN_COPY, BEFORE, AFTER)),
]
"""A task reads the table and commits to PostgreSQL."""
MODES = [
    *(("append", *cell) for cell in CELLS),
    *(("upsert", victim, AFTER) for victim in (Victim.LANE, Victim.DRIVER)),
]


@pytest.fixture(scope="module")
def catalog(stage: Stage) -> Path:
    """The folder of both catalogs, which outlive their servers."""
    return stage.services.guest("chaos-lakes")


@pytest.fixture(scope="module")
def local(stage: Stage, catalog: Path) -> Iterator[Stage]:
    """A server with the connectors, whose executor is in its own process."""
    name, conf = "connect:chaos-lakes", make_connector_conf(catalog, survives=True)
    options = {"master": "local[4,4]", "driver_memory": "1500m"}
    stage.services.up(name, jars=(), spark_conf={**QUICK, **SMALL, **conf}, **options)
    yield stage.on(name)
    stage.services.down(name)


@pytest.fixture(scope="module")
def machines(stage: Stage, catalog: Path) -> Iterator[Stage]:
    """A server with the connectors on two machines, which starts a twin of each task that takes long."""
    name, conf = "connect:cluster-lakes", make_connector_conf(catalog)
    options = {"master": "standalone", "workers": 2, "worker_cores": 2, "worker_memory": "700m", "apart": True}
    stage.services.up(name, jars=(), spark_conf={**QUICK, **SPECULATION, **SMALL, **conf}, **options)
    yield stage.on(name, speculates=True)
    stage.services.down(name, "standalone")


@pytest.fixture
def narrow(stage: Stage, catalog: Path) -> Iterator[Stage]:
    """A server with the connectors on two machines of one core: each of them runs one task at a time.

    They go with the test, since ``machines`` are others under the same names.
    """
    name, conf = "connect:narrow-lakes", make_connector_conf(catalog)
    options = {"master": "standalone", "workers": 2, "worker_cores": 1, "worker_memory": "700m", "apart": True}
    stage.services.up(name, jars=(), spark_conf={**QUICK, **SMALL, **conf}, **options)
    yield stage.on(name)
    stage.services.down(name, "standalone")


def compose(
    stage: Stage, catalog: Path, format_: str, mode: str = "append", **more: Any
) -> tuple[Composed, lakes.Cluster]:
    """Return a hydration into a new table of a format, and what reads it."""
    composed = replace(stage.hydration(DRAW), mode=mode)
    cluster = lakes.Cluster(url=composed.remote, ui_url=composed.ui_url or "", folder=catalog)
    return replace(composed, into=cluster.place(format_, f"t_{uuid.uuid4().hex[:8]}", **more)), cluster


def check(stage: Stage, composed: Composed, planned: Planned, cluster: lakes.Cluster) -> None:
    """Check that each row is there once, each range has its marker, and no branch is left of a dead attempt."""
    assert cluster.rows(composed.into) == run(stage.source, f"SELECT * FROM t{DRAW.rows} ORDER BY id")
    oracle.check_lake(composed, planned)
    composed.finish()
    assert cluster.list_branches(composed.into) <= {"main"}


def find_executor(reader: Pass) -> int:
    """Return the process of the executor whose worker has passed a step."""
    daemon = psutil.Process(reader.pid).parent()
    assert daemon is not None
    return daemon.ppid()


def strike(lives: Lives, victim: Victim, held: Pass) -> None:
    """Kill the victim, release the processes that wait at the step, and start the victim again."""
    if victim is Victim.LANE:
        lives.kill()
    else:
        lives.stage.kill(victim, held)
    lives.stage.disarm()
    if victim is Victim.LANE:
        lives.begin()
    else:
        lives.stage.restart(victim)


@pytest.mark.statement("K1", "X1", "X2")
@pytest.mark.parametrize("format_", ["delta", "iceberg"])
@pytest.mark.parametrize(("mode", "victim", "step"), MODES)
@pytest.mark.fault(3, 4, 5)
def test_whoever_is_killed_every_row_arrives_once(
    local: Stage, catalog: Path, mode: str, victim: Victim, step: Step, format_: str, folder: Path
) -> None:
    """K1, X1, X2: and every marker is right. A range that was committed is not read again."""
    composed, cluster = compose(local, catalog, format_, mode=mode, tasks=2)
    planned = local.plan(composed)
    local.arm(step, Action.WAIT, DRAW.number)
    with living(local, composed, folder) as lives:
        held = lives.reached(step, DRAW.number)
        strike(lives, victim, held)
        lives.to_the_end()
        commits = [one.slice_id for one in local.journal() if one.step is BEFORE]
    assert commits.count(held.slice_id) == (2 if step is BEFORE else 1)
    check(local, composed, planned, cluster)


@pytest.mark.statement("S2", "K1", "X1", "X2")
@pytest.mark.parametrize("format_", ["delta", "iceberg"])
@pytest.mark.fault(5)
def test_a_range_is_read_by_several_executors_and_one_is_killed(
    narrow: Stage, catalog: Path, format_: str, folder: Path
) -> None:
    """S2, K1, X1, X2: each reads one piece. Rows that the killed one had materialised are gone with it, and are read

    again; those of the other one are not doubled.
    """
    composed, cluster = compose(narrow, catalog, format_, tasks=2)
    # No other range takes a core meanwhile.
    composed = replace(composed, budget=replace(composed.budget, credits=1))
    planned = narrow.plan(composed)
    narrow.arm(BEFORE, Action.WAIT, DRAW.number)
    with living(narrow, composed, folder) as lives:
        held = lives.reached(BEFORE, DRAW.number)
        readers = {find_executor(one): one for one in oracle.copied(narrow.journal()) if one.tag == held.tag}
        assert len(readers) == 2
        narrow.kill(Victim.EXECUTOR, next(iter(readers.values())))
        narrow.disarm()
        lives.to_the_end()
        assert lives.number == 1, "an executor that is lost ends no lane"
    check(narrow, composed, planned, cluster)


@pytest.mark.statement("K1", "X1", "X2")
@pytest.mark.parametrize("mode", ["append", "upsert"])
@pytest.mark.parametrize("format_", ["delta", "iceberg"])
@pytest.mark.fault(13)
def test_a_frozen_lane_wakes_up_when_another_one_has_written_its_range(
    local: Stage, catalog: Path, mode: str, format_: str, folder: Path
) -> None:
    """K1, X1, X2: it has looked at the table before it was frozen, and commits by a token that is taken."""
    composed, cluster = compose(local, catalog, format_, mode=mode)
    planned = local.plan(composed)
    local.arm(BEFORE, Action.WAIT, DRAW.number)
    with living(local, composed, folder) as lives:
        held = lives.reached(BEFORE, DRAW.number)
        late = lives.process
        os.kill(late.pid, signal.SIGSTOP)
        try:
            local.disarm()
            lives.begin()
            lives.to_the_end()
            done = cluster.rows(composed.into)
        finally:
            os.kill(late.pid, signal.SIGCONT)
            late.join(SECONDS)
            late.kill()
        assert (late.pid, held.slice_id) in [(one.pid, one.slice_id) for one in local.journal() if one.step is AFTER]
    assert done == cluster.rows(composed.into)
    check(local, composed, planned, cluster)


@pytest.mark.statement("K6", "X1", "X2")
@pytest.mark.parametrize("kind", [*lakes.KINDS, "delta by Spark", "iceberg by Spark"])
@pytest.mark.fault(5, 12)
def test_two_executions_of_a_task_write_its_rows_once(
    machines: Stage, catalog: Path, kind: str, folder: Path, tmp_path: Path
) -> None:
    """K6, X1, X2: Spark starts a twin of a task that takes long, on another machine, and both come to their end."""
    format_, _, by_spark = kind.partition(" ")
    composed, cluster = compose(machines, catalog, format_ if by_spark else "delta")
    if not by_spark:
        composed = replace(composed, into=lakes.place(kind, tmp_path))
    step = IN_COPY if by_spark else BEFORE
    planned = machines.plan(composed)
    machines.arm(step, Action.WAIT, DRAW.number)

    def find_twins(held: Pass) -> set[int]:
        return {one.pid for one in machines.journal() if (one.step, one.tag) == (step, held.tag)} - {held.pid}

    with living(machines, composed, folder) as lives:
        held = lives.reached(step, DRAW.number)
        assert lives.until(lambda: find_twins(held))
        machines.disarm()
        lives.to_the_end()
        assert lives.number == 1, "two executions of a task end no lane"
    if by_spark:
        check(machines, composed, planned, cluster)
        return
    assert lakes.rows(composed.into) == run(machines.source, f"SELECT * FROM t{DRAW.rows} ORDER BY id")
    oracle.check_lake(composed, planned)


def compose_source(stage: Stage, catalog: Path, format_: str) -> Composed:
    """Return a hydration from a new table of a format, with the rows of the source's own, into PostgreSQL."""
    composed = stage.hydration(DRAW)
    cluster = lakes.Cluster(url=composed.remote, ui_url=composed.ui_url or "", folder=catalog)
    table, at = cluster.place(format_, f"s_{uuid.uuid4().hex[:8]}")["table"], replace(NOWHERE, password=composed.remote)
    rows = f"SELECT id, repeat(md5(CAST(id AS STRING)), 3) AS body FROM range(1, {DRAW.rows + 1})"
    with closing(SqlSession(at)) as session:
        session.get().sql(f"CREATE TABLE {table} USING {format_} AS {rows}").collect()
    return replace(
        composed,
        kind="spark_catalog",
        table=table,
        source=replace(at, conn_id="source"),
        reading={"split_column": "id"},
    )


def check_source(stage: Stage, composed: Composed, planned: Planned, flying: set[str]) -> None:
    """Check rows, markers, credits and connections against the PostgreSQL table that has the same rows."""
    oracle.check(stage, replace(composed, source=stage.source, table=f"public.t{DRAW.rows}"), planned, flying=flying)


@pytest.mark.statement("K5", "X1", "X2")
@pytest.mark.parametrize("format_", ["delta", "iceberg"])
@pytest.mark.parametrize(("victim", "step"), SOURCE_CELLS)
@pytest.mark.fault(3, 4, 5)
def test_whoever_is_killed_every_row_of_a_catalog_arrives_once(
    local: Stage, catalog: Path, victim: Victim, step: Step, format_: str, folder: Path
) -> None:
    """K5, X1, X2: from the planned version of the table, and nothing that was committed is read again."""
    composed = compose_source(local, catalog, format_)
    planned = local.plan(composed)
    local.arm(step, Action.WAIT, DRAW.number)
    with living(local, composed, folder) as lives:
        held = lives.reached(step, DRAW.number)
        flying = oracle.in_flight(local.journal())
        strike(lives, victim, held)
        lives.to_the_end()
    check_source(local, composed, planned, flying)


@pytest.mark.statement("K5", "X1", "X2")
@pytest.mark.parametrize("format_", ["delta", "iceberg"])
@pytest.mark.fault(5)
def test_an_executor_that_reads_a_catalog_is_killed(machines: Stage, catalog: Path, format_: str, folder: Path) -> None:
    """K5, X1, X2: before its commit; Spark runs the task on the other machine."""
    composed = compose_source(machines, catalog, format_)
    planned = machines.plan(composed)
    machines.arm(BEFORE, Action.WAIT, DRAW.number)
    with living(machines, composed, folder) as lives:
        held = lives.reached(BEFORE, DRAW.number)
        flying = oracle.in_flight(machines.journal())
        machines.kill(Victim.EXECUTOR, held)
        machines.disarm()
        lives.to_the_end()
        assert lives.number == 1, "an executor that is lost ends no lane"
    check_source(machines, composed, planned, flying)
