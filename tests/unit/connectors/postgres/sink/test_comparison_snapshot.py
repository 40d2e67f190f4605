"""From which row of the target a comparison takes how far the log is in."""

from typing import Any

import pytest

from airflow_provider_backpressure.connectors.postgres.sink.comparison_snapshot import PostgresTargetMoment
from airflow_provider_backpressure.connectors.postgres.sink.system_tables import commit_table, frontier_table
from airflow_provider_backpressure.core.config import Budget
from airflow_provider_backpressure.core.planning.catch_up_windows import next_windows
from airflow_provider_backpressure.exceptions import LedgerRefused
from tests.unit.core.planning.test_catch_up_windows import RANGES, READ, Log, at

pytestmark = pytest.mark.statement("W8")


class Target:
    """A connection to a target whose frontier table has these rows, and whose markers say nothing."""

    def __init__(self, *frontiers: tuple[str, str, int]) -> None:
        self._frontiers, self._found = frontiers, list[tuple[Any, ...]]()

    def execute(self, query: Any, values: tuple[str, ...]) -> "Target":
        of_log = "pos" in query.as_string(None)
        self._found = [(row[2],) for row in self._frontiers if row[: len(values)] == values] if of_log else []
        return self

    def fetchone(self) -> tuple[Any, ...] | None:
        return self._found[0] if self._found else None

    def fetchall(self) -> list[tuple[Any, ...]]:
        return self._found


def moment(*frontiers: tuple[str, str, int]) -> Any:
    """Return a moment of a target that is there already."""
    made: Any = object.__new__(PostgresTargetMoment)
    made._connection = Target(*frontiers)
    made._commits, made._frontiers = commit_table("raw"), frontier_table("raw")
    return made


def test_a_target_of_several_streams_is_where_its_plan_has_brought_it() -> None:
    """W8: a target that was followed by another hydration before, or was a topic's, has rows of that too."""
    plan, _ = next_windows(RANGES, Log(end=160), READ, budget=Budget(), hydrating=True)
    found = moment(("raw.t", "earlier", 9000), ("raw.t", "slot", 155), ("raw.u", "slot", 7))._stand(plan, "raw.t")
    assert (found.end.at, found.reached) == (155, True)
    assert not moment(("raw.t", "earlier", 9000), ("raw.t", "slot", 120))._stand(plan, "raw.t").reached


def test_a_target_that_does_not_say_how_far_it_is_is_not_compared() -> None:
    """W8: where the plan's windows end says nothing of what is in."""
    plan, _ = next_windows(RANGES, Log(end=160), READ, budget=Budget(), hydrating=True)
    with pytest.raises(LedgerRefused, match="does not say how far"):
        moment(("raw.t", "earlier", 9000))._stand(plan, "raw.t")
    assert moment()._stand(RANGES, "raw.t").end == at(100)
