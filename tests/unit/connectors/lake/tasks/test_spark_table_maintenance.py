"""When a table is maintained behind a window, and what is left of it where a statement fails."""

import time
from typing import Any

import pytest
from pyspark.errors import PySparkException

from airflow_provider_backpressure.connectors.lake.markers import Holder
from airflow_provider_backpressure.connectors.lake.spark.commit_notes import COMPACTED, MAINTAIN_EVERY, LogState
from airflow_provider_backpressure.connectors.lake.tasks.spark_table_maintenance import maintain
from airflow_provider_backpressure.core.stage_metrics import Stage, flow_of
from tests.unit.connectors.lake.spark.test_commit_notes import window

pytestmark = pytest.mark.statement("K3")


class Recorded:
    """A table that writes down what is done to it. ``fails``: the statement that Spark ends with an error."""

    name = "lake.raw.t"

    def __init__(self, windows: int, fails: str = "") -> None:
        self.marks = {("p1", f"{number}.0"): window(number) for number in range(windows)}
        self.compacted, self.fails, self.done, self.every = "", fails, list[str](), 0

    def state(self) -> LogState:
        holder = Holder(plan_id="p1", epoch=1, about={MAINTAIN_EVERY: self.every})
        return LogState(holders=[holder], marks=self.marks, compacted=self.compacted)

    def compact(self) -> None:
        self._do("compact")

    def remove_old_versions(self) -> None:
        self._do("remove")

    def keep(self, properties: dict[str, str]) -> None:
        self._do("keep")
        self.compacted = properties[COMPACTED]

    def _do(self, what: str) -> None:
        self.done.append(what)
        if what == self.fails:
            raise PySparkException(f"no {what}")


def run(table: Any, every: int) -> dict[str, Any]:
    """Maintain behind a window that began half a second ago."""
    table.every = every
    return dict(maintain(table, table.state(), "tag", began=time.perf_counter() - 0.5))


def test_it_is_due_after_so_many_windows_and_never_where_it_is_switched_off() -> None:
    """K3: what was done counts from the last window on that was compacted."""
    table = Recorded(windows=3)
    assert run(table, 0) == {}
    spent = flow_of(run(table, 4))[Stage.MAINTENANCE]
    assert table.done == []
    assert spent.idle >= 0.5
    run(table, 3)
    assert table.done == ["compact", "keep", "remove"]
    run(table, 1)
    assert table.done == ["compact", "keep", "remove"], "nothing came since"


@pytest.mark.parametrize("fails", ["compact", "keep", "remove"])
def test_an_error_fails_no_window_and_a_compaction_is_not_repeated_for_it(fails: str) -> None:
    """K3: the next window tries what is not done; old versions can wait for the next compaction."""
    table = Recorded(windows=2, fails=fails)
    assert Stage.MAINTENANCE.value in run(table, 2)
    done = ["compact", "keep", "remove"]
    assert table.done == done[: done.index(fails) + 1]
    table.fails = ""
    run(table, 2)
    assert table.done.count("compact") == (1 if fails == "remove" else 2)
    assert table.compacted
