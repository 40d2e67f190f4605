"""Which rows are removed where a range is to be read again."""

from dataclasses import replace
from typing import Any

import pytest
from psycopg import sql

from airflow_provider_backpressure.connectors.postgres.identifiers import QualifiedName
from airflow_provider_backpressure.connectors.postgres.sink import leftovers
from airflow_provider_backpressure.connectors.postgres.sink.system_tables import plan_table
from airflow_provider_backpressure.core.config import Consistency, Mode
from airflow_provider_backpressure.core.snapshot.plan import Plan
from tests.unit.core.planning.test_catch_up_windows import RANGES

TARGET = QualifiedName(schema="raw", name="t")


@pytest.mark.parametrize(
    ("plan", "removed", "marked"),
    [
        (replace(RANGES, stream="slot"), 7, True),
        # Its windows may be planned meanwhile: then nothing would bring the rows again.
        (RANGES, 0, False),
        (replace(RANGES, consistency=Consistency.STATIC), 0, False),
        (replace(RANGES, consistency=Consistency.STATIC, mode=Mode.APPEND), 7, False),
    ],
)
@pytest.mark.statement("X3")
def test_only_rows_that_are_read_again_for_certain_are_removed(
    monkeypatch: pytest.MonkeyPatch, plan: Plan, removed: int, *, marked: bool
) -> None:
    """X3: a range that is read again alone loses no row between the target and the ledger."""
    marks: list[bool] = []
    monkeypatch.setattr(leftovers, "delete_rows", lambda *_: 7)
    monkeypatch.setattr(leftovers, "mark_consistent", lambda *_, consistent, **__: marks.append(consistent))
    connection: Any = None
    found = leftovers.remove_range(connection, TARGET, plan_table("raw"), plan, [sql.SQL("true")])
    assert (found, marks) == (removed, [False] if marked else [])
