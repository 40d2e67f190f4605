"""Names of lanes, and whose they are."""

import pytest

from airflow_provider_backpressure.core.snapshot.ranges import MAX_LANE, Drainer, drainer, lane

RUN = "manual__2026-01-01T00:00:00+00:00"


@pytest.mark.parametrize("index", [-1, 0, 1023])
def test_a_lane_tells_its_task_instance(index: int):
    name = lane("orders", RUN, "hydrate_orders.hydrate_ranges", str(index))
    expected = Drainer(dag_id="orders", run_id=RUN, task_id="hydrate_orders.hydrate_ranges", map_index=index)
    assert drainer(name) == expected


def test_a_range_with_tasks_of_its_own_tells_the_run():
    assert drainer(lane("orders", RUN, "range-7")) == Drainer(dag_id="orders", run_id=RUN)


@pytest.mark.parametrize("name", [None, "", "probe", lane("d" * 240, RUN, "t", "-1"), "a/b/c/d", "a/b/c/1/2"])
def test_another_name_tells_nothing(name: str | None):
    assert len(name or "") <= MAX_LANE
    assert drainer(name) is None
