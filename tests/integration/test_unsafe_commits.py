"""Commits that readers see before they are safe on the source's disk (``synchronous_commit = off``)."""

from pathlib import Path

import pytest

from airflow_provider_backpressure.connectors.postgres.tasks import copy as copy_path
from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.failpoints import Step
from dev.services import Server, Services
from tests.conftest import endpoint_of, fresh_database
from tests.support.catching_up import follow
from tests.support.composed import IN_PROCESS, Composed
from tests.support.ledgers import new_ledger
from tests.support.local_runner import LocalRunner
from tests.support.postgres import connected, run

pytestmark = [pytest.mark.integration, pytest.mark.in_process]

LAZY = {"wal_writer_delay": "10s", "wal_writer_flush_after": "1GB", "autovacuum": "off", "checkpoint_timeout": "1h"}
"""Settings under which the server brings its log to its disk only where a commit waits for that."""


@pytest.mark.statement("W3")
def test_rows_that_a_crash_takes_back_are_read_again(
    services: Services, postgres: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W3: the source crashes behind a range's last row, and the position of the server that comes back hides that."""
    server = services.up("postgres:crash", settings={"postgres": LAZY})["postgres:crash"]
    crashed: list[str] = []

    def crash(step: Step, tag: str) -> None:
        if step is Step.IN_COPY and not crashed:
            crashed.append(tag)
            services.kill("postgres:crash")
            services.restart("postgres:crash")

    with fresh_database(postgres) as sink:
        source = endpoint_of(server, "postgres")
        run(
            source,
            "CREATE TABLE t (id int PRIMARY KEY, v int)",
            "INSERT INTO t SELECT g, 0 FROM generate_series(1, 100) g",
            "CHECKPOINT",
        )
        composed = Composed(source=source, sink=sink, ledger_url=new_ledger(tmp_path / "l.db"), remote=IN_PROCESS)
        logins: dict[str, Endpoint] = {}
        followed = follow(composed, LocalRunner(logins=logins), logins, Budget(credits=1, range_rows=1000))
        followed.plan()
        with connected(source) as writer:
            writer.execute("SET synchronous_commit = off")
            writer.execute("INSERT INTO t VALUES (777, 1)")
            writer.execute("UPDATE t SET v = 99 WHERE id = 5")
            writer.execute("DELETE FROM t WHERE id = 6")
            with monkeypatch.context() as patched:
                patched.setattr(copy_path, "reach", crash)
                followed.drain()
        assert crashed
        assert run(source, "SELECT count(*), max(v) FROM t") == [(100, 0)], "the server has forgotten the commits"
        followed.finish()
        assert followed.differs() == (0, 0)
