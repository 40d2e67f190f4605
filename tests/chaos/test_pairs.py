"""Every pair of source and target is struck at every step of a range, and comes to the same end; or it is refused.

The tasks run in threads of the lane's process. ``CHAOS_PAIRS=all``, as by ``make chaos``, runs every cell once.
"""

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.failpoints import Action, Folder, Point, Step
from airflow_provider_backpressure.core.verification.completion import Completion
from airflow_provider_backpressure.core.verification.verifier import Verify
from airflow_provider_backpressure.exceptions import InvalidDeclaration, SinkRefused
from airflow_provider_backpressure.ledger.migration import migrate
from dev.services import Server
from tests.chaos.pairs import (
    DONE,
    REFUSED,
    UNARMED,
    WINDOWS,
    Cell,
    From,
    Into,
    Pair,
    Servers,
    Struck,
    begun,
    cells,
    day,
    pair,
    runner_of,
)
from tests.chaos.results import Results
from tests.conftest import fresh_database
from tests.support.waiting import until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

LIVES = 6
RESULTS = "CHAOS_RESULTS"
"""Environment variable: the file that keeps which cells went well at this commit, so that they are left out."""


@pytest.fixture(scope="module")
def empty_ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated ledger in a file, to be copied."""
    path = tmp_path_factory.mktemp("pairs") / "empty.db"
    migrate(f"sqlite:///{path}")
    return path


@pytest.fixture
def ledger(empty_ledger: Path, tmp_path: Path) -> str:
    """A ledger of its own."""
    shutil.copy(empty_ledger, tmp_path / "ledger.db")
    return f"sqlite:///{tmp_path / 'ledger.db'}"


@pytest.fixture
def servers(postgres: Server, database: Endpoint, mysql_database: Endpoint, kafka: Server) -> Iterator[Servers]:
    """A source in each system, and a target."""
    with fresh_database(postgres) as target:
        yield Servers(postgres=database, mysql=mysql_database, target=target, kafka=kafka)


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


def strike(cell: Cell, made: Pair, failpoints: Folder, folder: Path) -> None:
    """Let a life reach the step, and strike; then live on until nothing is left."""
    folder.chmod(0o700)
    config, log = made.composed.write(folder), folder / "lane.log"
    (failpoints.path / "journal").unlink(missing_ok=True)
    kills = cell.struck is Struck.PROCESS
    number = cell.number(day())
    arm(failpoints, Point(step=cell.step, action=Action.KILL if kills else Action.WAIT, number=number))
    struck = False
    try:
        for _ in range(LIVES):
            process: Any = begun(config, log)
            if not kills and not struck:
                until(partial(reached, failpoints, cell.step, number), 60, told=lambda: log.read_text()[-3000:])
                made.strike()
                struck = True
                arm(failpoints, None)
            process.join(90)
            code = process.exitcode
            assert code not in (None, UNARMED), f"exit code {code}: {log.read_text()[-3000:]}"
            if code == DONE:
                break
            struck = struck or code == -9
            arm(failpoints, None)
        assert struck, "nobody was struck"
        assert code == DONE, log.read_text()[-3000:]
    finally:
        arm(failpoints, None)


def left() -> list[Cell]:
    """Return the cells of this run that are not known yet."""
    known = {line["cell"] for line in Results(RESULTS).known() if "cell" in line}
    return [cell for cell in cells() if str(cell) not in known]


@pytest.mark.statement("X1", "X2", "T1")
@pytest.mark.fault(3, 4, 7)
@pytest.mark.parametrize("cell", left(), ids=str)
def test_every_pair_comes_to_the_same_end(
    cell: Cell, servers: Servers, ledger: str, failpoints: Folder, tmp_path: Path
) -> None:
    """X1, X2, T1: each source into each target, the process killed or the source's connections ended at a step."""
    made = pair(cell.source, cell.into, servers, ledger, tmp_path)
    plan(made)
    if cell.source in WINDOWS:
        drain(made)
        finish(made)
        made.change()
        plan(made)
    strike(cell, made, failpoints, tmp_path)
    finish(made)
    differs = made.differs()
    Results(RESULTS).add(cell=str(cell), seed=day(), outcome="failed" if differs else "equal")
    assert differs == 0


@pytest.mark.parametrize(("source", "into"), list(REFUSED), ids=str)
def test_a_pair_that_is_not_taken_is_refused_at_plan(
    source: From, into: Into, servers: Servers, ledger: str, tmp_path: Path
) -> None:
    """Nothing is written down, and the sentence says what is wanted."""
    made = pair(source, into, servers, ledger, tmp_path)
    with pytest.raises((InvalidDeclaration, SinkRefused)) as refused:
        plan(made)
    assert REFUSED[source, into] in str(refused.value)
