"""Policies of a source's table: rows that are hidden later are not taken for rows that are gone."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.exceptions import SourceRefused
from tests.integration.test_mirror import mirror
from tests.support.composed import Composed
from tests.support.postgres import new_role, run

pytestmark = [pytest.mark.integration, pytest.mark.in_process, pytest.mark.statement("X1")]

HIDE = "CREATE POLICY shown ON t USING (tenant <> 3)", "ALTER TABLE t ENABLE ROW LEVEL SECURITY"


@pytest.fixture
def composed(database: Endpoint, hydration: Composed) -> Iterator[Composed]:
    """300 rows of 20 tenants, read by a role that may not see past policies."""
    run(
        database,
        "CREATE TABLE t (id int PRIMARY KEY, tenant int)",
        "INSERT INTO t SELECT i, i % 20 FROM generate_series(1, 300) i",
        "CREATE SCHEMA raw",
    )
    with new_role(database) as role:
        run(database, f"GRANT SELECT ON t TO {role.user}")
        yield replace(hydration, source=role, budget=Budget(credits=2, range_rows=100))


@pytest.mark.parametrize("consistency", ["static", "snapshot"])
def test_a_mirror_does_not_delete_what_a_policy_hides(database: Endpoint, composed: Composed, consistency: str) -> None:
    """X1: few enough rows for the brake on deletes. Once the login sees every row again, the mirror goes on."""
    composed = replace(composed, mode="mirror", consistency=consistency)
    mirror(composed, "first")
    run(database, *HIDE, "UPDATE t SET tenant = 4 WHERE id = 1")
    with pytest.raises(SourceRefused, match=r"row security hides rows of it from the login, and mirror would delete"):
        mirror(composed, "second")
    assert run(database, "SELECT count(*) FROM raw.t") == [(300,)]
    run(database, "ALTER TABLE t DISABLE ROW LEVEL SECURITY")
    mirror(composed, "third")
    assert run(database, "SELECT count(*), max(tenant) FILTER (WHERE id = 1) FROM raw.t") == [(300, 4)]


@pytest.mark.parametrize("consistency", ["static", "snapshot"])
def test_a_policy_that_comes_behind_the_plan_stops_its_ranges(
    database: Endpoint, composed: Composed, consistency: str
) -> None:
    """X1: the server refuses the read, instead of leaving rows out."""
    composed = replace(composed, consistency=consistency)
    composed.plan()
    run(database, *HIDE)
    with pytest.raises(SourceRefused, match="row-level security"):
        composed.run()
    assert run(database, "SELECT count(*) FROM raw.t") == [(0,)]
    run(database, "ALTER TABLE t DISABLE ROW LEVEL SECURITY")
    composed.run()
    composed.finish()
    assert run(database, "SELECT count(*) FROM raw.t") == [(300,)]


@pytest.mark.parametrize("declared", [{}, {"where": "tenant > 0"}])
def test_what_a_policy_shows_when_a_run_plans_is_what_is_read(
    database: Endpoint, composed: Composed, declared: dict[str, str]
) -> None:
    """X1: a login that is meant to see a part of the table."""
    run(database, *HIDE)
    composed = replace(composed, reading=declared)
    composed.plan()
    composed.run()
    composed.finish()
    assert run(database, "SELECT count(*), count(*) FILTER (WHERE tenant = 3) FROM raw.t") == [
        (270 if declared else 285, 0)
    ]
