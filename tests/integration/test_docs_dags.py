"""The DAGs that the documentation shows are run: every task of each, in its order, on real servers.

All are parsed by ``tests/unit/test_docs.py``; those that need other servers are listed here with what runs the like.
"""

import asyncio
import copy
import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG
from airflow.sdk.definitions.taskgroup import MappedTaskGroup
from airflow.sdk.exceptions import TaskDeferred

from airflow_provider_backpressure import base_operator as tasks
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.ledger.migration import migrate
from dev.services import Server
from tests.conftest import fresh_database
from tests.support.docs import PAGES, blocks, named
from tests.support.postgres import run
from tests.support.world import context

pytestmark = pytest.mark.integration

ROWS = 300
ELSEWHERE = {
    "docs/howto/event-driven.md[0]": "a topic: test_kafka_source.py",
    "docs/howto/kafka.md[0]": "a topic: test_kafka_source.py",
    "docs/howto/notifications.md[0]": "a topic: test_bad_rows.py, test_kafka_source.py",
    "docs/howto/into-postgres.md[0]": "MySQL: test_mysql_source.py",
    "docs/howto/mysql.md[0]": "MySQL: test_mysql_source.py",
    "docs/howto/mysql.md[1]": "MySQL: test_mysql_catch_up.py",
    "docs/howto/several-tables.md[1]": "MySQL and folders of this machine's root: test_several_tables.py",
    "docs/howto/lakes.md[0]": "a bucket and a catalog: test_lakes.py",
    "docs/howto/rehydrate.md[0]": "a folder of this machine's root: test_landed.py",
    "docs/howto/lineage.md[1]": "a consumer of the asset, which hydrates nothing",
    "docs/howto/catch-up.md[0]": "a database whose log is kept: test_catch_up.py",
    "docs/howto/compose-by-hand.md[0]": "the DAG of dags/postgres_task_per_range.py: tests/system/test_examples.py",
    "docs/quickstart.md[0]": "tests/system/test_quickstart.py",
    "docs/howto/lineage.md[0]": "a plan and lanes of an author's own: not run yet",
    "docs/howto/transform.md[0]": "not run yet; its SELECT is by test_docs_run.py",
    "docs/howto/transform.md[1]": "not run yet",
    "docs/howto/watch-source-and-sink.md[0]": "not run yet; its signals are by test_health.py",
    "docs/reference/operators.md[0]": "templates that a run of Airflow renders: tests/system",
}
"""DAGs that are not run here, and why."""
QUICK = ("docs/howto/replace.md[0]",)
"""What is run each time; the others are long."""


def shown() -> Iterator[Any]:
    """Yield every block of a page that has a DAG, by its place among such blocks of the page."""
    for page in PAGES:
        found = (code for code in blocks(page, "python") if re.search(r"^with DAG\(", code, re.MULTILINE))
        for number, code in enumerate(found):
            yield pytest.param(code, id=f"{named(page)}[{number}]")


def test_what_is_not_run_is_shown_on_a_page() -> None:
    """No DAG is left out by a name that no page has any more."""
    assert ELSEWHERE.keys() <= {each.id for each in shown()}


@pytest.fixture
def shop(postgres: Server, connect: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    """A database with the tables that the pages speak of, the targets and the ledger; connections lead to it."""
    with fresh_database(postgres) as place:
        url = sa.URL.create("postgresql", place.user, place.password, place.host, place.port, place.database)
        migrate(url)
        monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "server")
        for table in ("orders", "customers"):
            run(
                place,
                f"CREATE TABLE {table} (id bigint PRIMARY KEY, customer_id bigint, state text, email text,"
                " amount numeric(12,2), created_at timestamptz, updated_at timestamptz, changed_at timestamptz)",
                f"INSERT INTO {table} SELECT n, n % 7, 'open', n || '@shop', n, now(), now(), now() - interval '1 hour'"
                f" FROM generate_series(1, {ROWS}) n",
                f"ANALYZE {table}",
            )
        login = {"host": place.host, "port": place.port, "login": place.user, "password": place.password}
        kinds = {"SHOP_DB": "postgres", "WAREHOUSE": "postgres", "BACKPRESSURE_DEFAULT": "backpressure"}
        for conn_id, kind in kinds.items():
            fields = {"conn_type": kind, **login, "schema": place.database}
            monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id}", json.dumps(fields))
        spark = {"conn_type": "spark_connect", "host": connect.host, "port": connect.port}
        extra = {"extra": {"ui_url": connect.ui_url}}
        monkeypatch.setenv("AIRFLOW_CONN_SPARK_CONNECT_DEFAULT", json.dumps({**spark, **extra}))
        monkeypatch.setenv("AIRFLOW__BACKPRESSURE__POLL_INTERVAL", "0.1")
        # Airflow's own answer wants a metadata database.
        monkeypatch.setattr(tasks, "is_running", lambda dag_id, run_id: True)
        yield place


@pytest.mark.parametrize(
    "code",
    [
        pytest.param(*each.values, id=each.id, marks=[] if each.id in QUICK else pytest.mark.long)
        for each in shown()
        if each.id not in ELSEWHERE
    ],
)
def test_a_dag_that_is_shown_fills_its_targets(code: str, shop: Endpoint, tmp_path: Path) -> None:
    """Each of its tasks ends well, and every table that it reads has arrived with all its rows."""
    (tmp_path / "shown.py").write_text(code)
    bag = DagBag(tmp_path, safe_mode=False, known_pools={"default_pool"})
    assert bag.import_errors == {}
    targets = set().union(*(follow(dag) for dag in bag.dags.values()))
    assert targets
    for table in targets:
        assert run(shop, f"SELECT count(*) FROM {table}") == [(ROWS,)], table


def follow(dag: DAG) -> set[str]:
    """Do what a run of the DAG does and return the targets; a task of a mapped group is run for each range."""
    targets, answers = set(), {}
    for order in itertools.groupby(dag.topological_sort(), key=lambda task: task.task_group.group_id):
        group = list(order[1])
        if not isinstance(group[0].task_group, MappedTaskGroup):
            for task in group:
                answers[task.task_id] = ended(task, context(dag_id=dag.dag_id, task_id=task.task_id))
                targets.add(task.sink.table)
            continue
        plan = next(task_id for task_id in answers if task_id.endswith("plan_snapshot"))
        for index, seq in enumerate(answers[plan]):
            for task in group:
                one = copy.copy(task)
                if hasattr(task, "seq"):
                    one.seq = seq
                ended(one, context(dag_id=dag.dag_id, task_id=task.task_id, map_index=index))
    return targets


def ended(task: Any, given: Any) -> Any:
    """Return what a task returns, deferred or not."""
    try:
        return task.execute(given)
    except TaskDeferred as deferred:
        event = asyncio.run(asyncio.wait_for(anext(deferred.trigger.run()), 60))
        return getattr(task, deferred.method_name)(given, event=event.payload, **(deferred.kwargs or {}))
