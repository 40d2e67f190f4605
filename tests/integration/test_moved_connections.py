"""Hydrations that follow a log, and whose connections lead to another address than before, by the real tasks."""

import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.gate.hydration_record import Phase
from airflow_provider_backpressure.operators import HydrateOperator, PlanSnapshotOperator, VerifyHydrationOperator
from airflow_provider_backpressure.sinks import PostgresSink
from airflow_provider_backpressure.sources import PostgresSource
from dev.services import Server
from tests.conftest import fresh_database
from tests.support.mysql_flow import MySQLFlow
from tests.support.operator_flow import OperatorFlow
from tests.support.postgres import run

pytestmark = pytest.mark.integration
RESTART = {"backpressure": "restart"}


@dataclass(frozen=True, kw_only=True)
class OneTable(OperatorFlow):
    """The tasks of a group of one table, with a log of its own."""

    names: tuple[str, ...] = ("a",)

    @property
    def declared(self) -> dict[str, Any]:
        """Arguments of every operator."""
        source = PostgresSource(conn_id="source", table="public.a", at_wal_limit=self.policy)
        return {**super().declared, "source": source, "sink": PostgresSink(conn_id="warehouse", table="raw.a")}

    def run(self) -> bool:
        """Do a whole run."""
        follow = {"mode": "upsert", "consistency": "catch_up"}
        with self.airflow():
            for kind, what, more in (
                (PlanSnapshotOperator, "plan_snapshot", follow),
                (HydrateOperator, "hydrate_ranges", {}),
                (VerifyHydrationOperator, "verify_hydration", {}),
            ):
                task: Any = kind(task_id=f"{self.group}.{what}", **self.declared, **more)
                task.execute(self._context(what, 0))
        return True


@pytest.fixture(params=[OperatorFlow, pytest.param(OneTable, marks=pytest.mark.long)], ids=["shared log", "own log"])
def flow(request: pytest.FixtureRequest, postgres: Server, database: Endpoint, tmp_path: Path) -> Iterator[Any]:
    """A flow of PostgreSQL that has run once; its target is a database of its own."""
    with fresh_database(postgres) as target:
        made = request.param.make(database, tmp_path, names=("a",), target=target, policy="drop_slot_and_restart")
        assert made.run()
        yield made
        made.close()


@contextmanager
def copied(at: Endpoint) -> Iterator[Endpoint]:
    """Copy a database, and remove the copy with its slots."""
    admin, copy = replace(at, database="postgres"), replace(at, database=f"copy_{uuid.uuid4().hex[:8]}")
    run(admin, f"CREATE DATABASE {copy.database} TEMPLATE {at.database}")
    try:
        yield copy
    finally:
        drop = (
            f"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = '{copy.database}'"
        )
        run(admin, drop, f"DROP DATABASE {copy.database} WITH (FORCE)")


def continue_at(flow: Any, moved: Any, name: str) -> None:
    """Change the source, and run where the connections lead: what was followed continues, and nothing is read again."""
    before = {one.id: one.plan.position for one in flow.hydrations()}
    flow.change("UPDATE a SET v = v + 1 WHERE id < 10", "DELETE FROM a WHERE id = 50")
    assert moved.with_run(name).run()
    assert moved.differs() == {}
    found = flow.hydrations()
    assert {one.id: one.plan.position for one in found} == before
    assert {one.phase for one in found} == {Phase.STEADY_STATE}
    assert {(one.source_identity, one.sink_identity) for one in found} == {
        (one.plan.source_identity, one.plan.sink_identity) for one in found if one.plan
    }


def refuse(moved: Any, name: str, *, now: str, before: str) -> None:
    """Run where what was followed is not: the run says so in one sentence, and changes nothing."""
    known = {(one.id, one.source_identity, one.sink_identity) for one in moved.hydrations()}
    words = rf"leads to \S*{now}, and before to \S*{before}: .*Point the connection back.*\"restart\""
    with pytest.raises(AirflowFailException, match=words):
        moved.with_run(name).run()
    assert {(one.id, one.source_identity, one.sink_identity) for one in moved.hydrations()} == known


def test_a_hydration_continues_under_another_name_of_its_source(flow: Any) -> None:
    slots = flow.slots()
    moved = replace(flow, database=replace(flow.database, host="localhost"))
    continue_at(flow, moved, "run 2")
    assert moved.with_run("run 3", **RESTART).run()
    assert moved.differs() == {}
    continue_at(flow, flow, "run 4")
    assert flow.slots() == slots


@pytest.mark.long
def test_a_hydration_continues_under_another_name_of_its_mysql_server(
    mysql_database: Endpoint, database: Endpoint, tmp_path: Path
) -> None:
    flow = MySQLFlow.make_from(mysql_database, database, tmp_path, names=("a", "b"))
    assert flow.run()
    moved = replace(flow, server=replace(flow.server, host="localhost"))
    continue_at(flow, moved, "run 2")
    assert moved.with_run("run 3", **RESTART).run()
    assert moved.differs() == {}
    continue_at(flow, flow, "run 4")


def test_a_hydration_continues_in_a_target_that_was_moved_with_its_rows(flow: Any) -> None:
    with copied(flow.target) as copy:
        moved = replace(flow, target=copy)
        continue_at(flow, moved, "run 2")
        refuse(flow, "run 3", now=flow.target.database, before=copy.database)
        assert flow.with_run("run 4", **RESTART).run()
        assert flow.differs() == {}


def test_a_source_without_the_log_is_refused_until_a_restart(flow: Any) -> None:
    """Also by the policy that reads a table again by itself: the connection may lead there by mistake."""
    slots = flow.slots()
    with copied(flow.database) as copy:
        moved = replace(flow, database=copy)
        refuse(moved, "run 2", now=copy.database, before=flow.database.database)
        continue_at(flow, flow, "run 3")
        assert moved.with_run("run 4", **RESTART).run()
        assert moved.differs() == {}
        assert (moved.slots(), flow.slots()) == (slots, [])
        continue_at(moved, moved, "run 5")


def test_a_target_without_the_rows_is_refused_until_a_restart(flow: Any, postgres: Server) -> None:
    with fresh_database(postgres) as empty:
        moved = replace(flow, target=empty)
        refuse(moved, "run 2", now=empty.database, before=flow.target.database)
        continue_at(flow, flow, "run 3")
        assert moved.with_run("run 4", **RESTART).run()
        continue_at(moved, moved, "run 5")


def test_a_restart_does_not_remove_rows_of_others_from_another_target(flow: Any, postgres: Server) -> None:
    with fresh_database(postgres) as other:
        run(other, "CREATE SCHEMA raw", "CREATE TABLE raw.a (id int PRIMARY KEY, v int, doc text)")
        run(other, "INSERT INTO raw.a VALUES (7, 7, 'theirs')")
        moved = replace(flow, target=other)
        with pytest.raises(AirflowFailException, match=r"raw\.a holds rows of others, which a restart would remove"):
            moved.with_run("run 2", **RESTART).run()
        assert run(other, "SELECT doc FROM raw.a") == [("theirs",)]
        run(other, "TRUNCATE raw.a")
        assert moved.with_run("run 3", **RESTART).run()
        assert moved.differs() == {}


def test_tables_with_logs_of_their_own_move_by_themselves(
    postgres: Server, database: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them was followed by itself before tables shared a log."""
    with closing(OperatorFlow.make(database, tmp_path, names=("a", "b"))) as flow:
        with monkeypatch.context() as patch:
            patch.setattr("airflow_provider_backpressure.operators.plan.find_stream", lambda *args, **values: None)
            assert flow.run()
        moved = replace(flow, database=replace(database, host="localhost"), target=database)
        continue_at(flow, moved, "run 2")
        assert moved.with_run("run 3", **RESTART).run()
        assert moved.differs() == {}
        assert moved.slots() == [f"backpressure_{moved.stream}"]
