"""The stage of the kill tests, and the table that says what was killed when."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from _pytest.terminal import TerminalReporter

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.failpoints import VARIABLE, Folder, Step
from airflow_provider_backpressure.ledger.migration import migrate
from airflow_provider_backpressure.runners.connect_runner import ConnectRunner
from dev.services import Server, Services
from tests.chaos.drained import Session
from tests.chaos.matrix import CELLS, SIZES, Victim
from tests.chaos.stage import Stage
from tests.conftest import endpoint_of, fresh_database
from tests.support.composed import Composed
from tests.support.postgres import run

ROOT = Path(__file__).resolve().parents[2]
QUICK = {"spark.python.daemon.module": "airflow_provider_backpressure.runners.daemon"}
"""Spark's configuration for workers that begin quickly."""
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    # A range is one task, which has no others to be slower than.
    "spark.speculation.task.duration.threshold": "500ms",
}
"""Spark's configuration for a twin of each task that takes long, on another machine."""


@pytest.fixture(scope="package")
def failpoints(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Folder]:
    """The folder that every process started by these tests knows, and no other: lanes, Spark, its Python workers."""
    folder = tmp_path_factory.mktemp("failpoints")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, str(folder))
        patch.setenv("PYTHONPATH", str(ROOT))
        yield Folder(path=folder)


@pytest.fixture(scope="package")
def chaos_connect(services: Services, failpoints: Folder) -> Iterator[Server]:
    """A Spark that knows the failpoints. A task that dies is run again, as on a cluster."""
    name = "connect:chaos"
    yield services.up(name, master="local[4,4]", jars=(), spark_conf=QUICK)[name]
    services.down(name)


@pytest.fixture(scope="package")
def stage(services: Services, postgres: Server, failpoints: Folder, chaos_connect: Server) -> Iterator[Stage]:
    """Source, sink, ledger and Spark, each a server of its own."""
    names = ("postgres:sink", "postgres:ledger")
    servers = services.up(*names)
    sink, ledger = servers["postgres:sink"], servers["postgres:ledger"]
    url = f"postgresql+psycopg://{ledger.user}:{ledger.password}@{ledger.host}:{ledger.port}/postgres"
    migrate(url)
    with fresh_database(postgres) as source:
        for rows in SIZES:
            run(
                source,
                f"CREATE TABLE t{rows} (id bigint PRIMARY KEY, body text NOT NULL)",
                f"INSERT INTO t{rows} SELECT i, repeat(md5(i::text), 3) FROM generate_series(1, {rows}) i",
                f"ANALYZE t{rows}",
            )
        yield Stage(
            services=services,
            failpoints=failpoints,
            source=source,
            sink=endpoint_of(sink, "postgres"),
            ledger_url=url,
            connect=chaos_connect.name,
        )
    services.down(*names)


@pytest.fixture(scope="package")
def cluster(stage: Stage) -> Iterator[Stage]:
    """The same with a standalone cluster of two machines, whose executors are processes of their own."""
    options = {"master": "standalone", "workers": 2, "worker_cores": 2, "worker_memory": "1g", "apart": True}
    stage.services.up("connect:cluster", spark_conf={**QUICK, **SPECULATION}, jars=(), **options)
    yield stage.on("connect:cluster", speculates=True)
    stage.services.down("connect:cluster", "standalone")


@pytest.fixture(scope="package")
def session(connect: Server) -> Iterator[Session]:
    """One session of Spark's for all hydrations that a test drains in its own process, one after the other."""
    logins: dict[str, Endpoint] = {}
    with closing(ConnectRunner(connect.url, logins, ui_url=connect.ui_url)) as runner:

        def of(composed: Composed) -> ConnectRunner:
            logins["source"] = replace(composed.source, conn_id="source")
            logins["sink"] = replace(composed.sink, conn_id="sink")
            return runner

        yield of


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder for a lane's declaration and log, for the owner's eyes."""
    tmp_path.chmod(0o700)
    return tmp_path


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """Print how many seeds went well in each cell."""
    seen: dict[tuple[str, str], list[bool]] = defaultdict(list)
    for outcome in ("passed", "failed"):
        for report in terminalreporter.stats.get(outcome, []):
            case = dict(getattr(report, "user_properties", ()))
            if "victim" in case:
                seen[case["victim"], case["step"]].append(outcome == "passed")
    if not seen:
        return
    terminalreporter.section("killed x step: seeds that went well of those that were run, - no difference to the range")
    width = max(map(len, Step)) + 2
    terminalreporter.write_line("".join(word.ljust(width) for word in ("", *Victim)))
    for step in Step:
        cells = [_cell(seen.get((victim, step)), step in CELLS[victim]) for victim in Victim]
        terminalreporter.write_line("".join(word.ljust(width) for word in (step, *cells)))


def _cell(results: list[bool] | None, tried: bool) -> str:
    if results is None:
        return "not run" if tried else "-"
    return f"{sum(results)} of {len(results)}"
