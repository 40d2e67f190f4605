"""Every pair of source and target is struck at every step of a range, and comes to the same end; or it is refused.

The tasks run in threads of the lane's process; those with a transform run on Spark. ``CHAOS_PAIRS=all``, as by
``make chaos``, runs every cell once. With ``CHAOS_RESULTS`` it goes on where it was stopped.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.failpoints import Action, Folder, Point, Step
from airflow_provider_backpressure.core.verification.completeness_check import Completion
from airflow_provider_backpressure.core.verification.verifier import Verify
from airflow_provider_backpressure.exceptions import InvalidDeclaration, SinkRefused
from airflow_provider_backpressure.testing import MemoryRunner, MemorySink, MemorySource
from dev.services import Server, Services
from tests.chaos.pairs import (
    DONE,
    PAIRS,
    REFUSED,
    UNARMED,
    WINDOWS,
    Cell,
    From,
    Into,
    Pair,
    Servers,
    Struck,
    all_cells,
    begun,
    cells,
    day,
    pair,
    runner_of,
    sample,
)
from tests.chaos.results import Results
from tests.conftest import endpoint_of, fresh_database
from tests.support import kafka as on_kafka
from tests.support import mysql as on_mysql
from tests.support.ledgers import new_ledger
from tests.support.waiting import until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]
# The first cell of a kind starts its servers.

LIVES = 6
RESULTS = "CHAOS_RESULTS"
"""Environment variable: the file that keeps which cells went well at this commit, so that they are left out."""


@pytest.fixture
def ledger(tmp_path: Path) -> str:
    """A ledger of its own."""
    return new_ledger(tmp_path / "ledger.db")


OWN = "pairs"
"""Name of the servers that are killed. No other test has anything on them."""
Place = Callable[[Cell], Servers]


@pytest.fixture(scope="module")
def own_servers(services: Services) -> Iterator[Callable[[str], Server]]:
    """Servers of these tests' own, by kind."""

    def start(kind: str) -> Server:
        name = own(kind)
        return services.up(name)[name]

    yield start
    names = [name for name, server in services.status().items() if name.endswith(f":{OWN}") and server.running]
    for name in names:
        services.kill(name)
    services.down(*names)


@pytest.fixture
def place(request: pytest.FixtureRequest, services: Services, postgres: Server) -> Iterator[Place]:
    """Gives a cell its source, its target and its Spark; a cell that kills the source's server gets another server."""
    with ExitStack() as stack:

        def place_(cell: Cell) -> Servers:
            if cell.struck is Struck.SERVER:
                server = request.getfixturevalue("own_servers")(cell.system)
            else:
                server = services.up(cell.system)[cell.system]
            return Servers(
                source=stack.enter_context(fresh_source(cell.system, server)),
                target=stack.enter_context(fresh_database(postgres)),
                spark=request.getfixturevalue("chaos_connect") if cell.on_spark else None,
            )

        yield place_


def own(kind: str) -> str:
    return f"{kind}:{OWN}"


@contextmanager
def fresh_source(kind: str, server: Server) -> Iterator[Endpoint]:
    """Give a new database on a server, or a broker."""
    if kind == "kafka":
        yield on_kafka.endpoint_of(server)
    elif kind == "mysql":
        with on_mysql.fresh_database(endpoint_of(server, "mysql")) as database:
            yield database
    else:
        with fresh_database(server) as database:
            yield database


def plan(made: Pair) -> None:
    with made.composed.open(runner_of(made.composed)) as ports:
        ports.planner().plan()


def drain(made: Pair) -> None:
    with made.composed.open(runner_of(made.composed)) as ports:
        ports.hydrator().run()
        while ports.planner().follow():
            ports.hydrator().run()


def finish(made: Pair) -> None:
    with made.composed.open(runner_of(made.composed)) as ports:
        current = ports.plan
        Completion(plan=current, ledger=ports.ledger, sink=ports.sink).check()
        ports.sink.complete(current)
        report = ports.verifier().verify(ports.ledger.ranges(current.plan_id), Verify.TARGET)
        assert report.equal, report.mismatches
        ports.sink.publish(current)
        ports.ledger.finish(ports.hydration.id)


def arm(failpoints: Folder, point: Point | None) -> None:
    fresh = failpoints.path / "points.new"
    fresh.write_text(str(point) if point else "")
    fresh.replace(failpoints.path / "points")


def reached(failpoints: Folder, step: Step, number: int) -> bool:
    journal = failpoints.path / "journal"
    return journal.exists() and journal.read_text().count(f"{step} ") >= number


def strike(cell: Cell, made: Pair, failpoints: Folder, folder: Path, services: Services) -> None:
    """Let a life reach the step, and strike; then live on until nothing is left."""
    folder.chmod(0o700)
    config, log = made.composed.write(folder), folder / "lane.log"
    (failpoints.path / "journal").unlink(missing_ok=True)
    number = cell.number(day())
    is_reached = partial(reached, failpoints, cell.step, number)
    arm(failpoints, Point(step=cell.step, action=cell.action, number=number))
    struck = False
    try:
        for _ in range(LIVES):
            process: Any = begun(config, log)
            if cell.action is Action.WAIT and not struck:
                until(is_reached, 60, told=lambda: log.read_text()[-3000:])
                strike_held(cell, made, process, failpoints, services)
                struck = True
            process.join(90)
            code = process.exitcode
            assert code not in (None, UNARMED), f"exit code {code}: {log.read_text()[-3000:]}"
            struck = struck or (is_reached() if cell.struck is Struck.TASK else code == -9)
            if code == DONE:
                break
            arm(failpoints, None)
        assert struck, "nothing was struck"
        assert code == DONE, log.read_text()[-3000:]
    finally:
        arm(failpoints, None)


def strike_held(cell: Cell, made: Pair, lane: Any, failpoints: Folder, services: Services) -> None:
    """Strike while a process is held at the step, and let that process go on."""
    if cell.struck is Struck.PROCESS:
        lane.kill()
    elif cell.struck is Struck.SOURCE:
        made.end_connections()
    else:
        services.kill(own(cell.system))
        # The process goes on beside the restart: it meets a server that does not answer.
        arm(failpoints, None)
        services.restart(own(cell.system))
    arm(failpoints, None)


def left() -> list[Cell]:
    """Return the cells of this run that are not known yet."""
    known = {line["cell"] for line in Results(RESULTS).known() if "cell" in line}
    return [cell for cell in cells() if str(cell) not in known]


@pytest.mark.statement("X1", "X2", "T1")
@pytest.mark.fault(3, 4, 7)
@pytest.mark.parametrize("cell", left(), ids=str)
def test_every_pair_comes_to_the_same_end(
    cell: Cell, place: Place, services: Services, ledger: str, failpoints: Folder, tmp_path: Path
) -> None:
    """X1, X2, T1: each source into each target, with lane, task, the source's connections or its server struck."""
    with Results(RESULTS).recording(cell=str(cell), seed=day()):
        made = pair(cell.source, cell.into, place(cell), ledger, tmp_path)
        plan(made)
        if cell.source in WINDOWS:
            drain(made)
            finish(made)
            made.change()
            plan(made)
        strike(cell, made, failpoints, tmp_path, services)
        finish(made)
        assert made.differs() == 0


@pytest.mark.parametrize(("source", "into"), list(REFUSED), ids=str)
def test_a_pair_that_is_not_taken_is_refused_at_plan(
    source: From, into: Into, services: Services, postgres: Server, ledger: str, tmp_path: Path
) -> None:
    """Nothing is written down, and the sentence says what is wanted."""
    kind = source.partition(" ")[0]
    # A refusal comes before the first job: this runner knows a transform's columns without a Spark.
    runner = MemoryRunner(source=MemorySource(keys=()), sink=MemorySink())
    with fresh_source(kind, services.up(kind)[kind]) as database, fresh_database(postgres) as target:
        made = pair(source, into, Servers(source=database, target=target), ledger, tmp_path)
        with made.composed.open(runner) as ports, pytest.raises((InvalidDeclaration, SinkRefused)) as refused:
            ports.planner().plan()
    assert REFUSED[source, into] in str(refused.value)


def test_the_days_go_through_every_cell() -> None:
    """FINEPRINT 48: the sample of a day is small, and no cell is left out for good."""
    every = all_cells()
    assert {cell.into for cell in every} == set(Into)
    assert {(cell.source, cell.into) for cell in every if cell.struck is Struck.SERVER} == set(PAIRS)
    days = range(len(every))
    assert {cell for today in days for cell in sample(every, 1, today)} == set(every)
    assert len({*sample(every, 3, 7), *sample(every, 3, 8)}) == 6
