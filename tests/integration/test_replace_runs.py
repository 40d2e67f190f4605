"""``replace`` from plan to swap with the real runner: read all the while, started again, failed and put right."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.planning.plan_result import Verdict
from airflow_provider_backpressure.exceptions import VerificationFailed
from tests.support.composed import Composed, difference
from tests.support.postgres import connected, numbered_rows, run
from tests.support.waiting import beside, until

pytestmark = [pytest.mark.integration, pytest.mark.in_process]

ROWS = 3000


@pytest.fixture
def composed(database: Endpoint, hydration: Composed) -> Composed:
    """A source of 3,000 rows in two ranges or three, and a target with other rows that a view reads."""
    run(
        database,
        *numbered_rows(ROWS),
        "CREATE SCHEMA raw",
        "CREATE TABLE raw.t (id bigint PRIMARY KEY, code text)",
        "INSERT INTO raw.t VALUES (-1, 'old')",
        "CREATE VIEW raw.v AS SELECT * FROM raw.t",
    )
    return replace(
        hydration,
        mode="replace",
        budget=Budget(credits=2, range_rows=1500),
    )


@contextmanager
def counted(database: Endpoint) -> Iterator[list[int]]:
    """Count the rows of table and view all the time; every new count is kept."""
    counts: list[int] = []

    def count(over: threading.Event) -> None:
        with connected(database) as connection:
            while not over.wait(0.01):  # one that never rests would take a core from the others
                for name in ("raw.v", "raw.t"):
                    counted = connection.execute(f"SELECT count(*) FROM {name}").fetchall()[0][0]
                    if [counted] != counts[-1:]:
                        counts.append(counted)

    with beside(count):
        yield counts


@pytest.mark.statement("X4")
def test_a_target_is_replaced_and_replaced_again(composed: Composed, database: Endpoint) -> None:
    """X4: equal after each; readers see one or the other; nothing moved means nothing to do; a restart goes again."""
    with counted(database) as counts:
        assert composed.plan().ranges >= 2
        composed.run()
        composed.finish()
        assert difference(database, "t", database, "raw.t") == (0, 0)
        assert composed.plan().verdict is Verdict.UNCHANGED
        run(database, "DELETE FROM t WHERE id > 2000")
        assert composed.plan().verdict is Verdict.MOVED
        again = replace(composed, restart=True)
        again.plan()
        composed.run()
        assert counts[-1] == ROWS
        composed.finish()
        until(lambda: counts[-1] == 2000)
    assert difference(database, "t", database, "raw.v") == (0, 0)
    assert counts == [1, ROWS, 2000]


def test_what_differs_is_not_shown_and_named(composed: Composed, database: Endpoint) -> None:
    """A row of the shadow that was lost keeps the old rows where they are; the next plan begins again."""
    plan = composed.plan().plan
    composed.run()
    run(database, f"DELETE FROM {plan.write.target} WHERE id = 1700")
    with pytest.raises(VerificationFailed, match=r"^range \d+: the target holds \d+ rows, \d+ were committed"):
        composed.finish()
    assert run(database, "SELECT * FROM raw.t") == [(-1, "old")]
    replace(composed, restart=True).plan()
    assert run(database, f"SELECT to_regclass('{plan.write.target}')") == [(None,)]
