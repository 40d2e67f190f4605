"""Increments whose source was restored from a backup, in the place of the database that it was."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.planning.plan_result import Planned, Verdict
from airflow_provider_backpressure.exceptions import SourceRefused
from dev.services import Server
from tests.conftest import endpoint_of, fresh_database
from tests.support.composed import Composed, difference
from tests.support.postgres import numbered_rows, run

pytestmark = [pytest.mark.integration, pytest.mark.in_process]


@pytest.fixture
def composed(postgres: Server, database: Endpoint, hydration: Composed) -> Iterator[Composed]:
    """A source of 1,000 rows in a database of its own, whose increments are added."""
    run(database, "CREATE SCHEMA raw")
    with fresh_database(postgres) as source:
        run(source, *numbered_rows(1000))
        yield replace(hydration, source=source, mode="append", consistency="static", reading={"increment_column": "id"})


def bring(composed: Composed, *, has_same_rows: bool = False) -> Planned:
    """Plan and drain what is new."""
    with composed.open() as ports:
        planned = replace(ports.planner(), has_same_rows=has_same_rows).plan()
        if planned.verdict is Verdict.PLANNED:
            ports.hydrator().run()
            ports.ledger.finish(ports.hydration.id)
    return planned


def make_again(postgres: Server, composed: Composed, rows: int) -> None:
    """Exchange the source's database for one of its name that has so many of the rows."""
    name = composed.source.database
    admin = endpoint_of(postgres, "postgres")
    run(admin, f"DROP DATABASE {name} WITH (FORCE)")
    run(admin, f"CREATE DATABASE {name}")
    run(composed.source, *numbered_rows(rows))


@pytest.mark.statement("X3")
def test_a_source_that_was_restored_from_a_backup_is_noticed(postgres: Server, composed: Composed) -> None:
    """X3: the last rows are missing in the backup, and their values are given to other rows, above which is the next
    window."""
    assert bring(composed).verdict is Verdict.PLANNED
    make_again(postgres, composed, 900)
    run(composed.source, "INSERT INTO t SELECT i, 'of the day after' FROM generate_series(901, 1100) i")
    for _ in range(2):
        with pytest.raises(SourceRefused, match=r'in another database than before.*"same_rows".*"restart"'):
            bring(composed)


@pytest.mark.statement("X3")
@pytest.mark.parametrize("more", [0, 100])
def test_increments_continue_in_a_database_that_has_the_same_rows(
    postgres: Server, composed: Composed, more: int
) -> None:
    """X3: a person says so once, as when the server was upgraded, also where nothing is new by then."""
    assert bring(composed).verdict is Verdict.PLANNED
    make_again(postgres, composed, 1000 + more)
    assert bring(composed, has_same_rows=True).verdict is (Verdict.PLANNED if more else Verdict.UNCHANGED)
    run(composed.source, "INSERT INTO t SELECT i, 'new' FROM generate_series(1101, 1200) i")
    assert bring(composed).verdict is Verdict.PLANNED
    assert difference(composed.source, "t", composed.sink, "raw.t") == (0, 0)
