"""DAGs under ``catch_up``: their tables change while they are read, and each later run brings what came since."""

import json
from collections.abc import Callable
from contextlib import closing

import pytest

from dev import erp
from tests.system.installation import Installation

pytestmark = pytest.mark.system
ROWS = 10_000
CHANGES = (
    "UPDATE followed SET amount = amount + 1 WHERE l_id <= 3000",
    "DELETE FROM followed WHERE l_id > 9900",
    "UPDATE followed SET l_id = l_id + 100000 WHERE l_id BETWEEN 4000 AND 4009",
    "INSERT INTO followed VALUES (20001, 1.5, 'tab\there')",
)
SUMS = "SELECT count(*), sum(l_id), sum(l_id * amount), sum(length(comment)) FROM {}"
Do = Callable[..., list[tuple[object, ...]]]


def of_postgres(installation: Installation) -> Do:
    """Return what runs statements in the PostgreSQL source."""

    def do(*statements: str) -> list[tuple[object, ...]]:
        with installation.open("shop") as link:
            *_, last = [link.execute(statement) for statement in statements]
            return last.fetchall() if last.description else []

    return do


def of_mysql(installation: Installation) -> Do:
    """Return what runs statements in the MySQL source, with the same table in it."""

    def do(*statements: str) -> list[tuple[object, ...]]:
        with closing(erp.connect(installation.mysql)) as link, link.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall())

    with closing(erp.connect(installation.mysql, None)) as link, link.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE IF NOT EXISTS {erp.DATABASE}")
    do(
        "CREATE TABLE followed (l_id bigint PRIMARY KEY, amount decimal(15,2), comment text)",
        f"SET SESSION cte_max_recursion_depth = {ROWS}",
        f"INSERT INTO followed WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {ROWS})"
        " SELECT i, i * 1.25, repeat(md5(i), 2) FROM n",
        "ANALYZE TABLE followed",
    )
    return do


@pytest.mark.statement("T8", "T10")
@pytest.mark.parametrize(
    ("dag_id", "source"),
    [("followed", of_postgres), pytest.param("followed_mysql", of_mysql, marks=pytest.mark.long)],
)
def test_each_run_brings_what_has_changed(
    installation: Installation, dag_id: str, source: Callable[[Installation], Do]
) -> None:
    """T8, T10: in Airflow as it is installed, from the first run, under which the table changes, into steady state."""
    do, target = source(installation), f"raw.{dag_id}"
    run = installation.run(dag_id)
    assert run.reaches("hydrate.plan_snapshot", ("success", "failed")) == "success", run.log("hydrate.plan_snapshot")
    do(*CHANGES)
    assert run.ends() == "success", run.states()
    do("UPDATE followed SET comment = 'later' WHERE l_id <= 50", "DELETE FROM followed WHERE l_id = 77")
    again = installation.run(dag_id)
    assert again.ends() == "success", again.states()

    with installation.open("warehouse") as link:
        assert link.execute(SUMS.format(target)).fetchall() == do(SUMS.format("followed"))
    shown = json.loads(installation.cli("status", target, "--output", "json").stdout)[0]
    assert (shown["phase"], shown["consistent"]) == ("steady_state", "yes")
    forgotten = installation.cli("forget", target)
    assert forgotten.returncode == 0, forgotten.stderr
    with installation.open("shop") as link:
        slots = "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"
        assert link.execute(slots).fetchall() == []
