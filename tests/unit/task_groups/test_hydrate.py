"""``hydrate``: what it builds, what it refuses at parse, templates, mapping, serialization, and the time of a parse."""

import inspect
import json
import re
import subprocess
import sys
from dataclasses import fields, replace
from datetime import timedelta
from types import SimpleNamespace

import pytest
from airflow.sdk import DAG, task_group
from airflow.serialization.serialized_objects import DagSerialization

from airflow_provider_backpressure.assets import hydrations_of
from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.exceptions import InvalidDeclaration
from airflow_provider_backpressure.operators import HydrateOperator, PlanSnapshotOperator, VerifyHydrationOperator
from airflow_provider_backpressure.sinks import DeltaSink, ParquetSink, PostgresSink, SparkTableSink
from airflow_provider_backpressure.sources import KafkaSource, MySQLSource, PostgresSource
from airflow_provider_backpressure.task_groups import hydrate
from airflow_provider_backpressure.task_groups.hydrate import HydrationOptions

SOURCE = PostgresSource(conn_id="shop_db", table="public.orders")
SINK = PostgresSink(conn_id="warehouse", table="raw.orders")
SPARK_TABLE = SparkTableSink(table="raw.orders", spark_conn_id="spark", format="delta")
DELTA, PARQUET = DeltaSink(path="/lake/orders"), ParquetSink(path="/lake/orders")


def build(dag_id: str = "orders", default_args=None, **values) -> DAG:
    with DAG(dag_id, schedule=None, default_args=default_args or {}) as dag:
        hydrate(**{"source": SOURCE, "sink": SINK, "spark_conn_id": "spark", **values})
    return dag


def test_the_usual_shape():
    """Plan, one lane, verify; retried by default; the hydration is an asset."""
    dag = build()
    assert [task.task_id for task in dag.topological_sort()] == [
        "hydrate_orders.plan_snapshot",
        "hydrate_orders.wait_for_turn",
        "hydrate_orders.hydrate_ranges",
        "hydrate_orders.verify_hydration",
    ]
    assert {task.retries for task in dag.tasks} == {2}
    (asset,) = dag.get_task("hydrate_orders.verify_hydration").outlets
    assert asset.uri == "backpressure://default/shop_db/public.orders->warehouse/raw.orders"


def test_a_dag_s_own_arguments_win():
    dag = build(default_args={"retries": 7, "retry_delay": timedelta(seconds=1)})
    assert {(task.retries, task.retry_delay.total_seconds()) for task in dag.tasks} == {(7, 1.0)}


def test_lanes_are_mapped():
    dag = build(lanes=3, consistency="static")
    assert dag.get_task("hydrate_orders.hydrate_ranges").is_mapped


def test_a_task_per_range_follows_two_sensors():
    dag = build(task_per_range=True, consistency="static")
    submit = dag.get_task("hydrate_orders.hydrate_ranges.submit_range")
    assert "hydrate_orders.hydrate_ranges.sink_commit" in submit.upstream_task_ids
    commit = dag.get_task("hydrate_orders.hydrate_ranges.sink_commit")
    assert "hydrate_orders.hydrate_ranges.executor_memory" in commit.upstream_task_ids


@pytest.mark.statement("X5")
@pytest.mark.parametrize(
    ("consistency", "sentence"),
    [(None, "A snapshot lives in the one task that keeps it"), ("catch_up", "a task for each range")],
)
def test_a_plan_for_a_task_per_range_is_refused_at_parse_too(consistency, sentence):
    """Composed by hand as well: its tasks would be refused only when they run."""
    flow = {"source": SOURCE, "sink": SINK, "spark_conn_id": "spark"}
    with DAG("by_hand", schedule=None), pytest.raises(InvalidDeclaration, match=sentence):
        PlanSnapshotOperator(task_id="plan", consistency=consistency, each_range=True, **flow)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"consistency": "eventual"}, "consistency must be one of snapshot, static, catch_up, not 'eventual'"),
        ({"lanes": 2}, "A snapshot lives in the one task that keeps it, so several lanes"),
        ({"task_per_range": True}, "need consistency='static'"),
        (
            {"verify": "full", "source": replace(SOURCE, increment_column="id")},
            "reads the rows of an increment again when the source may have moved on",
        ),
        (
            {
                "verify": "full",
                "consistency": "catch_up",
                "mode": "upsert",
                "source": MySQLSource(conn_id="shop_db", table="shop.orders"),
            },
            "from PostgreSQL into PostgreSQL only",
        ),
        ({"mode": "mirror", "refresh": "once"}, "mode='mirror' compares the whole table in each run"),
        ({"mode": "mirror", "consistency": "catch_up"}, "it needs mode='upsert'"),
        ({"mode": "merge"}, "mode must be one of append, upsert, replace, mirror for PostgresSink, not 'merge'"),
        ({"mode": "replace", "sink": DELTA}, "mode must be one of append, upsert for DeltaSink, not 'replace'"),
        (
            {"mode": "upsert", "sink": ParquetSink(path="/lake/t")},
            "mode must be 'append' for ParquetSink, not 'upsert'",
        ),
        ({"verify": "twice"}, "verify must be one of none, target, full, not 'twice'"),
        ({"lanes": 0, "consistency": "static"}, "lanes must be a whole number from 1"),
        ({"lanes": 5, "consistency": "static"}, r"budget's credits \(4\), not 5"),
        ({"lanes": 2, "task_per_range": True, "consistency": "static"}, "has no lanes"),
        ({"transform": 7}, "transform must be a SELECT or a callable, not int"),
    ],
)
@pytest.mark.statement("X5", "C4")
def test_refused_at_parse(values, sentence):
    """X5, C4."""
    with pytest.raises(InvalidDeclaration, match=sentence):
        build(**values)


@pytest.mark.statement("X5")
@pytest.mark.parametrize("credits", [0, -1])
def test_a_budget_of_zero_or_less_is_refused_at_parse(credits):
    """X5."""
    with pytest.raises(InvalidDeclaration, match=r"Budget.credits must be a whole number of at least 1"):
        build(budget=Budget(credits=credits))


@pytest.mark.parametrize(
    ("sink", "values", "sentence"),
    [
        (SINK, {}, "leaves out partition and offset, by which verification finds the rows"),
        (SINK, {"verify": "none"}, ""),
        (PARQUET, {}, ""),
        (DELTA, {"verify": "full"}, ""),
        (SPARK_TABLE, {}, "or use verify='none'"),
        (SINK, {"mode": "upsert"}, "leaves out key, by which the topic is upserted"),
        (replace(SINK, key=("id",)), {"mode": "upsert"}, ""),
    ],
)
def test_a_column_of_a_topic_that_the_hydration_needs_is_not_left_out(sink, values, sentence):
    """X5: refused when the DAG is parsed, in one sentence."""
    source = KafkaSource(conn_id="events", topic="orders", fields={"id": "bigint"}, columns=["id"])
    if not sentence:
        build(source=source, sink=sink, **values)
        build(source=replace(source, columns=["{{ params.columns }}"]), sink=SINK)
        return
    with pytest.raises(InvalidDeclaration, match=sentence):
        build(source=source, sink=sink, **values)


@pytest.mark.parametrize(
    ("sink", "values", "fits"),
    [
        (SINK, {"mode": "upsert"}, True),
        (SINK, {}, False),
        (SINK, {"mode": "upsert", "transform": "SELECT * FROM source"}, False),
        (replace(DELTA, key=("key",)), {"mode": "upsert"}, False),
        (replace(SPARK_TABLE, key=("key",)), {"mode": "upsert"}, False),
    ],
)
def test_a_topic_is_cut_by_keys_where_rows_go_by_them(sink, values, fits):
    """X5: elsewhere it is refused when the DAG is parsed, in one sentence."""
    source = KafkaSource(conn_id="events", topic="orders", upsert_parts=4)
    if fits:
        build(source=source, sink=sink, **values)
        return
    with pytest.raises(InvalidDeclaration, match="needs mode='upsert', a PostgresSink, and no transform"):
        build(source=source, sink=sink, **values)


def test_declarations_are_templated():
    """Strings inside the frozen declarations are rendered; the declarations of the DAG stay as they are."""
    source = PostgresSource(conn_id="shop_db", table="public.orders_{{ ds_nodash }}", where="day = '{{ ds }}'")
    dag = build(source=source, transform="SELECT *, '{{ ds }}' AS day FROM source", group_id="orders")
    task = dag.get_task("orders.plan_snapshot")
    task.render_template_fields({"ds": "2026-02-03", "ds_nodash": "20260203"})
    assert task.source == PostgresSource(conn_id="shop_db", table="public.orders_20260203", where="day = '2026-02-03'")
    assert task.transform.sql == "SELECT *, '2026-02-03' AS day FROM source"
    assert task.sink == SINK
    assert source.where == "day = '{{ ds }}'"
    outlets = dag.get_task("orders.verify_hydration").outlets
    assert outlets == [hydrations_of(dag.dag_id)], "its name is not known at parse"


def test_a_callable_is_not_called_by_the_templates():
    def upper(frame):
        raise AssertionError("called at rendering")

    dag = build(transform=upper)
    task = dag.get_task("hydrate_orders.hydrate_ranges")
    task.render_template_fields({})
    assert task.function is upper


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"lanes": 2, "consistency": "static"},
        {"task_per_range": True, "consistency": "static"},
        {"transform": "SELECT 1"},
    ],
)
def test_a_dag_is_serialised_the_same_at_each_parse(values):
    """A change of the serialised form is a new version of the DAG for Airflow."""
    first, second = (DagSerialization.to_json(build(**values)) for _ in range(2))
    assert first == second
    DagSerialization.from_json(first)


def test_tables_can_be_mapped():
    with DAG("many", schedule=None) as dag:

        @task_group
        def one(table: str) -> None:
            hydrate(
                source=PostgresSource(conn_id="shop_db", table=table),
                sink=PostgresSink(conn_id="warehouse", table=table),
                spark_conn_id="spark",
            )

        one.expand(table=["public.a", "public.b"])
    assert {task.task_id for task in dag.tasks} == {f"one.hydrate.{name}" for name in TASKS}
    DagSerialization.from_json(DagSerialization.to_json(dag))


TASKS = ("plan_snapshot", "wait_for_turn", "hydrate_ranges", "verify_hydration")
SEVERAL = {"conn_id": "shop_db", "tables": ("public.orders", 'public."Odd one"')}
INTO = PostgresSink(conn_id="warehouse", table="raw.{table}")


ONE_GROUP = ("plan_snapshot", "hydrate_ranges", "verify_hydration")


@pytest.mark.parametrize("tables", ["public.*", ("public.a",), tuple(f"public.t{number}" for number in range(300))])
@pytest.mark.parametrize("lanes", [1, 3])
def test_a_group_of_tables_has_as_many_tasks_however_many_tables_there_are(tables, lanes):
    """One plans, lanes drain, one verifies; what was planned is drained though other tables could not be planned."""
    dag = build(source=PostgresSource(conn_id="shop_db", tables=tables), sink=INTO, lanes=lanes)
    assert [task.task_id for task in dag.topological_sort()] == [f"hydrate_tables.{name}" for name in ONE_GROUP]
    plan, ranges, verify = dag.topological_sort()
    assert ranges.upstream_task_ids == {plan.task_id}
    assert verify.upstream_task_ids == {plan.task_id, ranges.task_id}
    assert {ranges.trigger_rule, verify.trigger_rule} == {"none_skipped"}
    assert ranges.is_mapped == (lanes > 1)
    assert verify.outlets == [hydrations_of(dag.dag_id)]
    DagSerialization.from_json(DagSerialization.to_json(dag))


CHOSEN = {
    "spark_conn_id": "other_spark",
    "budget": Budget(credits=3),
    "consistency": "static",
    "mode": "replace",
    "transform": "SELECT * FROM source",
    "on_new_column": "add",
    "refresh": "each_run",
    "verify": "full",
    "lanes": 2,
    "task_per_range": True,
    "on_event": print,
    "backpressure_conn_id": "other_ledger",
    "group_id": "group",
}
"""A value for each option of ``hydrate`` that is not its default."""


@pytest.mark.parametrize(
    ("name", "tables"),
    [
        # Tasks of single ranges are refused for several tables.
        *((name, tables) for tables in (("public.orders",), "public.*") for name in CHOSEN if name != "task_per_range"),
    ],
)
def test_no_option_is_lost_where_there_are_several_tables(name, tables):
    """The tasks of several tables are made as those of one table are, whatever the option."""
    assert set(CHOSEN) == set(inspect.signature(hydrate).parameters) - {"source", "sink"}
    chosen = {"consistency": "static", "mode": "upsert", "group_id": "group", name: CHOSEN[name]}
    one = build(**chosen)
    many = build(source=PostgresSource(conn_id="shop_db", tables=tables), sink=INTO, **chosen)
    for task in many.tasks:
        assert made_with(task) == made_with(one.get_task(task.task_id)), task.task_id


def test_every_option_is_taken_by_a_task():
    """An option that no operator takes would be lost without an error. Which tasks there are is decided here."""
    operators = (PlanSnapshotOperator, HydrateOperator, VerifyHydrationOperator)
    options = HydrationOptions(
        source=SOURCE, sink=SINK, **{name: CHOSEN[name] for name in CHOSEN if name != "group_id"}
    )
    taken = {name for operator in operators for name in options.select(operator)}
    assert taken == {field.name for field in fields(HydrationOptions)} - {"task_per_range"}


def made_with(task):
    """Return what a task was made with, but for its own name, its table and its target."""
    given = {**vars(task), **getattr(task, "partial_kwargs", {})}
    named = {*CHOSEN, "each_range", "retries"} - {"group_id"}
    return {name: given[name] for name in sorted(named & given.keys())}


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({}, "refresh='each_run' with mode='append' would add every row again"),
        ({"mode": "upsert", "consistency": "catch_up"}, "later runs of this one read only what is new"),
        ({"mode": "upsert", "source": replace(SOURCE, increment_column="at")}, "leave refresh out"),
        ({"mode": "upsert", "refresh": "daily"}, "refresh must be one of once, each_run, not 'daily'."),
    ],
)
def test_a_refresh_that_cannot_be_meant_is_refused_at_parse(values, sentence):
    """A sentence says why, and what to use instead."""
    with pytest.raises(InvalidDeclaration, match=re.escape(sentence)):
        build(**{"refresh": "each_run", **values})


def scheduled(schedule="@daily", **values) -> None:
    with DAG("nightly", schedule=schedule):
        hydrate(**{"source": SOURCE, "sink": SINK, "spark_conn_id": "spark", **values})


@pytest.mark.statement("L1")
def test_a_schedule_whose_second_run_would_do_nothing_is_told_at_parse():
    """L1: a sentence says why, and what to use instead."""
    with pytest.warns(UserWarning, match=r"^DAG nightly has a schedule, but .* read once, and later runs do nothing"):
        scheduled()


@pytest.mark.parametrize(
    "values",
    [
        {"refresh": "once"},
        {"refresh": "each_run", "mode": "replace"},
        {"mode": "mirror"},
        {"source": replace(SOURCE, increment_column="at"), "mode": "upsert"},
        {"consistency": "catch_up", "mode": "upsert"},
        {"schedule": None},
        {"schedule": "@once"},
    ],
)
def test_a_schedule_that_is_meant_is_not_told(values):
    """A warning would be an error here."""
    scheduled(**values)


@pytest.mark.statement("L6")
def test_one_hydration_is_not_planned_twice_in_a_dag():
    """L6: another target is another hydration."""
    with DAG("twice", schedule=None):
        hydrate(SOURCE, SINK, spark_conn_id="spark")
        hydrate(SOURCE, replace(SINK, table="raw.copy"), spark_conn_id="spark")
        sentence = "DAG 'twice' hydrates raw.orders from public.orders in hydrate_orders.plan_snapshot already: "
        with pytest.raises(InvalidDeclaration, match=re.escape(sentence)):
            hydrate(SOURCE, SINK, spark_conn_id="spark", group_id="again")


@pytest.mark.statement("L6")
def test_one_hydration_is_not_planned_twice_among_several_tables():
    """L6: by its table and its target, whichever group names them first."""
    with DAG("twice", schedule=None):
        hydrate(SOURCE, SINK, spark_conn_id="spark")
        sentence = "DAG 'twice' hydrates raw.orders from public.orders in hydrate_orders.plan_snapshot already: "
        with pytest.raises(InvalidDeclaration, match=re.escape(sentence)):
            hydrate(PostgresSource(**SEVERAL), INTO, spark_conn_id="spark")


@pytest.mark.statement("X5")
@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"sink": SINK}, "write {table} into the name of the PostgresSink's target"),
        ({"source": {"conn_id": "s", "tables": ("a.t", "b.t")}, "sink": INTO}, "Several tables would go into raw.t"),
        ({"sink": INTO, "task_per_range": True, "consistency": "static"}, "goes with one table"),
        ({"sink": INTO, "lanes": 5}, "budget's credits (4), not 5"),
        ({"source": {"conn_id": "s", "tables": ("a b",)}, "sink": INTO}, "is not a table's name"),
        ({"source": {"conn_id": "s", "table": "t", "tables": "a.*"}}, "either table or tables, not both"),
        ({"source": {"conn_id": "s"}}, "either table or tables"),
    ],
)
def test_several_tables_that_cannot_be_meant_are_refused_at_parse(values, sentence):
    """X5."""
    with pytest.raises(InvalidDeclaration, match=re.escape(sentence)):
        build(**{**values, "source": PostgresSource(**values.get("source", SEVERAL))})


MANY = [
    {"source": SOURCE, "sink": SINK},
    {
        "source": PostgresSource(conn_id="shop_db", table="public.{{ params.table }}"),
        "sink": PostgresSink(conn_id="warehouse", table="raw.day_{{ ds_nodash }}"),
    },
]


@pytest.mark.parametrize("operator", [PlanSnapshotOperator, HydrateOperator, VerifyHydrationOperator])
def test_operators_are_mapped_over_declarations(operator):
    """``partial(…).expand_kwargs([…])``: each has its own, rendered from its run, and no asset unknown to Airflow."""
    with DAG("mapped", schedule=None) as dag:
        operator.partial(task_id="one", spark_conn_id="spark", budget=Budget(credits=2)).expand_kwargs(MANY)
    DagSerialization.from_json(DagSerialization.to_json(dag))
    mapped = dag.get_task("one")
    for index, values in enumerate(MANY):
        task = mapped.unmap(mapped._expand_mapped_kwargs({"ti": SimpleNamespace(map_index=index)})[0])
        assert (task.source, task.sink, task.budget.credits) == (values["source"], values["sink"], 2)
        assert task.outlets == []
        task.render_template_fields({"params": {"table": "orders"}, "ds_nodash": "20260203"})
        assert task.source.table == "public.orders"
        assert task.sink.table == ("raw.orders", "raw.day_20260203")[index]


def test_five_hundred_tables_parse_within_a_second_and_open_nothing():
    """In a process of its own, after the imports; the best of three, by CPU time since others share the machine.

    They slow it down all the same, so what Airflow takes for as many tasks that do nothing is the other measure.
    """
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.task_groups.many_tables"], capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    assert min(found["seconds"]) < max(1.0, 5 * min(found["plain"])), found
    assert found["opened"] == [], "a parse asks neither the ledger nor any other server"


def test_parsing_a_dag_loads_no_driver():
    """Neither Spark nor a database's driver: the scheduler's parser needs none of them."""
    script = (
        "import sys; import airflow_provider_backpressure.task_groups, airflow_provider_backpressure.sources, "
        "airflow_provider_backpressure.sinks; "
        "print(sorted({'psycopg', 'pyspark', 'pyarrow', 'pandas', 'alembic', 'deltalake', 'pyiceberg'} "
        "& set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("[]")
