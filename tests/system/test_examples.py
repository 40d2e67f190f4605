"""The example DAGs in a real Airflow: they run to their end, and target equals source."""

import pyarrow.compute
import pytest

from airflow_provider_backpressure.core.gate.hydration_record import Phase
from dev import erp
from tests.support import lakes
from tests.support.kafka import Topic
from tests.system.installation import LINEITEM_ROWS, Installation

pytestmark = pytest.mark.system


@pytest.mark.parametrize(
    ("dag_id", "target", "lane", "ranges"),
    [
        ("postgres_hydrate", "raw.lineitem", "hydrate_lineitem.hydrate_ranges", 3),
        ("postgres_task_per_range", "raw.lineitem_by_task", "hydrate_range.submit_range[1]", 2),
    ],
)
def test_an_example_hydrates_its_table(installation: Installation, dag_id: str, target: str, lane: str, ranges: int):
    """One lane, or a task per range after two sensors; a second run finds nothing to do."""
    run = installation.first(dag_id)
    assert run.ends() == "success", run.states()
    assert run.states()[lane] == "success"
    assert installation.fingerprint("warehouse", target) == installation.fingerprint("shop", "public.lineitem")
    (found,) = [one for one in installation.ledger.hydrations() if one.sink_identity.endswith(f"/{target}")]
    assert found.phase is Phase.STEADY_STATE
    assert found.plan is not None
    assert installation.ledger.counts(found.plan.plan_id).committed == ranges

    again = installation.run(dag_id)
    assert again.ends() == "success", again.states()
    assert set(again.states().values()) == {"skipped"}
    assert installation.rows(target) == LINEITEM_ROWS


def test_progress_is_in_the_log_and_the_frontier_in_the_asset_s_event(installation: Installation):
    """The lane's log has the bar; the asset's event has what is committed, of which hydration and phase."""
    run = installation.first("postgres_hydrate")
    assert run.ends() == "success", run.states()
    assert "[########################] 100.0 %  600,000 of 600,000 rows" in run.log("hydrate_lineitem.hydrate_ranges")
    found = installation.airflow.request("GET", "/api/v2/assets/events?source_dag_id=postgres_hydrate")
    (event,) = found["asset_events"]
    assert event["uri"] == "backpressure://default/shop_db/public.lineitem->warehouse/raw.lineitem"
    assert set(event["extra"]["frontier"].values()) == {LINEITEM_ROWS}
    assert (event["extra"]["rows"], event["extra"]["phase"]) == (LINEITEM_ROWS, "hydration")
    found = installation.hydration("raw.lineitem")
    assert found is not None
    assert event["extra"]["hydration_id"] == found.id


def test_a_task_leads_to_its_hydration_and_its_range(installation: Installation):
    """Links beside the log of a lane, of a sensor, and of the task of one range, which Airflow has mapped."""
    lane, by_task = installation.first("postgres_hydrate"), installation.first("postgres_task_per_range")
    assert (lane.ends(), by_task.ends()) == ("success", "success")
    first, second = (installation.hydration(target) for target in ("raw.lineitem", "raw.lineitem_by_task"))
    assert first is not None
    assert second is not None
    for task_id in ("plan_snapshot", "wait_for_turn", "hydrate_ranges", "verify_hydration"):
        links = lane.links(f"hydrate_lineitem.{task_id}")
        assert links == {"Hydration": f"/plugin/backpressure#/hydration/{first.id}"}, task_id
    assert by_task.links("hydrate_range.submit_range", map_index=1) == {
        "Hydration": f"/plugin/backpressure#/hydration/{second.id}",
        "Range": f"/plugin/backpressure#/hydration/{second.id}/range/1",
    }
    back = installation.airflow.request("GET", f"/backpressure/api/hydrations/{second.id}/ranges/1")["task"]
    assert (back["task_id"], back["map_index"], back["try_number"]) == ("hydrate_range.submit_range", 1, 1)
    assert back["href"].endswith("/tasks/hydrate_range.submit_range/mapped/1?try_number=1")


@pytest.mark.long
def test_the_lake_s_example_hydrates_its_tables(installation: Installation):
    """One source into three kinds of files, each verified by its own task, and read here by its own library."""
    run = installation.run("lake_hydrate")
    assert run.ends() == "success", run.states()
    assert set(run.states().values()) == {"success"}
    with installation.open("shop") as link:
        ((rows, total),) = link.execute("SELECT count(*), sum(amount) FROM lineitem").fetchall()
    lake = installation.lake
    catalog = {"type": "sql", "uri": f"sqlite:///{lake}/catalog.db", "warehouse": f"file://{lake}/iceberg"}
    for place in (
        {"kind": "parquet", "path": str(lake / "parquet" / "lineitem")},
        {"kind": "delta", "path": str(lake / "delta" / "lineitem")},
        {"kind": "iceberg", "table": "raw.lineitem", "catalog": {"name": "lake", **catalog}},
    ):
        found = lakes.table(**place)
        assert (found.num_rows, pyarrow.compute.sum(found["amount"]).as_py()) == (rows, total), place["kind"]

    again = installation.run("lake_hydrate")
    assert again.ends() == "success", again.states()
    assert set(again.states().values()) == {"skipped"}


@pytest.mark.statement("X1")
@pytest.mark.long
def test_the_example_of_mysql_hydrates_its_table(installation: Installation):
    """X1: row by row as two plain clients read them; a second run finds nothing to do."""
    erp.fill(installation.mysql, rows=20_000)
    run = installation.run("mysql_hydrate")
    assert run.ends() == "success", run.states()
    with installation.open("warehouse") as link:
        assert erp.equal(installation.mysql, link, "raw.lineitem_mysql") == (20_000, True)
    again = installation.run("mysql_hydrate")
    assert again.ends() == "success", again.states()
    assert set(again.states().values()) == {"skipped"}


@pytest.mark.statement("X1")
@pytest.mark.long
def test_the_example_of_a_topic_follows_it(installation: Installation):
    """X1: each run brings the offsets that have come since, and one that finds none is skipped."""
    topic = Topic(servers=installation.kafka.url, name="orders").create(3)
    for expected in (3, 6):
        for partition in range(3):
            topic.send(partition, {"id": expected})
        run = installation.run("kafka_hydrate")
        assert run.ends() == "success", run.states()
        assert installation.rows("raw.orders") == expected
    assert "100.0 %  3 of 3 offsets" in run.log("hydrate_orders.hydrate_ranges")
    again = installation.run("kafka_hydrate")
    assert again.ends() == "success", again.states()
    assert set(again.states().values()) == {"skipped"}
    topic.delete()
