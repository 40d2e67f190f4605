"""What is read of the log of a Delta table, over a log that is a list."""

import time
from contextlib import nullcontext
from typing import Any, cast
from unittest.mock import Mock

import pytest
from pyspark.errors import PySparkException

from airflow_provider_backpressure.connectors.lake.markers import Attempt, Mark
from airflow_provider_backpressure.connectors.lake.spark import delta
from airflow_provider_backpressure.connectors.lake.spark import table as spark_table
from airflow_provider_backpressure.connectors.lake.spark.commit_notes import LogState, note_of_clearing, note_of_mark
from airflow_provider_backpressure.connectors.lake.spark.delta import FIRST, DeltaTable
from airflow_provider_backpressure.connectors.lake.spark.table import MakeStatement

PLAN = "plan"


class Logged(DeltaTable):
    """A table that others commit to while its log is read."""

    def __init__(self) -> None:
        super().__init__(cast("Any", None), "lake.raw.t")
        self.log: list[dict[str, Any]] = []
        self.meanwhile: list[int] = []
        """How many commits come behind each of the next answers."""
        self.asked: list[int] = []

    def commit(self) -> None:
        """Commit a slice of its own."""
        number = len(self.log)
        attempt = Attempt(plan_id=PLAN, epoch=1, slice_id=f"{number}.0", attempt=1, bounds={})
        note = note_of_mark(Mark.made(attempt, rows=1, bytes=1, checksum="c", files=()))
        self._append("WRITE", note.to_json())

    def restore(self, **parameters: str | None) -> None:
        """Restore the table to a version, or to a moment."""
        self._append("RESTORE", None, **parameters)

    def replace(self, operation: str) -> None:
        """Make the table again under its name."""
        self._append(operation, None)

    def _append(self, operation: str, text: str | None, **parameters: str | None) -> None:
        entry = {"operation": operation, "operationParameters": parameters, "userMetadata": text}
        self.log.append({"version": len(self.log), **entry})

    def properties(self) -> dict[str, str]:
        return {}

    def _history(self, most: int) -> list[Any]:
        found = self.log[::-1][:most]
        self.asked.append(most)
        for _ in range(self.meanwhile.pop(0) if self.meanwhile else 0):
            self.commit()
        return found


@pytest.mark.statement("K1")
@pytest.mark.parametrize("meanwhile", [[], [1], [3], [0, 20], [2, 30, 50]], ids=str)
def test_a_commit_while_the_log_is_read_hides_no_other(meanwhile: list[int]) -> None:
    """K1: every commit is read once, whenever it comes."""
    table = Logged()
    for _ in range(10):
        table.commit()
    table.read_state()
    table.commit()
    table.meanwhile = list(meanwhile)
    table.read_state()
    table.meanwhile.clear()
    table.commit()
    assert len(table.read_state().marks_of(PLAN)) == len(table.log)


def test_the_newest_commits_are_asked_for_once_where_there_are_no_more() -> None:
    """A lane asks after each range."""
    table = Logged()
    table.commit()
    table.read_state()
    table.asked.clear()
    table.read_state()
    table.commit()
    table.read_state()
    assert table.asked == [FIRST, FIRST]


@pytest.mark.statement("X3")
def test_after_a_restore_the_marks_count_that_the_restored_version_had() -> None:
    """X3: their rows are in the table; to a moment that no version is named for, none counts."""
    table = Logged()
    for _ in range(4):
        table.commit()
    table.restore(version="1", timestamp=None)
    assert set(table.read_state().marks_of(PLAN)) == {"0.0", "1.0"}
    table.commit()
    table.restore(version="3", timestamp=None)
    assert set(table.read_state().marks_of(PLAN)) == {"0.0", "1.0", "2.0", "3.0"}
    table.restore(version="5", timestamp=None)
    assert set(table.read_state().marks_of(PLAN)) == {"0.0", "1.0", "5.0"}, "what was restored before, and came on top"
    table.restore(version=None, timestamp="2026-01-01 00:00:00")
    table.commit()
    assert set(table.read_state().marks_of(PLAN)) == {"9.0"}


@pytest.mark.statement("X3")
@pytest.mark.parametrize("operation", ["CREATE OR REPLACE TABLE", "REPLACE TABLE AS SELECT", "CLONE"])
def test_no_mark_counts_of_a_table_that_was_replaced(operation: str) -> None:
    """X3: the log continues, and the table has no row of what was committed before."""
    table = Logged()
    for _ in range(3):
        table.commit()
    table.replace(operation)
    assert not table.read_state().marks_of(PLAN)
    table.commit()
    assert set(table.read_state().marks_of(PLAN)) == {"4.0"}
    assert table.read_state().present == {f"backpressure:{PLAN}:4.0:1"}


class Overtaken(DeltaTable):
    """A table of which a merge ends in an error so many times."""

    def __init__(self, error: str, times: int) -> None:
        super().__init__(Mock(), "lake.raw.t")
        self.error, self.times, self.ran = error, times, 0
        self._partitions = {}

    def state(self, *, with_losses: bool = False) -> LogState:
        return Mock(admits=lambda note: True)

    def replace_rows(self, session: Any, state: LogState, make_statement: MakeStatement) -> None:
        self.ran += 1
        if self.ran <= self.times:
            raise PySparkException(self.error)


@pytest.mark.statement("K3", "X1")
@pytest.mark.parametrize(
    ("error", "ran"),
    [
        ("io.delta.exceptions.ConcurrentDeleteReadException: [DELTA_CONCURRENT_DELETE_READ] files were deleted", 3),
        ("io.delta.exceptions.MetadataChangedException: [DELTA_METADATA_CHANGED] changed by a concurrent update", 3),
        ("[DIVIDE_BY_ZERO] Division by zero", 1),
    ],
)
def test_a_merge_that_another_commit_overtook_is_made_again(
    error: str, ran: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K3, X1: a compaction, or the property that says when it was, comes while ranges are merged side by side."""
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    monkeypatch.setattr(spark_table, "clone_session", nullcontext)
    table = Overtaken(error, times=2)
    try:
        table.clear(note_of_clearing(PLAN))
    except PySparkException:
        assert ran == 1
    assert table.ran == ran


@pytest.mark.statement("K3", "X1")
def test_no_file_is_removed_while_a_merge_writes_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """K3, X1: the next range of a topic may be merged meanwhile, and no version has its files yet."""
    table, ran = Overtaken("", times=0), list[bool]()
    session = Mock()
    session.sql.side_effect = lambda statement: ran.append(table._merging.locked())
    monkeypatch.setattr(delta, "clone_session", lambda of: nullcontext(session))
    table.remove_old_versions()
    assert ran == [True]
    assert not table._merging.locked()
