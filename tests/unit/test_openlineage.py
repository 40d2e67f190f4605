"""Lineage as OpenLineage's own provider gets it from a task, and nothing where it is not installed."""

import json
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.openlineage.extractors import ExtractorManager
from airflow.utils.state import TaskInstanceState
from openlineage.client.serde import Serde

from airflow_provider_backpressure import openlineage
from airflow_provider_backpressure.core.snapshot.spark_messages import Transform
from airflow_provider_backpressure.hooks.hydration_session import HydrationSession
from airflow_provider_backpressure.operators import (
    HydrateOperator,
    PlanSnapshotOperator,
    SubmitRangeOperator,
    VerifyHydrationOperator,
)
from tests.support.world import World, context

NAMES = {
    "source_identity": "postgres://shop:5432/shop/public.orders#0123456789ab",
    "sink_identity": "delta://bucket/raw/orders",
}


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """A planned hydration."""
    made = World()
    made.install(monkeypatch)
    PlanSnapshotOperator(task_id="plan_snapshot", **made.flow).execute(context())
    return made


def told(task: Any, state: TaskInstanceState = TaskInstanceState.SUCCESS, **plan: Any) -> dict[str, Any]:
    """Return what the provider makes of a task that has ended, as it is sent."""
    for key, lineage in task.lineages.items():
        task.lineages[key] = replace(lineage, plan=replace(lineage.plan, **NAMES, **plan))
    given = ExtractorManager().extract_metadata(
        dagrun=SimpleNamespace(run_id="run"), task=task, task_instance_state=state, task_instance=SimpleNamespace()
    )
    return {side: [json.loads(Serde.to_json(one)) for one in getattr(given, side)] for side in ("inputs", "outputs")}


def test_a_lane_tells_what_it_moved(world: World):
    """Both datasets by the convention, their columns, rows and bytes, and which column comes from which."""
    task = HydrateOperator(task_id="hydrate", **world.flow)
    task.execute(context())
    found = told(task)
    (source,), (sink,) = found["inputs"], found["outputs"]
    assert (source["namespace"], source["name"]) == ("postgres://shop:5432", "shop.public.orders")
    assert (sink["namespace"], sink["name"]) == ("s3://bucket", "raw/orders")
    assert sink["outputFacets"]["outputStatistics"]["rowCount"] == 100
    names = [column.name for column in world.plan.write.columns]
    assert [field["name"] for field in sink["facets"]["schema"]["fields"]] == names
    lines = sink["facets"]["columnLineage"]["fields"]
    assert list(lines) == names
    (line,) = lines[names[0]]["inputFields"]
    assert (line["namespace"], line["name"], line["field"]) == (source["namespace"], source["name"], names[0])


def test_a_transform_has_no_lineage_of_columns(world: World):
    task = HydrateOperator(task_id="hydrate", **world.flow)
    task.execute(context())
    assert "columnLineage" not in told(task, transform=Transform(sql="SELECT 1"))["outputs"][0]["facets"]


def test_a_task_of_one_range_tells_its_own(world: World):
    task = SubmitRangeOperator(task_id="submit", seq=3, **world.flow)
    task.execute(context())
    assert told(task)["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"] == 10


def test_rows_of_several_plans_in_one_task_are_summed(world: World, monkeypatch: pytest.MonkeyPatch):
    """As windows of a log follow ranges; the ledger counts each plan again."""
    follows = iter([True, False])
    monkeypatch.setattr(
        "airflow_provider_backpressure.core.planning.planner.Planner.follow", lambda self: next(follows)
    )
    # Nothing follows a plan of the consistency that was taken here.
    monkeypatch.setattr(HydrationSession, "take_target", lambda self: None)
    task = HydrateOperator(task_id="hydrate", **world.flow)
    task.execute(context())
    assert told(task)["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"] == 200


@pytest.mark.parametrize("equal", [True, False])
def test_verification_is_told_of_the_target(world: World, equal: bool):
    """Also where it fails: what was compared, and what was found."""
    HydrateOperator(task_id="hydrate", **world.flow).execute(context())
    task, state = VerifyHydrationOperator(task_id="verify", **world.flow), TaskInstanceState.SUCCESS
    if equal:
        task.execute(context())
    else:
        world.sink.rows.remove(15)
        state = TaskInstanceState.FAILED
        with pytest.raises(Exception, match="ranges differ"):
            task.execute(context())
    found = told(task, state)
    (sink,) = found["inputs"]
    assert (found["outputs"], sink["name"]) == ([], "raw/orders")
    assert sink["inputFacets"]["inputStatistics"]["rowCount"] == (100 if equal else 99)
    (assertion,) = sink["inputFacets"]["dataQualityAssertions"]["assertions"]
    assert assertion["success"] is equal


def test_a_task_that_moved_nothing_tells_nothing(world: World):
    task = HydrateOperator(task_id="hydrate", **world.flow)
    assert told(task) == {"inputs": [], "outputs": []}


def test_without_the_provider_it_costs_nothing(world: World, monkeypatch: pytest.MonkeyPatch):
    """Neither an import nor a question to the ledger."""
    monkeypatch.setattr(openlineage, "is_installed", lambda: False)
    for name in [name for name in sys.modules if name.split(".")[0] == "openlineage"]:
        monkeypatch.delitem(sys.modules, name)
    task = HydrateOperator(task_id="hydrate", **world.flow)
    task.execute(context())
    assert not task.lineages
    assert task.get_openlineage_facets_on_complete(None) is None
    assert not [name for name in sys.modules if name.split(".")[0] == "openlineage"]


def test_whether_it_is_installed_is_looked_up(monkeypatch: pytest.MonkeyPatch):
    openlineage.is_installed.cache_clear()
    assert openlineage.is_installed() is True
    openlineage.is_installed.cache_clear()
    monkeypatch.setattr(openlineage, "find_spec", lambda name: None)
    assert openlineage.is_installed() is False
    openlineage.is_installed.cache_clear()
