"""Links from tasks to the page."""

from types import SimpleNamespace

import pytest

from airflow_provider_backpressure.links import HydrationLink, RangeLink
from airflow_provider_backpressure.operators import HydrateOperator, PlanSnapshotOperator, SubmitRangeOperator
from tests.support.world import World, context


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """A planned hydration."""
    made = World()
    made.install(monkeypatch)
    PlanSnapshotOperator(task_id="plan_snapshot", **made.flow).execute(context())
    return made


def test_a_link_is_there_while_the_task_runs(world: World):
    """Airflow stores links when a task ends, and a lane runs for hours."""
    given = context()
    HydrateOperator(task_id="hydrate", **world.flow).execute(given)
    assert given["ti"].pushed["_link_HydrationLink"] == f"/plugin/backpressure#/hydration/{world.hydration.id}"


def test_a_range_has_a_link_of_its_own(world: World):
    given, task = context(), SubmitRangeOperator(task_id="submit", seq="3", **world.flow)
    task.execute(given)
    assert [link.name for link in task.operator_extra_links] == ["Hydration", "Range"]
    assert given["ti"].pushed["_link_RangeLink"] == f"/plugin/backpressure#/hydration/{world.hydration.id}/range/3"


def test_before_the_hydration_is_known_a_link_leads_to_those_of_the_dag(world: World):
    """As of a task that failed before it reached the ledger."""
    task = HydrateOperator(task_id="hydrate", **world.flow)
    assert (
        HydrationLink().get_link(task, ti_key=SimpleNamespace(dag_id="orders"))
        == "/dags/orders/plugin/backpressure-of-dag"
    )
    assert RangeLink().get_link(task, ti_key=SimpleNamespace(dag_id="orders")) == ""


def test_airflow_may_be_served_under_a_path(world: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://data.example.com/airflow/")
    task = HydrateOperator(task_id="hydrate", **world.flow)
    found = HydrationLink().get_link(task, ti_key=SimpleNamespace(dag_id="orders"))
    assert found == "/airflow/dags/orders/plugin/backpressure-of-dag"
