"""W8: tables that share a log are compared with their sources by value, and a range that differs is read again."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.gate.hydration_record import Hydration
from airflow_provider_backpressure.core.planning.range_repair import repair
from airflow_provider_backpressure.core.ports.ledger import every_range
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.core.verification.mismatch_report import Report
from airflow_provider_backpressure.core.verification.verifier import Verify
from airflow_provider_backpressure.exceptions import LedgerRefused, SinkUnavailable, TablesFailed
from airflow_provider_backpressure.hooks.recorded_declaration import declaration_of
from airflow_provider_backpressure.operators.shared_log_hydration import TableStream
from tests.support.operator_flow import OperatorFlow, writing

pytestmark = [pytest.mark.integration, pytest.mark.statement("W8")]


@pytest.fixture
def flow(database: Endpoint, tmp_path: Path) -> Iterator[OperatorFlow]:
    """Three tables, copied and caught up."""
    made = OperatorFlow.make(database, tmp_path)
    assert made.run()
    yield made
    made.close()


def find(flow: OperatorFlow, name: str) -> tuple[Hydration, Plan]:
    """Return the hydration of a table, and its plan."""
    (found,) = (one for one in flow.hydrations() if one.sink_identity.endswith(f"/raw.{name}"))
    assert found.plan is not None
    return found, found.plan


def compare(flow: OperatorFlow, name: str) -> Report:
    """Compare one table by value, as the command does."""
    found, plan = find(flow, name)
    with flow.airflow(), declaration_of(found).open() as opened:
        return opened.verifier(plan, found.id).verify(every_range(opened.ledger, plan.plan_id), Verify.FULL)


def read_again(flow: OperatorFlow, name: str, seq: int) -> int:
    """Plan a range again, as ``retry-range`` does; return how many rows were removed."""
    found, plan = find(flow, name)
    with flow.airflow(), declaration_of(found).open() as opened:
        record = opened.ledger.range(plan.plan_id, seq)
        return repair(opened.ledger, opened.source, opened.sink, plan, record, who="somebody")


def test_tables_that_share_a_log_are_compared_in_the_run(flow: OperatorFlow) -> None:
    """W8: by the task, behind the windows of its run and with later changes in the log; under a writer."""
    with writing(flow):
        second = flow.with_run("run 2")
        tables = second.plan()
        assert tables is not None
        second.hydrate(tables)
        second.verify(tables, verify="full")
        for name in flow.names:
            assert compare(flow, name).mismatches == ()


@pytest.mark.parametrize(
    "falsify",
    [
        "DELETE FROM raw.b WHERE id = 50",
        "INSERT INTO raw.b VALUES (777, 1, 'x')",
        "UPDATE raw.b SET v = -5, id = 778 WHERE id = 90",
    ],
)
def test_a_range_that_differs_is_named_and_read_again_while_changes_come(flow: OperatorFlow, falsify: str) -> None:
    """W8: only that range; windows of all tables go in meanwhile, and the tables are equal in the end."""
    flow.do(falsify)
    report = compare(flow, "b")
    numbers = [mismatch.seq for mismatch in report.mismatches]
    assert numbers
    assert report.ranges > len(numbers)
    assert all(mismatch.sentence.startswith(f"range {mismatch.seq} (id [") for mismatch in report.mismatches)
    assert compare(flow, "a").equal
    second = flow.with_run("run 2")
    with writing(flow):
        for seq in numbers:
            assert read_again(flow, "b", seq) > 0
        with pytest.raises(LedgerRefused, match="are read again"):
            compare(flow, "b")
        assert flow.do("SELECT consistent FROM raw.backpressure_plan WHERE target = 'raw.b'") == [(False,)]
        tables = second.plan()
        second.hydrate(tables)
        second.verify(tables, verify="full")
        assert compare(flow, "b").mismatches == ()
    assert flow.do("SELECT consistent FROM raw.backpressure_plan WHERE target = 'raw.b'") == [(True,)]
    flow.with_run("run 3").run()
    assert flow.differs() == {}


def test_the_run_fails_and_names_the_range(flow: OperatorFlow) -> None:
    """W8: the other tables are verified."""
    flow.do("UPDATE raw.c SET v = -1 WHERE id = 7", "UPDATE a SET v = 4")
    second = flow.with_run("run 2")
    tables = second.plan()
    second.hydrate(tables)
    with pytest.raises(AirflowFailException, match=r"public\.c: 1 of \d+ ranges differ: 0"):
        second.verify(tables, verify="full")


def test_a_log_that_cannot_be_ended_hides_no_table_that_differs(
    flow: OperatorFlow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W8: the task names both."""
    flow.do("UPDATE raw.c SET v = -1 WHERE id = 7")
    second = flow.with_run("run 2")
    flow.do("UPDATE a SET v = 4")
    tables = second.plan()
    second.hydrate(tables)

    def finish(*_: Any, **__: Any) -> None:
        raise SinkUnavailable("The sink does not answer.")

    with monkeypatch.context() as broken:
        broken.setattr(TableStream, "finish", finish)
        with pytest.raises(TablesFailed) as caught:
            second.verify(tables, verify="full")
    first, *others = str(caught.value).split("\n- ")
    assert first == "1 of 3 tables have failed:"
    assert "public.c: 1 of" in others[0]
    assert others[1] == "the log that tables share: The sink does not answer."
    flow.do("UPDATE raw.c SET v = 0 WHERE id = 7")
    second.verify(tables, verify="full")
    with monkeypatch.context() as broken:
        broken.setattr(TableStream, "finish", finish)
        with pytest.raises(SinkUnavailable, match="does not answer"):
            second.verify(tables)
