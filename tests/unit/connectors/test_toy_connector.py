"""A connector is one folder and one line in the registry of tasks."""

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_backpressure import connectors
from airflow_provider_backpressure.core.admission.permits_and_reservations import Limiter
from airflow_provider_backpressure.core.config import Budget, Consistency, Mode
from airflow_provider_backpressure.core.endpoints import NOWHERE
from airflow_provider_backpressure.core.execution.lane_runner import Hydrator
from airflow_provider_backpressure.core.planning.planner import Planner
from airflow_provider_backpressure.core.verification.verifier import Verifier, Verify
from airflow_provider_backpressure.spark import readers_and_writers
from airflow_provider_backpressure.testing import MemoryLedger
from tests.support import lakes, toy_connectors
from tests.support.local_runner import LocalRunner


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The folder beside the others, and the line; both go with the test."""
    monkeypatch.setattr(connectors, "__path__", [*connectors.__path__, *toy_connectors.__path__])
    monkeypatch.setitem(readers_and_writers.CONNECTORS, "lines", "lines")
    yield import_module("airflow_provider_backpressure.connectors.lines.source.config").LinesSource
    for name in [name for name in sys.modules if name.startswith("airflow_provider_backpressure.connectors.lines")]:
        del sys.modules[name]
    del connectors.lines  # type: ignore[attr-defined]


def test_a_connector_of_one_folder_and_one_line_hydrates(lines: Any, tmp_path: Path) -> None:
    """It is planned, cut, read, committed, verified and published by what all connectors share."""
    text, place = tmp_path / "words.txt", lakes.place("parquet", tmp_path)
    text.write_text("".join(f"word {number}\n" for number in range(1_000)))
    source, sink = lines(conn_id="words", path=str(text)).open(NOWHERE), lakes.declared(**place).open(NOWHERE)
    ledger, runner, budget = MemoryLedger(), LocalRunner(logins={}), Budget(credits=2, range_rows=150)
    shared: dict[str, Any] = {"ledger": ledger, "source": source, "sink": sink, "runner": runner, "budget": budget}
    planned = Planner(**shared, mode=Mode.APPEND, consistency=Consistency.STATIC, owner="test", cluster="spark").plan()
    hydration = planned.hydration
    limiter = Limiter(ledger=ledger, hydration_id=hydration.id, budget=budget, memory=runner.memory)
    lane = Hydrator(
        **shared, hydration_id=hydration.id, plan=planned.plan, lane="lane", limiter=limiter, share=budget.credits
    )
    assert lane.run().committed == 7
    verifier = Verifier(plan=planned.plan, source=source, sink=sink, runner=runner)
    assert verifier.verify(ledger.ranges(planned.plan.plan_id), Verify.FULL).equal
    sink.complete(planned.plan)
    sink.publish(planned.plan)
    ledger.finish(hydration.id)
    assert lakes.rows(place) == [(number, f"word {number}") for number in range(1_000)]
