"""What a task does with its session before it moves rows."""

from dataclasses import fields, replace
from typing import Any
from unittest.mock import Mock

import pytest

from airflow_provider_backpressure.core.config import Budget, Consistency, Mode, NewColumn, Refresh
from airflow_provider_backpressure.core.health_signal_declarations import Retention, Watched
from airflow_provider_backpressure.core.planning.planner import Planner
from airflow_provider_backpressure.core.snapshot.spark_messages import Transform
from airflow_provider_backpressure.exceptions import InvalidDeclaration, SinkRefused
from airflow_provider_backpressure.hooks.hydration_session import (
    OPENED,
    PLANNED_OPTIONS,
    Declaration,
    HydrationSession,
    SharedPorts,
    check_same_cluster,
)
from airflow_provider_backpressure.sinks import PostgresSink, SparkTableSink
from airflow_provider_backpressure.sources import KafkaSource


@pytest.mark.parametrize("epoch", [0, 3])
def test_a_lane_takes_only_the_table_that_its_plan_holds(epoch: int) -> None:
    """A target that was created again after the plan began would get the rest of the ranges alone."""
    session, hydration, plan = Mock(), Mock(), Mock(epoch=epoch)
    session.hydration.return_value = (hydration, plan)
    session.sink.check_history.side_effect = SinkRefused("it was created again")
    if epoch:
        with pytest.raises(SinkRefused, match="created again"):
            HydrationSession.take_target(session)
        session.planner().take_target.assert_not_called()
        return
    HydrationSession.take_target(session)
    session.planner().take_target.assert_called_once_with(hydration, plan)


def test_every_option_that_a_planner_knows_reaches_it_as_declared() -> None:
    """Each field of a declaration is passed by its name, is opened first, or is of no use to a planner."""
    elsewhere = {"spark_conn_id", "backpressure_conn_id", "function", "task_id"}
    assert {each.name for each in fields(Declaration)} == PLANNED_OPTIONS | OPENED | elsewhere
    assert {each.name for each in fields(Planner)} >= PLANNED_OPTIONS
    options: dict[str, Any] = {
        "mode": Mode.UPSERT,
        "consistency": Consistency.SNAPSHOT,
        "on_new_column": NewColumn.ADD,
        "refresh": Refresh.EACH_RUN,
        "transform": Transform(sql="SELECT * FROM source"),
        "owner": "orders",
    }
    assert options.keys() == PLANNED_OPTIONS, "a new option belongs here too, with another value than its default"
    sink = Mock(key=("id",))
    declared = Declaration(source=Mock(spec=[]), sink=sink, spark_conn_id="spark", budget=Budget(credits=7), **options)
    ports = {name: Mock() for name in ("ledger", "source", "sink", "endpoint")}
    session = HydrationSession(declaration=declared, environment="test", runner=Mock(overhead_seconds=0.0), **ports)
    planner = session.planner()
    assert {name: getattr(planner, name) for name in options} == options
    assert (planner.key, planner.budget.credits, planner.cluster) == (("id",), 7, "spark")


def test_a_sink_of_another_cluster_is_refused_before_anything_is_opened() -> None:
    """Its table would be looked at on one cluster and written on another one."""
    sink = SparkTableSink(table="lake.raw.t", spark_conn_id="lake_spark")
    declared = Declaration(source=Mock(spec=[]), sink=sink, spark_conn_id="other_spark", owner="orders")
    check_same_cluster(replace(declared, spark_conn_id="lake_spark"))
    check_same_cluster(replace(declared, sink=PostgresSink(conn_id="c", table="t")))
    with pytest.raises(InvalidDeclaration) as refused, SharedPorts.open(Mock(), declared):
        pass
    assert str(refused.value) == (
        "lake.raw.t is a table of the cluster 'lake_spark', and the hydration runs on 'other_spark': give both the "
        "same spark_conn_id."
    )


def test_a_topic_s_retention_is_watched_unless_a_person_says_how() -> None:
    """Without being asked for, and not where looks would be rarer than the deadline allows."""

    def watched(**budget: Any) -> tuple[Watched, ...]:
        declared = Declaration(
            source=KafkaSource(conn_id="events", topic="orders"),
            sink=Mock(key=None),
            spark_conn_id="spark",
            owner="orders",
            budget=Budget(**budget),
        )
        ports = {name: Mock() for name in ("ledger", "source", "sink", "endpoint")}
        runner = Mock(overhead_seconds=0.0)
        return HydrationSession(declaration=declared, environment="test", runner=runner, **ports).budget.signals

    assert watched() == (Retention(share=0.2),)
    assert watched(signals=(Retention(hours=6),)) == (Retention(hours=6),)
    assert watched(signal_deadline=2.0) == ()
